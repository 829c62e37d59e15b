"""A broker that lives and cannot serve some of its replicas: others lead them, and the metadata say so."""

from __future__ import annotations

import pytest
from tidegate.controller.planning.partitions.isr_changes import plan_isr_changes
from tidegate.controller.state.broker_fields import decode_replicas, encode_replicas
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb

from ..controller_cluster import registration
from .test_planner import FLUSHED, PlannerCluster


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster(disks={1: "one", 2: "two", 3: "three"})
    controller.join(1, 2, 3)
    controller.topic("t", **FLUSHED)
    controller.topic("u", **FLUSHED)
    return controller


def offline(controller: PlannerCluster, *names: str) -> list[rpc.ReplicasOfTopic]:
    return [
        rpc.ReplicasOfTopic(topic_id=controller.state.topics[name].topic_id.bytes, partitions=[0])
        for name in names
    ]


def settle(controller: PlannerCluster) -> None:
    controller.now += 0.1
    controller.carry_out(controller.planner.tick(controller.now))


def test_leadership_leaves_an_offline_replica_and_no_other(controller: PlannerCluster) -> None:
    controller.beat(1, offline_replicas=offline(controller, "t"))
    settle(controller)
    controller.shows(leader=2, isr=(2, 3))
    controller.shows(leader=1, isr=(1, 2, 3), name="u")
    assert controller.state.offline_nodes(controller.state.topics["t"].topic_id, 0) == {1}
    assert not controller.state.brokers[1].fenced
    controller.carry_out(controller.planner.rebalance())
    controller.shows(leader=2, isr=(2, 3))


def test_it_may_not_come_back_to_the_isr_before_it_is_served_again(controller: PlannerCluster) -> None:
    controller.beat(1, offline_replicas=offline(controller, "t"))
    settle(controller)
    partition, broker = controller.partition(), controller.state.brokers[2]
    change = rpc.IsrChange(
        topic_id=controller.state.topics["t"].topic_id.bytes,
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=[1, 2, 3],
    )
    request = rpc.AlterPartitionsRequest(node_id=2, broker_epoch=broker.broker_epoch, changes=[change])
    plan, errors = plan_isr_changes(controller.state, controller.planner.sessions, request)
    assert not plan.operations
    assert errors[0].name == "INELIGIBLE_REPLICA"
    controller.beat(1)
    plan, errors = plan_isr_changes(controller.state, controller.planner.sessions, request)
    assert plan.operations
    assert errors[0].name == "NONE"


def test_the_last_replica_that_goes_offline_leads_again_when_it_is_back(controller: PlannerCluster) -> None:
    controller.lose(2, 3)
    controller.shows(leader=1, isr=(1,), elr=(2, 3))
    controller.beat(1, offline_replicas=offline(controller, "t"))
    settle(controller)
    partition = controller.partition()
    assert partition.leader == -1
    assert 1 in partition.elr
    controller.beat(1)
    settle(controller)
    assert controller.partition().leader == 1


def test_a_damaged_replica_is_not_eligible_others_of_its_broker_are(controller: PlannerCluster) -> None:
    controller.lose(1, 2, 3)
    request = registration(1, "second", directory_id="one")
    request.damaged_replicas.extend(offline(controller, "t"))
    request.offline_replicas.extend(offline(controller, "t"))
    controller.carry_out(controller.plan_registration(request))
    controller.planner.sessions.registered(controller.state.brokers[1], controller.now)
    controller.beat(1, offline_replicas=offline(controller, "t"))
    settle(controller)
    assert 1 not in controller.partition("t").elr
    assert 1 not in controller.partition("t").isr
    assert 1 in (*controller.partition("u").elr, *controller.partition("u").isr)


def test_ablation_without_the_report_a_damaged_replica_stays_eligible(controller: PlannerCluster) -> None:
    controller.lose(1, 2, 3)
    controller.register(1, "second")
    assert 1 in (*controller.partition("t").elr, *controller.partition("t").isr)


def test_a_snapshot_keeps_offline_replicas(controller: PlannerCluster) -> None:
    controller.beat(3, offline_replicas=offline(controller, "u", "t"))
    assert len(controller.state.brokers[3].offline_replicas) == 2
    copy = ClusterState()
    copy.restore(controller.state.encode())
    assert copy.brokers[3].offline_replicas == controller.state.brokers[3].offline_replicas


def test_replicas_in_messages_have_one_order() -> None:
    replicas = frozenset({(b"b", 2), (b"a", 1), (b"b", 0)})
    groups = encode_replicas(replicas, pb.PartitionsOfTopic)
    assert [(group.topic_id, list(group.partitions)) for group in groups] == [(b"a", [1]), (b"b", [0, 2])]
    assert decode_replicas(groups) == replicas
