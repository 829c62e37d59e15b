"""Leadership by choice waits until the others have found a broker that came back; availability waits for nothing."""

from __future__ import annotations

import pytest
from test_active_controller import SAFE, Office, alter
from tidegate.controller.active import ActiveController
from tidegate.controller.reachability import Reachability
from tidegate.controller.requested_elections import plan_elections
from tidegate.proto import controller_pb2 as rpc
from tidegate.wire.errors import ErrorCode


@pytest.fixture
def office() -> Office:
    office = Office()
    office.join(1, 2, 3)
    office.topic(**SAFE)
    return office


def says(office: Office, node_id: int, *found_by: int) -> None:
    """A heartbeat of a broker that these others have reached, in their present lives."""
    lives = [rpc.ReachedBy.Life(node_id=each, broker_epoch=office.state.brokers[each].broker_epoch) for each in found_by]
    office.beat(node_id, reached_by=rpc.ReachedBy(lives=lives))


def joins_isr(office: Office, node_id: int) -> None:
    partition = office.partition()
    isr = tuple(each for each in partition.replicas if each in partition.isr or each == node_id)
    assert alter(office, partition.leader, isr) == ErrorCode.NONE


def came_back(office: Office) -> None:
    """Broker 1 was away for a moment, stopped in good order, and is in sync again; the others ask who is there."""
    says(office, 2, 1, 3)
    says(office, 3, 1, 2)
    office.join(1, incarnation="second", clean=True)
    joins_isr(office, 1)
    office.shows(leader=2, isr=(1, 2, 3))


def rebalanced(office: Office) -> int:
    office.carry_out(office.duties.rebalance())
    return office.partition().leader


def test_a_broker_that_came_back_leads_only_when_all_other_replicas_have_found_it(office: Office) -> None:
    came_back(office)
    says(office, 1)
    assert rebalanced(office) == 2
    says(office, 1, 2)
    assert rebalanced(office) == 2
    says(office, 1, 2, 3)
    assert rebalanced(office) == 1


def test_without_the_rule_it_leads_at_once(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActiveController, "reached", lambda *_: True)
    came_back(office)
    says(office, 1)
    assert rebalanced(office) == 1


def test_another_life_of_a_replica_has_to_find_it_anew(office: Office) -> None:
    came_back(office)
    says(office, 1, 2, 3)
    office.join(3, incarnation="second", clean=True)
    joins_isr(office, 3)
    says(office, 3, 1, 2)
    assert rebalanced(office) == 2
    says(office, 1, 2, 3)
    assert rebalanced(office) == 1


def test_brokers_of_an_older_version_neither_wait_nor_are_waited_for(office: Office) -> None:
    came_back(office)
    office.beat(1)  # it does not say
    assert rebalanced(office) == 1


def test_a_replica_of_an_older_version_is_not_waited_for(office: Office) -> None:
    came_back(office)
    office.beat(3)
    says(office, 1, 2)
    assert rebalanced(office) == 1


def test_a_broker_that_a_new_controller_has_not_heard_yet_waits(office: Office) -> None:
    came_back(office)
    office.duties.reachability = Reachability()
    says(office, 2, 3)
    says(office, 3, 2)
    assert rebalanced(office) == 2


def test_when_a_leader_goes_one_that_was_found_takes_over(office: Office) -> None:
    came_back(office)
    says(office, 1)
    says(office, 3, 1, 2)
    office.beat(2, wants_shutdown=True)
    assert office.partition().leader == 3


def test_the_only_candidate_leads_although_it_was_not_found(office: Office) -> None:
    came_back(office)
    says(office, 1)
    office.carry_out(office.duties.fence([2, 3], "test"))
    assert office.partition().leader == 1


def test_a_requested_preferred_election_is_told_that_it_was_not_found(office: Office) -> None:
    came_back(office)
    says(office, 1)
    request = rpc.ElectLeadersRequest(partitions=[rpc.PartitionName(topic="t", partition=0)])
    (result,) = plan_elections(office.state, request, reached=office.duties.reached).results
    assert result.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_a_broker_is_told_who_has_not_found_it(office: Office) -> None:
    came_back(office)
    says(office, 1, 3)
    assert office.duties.answer(1).not_reached_by == (2,)
    office.carry_out(office.duties.fence([2], "test"))
    assert office.duties.answer(1).not_reached_by == (), "one that is away is not waited for"


def test_a_new_controller_waits_for_what_the_others_say() -> None:
    """Else the first heartbeat that it hears would be enough, from whichever broker that is."""
    reachability = Reachability()
    assert reachability.missing(1, (1, 2, 3)) == [2, 3]
    reachability.told(1, 10, [])
    assert reachability.missing(1, (1, 2, 3)) == [2, 3]
    reachability.told(1, 10, [(2, 20)])
    reachability.told(2, 20, [])
    assert reachability.missing(1, (1, 2, 3)) == [3]
    reachability.told(3, 30, None)
    assert reachability.is_reached(1, (1, 2, 3))
