"""The election rules: leader, in-sync and eligible replicas, as pure functions of one partition; and of all
partitions, after a broker has come, gone or lost records (`needed_changes`).

The controller elects, in this order (KIP-966):
1. a member of the ISR that is present: it has every committed record;
2. an eligible leader replica (ELR): it left the ISR, or was not in it from the start, while that was below
   min.insync.replicas, when the high watermark stood still, so it has every committed record as well; the new
   ISR is that replica alone;
3. with an empty ISR and ELR: the last known leader, when it is back on the same disk;
4. only if the topic asks for it, and never on a state topic: any replica that is present ("unclean": records
   may be lost).

`present` is a set of node ids: brokers that are registered, not fenced and not shutting down.  `lost`
replicas may lack records that they acknowledged: after an unclean shutdown, for a topic that is not flushed
before it is acknowledged, or with a replaced disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, fields
from operator import attrgetter

from ....proto import metadata_pb2 as pb
from ...state.cluster_state import ClusterState
from ...state.model import NO_BROKER_EPOCH, NO_LEADER, PartitionState, TopicState
from ..brokers.reachability import Reached

CHANGES_PER_COMMAND_MAX = 4000  # well below the largest command, however many topics they are spread over


@dataclass(slots=True, frozen=True)
class Wanted:
    """The planned change of one partition."""

    topic: TopicState
    partition: int
    # the state that the plan was made on: its partition epoch is the condition of the change
    present: PartitionState
    leader: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_leader: int
    isr_broker_epochs: tuple[int, ...] = ()
    unclean: bool = False
    replicas: tuple[int, ...] = ()  # with `adding` and `target`: a change of the replicas; empty: unchanged
    adding: tuple[int, ...] = ()
    target: tuple[int, ...] = ()


def eligible_leaders(
    topic: TopicState, partition: PartitionState, isr: tuple[int, ...], lost: Collection[int] = ()
) -> tuple[int, ...]:
    """The ELR that goes with a new ISR: empty while the ISR is large enough, else all other replicas known to
    be complete."""
    if len(isr) >= topic.min_in_sync_replicas(partition.settled_replicas):
        return ()
    known = (*partition.elr, *(node_id for node_id in partition.isr if node_id not in partition.elr))
    return tuple(node_id for node_id in known if node_id not in isr and node_id not in lost)


def elect(
    topic: TopicState,
    number: int,
    partition: PartitionState,
    present: Collection[int],
    lost: Collection[int] = (),
    reached: Reached | None = None,
) -> Wanted | None:
    """The election: the change that the partition needs when only `present` brokers serve it; None when it
    may stay as it is.  Of several candidates, one that the other replicas have `reached` goes first."""
    isr = tuple(node_id for node_id in partition.isr if node_id in present and node_id not in lost)
    elr = eligible_leaders(topic, partition, isr, lost)
    last = partition.leader if partition.leader != NO_LEADER else partition.last_known_leader
    last_is_trusted = last not in lost
    unclean = False
    if partition.leader in isr:
        leader = partition.leader
    elif isr:
        leader = _found_first(partition.replicas, isr, present, reached)
    else:
        candidates = [node_id for node_id in elr if node_id in present]
        if not candidates and not elr and last_is_trusted and last in present:
            candidates = [last]
        if not candidates and topic.unclean_election_allowed:
            candidates = [node_id for node_id in partition.replicas if node_id in present]
            unclean = bool(candidates)
        leader = _found_first(partition.replicas, candidates, present, reached)
        if leader != NO_LEADER:
            isr = (leader,)
            small = len(isr) < topic.min_in_sync_replicas(partition.settled_replicas)
            elr = tuple(node_id for node_id in elr if node_id != leader) if small and not unclean else ()
    last_known = leader if leader != NO_LEADER else last
    wanted = Wanted(topic, number, partition, leader, isr, elr, last_known, unclean=unclean)
    same = (leader, isr, elr) == (partition.leader, partition.isr, partition.elr)
    return None if same and (leader != NO_LEADER or last_known == partition.last_known_leader) else wanted


_EPOCHS = {"leader_epoch", "partition_epoch"}  # no election depends on them
_decided_by = attrgetter(*({each.name for each in fields(PartitionState)} - _EPOCHS))


class CachedElection:
    """`elect` for the partitions of one topic, with a cache: of thousands of partitions most equal an
    earlier one."""

    __slots__ = ("_known", "_reached", "_topic")

    def __init__(self, topic: TopicState, reached: Reached | None = None) -> None:
        self._topic = topic
        self._reached = reached
        self._known: dict[Hashable, Wanted | None] = {}

    def elect(
        self, number: int, partition: PartitionState, present: Set[int], lost: tuple[int, ...]
    ) -> Wanted | None:
        key = (_decided_by(partition), frozenset(present), lost)
        if key not in self._known:
            self._known[key] = elect(self._topic, number, partition, present, lost, self._reached)
        like = self._known[key]
        if like is None:
            return None
        return Wanted(
            self._topic, number, partition, like.leader, like.isr, like.elr, like.last_known_leader,
            unclean=like.unclean
        )  # fmt: skip


def forget_disk(
    wanted: Wanted | None, topic: TopicState, number: int, partition: PartitionState, node_id: int
) -> Wanted | None:
    """After a replaced disk `node_id` is no longer the last known leader: its records are gone."""
    last = partition.last_known_leader if wanted is None else wanted.last_known_leader
    leader = partition.leader if wanted is None else wanted.leader
    if last != node_id or leader == node_id:
        return wanted
    base = wanted or Wanted(topic, number, partition, partition.leader, partition.isr, partition.elr, last)
    return Wanted(topic, number, partition, base.leader, base.isr, base.elr, NO_LEADER)


@dataclass(slots=True, frozen=True)
class Loss:
    """The records that one broker has lost: of the topics for which `of_topic` holds, of `damaged` partitions
    (topic id, number), or `of_disk`: all, so that it is no last known leader either."""

    node_id: int
    of_topic: Callable[[TopicState], bool] = lambda _topic: False
    damaged: frozenset[tuple[bytes, int]] = frozenset()
    of_disk: bool = False


def able(state: ClusterState, topic: TopicState, number: int, present: set[int]) -> set[int]:
    """The brokers of `present` whose replica of this partition is not offline."""
    offline = state.offline_nodes(topic.topic_id, number)
    return present - offline if offline else present


def needed_changes(
    state: ClusterState, present: set[int], reached: Reached, loss: Loss | None = None
) -> list[Wanted]:
    """The changes of all partitions that cannot stay as they are when only `present` brokers serve, and one
    broker has lost records."""
    found: list[Wanted] = []
    loss = loss or Loss(NO_LEADER)
    some_offline = any(broker.offline_replicas for broker in state.brokers.values())
    for name in sorted(state.topics):
        topic = state.topics[name]
        topic_lost, topic_id = loss.of_topic(topic), topic.topic_id.bytes
        cached = CachedElection(topic, reached)
        for number, partition in topic.partitions.items():
            is_damaged = bool(loss.damaged) and (topic_id, number) in loss.damaged
            lost = (loss.node_id,) if topic_lost or is_damaged else ()
            serving = able(state, topic, number, present) if some_offline else present
            if not lost and not loss.of_disk and partition.isr and serving.issuperset(partition.isr):
                continue
            wanted = cached.elect(number, partition, serving, lost)
            if loss.of_disk or is_damaged:
                wanted = forget_disk(wanted, topic, number, partition, loss.node_id)
            if wanted is not None:
                found.append(wanted)
    return found


def _first(order: Iterable[int], among: Collection[int]) -> int:
    return next((node_id for node_id in order if node_id in among), NO_LEADER)


def _found_first(
    order: Sequence[int], among: Collection[int], present: Collection[int], reached: Reached | None
) -> int:
    """The first candidate that all other present replicas have reached; if there is none, the first candidate
    at all."""
    if reached is not None and len(among) > 1:
        others = [node_id for node_id in order if node_id in present]
        found = [node_id for node_id in among if reached(node_id, others)]
        return _first(order, found or among)
    return _first(order, among)


def preferred_leader(
    topic: TopicState,
    number: int,
    partition: PartitionState,
    present: Collection[int],
    reached: Reached | None = None,
) -> Wanted | None:
    """Moves the leadership back to the preferred replica, when that is in sync and present, and the others
    have reached it."""
    wanted = partition.preferred_leader
    if wanted == partition.leader or wanted not in partition.isr or wanted not in present:
        return None
    if reached is not None and not reached(
        wanted, [node_id for node_id in partition.replicas if node_id in present]
    ):
        return None
    return Wanted(topic, number, partition, wanted, partition.isr, partition.elr, wanted)


def change_operations(wanted: Iterable[Wanted]) -> Iterator[pb.Operation]:
    """ChangePartitions operations, each small enough for one command."""
    operation = pb.Operation()
    group: pb.TopicPartitionChanges | None = None
    count, grouped = 0, None
    for item in wanted:
        if count == CHANGES_PER_COMMAND_MAX:
            yield operation
            operation, group, count = pb.Operation(), None, 0
        if group is None or item.topic is not grouped:
            group, grouped = (
                operation.change_partitions.topics.add(topic_id=item.topic.topic_id.bytes),
                item.topic,
            )
        change = group.partitions.add(
            partition=item.partition,
            expected_partition_epoch=item.present.partition_epoch,
            leader=item.leader,
            isr=item.isr,
            last_known_leader=item.last_known_leader,
        )
        # Fields that most partitions do not have stay unset: that halves the time of ten thousand changes.
        if item.elr:
            change.elr.extend(item.elr)
        if any(epoch != NO_BROKER_EPOCH for epoch in item.isr_broker_epochs):
            change.isr_broker_epochs.extend(item.isr_broker_epochs)
        if item.unclean:
            change.bump_leader_epoch = True
        if item.replicas:
            change.replicas.extend(item.replicas)
            change.adding.extend(item.adding)
            change.target.extend(item.target)
        count += 1
    if count:
        yield operation
