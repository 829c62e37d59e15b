"""Cuts that are kept under a name: their values, what the commands of the metadata log make of them, and how
the log and a snapshot hold them.  Pure and total: a command that cannot be read is refused.

A cut is pinned in two steps (docs/semantics.md C15).  From `pin` on every node that applies it keeps what the
cut names; `confirm` says that every replica does so, and had not lost any of it before.  An unconfirmed pin
goes soon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode
from .changes import Refused
from .model import topic_name_problem

PINNED_CUTS_MAX: Final = 100
PINNED_CUT_BYTES_MAX: Final = 128 << 10
"""Of one record.  All of them are in the memory of every node and in every snapshot."""

Undecided = tuple[int, int]
"""(producer id, first offset)"""


@dataclass(slots=True, frozen=True)
class PinnedPartition:
    """[start, end) of one partition, without the transactions that were undecided when the cut was taken."""

    start: int
    end: int
    undecided: tuple[Undecided, ...] = ()

    @property
    def settled_end(self) -> int:
        """Everything below was decided when the cut was taken."""
        return min(first for _, first in self.undecided) if self.undecided else self.end


@dataclass(slots=True, frozen=True)
class PinnedTopic:
    """The topic as it was when the cut was taken; one that is deleted and created again has another id."""

    topic_id: UUID
    name: str
    partitions: Mapping[int, PinnedPartition]


@dataclass(slots=True, frozen=True)
class PinnedCut:
    """See the module's text."""

    name: str
    pin_id: str
    cut_id: str
    taken_ms: int
    pinned_ms: int
    expires_at_ms: int
    is_confirmed: bool
    topics: tuple[PinnedTopic, ...]
    """In the order of their ids."""

    @property
    def kept(self) -> tuple[object, ...]:
        """What a broker acts on."""
        return self.pin_id, self.is_confirmed, self.topics

    def partitions(self) -> Iterator[tuple[UUID, int]]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield topic.topic_id, partition


PinnedCuts = Mapping[str, PinnedCut]
"""By name."""


def changed(cuts: PinnedCuts, op: pb.ChangePinnedCuts) -> PinnedCuts:
    """The cuts after one operation.  Raises Refused, and nothing has changed."""
    future = dict(cuts)
    for record in op.pin:
        if record.ByteSize() > PINNED_CUT_BYTES_MAX:
            raise Refused(ErrorCode.POLICY_VIOLATION, too_large(record.ByteSize()))
        try:
            cut = decode_cut(record)
        except ValueError as error:
            raise Refused(ErrorCode.INVALID_REQUEST, f"a cut that cannot be read: {error}") from error
        present = with_pin_id(future, cut.pin_id)
        if present is not None and present.name == cut.name:
            continue
        if present is not None or cut.name in future:
            raise Refused(ErrorCode.DUPLICATE_RESOURCE, f"a cut is pinned as {cut.name!r} already")
        future[cut.name] = cut
    for confirmation in op.confirm:
        found = with_pin_id(future, confirmation.pin_id)
        if found is None:
            raise Refused(ErrorCode.RESOURCE_NOT_FOUND, "the pin has gone before it was confirmed")
        future[found.name] = replace(found, is_confirmed=True, expires_at_ms=confirmation.expires_at_ms)
    for pin_id in op.remove:
        gone = with_pin_id(future, pin_id)
        if gone is not None:
            del future[gone.name]
    if len(future) > max(PINNED_CUTS_MAX, len(cuts)):
        raise Refused(ErrorCode.POLICY_VIOLATION, f"a cluster has at most {PINNED_CUTS_MAX} pinned cuts")
    return future


def too_large(size_bytes: int) -> str:
    return (
        f"the cut takes {size_bytes} bytes, a pinned one at most {PINNED_CUT_BYTES_MAX}: pin fewer topics, "
        "or when fewer transactions are open"
    )


def with_pin_id(cuts: PinnedCuts, pin_id: str) -> PinnedCut | None:
    return next((each for each in cuts.values() if each.pin_id == pin_id), None)


def keys_that_differ(before: PinnedCuts, after: PinnedCuts) -> set[tuple[UUID, int]]:
    """(topic id, partition) of what is kept by one and not, or otherwise, by the other."""
    found: set[tuple[UUID, int]] = set()
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old is None or new is None or old.kept != new.kept:
            found.update(key for each in (old, new) if each is not None for key in each.partitions())
    return found


def decode_cut(record: pb.PinnedCutRecord) -> PinnedCut:
    """Raises ValueError."""
    problem = topic_name_problem(record.name)
    if problem is not None or not record.pin_id or not record.topics:
        raise ValueError(problem or "a pinned cut has an id, and topics")
    topics = {UUID(bytes=each.topic_id): each for each in record.topics}
    if len(topics) != len(record.topics):
        raise ValueError("a topic stands there twice")
    return PinnedCut(
        record.name,
        record.pin_id,
        record.cut_id,
        record.taken_ms,
        record.pinned_ms,
        record.expires_at_ms,
        record.is_confirmed,
        tuple(
            PinnedTopic(topic_id, topics[topic_id].name, _decode_partitions(topics[topic_id]))
            for topic_id in sorted(topics, key=lambda each: each.bytes)
        ),
    )


def _decode_partitions(record: pb.PinnedTopicRecord) -> dict[int, PinnedPartition]:
    """Raises ValueError."""
    found = {}
    for each in sorted(record.partitions, key=lambda each: each.partition):
        undecided = tuple(sorted((one.producer_id, one.first_offset) for one in each.undecided))
        firsts = [first for _, first in undecided]
        if each.partition in found or not 0 <= each.start <= each.end:
            raise ValueError(f"partition {each.partition}: [{each.start}, {each.end})")
        if firsts and not 0 <= min(firsts) <= max(firsts) < each.end:
            raise ValueError(f"partition {each.partition}: a transaction that begins at or above its end")
        found[each.partition] = PinnedPartition(each.start, each.end, undecided)
    if not found:
        raise ValueError(f"{record.name} has no partition")
    return found


def encode_cut(cut: PinnedCut) -> pb.PinnedCutRecord:
    """As the log holds it: one encoding for equal cuts."""
    return pb.PinnedCutRecord(
        name=cut.name,
        pin_id=cut.pin_id,
        cut_id=cut.cut_id,
        taken_ms=cut.taken_ms,
        pinned_ms=cut.pinned_ms,
        expires_at_ms=cut.expires_at_ms,
        is_confirmed=cut.is_confirmed,
        topics=[
            pb.PinnedTopicRecord(
                topic_id=topic.topic_id.bytes,
                name=topic.name,
                partitions=[
                    pb.PinnedPartitionRecord(
                        partition=number,
                        start=each.start,
                        end=each.end,
                        undecided=[
                            pb.UndecidedRecord(producer_id=producer_id, first_offset=first)
                            for producer_id, first in each.undecided
                        ],
                    )
                    for number, each in sorted(topic.partitions.items())
                ],
            )
            for topic in cut.topics
        ],
    )


def encode(cuts: PinnedCuts) -> list[pb.PinnedCutRecord]:
    return [encode_cut(cuts[name]) for name in sorted(cuts)]


def decode(records: Iterable[pb.PinnedCutRecord]) -> PinnedCuts:
    """Raises ValueError."""
    return {record.name: decode_cut(record) for record in records}
