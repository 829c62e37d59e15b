"""What holds of the cluster state after every command, and from one command to the next.

Of one state (`violations`)
* a partition has a leader exactly when its ISR is not empty, and the leader is a member of it;
* ISR and ELR are disjoint sets of replicas, and every replica is a registered broker; with an ISR of at least
  min.insync.replicas the ELR is empty (KIP-966);
* the tables agree: names and ids of topics, node ids of brokers, defaults of topics and settings of nodes.

From one to the next (`StateValidator`)
* no epoch falls, and a change of leader raises the leader epoch;
* no broker joins an ISR or becomes leader while it is fenced or shutting down (docs/semantics.md M4);
* a broker gets a new epoch only when it is in no ISR, and begins fenced (rule M5).

A fenced broker may still stand in an ISR: its removal may be another command of the same plan.  The
simulators of the quorum and of replication ask after every command, and a node with `debug.validate` does;
then only what the command has changed is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final
from uuid import UUID

from .cluster_state import FIRST_INDEX, ClusterState
from .model import NO_LEADER, ApplyResult, BrokerState, PartitionState, TopicState
from .partition_changes import partition_violations
from .topic_defaults import controllers_defaults

_NO_DEFAULTS: Final[dict[str, str]] = {}


def violations(state: ClusterState) -> list[str]:
    """The invariants of one state that do not hold."""
    numbers = ((topic, topic.partitions) for topic in state.topics.values())
    return [
        *_cluster_violations(state),
        *chain.from_iterable(_broker_violations(state, node_id) for node_id in state.brokers),
        *chain.from_iterable(_topic_violations(state, *each) for each in numbers),
    ]


def _cluster_violations(state: ClusterState) -> Iterator[str]:
    if state.index < FIRST_INDEX or state.controller_epoch > max(state.term, 0):
        yield f"entry {state.index} of term {state.term} with controller epoch {state.controller_epoch}"
    if state.topic_ids_known() != len(state.topics):
        yield "the tables of topics by name and by id differ"
    pinned = state.pinned_cuts
    if any(each.name != name for name, each in pinned.items()):
        yield "a cut is pinned under another name than its own"
    if len({each.pin_id for each in pinned.values()}) < len(pinned):
        yield "two pinned cuts have one id"
    if state.next_producer_id < 0 or any(level < 0 for level in state.features.values()):
        yield "a producer id or a feature level below 0"


def _broker_violations(state: ClusterState, node_id: int) -> Iterator[str]:
    broker = state.brokers[node_id]
    if broker.node_id != node_id or not broker.incarnation:
        yield f"node id {node_id} leads to broker {broker.node_id} {broker.incarnation!r}"
    if not 0 < broker.broker_epoch <= state.index:
        yield f"broker {node_id} has epoch {broker.broker_epoch}, and the state is of entry {state.index}"


def _topic_violations(state: ClusterState, topic: TopicState, numbers: Iterable[int]) -> Iterator[str]:
    if state.topics.get(topic.name) is not topic or state.topic_by_id(topic.topic_id) is not topic:
        yield f"{topic.name}: its name and its id lead to different topics"
    if not topic.partitions or max(topic.partitions) != len(topic.partitions) - 1:
        yield f"{topic.name}: partitions are not dense"
    defaults = _NO_DEFAULTS if topic.internal else controllers_defaults(state.node_configs)
    if topic.defaults != defaults:
        yield f"{topic.name}: its defaults are {topic.defaults}, those of the nodes are {defaults}"
    for number in numbers:
        partition = topic.partitions[number]
        for each in chain(partition_violations(topic, partition), _replica_violations(state, partition)):
            yield f"{topic.name}-{number}: {partition}: {each}"


def _replica_violations(state: ClusterState, partition: PartitionState) -> Iterator[str]:
    if any(node_id not in state.brokers for node_id in partition.replicas):
        yield "a replica on a broker that is not registered"
    if not 0 <= partition.leader_epoch <= partition.partition_epoch:
        yield "the leader epoch is past the partition epoch"


class StateValidator:
    """Holds a state against itself, and against the state that it was shown before."""

    def __init__(self) -> None:
        self._counts = (0, 0, 0)
        self._topics: dict[UUID, TopicState] = {}
        self._brokers: dict[int, BrokerState] = {}

    def check(self, state: ClusterState, result: ApplyResult | None = None) -> None:
        """Raises AssertionError for the first invariant that does not hold.  With the `result` of the command
        that led from the state before to this one, it looks only at what that command has changed."""
        if result is None or result.from_snapshot:
            found = [*violations(state), *self._falling(state, state.topics, state.brokers)]
            self._topics, self._brokers = {}, dict(state.brokers)
            names: Iterable[str] = state.topics
        else:
            names = {*result.changed_topics, *(name for name, _ in result.changed_partitions)}
            names &= state.topics.keys()
            found = [
                *self._changed_violations(state, result),
                *self._falling(state, names, result.changed_brokers),
            ]
            found += self._step_violations(state, result)
            for deleted in result.deleted_topics:
                self._topics.pop(deleted.topic_id, None)
            for node_id in result.changed_brokers:
                self._brokers.pop(node_id, None)
                if node_id in state.brokers:
                    self._brokers[node_id] = state.brokers[node_id]
        self._topics.update((state.topics[name].topic_id, state.topics[name]) for name in names)
        self._counts = (state.index, state.controller_epoch, state.next_producer_id)
        assert not found, f"the cluster state as of entry {state.index}: {found[0]}"

    @staticmethod
    def _changed_violations(state: ClusterState, result: ApplyResult) -> Iterator[str]:
        yield from _cluster_violations(state)
        for node_id in result.changed_brokers & state.brokers.keys():
            yield from _broker_violations(state, node_id)
        numbers: dict[str, list[int]] = {name: [] for name in result.changed_topics}
        for name, number in result.changed_partitions:
            numbers.setdefault(name, []).append(number)
        for name in numbers.keys() & state.topics.keys():
            topic = state.topics[name]
            present = [number for number in numbers[name] if number in topic.partitions]
            yield from _topic_violations(state, topic, present)

    def _falling(self, state: ClusterState, names: Iterable[str], node_ids: Iterable[int]) -> Iterator[str]:
        """What has fallen since the state before."""
        counts = (state.index, state.controller_epoch, state.next_producer_id)
        if any(now < before for now, before in zip(counts, self._counts, strict=True)):
            yield f"index, controller epoch or next producer id fell from {self._counts} to {counts}"
        for name in names:
            topic = state.topics[name]
            known = self._topics.get(topic.topic_id, topic)
            if known is not topic:
                for number, partition in topic.partitions.items():
                    before = known.partitions.get(number, partition)
                    if before is not partition:
                        yield from (f"{name}-{number}: {each}" for each in _epochs_fell(before, partition))
        for node_id in node_ids:
            broker, was = state.brokers.get(node_id), self._brokers.get(node_id)
            if broker is not None and was is not None and broker.broker_epoch < was.broker_epoch:
                yield f"broker {node_id}: its epoch fell from {was.broker_epoch} to {broker.broker_epoch}"

    def _step_violations(self, state: ClusterState, result: ApplyResult) -> Iterator[str]:
        """What one command may not do."""
        for node_id in result.changed_brokers & state.brokers.keys():
            broker, was = state.brokers[node_id], self._brokers.get(node_id)
            if was is not None and was.broker_epoch != broker.broker_epoch and not broker.fenced:
                yield f"broker {node_id} begins its new epoch without a fence"
            if (was is None or was.broker_epoch != broker.broker_epoch) and _is_in_an_isr(state, node_id):
                yield f"broker {node_id} got epoch {broker.broker_epoch} while it was in an ISR"
        for name, number in result.changed_partitions:
            topic = state.topics.get(name)
            partition = None if topic is None else topic.partitions.get(number)
            known = None if topic is None else self._topics.get(topic.topic_id)
            before = None if known is None else known.partitions.get(number)
            if partition is None:
                continue
            joined = set(partition.isr).difference(() if before is None else before.isr)
            if partition.leader not in (NO_LEADER, None if before is None else before.leader):
                joined.add(partition.leader)
            for node_id in joined:
                member = state.brokers.get(node_id)
                if member is None or not member.active:
                    yield f"{name}-{number}: broker {node_id} joined the ISR, or leads, and is not active"


def _is_in_an_isr(state: ClusterState, node_id: int) -> bool:
    return any(node_id in each.isr for topic in state.topics.values() for each in topic.partitions.values())


def _epochs_fell(before: PartitionState, after: PartitionState) -> Iterator[str]:
    if after.partition_epoch <= before.partition_epoch and after != before:
        yield f"the partition epoch {before.partition_epoch} did not rise with a change"
    if after.leader_epoch < before.leader_epoch:
        yield f"the leader epoch fell from {before.leader_epoch} to {after.leader_epoch}"
    if after.leader != before.leader and after.leader_epoch <= before.leader_epoch:
        yield f"the leader changed within leader epoch {after.leader_epoch}"
