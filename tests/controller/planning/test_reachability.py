"""Leadership by choice waits until the others have found a broker that came back; availability waits for
nothing."""

from __future__ import annotations

import pytest
from tidegate.controller.planning.brokers.reachability import Reachability
from tidegate.controller.planning.partitions.requested_elections import plan_elections
from tidegate.proto import controller_pb2 as rpc
from tidegate.wire.errors import ErrorCode

from .test_planner import SAFE, PlannerCluster, alter


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    controller.join(1, 2, 3)
    controller.topic(**SAFE)
    return controller


def says(controller: PlannerCluster, node_id: int, *found_by: int) -> None:
    """A heartbeat of a broker that these others have reached, in their present lives."""
    lives = [
        rpc.ReachedBy.Life(node_id=each, broker_epoch=controller.state.brokers[each].broker_epoch)
        for each in found_by
    ]
    controller.beat(node_id, reached_by=rpc.ReachedBy(lives=lives))


def joins_isr(controller: PlannerCluster, node_id: int) -> None:
    partition = controller.partition()
    isr = tuple(each for each in partition.replicas if each in partition.isr or each == node_id)
    assert alter(controller, partition.leader, isr) == ErrorCode.NONE


def came_back(controller: PlannerCluster) -> None:
    """Broker 1 was away for a moment, stopped in good order, and is in sync again; the others ask for its
    identity."""
    says(controller, 2, 1, 3)
    says(controller, 3, 1, 2)
    controller.join(1, incarnation="second", clean=True)
    joins_isr(controller, 1)
    controller.shows(leader=2, isr=(1, 2, 3))


def rebalanced(controller: PlannerCluster) -> int:
    controller.carry_out(controller.planner.rebalance())
    return controller.partition().leader


def test_a_returned_broker_leads_only_when_the_other_replicas_reached_it(controller: PlannerCluster) -> None:
    came_back(controller)
    says(controller, 1)
    assert rebalanced(controller) == 2
    says(controller, 1, 2)
    assert rebalanced(controller) == 2
    says(controller, 1, 2, 3)
    assert rebalanced(controller) == 1


def test_without_the_rule_it_leads_at_once(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reachability, "is_reached", lambda *_: True)
    came_back(controller)
    says(controller, 1)
    assert rebalanced(controller) == 1


def test_another_life_of_a_replica_has_to_find_it_anew(controller: PlannerCluster) -> None:
    came_back(controller)
    says(controller, 1, 2, 3)
    controller.join(3, incarnation="second", clean=True)
    joins_isr(controller, 3)
    says(controller, 3, 1, 2)
    assert rebalanced(controller) == 2
    says(controller, 1, 2, 3)
    assert rebalanced(controller) == 1


def test_brokers_of_an_older_version_neither_wait_nor_are_waited_for(controller: PlannerCluster) -> None:
    came_back(controller)
    controller.beat(1)  # it does not say
    assert rebalanced(controller) == 1


def test_a_replica_of_an_older_version_is_not_waited_for(controller: PlannerCluster) -> None:
    came_back(controller)
    controller.beat(3)
    says(controller, 1, 2)
    assert rebalanced(controller) == 1


def test_a_broker_without_a_report_to_a_new_controller_waits(controller: PlannerCluster) -> None:
    came_back(controller)
    controller.planner.sessions.reachability = Reachability()
    says(controller, 2, 3)
    says(controller, 3, 2)
    assert rebalanced(controller) == 2


def test_a_leaders_successor_is_a_broker_that_others_have_reached(controller: PlannerCluster) -> None:
    came_back(controller)
    says(controller, 1)
    says(controller, 3, 1, 2)
    controller.beat(2, wants_shutdown=True)
    assert controller.partition().leader == 3


def test_the_only_candidate_leads_although_it_was_not_found(controller: PlannerCluster) -> None:
    came_back(controller)
    says(controller, 1)
    controller.carry_out(controller.planner.fence([2, 3], "test"))
    assert controller.partition().leader == 1


def test_a_preferred_election_of_an_unreached_broker_gets_an_error(controller: PlannerCluster) -> None:
    came_back(controller)
    says(controller, 1)
    request = rpc.ElectLeadersRequest(partitions=[rpc.PartitionName(topic="t", partition=0)])
    (result,) = plan_elections(
        controller.state, request, reached=controller.planner.sessions.reachability.is_reached
    ).results
    assert result.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_a_heartbeat_answer_names_the_brokers_that_did_not_reach_it(
    controller: PlannerCluster,
) -> None:
    came_back(controller)
    says(controller, 1, 3)
    assert controller.planner.answer(1).not_reached_by == (2,)
    controller.carry_out(controller.planner.fence([2], "test"))
    assert controller.planner.answer(1).not_reached_by == (), "one that is away is not waited for"


def test_a_new_controller_waits_for_what_the_others_say() -> None:
    """Else the first heartbeat that it hears would be enough, from whichever broker that is."""
    reachability = Reachability()
    assert reachability.missing(1, (1, 2, 3)) == [2, 3]
    reachability.report(1, 10, [])
    assert reachability.missing(1, (1, 2, 3)) == [2, 3]
    reachability.report(1, 10, [(2, 20)])
    reachability.report(2, 20, [])
    assert reachability.missing(1, (1, 2, 3)) == [3]
    reachability.report(3, 30, None)
    assert reachability.is_reached(1, (1, 2, 3))
