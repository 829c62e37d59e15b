"""What one PartitionChange makes of a partition: a part of `ClusterState.apply`, and as total and
deterministic as that.

Every change is a compare-and-set on the partition epoch.  It names the complete new replicas, ISR, ELR and
leader, and is rejected alone when that would break a rule: those of `partition_violations`, and which brokers
may join or lead at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode
from .eligibility import Eligibility, isr_eligibility
from .model import (
    MOVES_LEVEL,
    NO_BROKER_EPOCH,
    NO_LEADER,
    BrokerState,
    PartitionState,
    TopicState,
    metadata_level,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EPOCH_MAX = 2**31 - 2


Members = tuple[tuple[int, ...], tuple[int, ...]]
"""ISR and ELR."""


class Membership(NamedTuple):
    """All that decides, beside brokers and topic, which members a partition gets: the key of the cache."""

    replicas: tuple[int, ...]
    settled_replicas: tuple[int, ...]
    former_isr: tuple[int, ...]
    former_leader: int
    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_leader: int
    isr_broker_epochs: tuple[int, ...]


def changed_partition(
    brokers: Mapping[int, BrokerState],
    features: Mapping[str, int],
    topic: TopicState,
    partition: PartitionState | None,
    change: pb.PartitionChange,
    known: dict[Membership, Members | ErrorCode] | None = None,
) -> PartitionState | ErrorCode:
    """The partition after the change, or the error for which it stays as it is.

    `known`: a cache of earlier changes of this topic in the same operation, which all see the same brokers
    and features.
    Ten thousand partitions that change at once have few different replica sets: each is checked once, and its
    tuples are shared.
    """
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.partition_epoch != change.expected_partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if max(partition.partition_epoch, partition.leader_epoch) >= EPOCH_MAX:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    held, loses_replicas = partition, False
    if change.replicas:
        held = replace(
            partition,
            replicas=tuple(change.replicas),
            adding=tuple(change.adding),
            target=tuple(change.target),
        )
        error = _assignment_error(brokers, features, partition, held)
        if error != ErrorCode.NONE:
            return error
        loses_replicas = _loses_replicas(partition, held)
    leader, last_known_leader = change.leader, change.last_known_leader
    wanted = Membership(
        held.replicas,
        held.settled_replicas,
        partition.isr,
        partition.leader,
        leader,
        tuple(change.isr),
        tuple(change.elr),
        last_known_leader,
        tuple(change.isr_broker_epochs),
    )
    members = None if known is None else known.get(wanted)
    if members is None:
        members = _members(brokers, topic, wanted, metadata_level(features))
        if known is not None:
            known[wanted] = members
    if isinstance(members, ErrorCode):
        return members
    isr, elr = members
    new_leadership = leader != partition.leader or change.bump_leader_epoch or loses_replicas
    return PartitionState(  # not `replace`, which costs twice as much: ten thousand of these come at once
        replicas=held.replicas,
        adding=held.adding,
        target=held.target,
        isr=isr,
        elr=elr,
        leader=leader,
        leader_epoch=partition.leader_epoch + int(new_leadership),
        partition_epoch=partition.partition_epoch + 1,
        last_known_leader=last_known_leader,
    )


def _members(
    brokers: Mapping[int, BrokerState], topic: TopicState, wanted: Membership, level: int
) -> Members | ErrorCode:
    error = _membership_error(brokers, wanted, level)
    if error != ErrorCode.NONE:
        return error
    is_enough = len(wanted.isr) >= topic.min_in_sync_replicas(wanted.settled_replicas)
    return wanted.isr, () if is_enough else wanted.elr


def _assignment_error(
    brokers: Mapping[int, BrokerState],
    features: Mapping[str, int],
    before: PartitionState,
    after: PartitionState,
) -> ErrorCode:
    if metadata_level(features) < MOVES_LEVEL:
        return ErrorCode.UNSUPPORTED_VERSION
    if not _is_sound(after):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if any(node_id not in brokers for node_id in after.replicas if node_id not in before.replicas):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    return ErrorCode.NONE


def _loses_replicas(before: PartitionState, after: PartitionState) -> bool:
    """A broker deletes a replica that it loses.  A fetch that it sent before must not count if it becomes a
    replica again: the new leader epoch fences that fetch, and the leader forgets the follower's fetch offset
    (KIP-320)."""
    return not set(before.replicas) <= set(after.replicas)


def _is_sound(partition: PartitionState) -> bool:
    """Whether the replicas are distinct, some are from before the move, and some are in its target."""
    replicas, adding, target = partition.replicas, partition.adding, partition.target
    distinct = all(len(set(each)) == len(each) for each in (replicas, adding, target))
    within = set(replicas).issuperset((*adding, *target))
    return distinct and within and len(adding) < len(replicas) and not (adding and not target)


def _membership_error(brokers: Mapping[int, BrokerState], wanted: Membership, level: int) -> ErrorCode:
    isr, replicas, leader = wanted.isr, set(wanted.replicas), wanted.leader
    members = (*isr, *wanted.elr)
    if len(set(members)) != len(members) or not replicas.issuperset(members):
        return ErrorCode.INVALID_REQUEST
    if (leader not in isr) if isr else (leader != NO_LEADER):
        return ErrorCode.INVALID_REQUEST
    if wanted.last_known_leader != NO_LEADER and wanted.last_known_leader not in replicas:
        return ErrorCode.INVALID_REQUEST
    if wanted.isr_broker_epochs and len(wanted.isr_broker_epochs) != len(isr):
        return ErrorCode.INVALID_REQUEST
    wanted_epochs = wanted.isr_broker_epochs or (NO_BROKER_EPOCH,) * len(isr)
    for node_id, wanted_epoch in zip(isr, wanted_epochs, strict=True):
        # a broker that shuts down does not begin to lead either
        joins = node_id not in wanted.former_isr or node_id == leader != wanted.former_leader
        broker = brokers.get(node_id)
        if isr_eligibility(broker, wanted_epoch, joins=joins, level=level) is not Eligibility.YES:
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def partition_violations(topic: TopicState, partition: PartitionState) -> Iterator[str]:
    """The invariants of one partition that do not hold."""
    isr, elr = set(partition.isr), set(partition.elr)
    if (partition.leader in isr) != bool(isr) or (not isr and partition.leader != NO_LEADER):
        yield "leader outside of the ISR"
    if isr & elr or not (isr | elr) <= set(partition.replicas):
        yield "ISR and ELR are not disjoint sets of replicas"
    if elr and len(isr) >= topic.min_in_sync_replicas(partition.settled_replicas):
        yield "ELR next to a full ISR"
    if partition.target and not _is_sound(partition):
        yield "a move without beginning or end"
    if partition.adding and not partition.target:
        yield "replicas are added to no end"
