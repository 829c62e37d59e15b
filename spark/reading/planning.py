"""Turns the options into frozen ranges: which offsets of which partitions a read covers, and how they split
into tasks.

`partitions()` runs once per load(), at the first action.  "Latest" is frozen there, so every later action on
the same DataFrame reads the same records.  The driver chooses the partitions, asks their leaders for the
limits of the logs (and for the offsets of timestamps), freezes each [start, end), and splits it by stored
bytes at batch boundaries.  It divides a range further, by offsets, when a task would have too many
decompressed bytes (`maxDecompressedBytesPerPartition`) or too many offsets (`maxRecordsPerPartition`), or
when there would be too few tasks (`minPartitions`).

A read at a cut has its partitions and their bounds from the cut, which is given or taken by `plan`: then that
is what is frozen.

`choose_partitions`, `freeze_range`, `freeze_at_cut` and what they call decide without a connection; `plan`
asks the nodes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...client.consuming.cut import Cut, CutPartition
from ...client.consuming.visibility import AtCut
from ...runtime.logs import get
from ...wire.errors import ErrorCode
from ..connecting.answers import LeaderView, OffsetAnswer, SplitRange, TopicView
from ..connecting.data_client import DataClient, offset_query
from ..connecting.errors import ReadError
from ..java_pattern import compile_java_pattern
from ..options import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    EveryPartition,
    OptionError,
    Partitions,
    Pattern,
    ReadOptions,
    Selection,
    Topics,
)
from .cuts import pinned_cut, take_cut

log = get(__name__)

TASKS_MAX = 1_000_000
RANGES_OF_TASK_MAX = 16  # each costs a call, and they are read one after the other

Key = tuple[str, int]
Splits = Mapping[Key, Sequence[SplitRange]]
"""What is read of each partition, in parts."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The range that one task reads, and the leader that it asks first."""

    topic: str
    topic_id: bytes
    partition: int
    start: int
    end: int
    bytes_estimated: int
    leader: LeaderView | None
    at_cut: AtCut | None = None


@dataclass(frozen=True, slots=True)
class FrozenRange:
    """The frozen range of one partition."""

    start: int
    end: int


def plan(client: DataClient, options: ReadOptions, *, reads_data: bool = True) -> list[PlannedRange]:
    """The ranges of one load(), without empty ones.  Without `reads_data` the leaders only count their
    records."""
    if options.reads_at_cut:
        return _plan_at_cut(client, options, reads_data=reads_data)
    topics, keys = choose_partitions(
        options.selection, client.describe(topics_to_describe(options.selection))
    )
    for side, bound in (("starting", options.starting), ("ending", options.ending)):
        require_all_named(side, bound, keys)
    limits = ask_offsets(client, topics, keys, None, options)
    starts = ask_offsets(client, topics, keys, options.starting, options)
    ends = ask_offsets(client, topics, keys, options.ending, options)
    settled = {key: freeze_range(key, options, limits[key], starts.get(key), ends.get(key)) for key in keys}
    _warn_of_open_transactions(options, limits)
    wanted = {key: (part.start, part.end) for key, part in settled.items() if part.start < part.end}
    return split_into_tasks(client, topics, wanted, options, reads_data=reads_data)


def _plan_at_cut(client: DataClient, options: ReadOptions, *, reads_data: bool) -> list[PlannedRange]:
    if options.cut is None:
        found = client.describe(topics_to_describe(options.selection))
        topics, _ = choose_partitions(options.selection, found)
        if not topics:
            return []
        cut, selection = take_cut(client, list(topics)), options.selection
        log.info("cut_taken", cut=cut.cut_id, taken_ms=cut.taken_ms, topics=", ".join(topics))
    else:
        cut = options.cut if isinstance(options.cut, Cut) else pinned_cut(client, options.cut)
        selection = selected_of_cut(options.selection, cut)
        found = client.describe(topics_to_describe(selection) or tuple(cut.topics))
    topics, keys = choose_partitions(selection, views_of_cut(cut, found))
    require_all_named("starting", options.starting, keys)
    limits = ask_offsets(client, topics, keys, None, options)
    starts = ask_offsets(client, topics, keys, options.starting, options)
    parts = cut.partitions
    shortened = [key for key in starts if parts[key].start < limits[key].log_start_offset]
    firsts = ask_offsets(client, topics, shortened, AtTimestamp(0), options)
    wanted = {
        key: freeze_at_cut(key, options, parts[key], limits[key], starts.get(key), firsts.get(key))
        for key in keys
    }
    planned = split_into_tasks(
        client,
        topics,
        {key: (part.start, part.end) for key, part in wanted.items() if part.start < part.end},
        options,
        reads_data=reads_data,
    )
    return [
        replace(part, at_cut=_filter(parts[part.topic, part.partition], part, options)) for part in planned
    ]


def _filter(bounds: CutPartition, part: PlannedRange, options: ReadOptions) -> AtCut:
    found = bounds.shown(part.start, part.end)
    return found if options.fail_on_data_loss else replace(found, settled_end=None)


def selected_of_cut(selection: Selection, cut: Cut) -> Selection:
    """What is read of a cut that was given.  Raises OptionError for topics that are not in it."""
    if selection == Topics(()):
        return Topics(tuple(sorted(cut.topics)))
    missing = sorted(set(topics_to_describe(selection)) - set(cut.topics))
    if missing:
        raise OptionError(
            f"topic {missing[0]!r} is not in the cut, which has {', '.join(sorted(cut.topics))}: read "
            "these, or take a cut of all topics that are read"
        )
    return selection


def views_of_cut(cut: Cut, found: Mapping[str, TopicView]) -> dict[str, TopicView]:
    """The topics as the cut has them, of those that were found."""
    return {
        name: TopicView(name, topic.topic_id, found[name].internal, tuple(sorted(topic.partitions)))
        for name, topic in cut.topics.items()
        if name in found
    }


def topics_to_describe(selection: Selection) -> tuple[str, ...]:
    """The names to look up; none means all topics."""
    match selection:
        case Topics(names):
            return names
        case Partitions(by_topic):
            return tuple(by_topic)
        case Pattern():
            return ()


def choose_partitions(
    selection: Selection, found: Mapping[str, TopicView]
) -> tuple[dict[str, TopicView], list[Key]]:
    """The topics and partitions that are read, in order; none where no topic matches a pattern.

    Raises OptionError for a partition that is not there."""
    match selection:
        case Topics(names):
            chosen = {name: found[name].partitions for name in names}
        case Partitions(by_topic):
            chosen = by_topic
            for name, numbers in by_topic.items():
                missing = sorted(set(numbers) - set(found[name].partitions))
                if missing:
                    raise OptionError(
                        f"assign: topic {name!r} has no partition {missing[0]}: it has "
                        f"{len(found[name].partitions)}"
                    )
        case Pattern(expression):
            pattern = compile_java_pattern(expression)
            matching = sorted(
                name for name, view in found.items() if not view.internal and pattern.search(name)
            )
            if not matching:
                log.warning("no_topic_matches", subscribePattern=expression)
            chosen = {name: found[name].partitions for name in matching}
    return {name: found[name] for name in chosen}, [
        (name, number) for name in chosen for number in chosen[name]
    ]


def require_all_named(side: str, bound: Bound, keys: Iterable[Key]) -> None:
    """A bound given per partition must name exactly the partitions that are read: a forgotten one is never
    guessed."""
    if not isinstance(bound, AtOffsets | AtTimestamps):
        return
    wanted, named = set(keys), set(bound.by_partition)
    name = f"{side}Offsets" + ("ByTimestamp" if isinstance(bound, AtTimestamps) else "")
    if wanted - named:
        raise OptionError(
            f"{name} must name every partition that is read: {list_partitions(wanted - named)} is missing"
        )
    if named - wanted:
        raise OptionError(f"{name} names {list_partitions(named - wanted)}, which is not read")


def freeze_range(
    key: Key, options: ReadOptions, limits: OffsetAnswer, start: OffsetAnswer | None, end: OffsetAnswer | None
) -> FrozenRange:
    """One partition's [start, end).  `start` and `end` answer the timestamp queries, for bounds that are
    timestamps."""
    place = f"{key[0]}-{key[1]}"
    # Records may come between two questions: an answer about a time goes with its own limits.
    visible_end = end_of_visible(options, end or limits)
    first = settle_start(place, options, start or limits, start, explicit_offset(options.starting, key))
    wanted_end = explicit_offset(options.ending, key)
    if end is not None:
        last = end.offset if end.offset >= 0 else visible_end
    else:
        last = visible_end if wanted_end in (None, LATEST) else wanted_end or 0
    if last > visible_end:
        limit = "last stable offset" if options.read_committed else "high watermark"
        problem = (
            f"{place}: the read is to end at {last}, but the {limit} is {visible_end} (log end seen: "
            f"{limits.high_watermark})"
        )
        if options.fail_on_data_loss:
            raise ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{problem}; set failOnDataLoss=false to read what there is"
            )
        log.warning("range_cut", reason=problem)
        last = visible_end
    is_after_last = start is not None and start.offset < 0
    if last < min(first, visible_end) and not is_after_last:
        problem = f"{place}: the read is to start at {first}, which is above its end {last}"
        if first == limits.log_start_offset:
            problem += ": the log begins there, and what was before is deleted"
        if options.fail_on_data_loss:
            raise ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{problem}; set failOnDataLoss=false to read nothing of it"
            )
        log.warning("range_is_empty", reason=problem)
    return FrozenRange(first, max(first, last))


def freeze_at_cut(
    key: Key,
    options: ReadOptions,
    part: CutPartition,
    limits: OffsetAnswer,
    start: OffsetAnswer | None,
    earliest: OffsetAnswer | None = None,
) -> FrozenRange:
    """One partition's [start, end) at a cut.  `start` answers the timestamp query, for a start that is a
    timestamp; `earliest` is the first record of a log that begins above the cut by now.  Raises ReadError.

    A read from a time on has lost nothing while the log still begins with an older record."""
    place = f"{key[0]}-{key[1]}"
    is_shortened = earliest is not None and (
        earliest.offset < 0 or (start is not None and earliest.offset == start.offset)
    )
    if start is not None and start.offset >= part.end:
        start = replace(start, offset=-1)
    within = limits_at_cut(part)
    first = settle_start(place, options, within, start, explicit_offset(options.starting, key))
    last, lost = part.end, ""
    if first < min(limits.log_start_offset, last) or is_shortened:
        first = max(first, min(limits.log_start_offset, last))
        lost = f"the log begins at {limits.log_start_offset} now: a cut that is pinned keeps its records"
    if last > limits.high_watermark:
        first, last = min(first, limits.high_watermark), limits.high_watermark
        lost = f"the log ends at {last} now"
    if lost:
        problem = f"{place}: the cut has [{part.start}, {part.end}), and {lost}"
        if options.fail_on_data_loss:
            raise ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{problem}; set failOnDataLoss=false to read what there is"
            )
        log.warning("range_cut", reason=problem)
    return FrozenRange(first, max(first, last))


def limits_at_cut(part: CutPartition) -> OffsetAnswer:
    """The limits of a partition's log, as a reader at a cut sees them."""
    return OffsetAnswer(part.end, part.start, part.end, part.end)


def end_of_visible(options: ReadOptions, limits: OffsetAnswer) -> int:
    """Up to which offset the records are settled for this isolation."""
    return limits.last_stable_offset if options.read_committed else limits.high_watermark


def settle_start(
    place: str,
    options: ReadOptions,
    limits: OffsetAnswer,
    answer: OffsetAnswer | None,
    explicit: int | None,
) -> int:
    """Where a read of one partition begins.  `answer` is that of a timestamp query; `explicit` the offset of
    other bounds, EARLIEST or LATEST.  Raises ReadError.

    An offset between the last stable offset and the high watermark is there: a reader of committed records
    waits at it."""
    visible_end, log_end = end_of_visible(options, limits), limits.high_watermark
    if answer is not None:
        if answer.offset >= 0:
            return answer.offset
        if options.starting_after_last_is_error:
            raise ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{place}: no record is as late as the starting timestamp; "
                f"set startingOffsetsByTimestampStrategy=latest to read nothing from such partitions",
            )
        return visible_end
    if explicit is None or explicit == EARLIEST:
        return limits.log_start_offset
    if explicit == LATEST:
        return visible_end
    if limits.log_start_offset <= explicit <= log_end:
        return explicit
    problem = (
        f"{place}: the read is to start at {explicit}, but offsets {limits.log_start_offset} to "
        f"{log_end} are there"
    )
    if options.fail_on_data_loss:
        raise ReadError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{problem}; set failOnDataLoss=false to read what there is"
        )
    log.warning("range_cut", reason=problem)
    return min(max(explicit, limits.log_start_offset), log_end)


def limit_records(splits: Splits, records_max: int) -> Splits:
    """Ranges of at most so many offsets (the records may be fewer), each divided evenly."""
    return _divided(
        "maxRecordsPerPartition", splits, lambda whole: -(-(whole.end - whole.start) // records_max)
    )


def limit_decompressed(splits: Splits, bytes_max: int) -> Splits:
    """Ranges whose records have at most about so many bytes when decompressed, where the leaders estimated
    it."""
    return _divided(
        "maxDecompressedBytesPerPartition",
        splits,
        lambda whole: max(1, min(whole.end - whole.start, -(-whole.decompressed_estimated // bytes_max))),
    )


def _divided(option: str, splits: Splits, share: Callable[[SplitRange], int]) -> Splits:
    require_task_limit(option, sum(share(whole) for parts in splits.values() for whole in parts))
    return {
        key: [part for whole in parts for part in divide(whole, share(whole))]
        for key, parts in splits.items()
    }


def reach_task_min(splits: Splits, count_min: int | None) -> Splits:
    """Divides the largest ranges until there are `count_min` exactly; fewer only when there are fewer
    offsets."""
    ranges = [(key, part) for key, parts in splits.items() for part in parts]
    require_task_limit("minPartitions", min(count_min or 0, sum(part.end - part.start for _, part in ranges)))
    shares = [1] * len(ranges)
    # The range whose tasks are the largest is divided into one more; by offsets where no bytes are known.
    heap = [
        (-float(max(1, part.bytes_estimated)), at)
        for at, (_, part) in enumerate(ranges)
        if part.end - part.start > 1
    ]
    heapq.heapify(heap)
    for _ in range((count_min or 0) - len(ranges)):
        if not heap:
            break
        at = heap[0][1]
        part = ranges[at][1]
        shares[at] += 1
        if shares[at] < part.end - part.start:
            heapq.heapreplace(heap, (-max(1, part.bytes_estimated) / shares[at], at))
        else:
            heapq.heappop(heap)
    divided: dict[Key, list[SplitRange]] = {key: [] for key in splits}
    for (key, part), share in zip(ranges, shares, strict=True):
        divided[key] += divide(part, share)
    return divided


def share_tasks(
    ranges: Iterable[PlannedRange], bytes_min: int, records_max: int | None
) -> list[tuple[PlannedRange, ...]]:
    """Tasks for small ranges: each takes ranges until they have about `bytes_min` stored bytes.  A task costs
    Spark more than to read a small range does."""
    tasks: list[tuple[PlannedRange, ...]] = []
    held: tuple[PlannedRange, ...] = ()
    size = offsets = 0
    for part in ranges:
        count = part.end - part.start
        is_full = size >= bytes_min or len(held) == RANGES_OF_TASK_MAX
        if held and (is_full or (records_max is not None and offsets + count > records_max)):
            tasks.append(held)
            held, size, offsets = (), 0, 0
        held = (*held, part)
        size, offsets = size + part.bytes_estimated, offsets + count
    return [*tasks, held] if held else tasks


def require_task_limit(option: str, tasks: int) -> None:
    """Raises OptionError for a number of tasks that would exhaust the driver."""
    if tasks > TASKS_MAX:
        raise OptionError(
            f"{option} would make {tasks} tasks: choose it so that there are at most {TASKS_MAX}"
        )


def divide(whole: SplitRange, parts: int) -> list[SplitRange]:
    """[start, end) in so many parts of about equal offsets; both parts read a batch that spans their
    boundary."""
    offsets = whole.end - whole.start
    edges = [whole.start + offsets * part // parts for part in range(parts + 1)]
    size, decompressed = whole.bytes_estimated // parts, whole.decompressed_estimated // parts
    return [SplitRange(start, end, size, decompressed) for start, end in itertools.pairwise(edges)]


def explicit_offset(bound: Bound, key: Key) -> int | None:
    """The offset that the bound names, EARLIEST or LATEST; None for a time."""
    match bound:
        case EveryPartition(offset):
            return offset
        case AtOffsets(by_partition):
            return by_partition[key]
        case _:
            return None


def ask_offsets(
    client: DataClient,
    topics: Mapping[str, TopicView],
    keys: Iterable[Key],
    bound: Bound | None,
    options: ReadOptions,
) -> dict[Key, OffsetAnswer]:
    """The limits of all logs (bound None), or the offsets of a bound's timestamps (nothing for other
    bounds)."""
    times: dict[Key, int | None]
    match bound:
        case None:
            times = dict.fromkeys(keys)
        case AtTimestamp(timestamp_ms):
            times = dict.fromkeys(keys, timestamp_ms)
        case AtTimestamps(by_partition):
            times = {key: by_partition[key] for key in keys}
        case _:
            return {}
    queries = {key: offset_query(key[1], timestamp_ms=time) for key, time in times.items()}
    return client.offsets_of_topics(topics, queries, read_committed=options.read_committed)


def split_into_tasks(
    client: DataClient,
    topics: Mapping[str, TopicView],
    wanted: Mapping[Key, tuple[int, int]],
    options: ReadOptions,
    *,
    reads_data: bool,
) -> list[PlannedRange]:
    """The tasks that read `wanted`, the [start, end) of each partition."""
    found = client.plan_many_ranges(
        topics, wanted, options.partition_bytes_max, estimate_decompressed=reads_data
    )
    require_task_limit("maxBytesPerPartition", sum(map(len, found.values())))
    limited = limit_decompressed(found, options.partition_decompressed_max)
    if options.partition_records_max is not None:
        limited = limit_records(limited, options.partition_records_max)
    splits = reach_task_min(limited, options.partitions_min)
    return [
        PlannedRange(
            topic=name,
            topic_id=topics[name].topic_id,
            partition=partition,
            start=part.start,
            end=part.end,
            bytes_estimated=part.bytes_estimated,
            leader=client.leaders.known(name, partition),
        )
        for (name, partition), parts in splits.items()
        for part in parts
    ]


def _warn_of_open_transactions(options: ReadOptions, limits: Mapping[Key, OffsetAnswer]) -> None:
    """Warns that the read leaves out committed records above an open transaction; nothing else would show
    it."""
    behind = {
        key: answer for key, answer in limits.items() if answer.last_stable_offset < answer.high_watermark
    }
    if options.read_committed and behind:
        log.warning("open_transactions_end_the_read_early", partitions=list_partitions(behind))


def list_partitions(keys: Iterable[Key]) -> str:
    """The first few of them, for a message."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(keys)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
