"""A cut as a value: a bound for every partition, and the transactions that it leaves out.  Pure.

Inside is what lies in [start, end) of a partition, without control batches, aborted transactions, and the
transactional records of an `undecided` producer from its first offset on.  Every transaction is wholly inside
or wholly outside; one that was acknowledged before another began is inside with it (docs/semantics.md X11).
Records without a transaction are inside when they lie below the end.

As JSON, version 1:

    {"version": 1, "cut": "5f0c...", "takenMs": 1764000000000, "topics": {"flights": {"id": "7b1c8e62-...",
     "partitions": {"0": {"start": 0, "end": 23, "undecided": {"4711": 17}}, "1": {"start": 0, "end": 5}}}}}

`undecided` has the first offset by producer id.  Topics stand in order of their names, partitions of their
numbers, so that equal cuts have equal texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NoReturn
from uuid import UUID

from .visibility import AtCut, Transaction

if TYPE_CHECKING:
    from ...proto import cuts_pb2

VERSION: Final = 1
DIGITS_MAX: Final = 20
_EXAMPLE: Final = (
    '{"version": 1, "topics": {"flights": {"id": ..., "partitions": {"0": {"start": 0, "end": 23}}}}}'
)

Key = tuple[str, int]  # topic, partition


class CutError(ValueError):
    """A text that is no cut, or cuts that cannot be compared; the message says why."""


class Order(StrEnum):
    """How one cut lies beside another one of the same topics."""

    OLDER = "older"
    SAME = "same"
    NEWER = "newer"
    CONCURRENT = "concurrent"  # taken at the same time: each is further in some partition


@dataclass(frozen=True, slots=True)
class CutPartition:
    """[start, end) of a partition; `undecided`: producer id -> first offset of the transaction that is left
    out."""

    start: int
    end: int
    undecided: Mapping[int, int] = field(default_factory=dict)

    def shown(self, start: int, end: int) -> AtCut:
        """What a reader of [start, end) filters by."""
        assert end <= self.end, f"[{start}, {end}) reaches above the cut's end, {self.end}"
        transactions = tuple(sorted(entry for entry in self.undecided.items() if entry[1] < end))
        return AtCut(transactions, settled_end=min((self.end, *self.undecided.values())))


@dataclass(frozen=True, slots=True)
class CutTopic:
    """A topic, by its id: one that is deleted and created again is another one."""

    topic_id: bytes
    partitions: Mapping[int, CutPartition]


@dataclass(frozen=True, slots=True)
class Between:
    """What a newer cut has beyond an older one: offsets above the older end, and below it the transactions
    that were left out and are decided now.  Some of them were aborted: a reader's filter knows which."""

    ranges: Mapping[Key, tuple[int, int]]
    decided: Mapping[Key, tuple[Transaction, ...]]


@dataclass(frozen=True, slots=True)
class Cut:
    """See the module's text.  `taken_ms`: by the clock of the node that took it."""

    topics: Mapping[str, CutTopic]
    cut_id: str = ""
    taken_ms: int = 0

    @property
    def partitions(self) -> dict[Key, CutPartition]:
        """All, in order."""
        return {
            (name, number): partition
            for name, topic in sorted(self.topics.items())
            for number, partition in sorted(topic.partitions.items())
        }

    def contains(self, topic: str, partition: int, offset: int, producer_id: int = -1) -> bool:
        """Whether a data record is inside, if its transaction was not aborted.  `producer_id`: of its
        transaction; -1 for a record without one."""
        found = self.topics.get(topic)
        part = None if found is None else found.partitions.get(partition)
        if part is None or not part.start <= offset < part.end:
            return False
        first = part.undecided.get(producer_id)
        return first is None or offset < first

    def order(self, other: Cut) -> Order:
        """What this cut is beside `other`.  Raises CutError for cuts of other topics or partitions."""
        mine, theirs = self.partitions, other.partitions
        ids = {name: topic.topic_id for name, topic in self.topics.items()}
        if ids != {name: topic.topic_id for name, topic in other.topics.items()}:
            raise CutError(f"cuts of {_names(self)} and {_names(other)}, which are not the same topics")
        if mine.keys() != theirs.keys():
            raise CutError("one of the cuts was taken before partitions were added to its topics")
        is_behind = any(_is_behind(part, theirs[key]) for key, part in mine.items())
        is_ahead = any(_is_behind(part, mine[key]) for key, part in theirs.items())
        if is_behind:
            return Order.CONCURRENT if is_ahead else Order.OLDER
        return Order.NEWER if is_ahead else Order.SAME

    def between(self, newer: Cut) -> Between:
        """What `newer` has beyond this cut.  Raises CutError unless it is a newer one of the same topics, or
        the same."""
        if (order := self.order(newer)) in (Order.NEWER, Order.CONCURRENT):
            raise CutError(f"the cut to compare with is not newer: this one is {order} beside it")
        ranges: dict[Key, tuple[int, int]] = {}
        decided: dict[Key, tuple[Transaction, ...]] = {}
        for key, part in newer.partitions.items():
            before = self.partitions[key]
            if before.end < part.end:
                ranges[key] = before.end, part.end
            if found := decided_since(before.undecided, before.end, part.undecided):
                decided[key] = found
        return Between(ranges, decided)

    def to_json(self) -> str:
        topics = {
            name: {
                "id": str(UUID(bytes=topic.topic_id)),
                "partitions": {
                    str(number): _partition_json(part) for number, part in sorted(topic.partitions.items())
                },
            }
            for name, topic in sorted(self.topics.items())
        }
        return json.dumps(
            {"version": VERSION, "cut": self.cut_id, "takenMs": self.taken_ms, "topics": topics}
        )

    @classmethod
    def from_json(cls, text: str) -> Cut:
        """Raises CutError."""
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise CutError(f"not JSON like {_EXAMPLE}: {problem}") from None
        entries = _object(tree)
        if entries.get("version") != VERSION:
            raise CutError(
                f"it has version {entries.get('version')!r}, and this reader knows version {VERSION}"
            )
        topics = {name: _topic(_object(entry)) for name, entry in _object(entries.get("topics")).items()}
        if not topics:
            raise CutError("it names no topic")
        return cls(topics, str(entries.get("cut", "")), _number(entries.get("takenMs", 0)))

    def to_proto(self) -> cuts_pb2.Cut:
        from ...proto import cuts_pb2  # protobuf is loaded for this alone

        made = cuts_pb2.Cut(cut_id=self.cut_id, taken_ms=self.taken_ms)
        for name, topic in sorted(self.topics.items()):
            entry = made.topics.add(name=name, topic_id=topic.topic_id)
            for number, part in sorted(topic.partitions.items()):
                bounds = entry.partitions.add(partition=number, start=part.start, end=part.end)
                for producer_id, first_offset in sorted(part.undecided.items()):
                    bounds.undecided.add(producer_id=producer_id, first_offset=first_offset)
        return made

    @classmethod
    def from_proto(cls, cut: cuts_pb2.Cut) -> Cut:
        return cls(
            {
                topic.name: CutTopic(
                    topic.topic_id,
                    {
                        part.partition: CutPartition(
                            part.start,
                            part.end,
                            {each.producer_id: each.first_offset for each in part.undecided},
                        )
                        for part in topic.partitions
                    },
                )
                for topic in cut.topics
            },
            cut.cut_id,
            cut.taken_ms,
        )


def decided_since(
    before: Mapping[int, int], before_end: int, now: Mapping[int, int]
) -> tuple[Transaction, ...]:
    """The transactions left out `before`, at a cut with this end, that a newer cut does not leave out.

    The same producer may be left out again with a later transaction, which begins above the former end."""
    return tuple(sorted(entry for entry in before.items() if not _is_same(now.get(entry[0]), before_end)))


def unless_aborted(
    transactions: Iterable[Transaction], log_start: int, aborted: Mapping[int, int]
) -> tuple[Transaction, ...]:
    """Decided transactions, without those that began below the log start and are known to be aborted: nothing
    of them was to be read.

    `aborted`: of the aborted transactions that began below the log start and have their marker above, the
    first offset by producer id.  A producer has one transaction at a time: the one that crosses the log start
    is the one that is decided, or a later one, which begins above its first offset."""
    return tuple(
        (producer_id, first)
        for producer_id, first in transactions
        if first >= log_start or aborted.get(producer_id, log_start) > first
    )


def _is_same(first_offset: int | None, before_end: int) -> bool:
    return first_offset is not None and first_offset < before_end


def _is_behind(part: CutPartition, other: CutPartition) -> bool:
    """Whether the other one has something that this one has not."""
    decided = decided_since(part.undecided, part.end, other.undecided)
    return part.end < other.end or any(first < other.end for _, first in decided)


def _names(cut: Cut) -> str:
    return ", ".join(sorted(cut.topics))


def _partition_json(part: CutPartition) -> dict[str, object]:
    made: dict[str, object] = {"start": part.start, "end": part.end}
    if part.undecided:
        made["undecided"] = {str(pid): first for pid, first in sorted(part.undecided.items())}
    return made


def _topic(entries: Mapping[str, object]) -> CutTopic:
    try:
        topic_id = UUID(str(entries.get("id"))).bytes
    except ValueError:
        _refuse(entries)
    return CutTopic(
        topic_id,
        {
            _number(number): _partition(_object(entry))
            for number, entry in _object(entries.get("partitions")).items()
        },
    )


def _partition(entries: Mapping[str, object]) -> CutPartition:
    start, end = _number(entries.get("start")), _number(entries.get("end"))
    undecided = {
        _number(producer_id): _number(first)
        for producer_id, first in _object(entries.get("undecided", {})).items()
    }
    if start > end or any(first >= end for first in undecided.values()):
        _refuse(entries)
    return CutPartition(start, end, undecided)


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        _refuse(value)
    return value


def _number(value: object) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < DIGITS_MAX:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        _refuse(value)
    return value


def _refuse(what: object) -> NoReturn:
    raise CutError(f"{str(what)[:200]!r} is no part of a cut like {_EXAMPLE}")
