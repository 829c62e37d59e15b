"""Brokers that leave for good, leaderships that return, racks, and how much one dead broker costs."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.controller.planning import topics as topic_plans
from tidegate.controller.planning.brokers.registration import plan_unregistration
from tidegate.controller.planning.partitions import elections, isr_changes
from tidegate.controller.planning.partitions.placement import Load, place
from tidegate.controller.planning.plan import Plan
from tidegate.controller.planning.planner import ControllerConfig
from tidegate.controller.state.model import METADATA_VERSION, BrokerState, PartitionState, TopicState
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode, KafkaError

from .test_planner import PlannerCluster, alter


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    controller.join(1, 2, 3, 4)
    return controller


# ---- unregistering -----------------------------------------------------------------------------------------


def unregister(controller: PlannerCluster, node_id: int) -> None:
    controller.carry_out(plan_unregistration(controller.state, node_id))
    controller.planner.sessions.unregistered(node_id)


def refusal(controller: PlannerCluster, node_id: int) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        unregister(controller, node_id)
    return refused.value


def test_a_broker_without_replicas_can_unregister_and_returns_as_a_new_one(
    controller: PlannerCluster,
) -> None:
    for number in range(7):
        controller.topic(f"t{number}", replicas=(1, 2, 3))
    assert refusal(controller, 9).code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert "is alive" in refusal(controller, 3).message
    controller.lose(3, 4)
    held = refusal(controller, 3)
    assert held.code == ErrorCode.POLICY_VIOLATION
    assert "replica of t0-0, t1-0, t2-0, t3-0, t4-0 and more: move them first" in held.message
    before = controller.state.brokers[4].broker_epoch
    unregister(controller, 4)
    assert 4 not in controller.state.brokers
    assert 4 not in controller.planner.sessions.by_id
    with pytest.raises(KafkaError) as gone:
        request = rpc.HeartbeatRequest(node_id=4, broker_epoch=before)
        controller.planner.extend_session(request, controller.now)
    assert gone.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    controller.join(4, incarnation="another machine")
    assert controller.state.brokers[4].broker_epoch > before
    assert controller.state.brokers[4].active


def test_the_state_itself_refuses_to_forget_a_broker_that_is_needed(controller: PlannerCluster) -> None:
    """Whatever the plan was made from: the entry that is applied decides."""
    controller.topic(replicas=(1, 2, 3))
    controller.lose(3)

    def apply(node_id: int) -> ErrorCode:
        removal = pb.UnregisterBroker(
            node_id=node_id, broker_epoch=controller.state.brokers[node_id].broker_epoch
        )
        command = pb.Command(operations=[pb.Operation(unregister_broker=removal)])
        return controller.state.apply(controller.state.index + 1, 1, command.SerializeToString()).error

    assert apply(3) == ErrorCode.POLICY_VIOLATION
    assert apply(4) == ErrorCode.POLICY_VIOLATION
    controller.lose(4)
    controller.state._features = {METADATA_VERSION: 1}
    assert apply(4) == ErrorCode.UNSUPPORTED_VERSION
    assert "needs 2" in refusal(controller, 4).message
    controller.state._features = {METADATA_VERSION: 2}
    assert apply(4) == ErrorCode.NONE


def test_an_unregistration_of_an_earlier_epoch_removes_no_broker(controller: PlannerCluster) -> None:
    old = controller.state.brokers[4].broker_epoch
    controller.lose(4)
    controller.register(4, "second")
    removal = pb.Command(
        operations=[pb.Operation(unregister_broker=pb.UnregisterBroker(node_id=4, broker_epoch=old))]
    )
    result = controller.state.apply(controller.state.index + 1, 1, removal.SerializeToString())
    assert result.error == ErrorCode.STALE_BROKER_EPOCH
    assert 4 in controller.state.brokers


# ---- balance -----------------------------------------------------------------------------------------------


def unbalanced(percentage: int, *, enabled: bool = True, elsewhere: int = 1, of: int = 10) -> PlannerCluster:
    """Broker 1 is the preferred leader of `of` partitions; `elsewhere` of them are led by 2 although it is in
    sync again."""
    config = ControllerConfig(leader_imbalance_percentage=percentage, leader_rebalance=enabled)
    controller = PlannerCluster(config=config)
    controller.join(1, 2)
    for number in range(of):
        controller.topic(f"t{number}", replicas=(1, 2))
    for number in range(elsewhere):
        topic = controller.state.topics[f"t{number}"]
        partition = replace(topic.partitions[0], leader=2, leader_epoch=1, partition_epoch=1)
        controller.state._topics.by_name[topic.name] = replace(topic, partitions={0: partition})
    return controller


@pytest.mark.parametrize(("percentage", "returns"), [(0, True), (9, True), (10, False), (100, False)])
def test_leaderships_return_when_more_than_the_allowed_share_is_elsewhere(
    percentage: int, returns: bool
) -> None:
    assert bool(unbalanced(percentage).planner.rebalance().operations) is returns


def test_leaderships_return_at_the_interval_unless_that_is_off() -> None:
    for enabled in (True, False):
        controller = unbalanced(0, enabled=enabled)
        controller.now = 31.0
        for node_id in (1, 2):
            controller.beat(node_id)
        for _ in range(3):
            controller.carry_out(controller.planner.tick(controller.now))
        assert (controller.partition("t0").leader == 1) is enabled


def test_a_preferred_leader_that_is_not_in_sync_is_counted_but_left_alone() -> None:
    controller = unbalanced(20, elsewhere=3)
    stuck = controller.state.topics["t0"]
    controller.state._topics.by_name["t0"] = replace(
        stuck, partitions={0: replace(stuck.partitions[0], isr=(2,))}
    )
    plan = controller.planner.rebalance()
    assert sum(len(topic.partitions) for op in plan.operations for topic in op.change_partitions.topics) == 2


# ---- racks -------------------------------------------------------------------------------------------------


def broker(node_id: int, rack: str) -> BrokerState:
    return BrokerState(node_id, "i", 1, False, rack, "h", 1, "h", 2)


@given(
    racks=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    factor=st.integers(1, 5),
    partitions=st.integers(1, 40),
    order=st.randoms(use_true_random=False),
)
def test_replicas_are_spread_over_racks_and_brokers(
    racks: list[int], factor: int, partitions: int, order: random.Random
) -> None:
    """As many racks as there are replicas, or all of them; leaderships are even, replicas too where racks are
    equally large."""
    numbers = itertools.count(1)
    brokers = [broker(next(numbers), f"rack-{rack}") for rack, size in enumerate(racks) for _ in range(size)]
    order.shuffle(brokers)
    if factor > len(brokers):
        return
    rack_of = {each.node_id: each.rack for each in brokers}
    placed = place(partitions, factor, brokers, Load())
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({rack_of[node_id] for node_id in replicas}) == min(factor, len(racks)), replicas
    led = [sum(replicas[0] == each.node_id for replicas in placed) for each in brokers]
    assert max(led) - min(led) <= 1, "leaderships are even whatever the racks"
    if len(set(racks)) == 1:
        held = [sum(each.node_id in replicas for replicas in placed) for each in brokers]
        assert max(held) - min(held) <= 2, held


def test_brokers_without_racks_are_placed_as_if_each_had_its_own() -> None:
    brokers = [broker(node_id, "") for node_id in range(1, 6)]
    placed = place(20, 3, brokers, Load())
    assert max(sum(n in replicas for replicas in placed) for n in range(1, 6)) == 12


def test_the_load_of_a_partition_that_moves_counts_where_it_will_be() -> None:
    moving = PartitionState((1, 2), (1, 2), leader=1, adding=(2,), target=(2,))
    load = Load.of([TopicState("t", UUID(int=1), {}, {0: moving})])
    assert load.leaderships == {2: 1}
    assert load.replicas == {2: 1}


# ---- many partitions, and the rules of KIP-966 -------------------------------------------------------------


def with_many(topics: int, partitions: int) -> PlannerCluster:
    controller = PlannerCluster()
    controller.join(1, 2, 3)
    replicas = [
        {"replicas": tuple(((number + shift) % 3) + 1 for shift in range(3))} for number in range(partitions)
    ]
    request = rpc.CreateTopicsRequest(request_id=rpc.RequestId(client_id="test", sequence=1))
    for number in range(topics):
        wanted = request.topics.add(
            name=f"t{number}", partitions=-1, replication_factor=-1, assignments=replicas
        )
        wanted.config["min.insync.replicas"] = "2"
    controller.carry_out(
        Plan(topic_plans.plan_creation(controller.state, controller.config, request, uuid4).operations)
    )
    return controller


@pytest.mark.parametrize(("topics", "partitions"), [(1, 10_000), (1000, 10)])
def test_ten_thousand_partitions_fail_over_in_a_few_bounded_commands(topics: int, partitions: int) -> None:
    controller = with_many(topics, partitions)
    plan = controller.planner.fence([1], "dead")
    commands = list(plan.commands(1))
    assert len(commands) <= 3
    assert max(command.ByteSize() for command in commands) < 500_000
    controller.carry_out(plan)
    assert all(
        p.leader in (2, 3) and p.isr for t in controller.state.topics.values() for p in t.partitions.values()
    )


def test_a_member_of_the_elr_is_elected_when_the_isr_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-966: 2 left the ISR when it was below min.insync.replicas, so it has everything that was
    acknowledged."""

    def elected() -> int:
        controller = PlannerCluster()
        controller.join(1, 2, 3)
        controller.topic(**{"min.insync.replicas": "2", "flush.policy": "os"})  # type: ignore[arg-type]
        controller.lose(3)
        controller.lose(2)
        controller.lose(1)
        controller.join(2, incarnation="second", clean=True)
        return controller.partition().leader

    assert elected() == 2
    monkeypatch.setattr(isr_changes, "eligible_leaders", lambda *_: ())
    monkeypatch.setattr(elections, "eligible_leaders", lambda *_: ())
    assert elected() == -1


def test_ablation_an_election_despite_the_topics_setting_loses_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on a state topic, were its name not asked for."""

    def leader_after(**config: str) -> int:
        controller = PlannerCluster()
        controller.join(1, 2)
        controller.topic(replicas=(1, 2), **config)
        alter(controller, 1, (1,))
        controller.lose(1)
        return controller.partition().leader

    assert leader_after() == -1
    assert leader_after(**{"unclean.leader.election.enable": "true"}) == 2
    monkeypatch.setattr(TopicState, "unclean_election_allowed", property(lambda _self: True))
    assert leader_after() == 2


def test_a_state_topic_never_has_an_unclean_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = TopicState("__transaction_state", UUID(int=1), {"unclean.leader.election.enable": "true"})
    partition = PartitionState((1, 2), (), leader=-1, last_known_leader=1)
    assert elections.elect(topic, 0, partition, {2}) is None
    monkeypatch.setattr(TopicState, "internal", property(lambda _self: False))
    wanted = elections.elect(topic, 0, partition, {2})
    assert wanted is not None
    assert wanted.leader == 2
    assert wanted.unclean
