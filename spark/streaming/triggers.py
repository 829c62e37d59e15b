"""How far the next micro-batch goes.  Pure: where the stream is, what the leaders answered and the limits go
in; the next offset comes out.

`available` decides where each partition goes on and what there is to read; `within_offsets` and
`within_bytes` shorten that by the limits of a trigger, as Spark's Kafka connector does: each partition gets
its share in proportion to what it has; `next_offset` makes the result.

A stream with consistency=cut ends each micro-batch at a cut, and its offset says which transactions that
leaves out.  The next micro-batch reads the records of those that are decided by then, *below* the offset:
from the first record of the earliest of them to the former end, and of these batches theirs alone
(`late_ranges`).  So a record is in exactly one micro-batch, the first one whose cut has its transaction, and
in none if that was aborted.  What a reader shows follows from the two offsets and the log below them,
whenever it is read (docs/semantics.md X12).

What counts as loss is exact.  Offsets that the stream has passed may go; offsets in between may be missing
(markers, aborted transactions, compaction).  Lost is what the log has dropped above the stream's offset, what
it does not reach any more, and below the offset what is left of a transaction, unless that was aborted: an
ABORT marker that is there tells.  A topic that was made again has another id, and nothing of it was read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from ...client.consuming.cut import Cut, CutPartition, decided_since, unless_aborted
from ...client.consuming.visibility import AtCut, Transaction
from ...wire.errors import ErrorCode
from ..connecting.answers import OffsetAnswer, SplitRange, TopicView
from ..connecting.errors import ReadError
from ..java_pattern import compile_java_pattern
from ..options import Partitions, Pattern, ReadOptions, Selection, StreamOptions, Topics
from ..reading.planning import end_of_visible, list_partitions
from .offsets import Key, OffsetError, StreamOffset


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at the cluster found: the ids of all topics that are read, the limits of those logs that
    the answering node knows.  With a cut, all is as that has it."""

    ids: Mapping[str, bytes]
    limits: Mapping[Key, OffsetAnswer]
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Available:
    """What a micro-batch could read: [begins, ends) of each partition.  `new`: their begin does not follow
    from the offset before."""

    ids: Mapping[str, bytes]
    begins: Mapping[Key, int]
    ends: Mapping[Key, int]
    new: frozenset[Key] = frozenset()
    losses: tuple[ReadError, ...] = ()  # accepted by failOnDataLoss=false
    notes: tuple[str, ...] = field(default=())  # no loss as far as one can know
    cut: Cut | None = None


class LateRange(NamedTuple):
    """[first, last) of a partition, and the transactions whose records are shown of that."""

    first: int
    last: int
    shown: AtCut


def selected(selection: Selection, found: Mapping[str, TopicView]) -> list[TopicView]:
    """The topics that are read, of those that exist now; the answering node may not know all their
    partitions yet."""
    match selection:
        case Topics(names):
            return [found[name] for name in names if name in found]
        case Partitions(by_topic):
            return [found[name] for name in by_topic if name in found]
        case Pattern(expression):
            pattern = compile_java_pattern(expression)
            return [
                view for name, view in sorted(found.items()) if not view.internal and pattern.search(name)
            ]


def matching(selection: Selection, found: Mapping[str, TopicView]) -> list[Key]:
    """The partitions that are read, of those that exist now."""
    views = selected(selection, found)
    if isinstance(selection, Partitions):
        wanted = selection.by_topic
        return [
            (view.name, number) for view in views for number in wanted[view.name] if number in view.partitions
        ]
    return [(view.name, number) for view in views for number in view.partitions]


def covered(selection: Selection, keys: Iterable[Key]) -> list[Key]:
    """Those that are read if they exist.  A restart may select others than the checkpoint has."""
    match selection:
        case Topics(names):
            return [key for key in keys if key[0] in names]
        case Partitions(by_topic):
            return [key for key in keys if key[1] in by_topic.get(key[0], ())]
        case Pattern(expression):
            pattern = compile_java_pattern(expression)
            return [key for key in keys if pattern.search(key[0])]


def available(start: StreamOffset, seen: Seen, options: ReadOptions) -> Available:
    """Where each partition goes on, and its end.  Raises ReadError for lost records, unless the options
    accept them."""
    losses: list[ReadError] = []
    notes: list[str] = []
    begins: dict[Key, int] = {}
    ends: dict[Key, int] = {}
    new: set[Key] = set()
    going_on = {key: start.positions[key] for key in covered(options.selection, start.positions)}
    if len(going_on) < len(start.positions):
        left_out = list_partitions(start.positions.keys() - going_on.keys())
        notes.append(
            f"the options select {left_out} no more, which the checkpoint has: selected again later, they "
            "are read from their start"
        )
    gone = _gone_topics({topic for topic, _ in going_on}, start, seen, losses)
    for key, position in going_on.items():
        if key[0] in gone:
            continue
        limits = seen.limits.get(key)
        if limits is None and key[0] not in start.ids:
            losses.append(_partition_gone(key))
            continue
        if limits is None:  # the answering node does not know the partition yet: a topic's never go
            begins[key] = ends[key] = position
            continue
        visible = end_of_visible(options, limits)
        begins[key] = _go_on(key, position, visible, limits, losses)
        ends[key] = max(begins[key], visible)
        if start.initial or begins[key] != position:
            new.add(key)
    # A new partition of a topic that the stream reads as a whole is to be read from its first record.  How
    # old a topic or a partition is that was not selected before, nothing says.
    known = () if isinstance(options.selection, Partitions) else {topic for topic, _ in going_on}
    for key, limits in seen.limits.items():
        if key in begins:
            continue
        new.add(key)
        begins[key] = limits.log_start_offset
        ends[key] = max(begins[key], end_of_visible(options, limits))
        if begins[key] and key[0] in known and key[0] not in gone:
            losses.append(_below_log_start(key, 0, limits))
        elif begins[key]:
            notes.append(f"{key[0]}-{key[1]} begins at {begins[key]}")
    if losses and options.fail_on_data_loss:
        raise losses[0]
    ids = {topic: seen.ids.get(topic, start.ids.get(topic, b"")) for topic, _ in begins}
    return Available(
        {topic: topic_id for topic, topic_id in ids.items() if topic_id},
        begins,
        ends,
        frozenset(new),
        tuple(losses),
        tuple(notes),
        seen.cut,
    )


def _gone_topics(topics: Iterable[str], start: StreamOffset, seen: Seen, losses: list[ReadError]) -> set[str]:
    """The topics that are not there any more, or only others under their names."""
    gone: set[str] = set()
    for topic in sorted(topics):
        before, now = start.ids.get(topic), seen.ids.get(topic)
        if now is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            which = f" (id {UUID(bytes=before)})" if before else ""
            problem = f"topic {topic!r}{which}, which the stream reads, was deleted"
            advice = "to go on without it, set failOnDataLoss=false"
        elif before is not None and now != before:
            code = ErrorCode.INCONSISTENT_TOPIC_ID
            problem = (
                f"topic {topic!r} was deleted and made again: the stream has read the one with id "
                f"{UUID(bytes=before)}, and now there is one with id {UUID(bytes=now)}"
            )
            advice = "to read that from its start, set failOnDataLoss=false"
        else:
            continue
        gone.add(topic)
        losses.append(ReadError(code, f"{problem}; {advice}"))
    return gone


def _partition_gone(key: Key) -> ReadError:
    """Of a topic whose id the checkpoint does not have."""
    return ReadError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"topic {key[0]!r} has no partition {key[1]}, which the checkpoint of Spark's Kafka connector has: "
        "the topic was deleted and made again; to read what there is, set failOnDataLoss=false",
    )


def _go_on(key: Key, position: int, visible: int, limits: OffsetAnswer, losses: list[ReadError]) -> int:
    if position < limits.log_start_offset:
        losses.append(_below_log_start(key, position, limits))
        return limits.log_start_offset
    if position > limits.high_watermark:
        losses.append(
            ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{key[0]}-{key[1]}: the stream has read up to offset {position}, but the log ends at "
                f"{limits.high_watermark} now; to go on there, set failOnDataLoss=false",
            )
        )
        return visible
    return position


def _below_log_start(key: Key, position: int, limits: OffsetAnswer) -> ReadError:
    start = limits.log_start_offset
    return ReadError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{key[0]}-{key[1]}: the stream is at offset {position}, but the log begins at {start} now: "
        f"{start - position} offsets were deleted before they were read; to go on at {start}, set "
        "failOnDataLoss=false",
        start,
    )


def is_delayed(what: Available, options: StreamOptions, since_last_ms: float | None) -> bool:
    """Whether the trigger waits for more records (minOffsetsPerTrigger).  `since_last_ms`: since the last
    micro-batch began; None before the first, which does not wait."""
    if options.offsets_min is None or since_last_ms is None or since_last_ms >= options.trigger_delay_ms:
        return False
    return sum(what.ends[key] - what.begins[key] for key in what.ends) < options.offsets_min


def within_offsets(what: Available, most: int | None) -> dict[Key, int]:
    """The ends of a micro-batch of about `most` offsets.  A partition with something to read gets at least
    one, so that a small one is not starved."""
    sizes = {key: end - what.begins[key] for key, end in what.ends.items() if end > what.begins[key]}
    total = sum(sizes.values())
    if most is None or total <= most:
        return dict(what.ends)
    return {
        key: min(end, what.begins[key] + _whole(most * (sizes[key] / total))) if key in sizes else end
        for key, end in what.ends.items()
    }


def _whole(share: float) -> int:
    return math.ceil(share) if share < 1 else math.floor(share)


def share_of_bytes(sizes: Mapping[Key, int], most: int) -> dict[Key, float]:
    """How many bytes of a micro-batch of about `most` each partition gets, in proportion to what it has."""
    total = max(1, sum(sizes.values()))
    return {key: most * (size / total) for key, size in sizes.items()}


def end_within_bytes(ranges: Sequence[SplitRange], share: float) -> int:
    """The end of the ranges that fit into the share: at least one of them."""
    end, size = ranges[0].end, ranges[0].bytes_estimated
    for part in ranges[1:]:
        size += part.bytes_estimated
        if size > share:
            break
        end = part.end
    return end


def next_offset(start: StreamOffset, what: Available, ends: Mapping[Key, int]) -> StreamOffset:
    """The offset at `ends`; `start` itself when that is the same place, since Spark then has nothing to
    do."""
    begins = {key: what.begins[key] for key in what.new if key in what.begins}
    reached = StreamOffset(what.ids, dict(ends), begins)
    if reached.is_at(start):
        return start
    if what.cut is None:
        return reached
    before = {key: _left_out_before(start, what, key) for key in what.begins}
    parts = what.cut.partitions
    return replace(
        reached,
        cut=(what.cut.cut_id, what.cut.taken_ms),
        undecided={
            key: left_out_at(parts[key], before[key], what.begins[key]) if key in parts else before[key]
            for key in what.begins
        },
        begins_undecided={key: before[key] for key in begins if before[key]},
    )


def _left_out_before(start: StreamOffset, what: Available, key: Key) -> Mapping[int, int]:
    """What is still to come below where the partition goes on; nothing where it does not go on as it was."""
    goes_on = what.begins[key] == start.positions.get(key) and (what.ids.get(key[0]) == start.ids.get(key[0]))
    return start.undecided.get(key, {}) if goes_on else {}


def left_out_at(part: CutPartition, before: Mapping[int, int], begin: int) -> dict[int, int]:
    """What a micro-batch from `begin` to the end of the cut leaves out, by producer id the first offset that
    is still to be read.

    A transaction that began below `begin` and was not left out before has been read up to there: a query may
    begin in its middle, or go on where one without cuts has ended."""
    firsts = {
        producer_id: before[producer_id] if first < begin and producer_id in before else max(first, begin)
        for producer_id, first in part.undecided.items()
    }
    return {producer_id: first for producer_id, first in firsts.items() if first < part.end}


def late_ranges(start: StreamOffset, end: StreamOffset) -> dict[Key, LateRange]:
    """What the micro-batch between the two reads below where it goes on."""
    found: dict[Key, LateRange] = {}
    if end.initial:
        return found
    for key in sorted(end.positions):
        if key in end.begins:
            upto, before = end.begins[key], end.begins_undecided.get(key, {})
        else:
            upto, before = start.positions.get(key, 0), start.undecided.get(key, {})
        if decided := decided_since(before, upto, end.undecided.get(key, {})):
            found[key] = _late_range(decided, upto)
    return found


def without_aborted(late: LateRange, log_start: int, aborted: Mapping[int, int]) -> LateRange | None:
    """What is left to read where the log begins above it by now; see `unless_aborted`."""
    left = unless_aborted(late.shown.transactions, log_start, aborted)
    return _late_range(left, late.last) if left else None


def _late_range(decided: tuple[Transaction, ...], last: int) -> LateRange:
    return LateRange(min(first for _, first in decided), last, AtCut(decided, only=True))


def filter_at(end: StreamOffset, key: Key, last: int) -> AtCut:
    """What the micro-batch that ends here filters by, above where it goes on."""
    undecided = end.undecided.get(key, {}).items()
    return AtCut(tuple(sorted(entry for entry in undecided if entry[1] < last)))


def ranges(start: StreamOffset, end: StreamOffset) -> dict[Key, tuple[int, int]]:
    """What the micro-batch between the two reads, by partition, without empty ranges.  Raises OffsetError."""
    if end.initial:
        return {}
    found: dict[Key, tuple[int, int]] = {}
    for key, last in sorted(end.positions.items()):
        first = end.begins.get(key, start.positions.get(key))
        if first is None:
            raise OffsetError(
                f"the micro-batch reads {key[0]}-{key[1]}, but the checkpoint does not say from where: let "
                "the source that began it finish it"
            )
        if first < last:
            found[key] = first, last
    return found


def behind(latest: Mapping[Key, int], positions: Mapping[Key, int]) -> dict[Key, int]:
    """How many offsets of each partition are to be read after the micro-batch that ends at `positions`."""
    return {key: max(0, end - positions.get(key, end)) for key, end in latest.items()}


def finished(offset: StreamOffset) -> dict[Key, int]:
    """The offset of each partition below which the stream has read everything."""
    return {
        key: min((position, *offset.undecided.get(key, {}).values()))
        for key, position in offset.positions.items()
    }


def lag_metrics(lags: Iterable[int]) -> dict[str, float]:
    """By the names of Spark's Kafka connector."""
    counts = list(lags) or [0]
    return {
        "minOffsetsBehindLatest": min(counts),
        "maxOffsetsBehindLatest": max(counts),
        "avgOffsetsBehindLatest": sum(counts) / len(counts),
    }
