"""Thousands of partitions that change at once share decisions: each is what it would be alone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tidegate.controller.planning.partitions.elections import CachedElection, elect
from tidegate.controller.state import topic_table
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import NO_LEADER, PartitionState, TopicState
from tidegate.controller.state.partition_changes import changed_partition
from tidegate.proto import metadata_pb2 as pb

BROKERS = (1, 2, 3, 4)
TOPIC_ID = UUID(int=7)


def some(random: Random, among: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(random.sample(among, random.randint(0, len(among))))


def any_partition(random: Random) -> PartitionState:
    replicas = tuple(random.sample(BROKERS, 3))
    isr = some(random, replicas)
    elr = some(random, tuple(node_id for node_id in replicas if node_id not in isr))
    leader = random.choice(isr) if isr else NO_LEADER
    adding = (replicas[2],) if random.random() < 0.3 else ()
    return PartitionState(
        replicas, isr, elr, leader, 3, random.randint(1, 9), random.choice((*replicas, NO_LEADER)), adding
    )


@pytest.mark.parametrize(
    "config", [{}, {"min.insync.replicas": "3"}, {"unclean.leader.election.enable": "true"}]
)
def test_partitions_that_are_settled_together_become_what_each_would_alone(config: dict[str, str]) -> None:
    random = Random(5)
    topic = TopicState("t", TOPIC_ID, config)
    cached = CachedElection(topic)
    for number in range(5000):
        partition, present, lost = (
            any_partition(random),
            set(some(random, BROKERS)),
            some(random, BROKERS)[:1],
        )
        assert cached.elect(number, partition, present, lost) == elect(
            topic, number, partition, present, lost
        )


def changed(changed_partition: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    """One topic after thousands of changes, sensible and not, in few operations."""
    monkeypatch.setattr(topic_table, "changed_partition", changed_partition)
    random, state = Random(6), ClusterState()

    def apply(*operations: pb.Operation) -> None:
        state.apply(state.index + 1, 1, pb.Command(operations=operations).SerializeToString())

    apply(
        pb.Operation(
            bootstrap=pb.Bootstrap(cluster_id="c", features=[pb.Feature(name="metadata.version", level=2)])
        )
    )
    for node_id in BROKERS:
        registration = pb.RegisterBroker(node_id=node_id, incarnation=str(node_id), expected_broker_epoch=-1)
        apply(pb.Operation(register_broker=registration))
        apply(
            pb.Operation(
                unfence_broker=pb.UnfenceBroker(
                    node_id=node_id, broker_epoch=state.brokers[node_id].broker_epoch
                )
            )
        )
    partitions = [
        pb.NewPartition(replicas=order, isr=order) for order in ((1, 2, 3), (2, 3, 4)) for _ in range(500)
    ]
    config = [pb.ConfigEntry(key="min.insync.replicas", value="4")]
    apply(
        pb.Operation(
            create_topic=pb.CreateTopic(
                name="t", topic_id=TOPIC_ID.bytes, partitions=partitions, config=config
            )
        )
    )
    assert len(state.topics["t"].partitions) == 1000
    leaving = pb.BeginControlledShutdown(node_id=4, broker_epoch=state.brokers[4].broker_epoch)
    for turn in range(20):
        operation, held = pb.Operation(), state.topics["t"].partitions
        group = operation.change_partitions.topics.add(topic_id=TOPIC_ID.bytes)
        for number in random.sample(range(1000), 500):
            partition = held[number]
            among = BROKERS if random.random() < 0.3 else partition.replicas
            isr = tuple(sorted(some(random, among)))
            change = group.partitions.add(
                partition=number,
                expected_partition_epoch=partition.partition_epoch - (random.random() < 0.05),
                leader=random.choice((isr[0], isr[-1])) if isr else NO_LEADER,
                isr=isr,
                elr=[node_id for node_id in partition.replicas if node_id not in isr]
                if random.random() < 0.5
                else [],
                last_known_leader=2,
            )
            if isr and random.random() < 0.1:
                change.isr_broker_epochs.extend(
                    state.brokers[n].broker_epoch - (random.random() < 0.1) for n in isr
                )
            if random.random() < 0.1:
                change.replicas.extend(BROKERS)
                if random.random() < 0.5 and len(partition.replicas) == 3:
                    change.adding.extend(set(BROKERS) - set(partition.replicas))
                    change.target.extend(partition.replicas)
        apply(operation, *([pb.Operation(begin_controlled_shutdown=leaving)] if turn == 10 else []))
    return state


def test_changes_of_one_operation_equal_the_changes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    together = changed(changed_partition, monkeypatch)
    alone = changed(lambda *given: changed_partition(*given[:-1]), monkeypatch)
    assert together.encode() == alone.encode()
    assert len({partition.isr for partition in together.topics["t"].partitions.values()}) > 5
    assert sum(partition.partition_epoch for partition in together.topics["t"].partitions.values()) > 500


def brokers_1_and_2() -> ClusterState:
    state = ClusterState()
    for index, node_id in ((2, 1), (4, 2)):
        registered = pb.RegisterBroker(node_id=node_id, incarnation=str(node_id), expected_broker_epoch=-1)
        unfenced = pb.UnfenceBroker(node_id=node_id, broker_epoch=index)
        for offset, operation in enumerate(
            (pb.Operation(register_broker=registered), pb.Operation(unfence_broker=unfenced))
        ):
            assert state.apply(index + offset, 1, pb.Command(operations=[operation]).SerializeToString()).ok
    return state


def test_a_moving_partition_is_decided_by_its_own_minimum() -> None:
    """min.insync.replicas does not count on replicas that are being added, so the same ISR may be enough for
    one of them only."""
    topic = TopicState("t", TOPIC_ID, {"min.insync.replicas": "3"})
    still = PartitionState((1, 2, 3), (1, 2, 3), leader=1, last_known_leader=1)
    moving = PartitionState((1, 2, 3), (1, 2, 3), leader=1, last_known_leader=1, adding=(3,), target=(1, 3))
    cached, state, known = CachedElection(topic), brokers_1_and_2(), dict[Any, Any]()
    settled = [cached.elect(number, each, {1, 2}, ()) for number, each in enumerate((still, moving))]
    assert [wanted and wanted.elr for wanted in settled] == [(3,), ()]
    change = pb.PartitionChange(leader=1, isr=[1, 2], elr=[3], last_known_leader=1)
    found = [
        changed_partition(state.brokers, state.features, topic, each, change, known)
        for each in (still, moving)
    ]
    assert [partition.elr for partition in found] == [(3,), ()]  # type: ignore[union-attr]


def test_partitions_that_changed_alike_share_their_members() -> None:
    """Ten thousand times the same few numbers would be megabytes on every node."""
    state, topic, known = brokers_1_and_2(), TopicState("t", TOPIC_ID), dict[Any, Any]()
    changes = [pb.PartitionChange(leader=1, isr=[1, 2], last_known_leader=1) for _ in range(2)]
    before = PartitionState((1, 2), (1, 2), leader=1)
    first, second = (
        changed_partition(state.brokers, state.features, topic, before, each, known) for each in changes
    )
    assert isinstance(first, PartitionState)
    assert isinstance(second, PartitionState)
    assert first.isr is second.isr
