"""Moving partitions to other brokers (KIP-455): what a move is, and when it is over.

Pure, like `elections.py`, and with these rules:

* `replicas` grow at once by those of the target; the new ones follow the leader and join the ISR like any follower.
* A move is over when every new replica is in the ISR, and what is left of the ISR without the leaving ones is not empty and has
  min.insync.replicas members: no committed record is left with fewer copies than its acknowledgement promised.  One change then
  drops the leaving replicas and, when the leader is among them, elects the first of the target that is in sync and present.
* Losing a replica begins a new leader epoch, also where the leader stays (`partition_changes.py` says why).
* The bar of min.insync.replicas is counted over the replicas from before the move until it is over.
* Cancelling is a move back to those.  What was added leaves at once when nobody counts on it, else as soon as the ISR is large
  enough without it: a record may be committed on a new replica and nowhere else by then.
* A later request replaces an earlier one; the replicas from before the first one stay the way back.

Whoever loses a replica deletes it when it has applied the change that says so (`replication/manager.py`), not earlier.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from .cluster_state import ClusterState
from .elections import Wanted
from .model import NO_LEADER, PartitionState, TopicState


def moving(state: ClusterState) -> list[tuple[TopicState, int, PartitionState]]:
    """Every partition that is under way."""
    return [
        (topic, number, partition)
        for topic in state.topics.values()
        for number, partition in topic.partitions.items()
        if partition.target
    ]


def reassigned(
    topic: TopicState, number: int, partition: PartitionState, target: tuple[int, ...], able: Collection[int]
) -> Wanted | None:
    """What the partition must become when it is to end on `target`, led by one of `able`; None when it is that already."""
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


def advanced(topic: TopicState, number: int, partition: PartitionState, able: Collection[int]) -> Wanted | None:
    """The next step of a move that is under way; None while it has to wait (or there is none)."""
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
    """Replicas that were added and are not wanted any more leave: all of them when the ISR is large enough without them, else
    those that nobody counts on."""
    cancelled = [node_id for node_id in partition.adding if node_id not in partition.target]
    if not cancelled:
        return partition
    all_gone = _reduced(topic, partition, _dropped(partition, cancelled), able)
    if all_gone is not None:
        return all_gone
    counted_on = {*partition.isr, *partition.elr, partition.last_known_leader}
    return _dropped(partition, [node_id for node_id in cancelled if node_id not in counted_on])


def _dropped(partition: PartitionState, gone: Collection[int]) -> PartitionState:
    replicas, adding = (tuple(n for n in nodes if n not in gone) for nodes in (partition.replicas, partition.adding))
    return replace(partition, replicas=replicas, adding=adding)


def _reduced(topic: TopicState, before: PartitionState, after: PartitionState, able: Collection[int]) -> PartitionState | None:
    """`after` with the ISR and leader that are left of those of `before`; None when that is not enough to go on with."""
    isr = tuple(node_id for node_id in before.isr if node_id in after.replicas)
    if len(isr) < topic.min_in_sync_replicas(after.settled_replicas):
        return None
    leader = before.leader
    if leader not in isr:
        leader = next((node_id for node_id in after.replicas if node_id in isr and node_id in able), NO_LEADER)
    return None if leader == NO_LEADER else replace(after, isr=isr, elr=(), leader=leader, last_known_leader=leader)


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
