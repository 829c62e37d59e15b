"""Pinned cuts at a broker: which log keeps what, what its heartbeats report of a pin, and the messages of
clients (docs/semantics.md C14 to C16)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from ...controller.state.cluster_state import ClusterState
from ...controller.state.model import topic_name_problem
from ...controller.state.pinned_cuts import PinnedCut, PinnedCuts, PinnedPartition
from ...proto import cuts_pb2 as pb
from ...proto import metadata_pb2
from ...replication.replica.replica import Replica, Role
from ...storage.log.pins import Pin
from ...wire.errors import ErrorCode, KafkaError

FindReplica = Callable[[tuple[str, int]], Replica | None]


class PinIndex:
    """What the pinned cuts keep of each partition.  A change costs as much as the cuts that change have
    partitions, however many others there are."""

    def __init__(self) -> None:
        self._cuts: PinnedCuts = {}
        self._pins: dict[UUID, dict[str, dict[int, Pin | None]]] = {}
        """By the topic's id, the cut's name and the partition."""

    def follow(self, cuts: PinnedCuts) -> None:
        """Called with the newest cuts before `pins_of`."""
        if cuts is self._cuts:
            return
        for name, cut in self._cuts.items():
            if cuts.get(name) is not cut:
                self._remove(cut)
        for name, cut in cuts.items():
            if self._cuts.get(name) is not cut:
                self._add(cut)
        self._cuts = cuts

    def _remove(self, cut: PinnedCut) -> None:
        for topic in cut.topics:
            by_name = self._pins[topic.topic_id]
            del by_name[cut.name]
            if not by_name:
                del self._pins[topic.topic_id]

    def _add(self, cut: PinnedCut) -> None:
        for topic in cut.topics:
            pins = {number: _pin(cut, kept) for number, kept in topic.partitions.items()}
            self._pins.setdefault(topic.topic_id, {})[cut.name] = pins

    def pins_of(self, topic_id: UUID, partition: int) -> tuple[Pin, ...]:
        found = (pins.get(partition) for pins in self._pins.get(topic_id, {}).values())
        return tuple(pin for pin in found if pin is not None)


def _pin(cut: PinnedCut, kept: PinnedPartition) -> Pin | None:
    """An empty range keeps nothing."""
    if kept.start == kept.end:
        return None
    return Pin(cut.name, kept.start, kept.end, kept.settled_end, cut.is_confirmed)


def report(state: ClusterState, node_id: int, cut: PinnedCut, find_replica: FindReplica) -> tuple[bool, str]:
    """Whether this node can say if its replicas keep what the cut names, and what they have lost of it."""
    for topic in cut.topics:
        present = state.topic_by_id(topic.topic_id)
        if present is None:
            continue
        for number, kept in topic.partitions.items():
            partition = present.partitions[number]
            if node_id not in partition.replicas:
                continue
            replica = find_replica((present.name, number))
            if replica is None or replica.topic_id != topic.topic_id or replica.role is Role.OFFLINE:
                return False, ""
            if (pin := _pin(cut, kept)) is None:
                continue
            log = replica.log
            if log.was_copied_in_part and node_id not in partition.isr:
                return False, ""
            problem = log.pin_problem(pin)
            if problem is None and replica.role is Role.LEADER and pin.end > log.log_end_offset:
                problem = f"{log.name} ends at {log.log_end_offset}, the cut at {pin.end}: it is no cut of it"
            if problem is not None:
                return True, problem
            if replica.role is Role.LEADER and pin.end > log.high_watermark:
                return False, ""  # records above it may go
            if pin not in log.pins or not log.local.replacements.is_over:
                return False, ""
    return True, ""


def record_of(name: str, pin_id: str, cut: pb.Cut) -> metadata_pb2.PinnedCutRecord:
    """As the metadata log is to hold it.  Raises INVALID_REQUEST for what is no name or no cut at all."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the name of a pinned cut is like a topic's: {problem}")
    if not cut.topics or any(len(topic.topic_id) != 16 for topic in cut.topics):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a cut has topics, each with an id of 16 bytes")
    return metadata_pb2.PinnedCutRecord(
        name=name,
        pin_id=pin_id,
        cut_id=cut.cut_id,
        taken_ms=cut.taken_ms,
        topics=[
            metadata_pb2.PinnedTopicRecord(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=[
                    metadata_pb2.PinnedPartitionRecord(
                        partition=each.partition,
                        start=each.start,
                        end=each.end,
                        undecided=[
                            metadata_pb2.UndecidedRecord(
                                producer_id=one.producer_id, first_offset=one.first_offset
                            )
                            for one in each.undecided
                        ],
                    )
                    for each in topic.partitions
                ],
            )
            for topic in cut.topics
        ],
    )


def pinned_message(state: ClusterState, cut: PinnedCut) -> pb.PinnedCut:
    topics = [
        pb.CutTopic(
            name=topic.name,
            topic_id=topic.topic_id.bytes,
            partitions=[
                pb.CutPartition(
                    partition=number,
                    start=each.start,
                    end=each.end,
                    undecided=[
                        pb.UndecidedTransaction(producer_id=producer_id, first_offset=first)
                        for producer_id, first in each.undecided
                    ],
                )
                for number, each in topic.partitions.items()
            ],
        )
        for topic in cut.topics
    ]
    return pb.PinnedCut(
        name=cut.name,
        cut=pb.Cut(cut_id=cut.cut_id, taken_ms=cut.taken_ms, topics=topics),
        pinned_ms=cut.pinned_ms,
        expires_ms=cut.expires_at_ms,
        deleted_topics=deleted_topics(state, cut),
    )


def listed_message(state: ClusterState, cut: PinnedCut) -> pb.ListedCut:
    return pb.ListedCut(
        name=cut.name,
        cut_id=cut.cut_id,
        taken_ms=cut.taken_ms,
        pinned_ms=cut.pinned_ms,
        expires_ms=cut.expires_at_ms,
        topics=sorted(topic.name for topic in cut.topics),
        partitions=sum(len(topic.partitions) for topic in cut.topics),
        deleted_topics=deleted_topics(state, cut),
        is_confirmed=cut.is_confirmed,
    )


def deleted_topics(state: ClusterState, cut: PinnedCut) -> list[str]:
    """A cut of a topic that is gone cannot be read any more."""
    return sorted(topic.name for topic in cut.topics if state.topic_by_id(topic.topic_id) is None)
