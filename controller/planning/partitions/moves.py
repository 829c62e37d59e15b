"""Moving partitions to other brokers (KIP-455): what a move is, and when it is over.

Pure, like `elections.py`, and with these rules:

* `replicas` grow at once by those of the target; the new ones follow the leader and join the ISR like any
  follower.
* A move is over when every new replica is in the ISR, and what is left of the ISR without the leaving ones is
  not empty and has min.insync.replicas members: no committed record is left with fewer copies than its
  acknowledgement promised.  One change then drops the leaving replicas and, when the leader is among them,
  elects the first of the target that is in sync and present.
* Removing a replica begins a new leader epoch, also where the leader stays (`partition_changes.py` says why).
* Until the move is over, min.insync.replicas is counted over the replicas from before the move.
* Cancelling is a move back to those.  An added replica leaves at once when it is not in ISR or ELR and not
  the last known leader, else as soon as the ISR is large enough without it: by then a record may be committed
  on a new replica only.
* A later request replaces an earlier one; a cancel still goes back to the replicas from before the first one.

A broker deletes its removed replica when it has applied the change that removes it
(`replication/manager.py`), not earlier.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...state.cluster_state import ClusterState
from ...state.model import NO_LEADER, PartitionState, TopicState
from .elections import Wanted


def moving(state: ClusterState) -> list[tuple[TopicState, int, PartitionState]]:
    """Every partition with an unfinished move."""
    return [
        (topic, number, partition)
        for topic in state.topics.values()
        for number, partition in topic.partitions.items()
        if partition.target
    ]


def reassigned(
    topic: TopicState, number: int, partition: PartitionState, target: tuple[int, ...], able: Collection[int]
) -> Wanted | None:
    """The change that begins a move to `target`, led by one of `able`; None when the partition is there
    already."""
    settled = partition.settled_replicas
    replicas = (*partition.replicas, *(node_id for node_id in target if node_id not in partition.replicas))
    adding = tuple(node_id for node_id in replicas if node_id not in settled)
    if not partition.target and target == partition.replicas:
        return None
    begun = replace(partition, replicas=replicas, adding=adding, target=target)
    over = advanced(topic, number, begun, able)
    if over is not None:
        return replace(over, present=partition)
    return None if begun == partition else _wanted(topic, number, partition, begun)


def advanced(
    topic: TopicState, number: int, partition: PartitionState, able: Collection[int]
) -> Wanted | None:
    """The next step of an unfinished move; None while it has to wait, and without a move."""
    target = partition.target
    if not target:
        return None
    left = _without_cancelled(topic, partition, able)
    if set(left.replicas) == set(target) and not left.adding:
        return _wanted(topic, number, partition, replace(left, replicas=target, target=()))
    ended = replace(left, replicas=target, adding=(), target=())
    if set(left.isr).issuperset(node_id for node_id in left.adding if node_id in target):
        smaller = _reduced(topic, left, ended, able)
        if smaller is not None:
            return _wanted(topic, number, partition, smaller)
    return None if left == partition else _wanted(topic, number, partition, left)


def _without_cancelled(topic: TopicState, partition: PartitionState, able: Collection[int]) -> PartitionState:
    """Drops added replicas that are not in the target: all of them when the ISR is large enough without them,
    else those that are not in ISR or ELR and not the last known leader."""
    cancelled = [node_id for node_id in partition.adding if node_id not in partition.target]
    if not cancelled:
        return partition
    all_gone = _reduced(topic, partition, _dropped(partition, cancelled), able)
    if all_gone is not None:
        return all_gone
    counted_on = {*partition.isr, *partition.elr, partition.last_known_leader}
    return _dropped(partition, [node_id for node_id in cancelled if node_id not in counted_on])


def _dropped(partition: PartitionState, gone: Collection[int]) -> PartitionState:
    replicas, adding = (
        tuple(n for n in nodes if n not in gone) for nodes in (partition.replicas, partition.adding)
    )
    return replace(partition, replicas=replicas, adding=adding)


def _reduced(
    topic: TopicState, before: PartitionState, after: PartitionState, able: Collection[int]
) -> PartitionState | None:
    """`after` with the rest of the ISR of `before` and a leader of it; None when that is too small, or has no
    leader."""
    isr = tuple(node_id for node_id in before.isr if node_id in after.replicas)
    if len(isr) < topic.min_in_sync_replicas(after.settled_replicas):
        return None
    leader = before.leader
    if leader not in isr:
        leader = next(
            (node_id for node_id in after.replicas if node_id in isr and node_id in able), NO_LEADER
        )
    return (
        None
        if leader == NO_LEADER
        else replace(after, isr=isr, elr=(), leader=leader, last_known_leader=leader)
    )


def _wanted(topic: TopicState, number: int, present: PartitionState, future: PartitionState) -> Wanted:
    return Wanted(
        topic,
        number,
        present,
        future.leader,
        future.isr,
        future.elr,
        future.last_known_leader,
        replicas=future.replicas,
        adding=future.adding,
        target=future.target,
    )
