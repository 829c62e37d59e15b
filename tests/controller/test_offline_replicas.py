"""A broker that lives and cannot serve some of its replicas: others lead them, and the metadata say so."""

from __future__ import annotations

import pytest
from controller_cluster import registration
from test_active_controller import FLUSHED, Office
from tidegate.controller.offline_replicas import decode_replicas, encode_replicas
from tidegate.controller.state import ClusterState
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb


@pytest.fixture
def office() -> Office:
    office = Office(disks={1: "one", 2: "two", 3: "three"})
    office.join(1, 2, 3)
    office.topic("t", **FLUSHED)
    office.topic("u", **FLUSHED)
    return office


def offline(office: Office, *names: str) -> list[rpc.ReplicasOfTopic]:
    return [rpc.ReplicasOfTopic(topic_id=office.state.topics[name].topic_id.bytes, partitions=[0]) for name in names]


def settle(office: Office) -> None:
    office.now += 0.1
    office.carry_out(office.duties.tick(office.now))


def test_leadership_moves_away_from_a_replica_that_went_offline_and_others_stay(office: Office) -> None:
    office.beat(1, offline_replicas=offline(office, "t"))
    settle(office)
    office.shows(leader=2, isr=(2, 3))
    office.shows(leader=1, isr=(1, 2, 3), name="u")
    assert office.state.offline_nodes(office.state.topics["t"].topic_id, 0) == {1}
    assert not office.state.brokers[1].fenced
    office.carry_out(office.duties.rebalance())
    office.shows(leader=2, isr=(2, 3))


def test_it_may_not_come_back_to_the_isr_before_it_is_served_again(office: Office) -> None:
    office.beat(1, offline_replicas=offline(office, "t"))
    settle(office)
    partition, broker = office.partition(), office.state.brokers[2]
    change = rpc.IsrChange(
        topic_id=office.state.topics["t"].topic_id.bytes,
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=[1, 2, 3],
    )
    request = rpc.AlterPartitionsRequest(node_id=2, broker_epoch=broker.broker_epoch, changes=[change])
    plan, errors = office.duties.alter_partitions(request)
    assert not plan and errors[0].name == "INELIGIBLE_REPLICA"
    office.beat(1)
    plan, errors = office.duties.alter_partitions(request)
    assert plan and errors[0].name == "NONE"


def test_the_last_replica_that_goes_offline_leads_again_when_it_is_back(office: Office) -> None:
    office.lose(2, 3)
    office.shows(leader=1, isr=(1,), elr=(2, 3))
    office.beat(1, offline_replicas=offline(office, "t"))
    settle(office)
    partition = office.partition()
    assert partition.leader == -1 and 1 in partition.elr
    office.beat(1)
    settle(office)
    assert office.partition().leader == 1


def test_a_damaged_replica_is_not_eligible_any_more_and_others_of_its_broker_are(office: Office) -> None:
    office.lose(1, 2, 3)
    request = registration(1, "second", directory_id="one")
    request.damaged_replicas.extend(offline(office, "t"))
    request.offline_replicas.extend(offline(office, "t"))
    office.carry_out(office.duties.register(request))
    office.duties.registered(1, office.now)
    office.beat(1, offline_replicas=offline(office, "t"))
    settle(office)
    assert 1 not in office.partition("t").elr and 1 not in office.partition("t").isr
    assert 1 in (*office.partition("u").elr, *office.partition("u").isr)


def test_ablation_without_the_report_a_damaged_replica_stays_eligible(office: Office) -> None:
    office.lose(1, 2, 3)
    office.register(1, "second")
    assert 1 in (*office.partition("t").elr, *office.partition("t").isr)


def test_a_snapshot_remembers_who_is_offline(office: Office) -> None:
    office.beat(3, offline_replicas=offline(office, "u", "t"))
    assert len(office.state.brokers[3].offline_replicas) == 2
    copy = ClusterState()
    copy.restore(office.state.encode())
    assert copy.brokers[3].offline_replicas == office.state.brokers[3].offline_replicas


def test_replicas_in_messages_have_one_order() -> None:
    replicas = frozenset({(b"b", 2), (b"a", 1), (b"b", 0)})
    groups = encode_replicas(replicas, pb.PartitionsOfTopic)
    assert [(group.topic_id, list(group.partitions)) for group in groups] == [(b"a", [1]), (b"b", [0, 2])]
    assert decode_replicas(groups) == replicas
