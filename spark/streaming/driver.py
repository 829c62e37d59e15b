"""The driver's part of a stream: looks at the cluster once a trigger, and plans the tasks of a micro-batch.

A trigger costs one Offsets call to each leader (a topic).  The topics themselves are described again when the
last description is older than DESCRIBE_INTERVAL_S, or when a leader says that a topic is not what it was: so
new partitions and topics are found, and a topic that was made again is noticed at once, because each call
carries its id.

Nothing here decides what is read without having it in the offset that goes to the checkpoint: a micro-batch
that is run again, by another process, is planned from its two offsets alone.

A stream with consistency=cut takes a cut when a look has found something new, so that an idle stream takes
none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ...client.consuming.cut import Cut
from ...runtime.clock import Clock, SystemClock
from ...runtime.logs import get
from ...wire.errors import ErrorCode
from ..connecting.answers import OffsetAnswer, SplitRange, TopicView
from ..connecting.data_client import ID_UNKNOWN, DataClient
from ..connecting.errors import ReadError
from ..options import LATEST, ReadOptions, StreamOptions
from ..reading.cuts import take_cut
from ..reading.planning import (
    PlannedRange,
    ask_offsets,
    choose_partitions,
    end_of_visible,
    explicit_offset,
    limits_at_cut,
    require_all_named,
    settle_start,
    split_into_tasks,
    topics_to_describe,
    views_of_cut,
)
from .group_commits import GroupCommits
from .offsets import Json, Key, OffsetError, StreamOffset, by_topic, to_json
from .triggers import (
    Available,
    LateRange,
    Seen,
    available,
    behind,
    covered,
    end_within_bytes,
    filter_at,
    finished,
    is_delayed,
    lag_metrics,
    late_ranges,
    matching,
    next_offset,
    ranges,
    selected,
    share_of_bytes,
    within_offsets,
    without_aborted,
)

log = get(__name__)

DESCRIBE_INTERVAL_S: Final = 1.0
ATTEMPTS: Final = 3  # what a look or a plan begins with may have changed at its end
WHOLE: Final = 1 << 62  # bytes: no split
RANGES_OF_SHARE: Final = 8  # how finely maxBytesPerTrigger is kept

_TOPIC_CHANGED: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
)
_GONE: Final = _TOPIC_CHANGED | {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE}


class StreamDriver:
    """One stream's; use from one thread, and close it."""

    def __init__(
        self,
        client: DataClient,
        options: StreamOptions,
        commits: GroupCommits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._commits = commits
        self._clock = clock or SystemClock()
        self._topics: dict[str, TopicView] = {}
        self._described_at_s = -math.inf
        self._initial: StreamOffset | None = None
        self._stops_at_present = False
        self._present: Seen | None = None  # of trigger(availableNow=True): what there was at its first look
        self._last_batch_at_s: float | None = None
        self._report: Json | None = None

    def close(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self._client.close()

    def initial(self) -> StreamOffset:
        """Where a new query begins.  Spark asks again until the first micro-batch is in its log, so the first
        answer holds.  Raises ReadError, OptionError."""
        if self._initial is None:
            self._initial = self._find_initial()
        return self._initial

    def _find_initial(self) -> StreamOffset:
        read = self._options.read
        topics, keys = choose_partitions(
            read.selection, self._client.describe(topics_to_describe(read.selection))
        )
        if read.takes_cut and topics:
            cut = take_cut(self._client, list(topics))
            topics, keys = choose_partitions(read.selection, views_of_cut(cut, topics))
        else:
            cut = None
        require_all_named("starting", read.starting, keys)
        limits = ask_offsets(self._client, topics, keys, None, read)
        if cut is not None:  # latest is where this cut ends
            limits = {key: replace(limits[key], high_watermark=cut.partitions[key].end) for key in keys}
        times = ask_offsets(self._client, topics, keys, read.starting, read)
        positions = {
            key: settle_start(
                f"{key[0]}-{key[1]}", read, limits[key], times.get(key), explicit_offset(read.starting, key)
            )
            for key in keys
        }
        ids = {name: view.topic_id for name, view in topics.items()}
        initial = StreamOffset(ids, positions, initial=True)
        if cut is None:
            return initial
        at_end = {
            key for key in keys if _begins_at_latest(explicit_offset(read.starting, key), times.get(key))
        }
        undecided = {key: dict(cut.partitions[key].undecided) for key in at_end}
        return replace(initial, cut=(cut.cut_id, cut.taken_ms), undecided=undecided)

    def stop_at_present(self) -> None:
        """From now on no offset goes beyond what there is at the next look."""
        self._stops_at_present = True

    def latest(self, start: StreamOffset, *, unlimited: bool) -> StreamOffset:
        """The end of the micro-batch that begins at `start`; `start` itself when there is none.  Everything
        before `start` is finished.  Raises ReadError, OffsetError."""
        if start.cut is not None and not self._options.read.takes_cut:
            raise OffsetError(
                "the checkpoint stands at a cut, below which transactions may be left to read: go on with "
                "consistency=cut"
            )
        if self._commits is not None and not start.initial:
            self._commits.store(finished(start))
        what = available(start, self._look(start), self._options.read)
        ends: Mapping[Key, int] = what.ends
        if not unlimited:
            if not self._stops_at_present and is_delayed(what, self._options, self._since_last_ms()):
                self._remember(what, start)
                return start
            ends = self._within_limits(what)
        if self._options.read.takes_cut and next_offset(start, what, ends) is not start:
            what = available(start, self._at_cut(start), self._options.read)
            ends = what.ends
        self._last_batch_at_s = self._clock.monotonic()
        reached = next_offset(start, what, ends)
        self._remember(what, reached)
        if reached is not start:
            for loss in what.losses:
                log.warning("records_lost", reason=loss)
            for note in what.notes:
                log.warning("stream_changes", what=note)
        elif self._stops_at_present and self._commits is not None:
            self._commits.flush()  # Spark ends this process now
        return reached

    def report(self) -> Json | None:
        """What the last look found, and how far behind it the stream is; for Spark's progress reports."""
        return self._report

    def plan(self, start: StreamOffset, end: StreamOffset, *, reads_data: bool = True) -> list[PlannedRange]:
        """The tasks of the micro-batch between two offsets.  Raises ReadError, OffsetError."""
        planned = self._planned(ranges(start, end), end, reads_data, self._options.read)
        if end.cut is None and not self._options.read.takes_cut:
            return planned
        at_cut = [
            replace(part, at_cut=filter_at(end, (part.topic, part.partition), part.end)) for part in planned
        ]
        return self._planned_below(late_ranges(start, end), end, reads_data) + at_cut

    def _planned_below(
        self, late: Mapping[Key, LateRange], end: StreamOffset, reads_data: bool
    ) -> list[PlannedRange]:
        """Where the log begins above a late range by now, that is a loss unless what is gone was aborted."""
        options = replace(self._options.read, partitions_min=None)
        for attempt in range(1, ATTEMPTS + 1):
            wanted = {key: (part.first, part.last) for key, part in late.items()}
            try:
                below = self._planned(wanted, end, reads_data, options)
                return [replace(part, at_cut=late[part.topic, part.partition].shown) for part in below]
            except ReadError as problem:
                if problem.code != ErrorCode.OFFSET_OUT_OF_RANGE or attempt == ATTEMPTS:
                    raise
            late = self._without_aborted(late, end)
        return []

    def _without_aborted(self, late: Mapping[Key, LateRange], end: StreamOffset) -> dict[Key, LateRange]:
        views = _views({topic for topic, _ in late}, end.ids)
        left: dict[Key, LateRange] = {}
        for key, limits in ask_offsets(self._client, views, late, None, self._options.read).items():
            part: LateRange | None = late[key]
            if late[key].first < limits.log_start_offset:
                across = self._client.aborted_across_start(key[0], views[key[0]].topic_id, key[1])
                part = without_aborted(late[key], *across)
            if part is not None:
                left[key] = part
        return left

    def _planned(
        self,
        wanted: Mapping[Key, tuple[int, int]],
        end: StreamOffset,
        reads_data: bool,
        options: ReadOptions,
    ) -> list[PlannedRange]:
        for attempt in range(1, ATTEMPTS + 1):
            if not wanted:
                break
            views = _views({topic for topic, _ in wanted}, end.ids)
            try:
                return split_into_tasks(self._client, views, wanted, options, reads_data=reads_data)
            except ReadError as problem:
                if problem.code not in _GONE:
                    raise
                if self._options.read.fail_on_data_loss:
                    raise self._advised(problem) from None
                if attempt == ATTEMPTS:
                    raise
                log.warning("records_lost", reason=problem)
                wanted = self._still_there(wanted, end.ids)
        return []

    # The look at the cluster

    def _look(self, start: StreamOffset) -> Seen:
        if self._present is not None:
            return self._present
        selection = self._options.read.selection
        if self._clock.monotonic() - self._described_at_s >= DESCRIBE_INTERVAL_S or self._stops_at_present:
            self._describe(start)
        for attempt in range(1, ATTEMPTS + 1):
            keys = matching(selection, self._topics)
            topics = {name: self._topics[name] for name in dict.fromkeys(name for name, _ in keys)}
            try:
                limits = ask_offsets(self._client, topics, keys, None, self._options.read)
                break
            except ReadError as problem:
                if problem.code not in _TOPIC_CHANGED or attempt == ATTEMPTS:
                    raise
            self._describe(start)
        seen = Seen(self._ids(), limits)
        if self._stops_at_present and not self._options.read.takes_cut:
            self._present = seen
        return seen

    def _at_cut(self, start: StreamOffset) -> Seen:
        """A new cut of the topics that the look has found."""
        if self._present is not None:
            return self._present
        selection = self._options.read.selection
        for attempt in range(1, ATTEMPTS + 1):
            names = list(dict.fromkeys(name for name, _ in matching(selection, self._topics)))
            try:
                cut = take_cut(self._client, names) if names else Cut({})
                break
            except ReadError as problem:
                if problem.code not in _TOPIC_CHANGED or attempt == ATTEMPTS:
                    raise
            self._describe(start)
        views = views_of_cut(cut, self._topics)
        limits = {key: limits_at_cut(cut.partitions[key]) for key in matching(selection, views)}
        seen = Seen(self._ids() | {name: view.topic_id for name, view in views.items()}, limits, cut)
        if self._stops_at_present:
            self._present = seen
        return seen

    def _ids(self) -> dict[str, bytes]:
        return {view.name: view.topic_id for view in selected(self._options.read.selection, self._topics)}

    def _describe(self, start: StreamOffset) -> None:
        keys = covered(self._options.read.selection, start.positions)
        expected = {name: start.ids.get(name, ID_UNKNOWN) for name, _ in keys}
        # Where the id is known no partition can be gone: that of another topic is another topic's.
        maybe_gone = [key for key in keys if key[0] not in start.ids]
        names = topics_to_describe(self._options.read.selection)
        self._topics = self._client.describe_existing(names, expected, maybe_gone)
        self._described_at_s = self._clock.monotonic()

    def _since_last_ms(self) -> float | None:
        last_s = self._last_batch_at_s
        return None if last_s is None else (self._clock.monotonic() - last_s) * 1000

    def _remember(self, what: Available, reached: StreamOffset) -> None:
        lags = behind(what.ends, reached.positions)
        self._report = {
            **to_json(StreamOffset(what.ids, what.ends)),
            **lag_metrics(lags.values()),
            "offsetsBehindLatest": by_topic(lags),
        }

    # The limits of a trigger

    def _within_limits(self, what: Available) -> dict[Key, int]:
        ends = within_offsets(what, self._options.offsets_max)
        wanted = {key: (what.begins[key], end) for key, end in ends.items() if end > what.begins[key]}
        most = self._options.bytes_max
        if most is None or not wanted:
            return ends
        try:
            return ends | self._within_bytes(what, wanted, most)
        except ReadError as problem:
            if problem.code not in _GONE or self._options.read.fail_on_data_loss:
                raise self._advised(problem) from None
            return ends  # the plan says what is lost

    def _within_bytes(
        self, what: Available, wanted: Mapping[Key, tuple[int, int]], most: int
    ) -> dict[Key, int]:
        sizes = {
            key: sum(part.bytes_estimated for part in parts)
            for key, parts in self._sizes(what, wanted, WHOLE).items()
        }
        if sum(sizes.values()) <= most:
            return {}
        shares = share_of_bytes(sizes, most)
        # A share is looked for in twice the offsets that it would have if all records were alike.
        near = {
            key: (
                begin,
                min(end, begin + math.ceil((end - begin) * 2 * shares[key] / max(1, sizes[key])) + 1),
            )
            for key, (begin, end) in wanted.items()
        }
        splits = self._sizes(what, near, max(1, most // (RANGES_OF_SHARE * len(near))))
        return {key: end_within_bytes(parts, shares[key]) for key, parts in splits.items()}

    def _sizes(
        self, what: Available, wanted: Mapping[Key, tuple[int, int]], target_bytes: int
    ) -> dict[Key, list[SplitRange]]:
        views = _views({topic for topic, _ in wanted}, what.ids)
        return self._client.plan_many_ranges(views, wanted, target_bytes)

    # Losses

    def _advised(self, problem: ReadError) -> ReadError:
        if problem.code not in _GONE:
            return problem
        message = f"{problem}; to read what there is, set failOnDataLoss=false"
        return ReadError(problem.code, message, problem.log_start_offset)

    def _still_there(
        self, wanted: Mapping[Key, tuple[int, int]], ids: Mapping[str, bytes]
    ) -> dict[Key, tuple[int, int]]:
        """What is left of a micro-batch that was planned before."""
        read = self._options.read
        names = sorted({topic for topic, _ in wanted})
        expected = {name: ids[name] for name in names if name in ids}
        found = self._client.describe_existing(names, expected)
        topics = {name: view for name, view in found.items() if name not in ids or ids[name] == view.topic_id}
        keys = [key for key in wanted if key[0] in topics]
        left: dict[Key, tuple[int, int]] = {}
        for key, limits in ask_offsets(self._client, topics, keys, None, read).items():
            start = max(wanted[key][0], limits.log_start_offset)
            end = min(wanted[key][1], end_of_visible(read, limits))
            if start < end:
                left[key] = start, end
        return left


def _begins_at_latest(explicit: int | None, answer: OffsetAnswer | None) -> bool:
    """Whether a new query begins where its first cut ends, by the offset that is asked for, or for want of a
    record as late as the time."""
    return explicit == LATEST if answer is None else answer.offset < 0


def _views(names: Iterable[str], ids: Mapping[str, bytes]) -> dict[str, TopicView]:
    """Topics by their ids alone; an unknown id stands for whichever topic has the name."""
    return {name: TopicView(name, ids.get(name, ID_UNKNOWN), False, ()) for name in names}
