"""Elections that an operator asks for: the elected leaders, and the answer for each partition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidegate.controller.planning import topics
from tidegate.controller.planning.partitions.requested_elections import plan_elections
from tidegate.controller.planning.plan import Plan
from tidegate.proto import controller_pb2 as rpc
from tidegate.wire.errors import ErrorCode

from .test_planner import PlannerCluster


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    controller.join(1, 2, 3)
    return controller


def elect(
    controller: PlannerCluster, *keys: tuple[str, int], unclean: bool = False
) -> list[tuple[str, int, ErrorCode]]:
    """Without keys: every partition."""
    names = [rpc.PartitionName(topic=topic, partition=partition) for topic, partition in keys]
    request = rpc.ElectLeadersRequest(unclean=unclean, every_partition=not keys, partitions=names)
    elections = plan_elections(controller.state, request)
    controller.carry_out(elections.plan)
    return [
        (result.topic, result.partition, ErrorCode(result.error))
        for result in elections.outcome(controller.state)
    ]


def all_but_one_lost(controller: PlannerCluster) -> None:
    """Node 3 alone is back; 1 and 2 were the last in sync."""
    controller.topic()
    controller.lose(3)
    controller.lose(1, 2)
    controller.register(3, "second")
    controller.beat(3)
    assert controller.partition().leader == -1


def allow_unclean(controller: PlannerCluster) -> None:
    change = rpc.AlterConfigsRequest(
        topics=[{"name": "t", "set": {"unclean.leader.election.enable": "true"}}]  # type: ignore[list-item]
    )
    controller.carry_out(Plan(topics.plan_configuration(controller.state, change).operations))


def test_leadership_returns_to_the_preferred_replica_when_asked(controller: PlannerCluster) -> None:
    controller.topic()
    first = controller.partition().preferred_leader
    assert elect(controller, ("t", 0)) == [("t", 0, ErrorCode.ELECTION_NOT_NEEDED)]
    controller.lose(first)
    assert controller.partition().leader != first
    assert elect(controller, ("t", 0)) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]


def test_what_does_not_exist_is_its_own_answer(controller: PlannerCluster) -> None:
    controller.topic()
    found = elect(controller, ("nope", 0), ("t", 9), ("t", 0))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [("nope", 0, unknown), ("t", 9, unknown), ("t", 0, ErrorCode.ELECTION_NOT_NEEDED)]


def test_every_partition_answers_only_where_something_was_to_be_done(controller: PlannerCluster) -> None:
    controller.topic()
    assert elect(controller) == []
    assert elect(controller, unclean=True) == []


def test_an_unclean_election_is_refused_where_the_topic_does_not_allow_it(controller: PlannerCluster) -> None:
    all_but_one_lost(controller)
    assert elect(controller, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert controller.partition().leader == -1


def test_an_unclean_election_is_held_where_the_topic_allows_it(controller: PlannerCluster) -> None:
    all_but_one_lost(controller)
    allow_unclean(controller)
    assert elect(controller, ("t", 0), unclean=True) == [("t", 0, ErrorCode.NONE)]
    assert controller.partition().leader == 3
    assert elect(controller, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELECTION_NOT_NEEDED)]


def test_an_election_that_lost_its_race_is_not_reported_as_done(controller: PlannerCluster) -> None:
    all_but_one_lost(controller)
    allow_unclean(controller)
    request = rpc.ElectLeadersRequest(unclean=True, partitions=[rpc.PartitionName(topic="t", partition=0)])
    elections = plan_elections(controller.state, request)
    assert elections.wanted
    (result,) = elections.outcome(controller.state)  # the plan was not carried out
    assert result.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert controller.partition().leader == -1


def given_up(
    controller: PlannerCluster,
    monkeypatch: pytest.MonkeyPatch,
    *,
    replicas: tuple[int, ...] = (2,),
    counted_on: int = -1,
    elr: tuple[int, ...] = (),
) -> None:
    """`t` counts as a state topic; no replica of it may have all committed records, or one may."""
    controller.topic(replicas=replicas)
    topic = controller.state.topics["t"]
    monkeypatch.setattr(type(topic), "internal", property(lambda topic: True))
    partition = topic.partitions[0]
    topic.partitions[0] = replace(partition, leader=-1, isr=(), elr=elr, last_known_leader=counted_on)
    controller.state._topics.by_name["t"] = replace(topic, defaults={})  # as a state topic has them


def test_an_operator_can_elect_the_only_replica_of_a_state_topic(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up(controller, monkeypatch)
    epoch = controller.partition().leader_epoch
    refused = [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert elect(controller, unclean=True) == refused  # not named
    assert elect(controller, ("t", 0), unclean=False) != [("t", 0, ErrorCode.NONE)]
    assert elect(controller, ("t", 0), unclean=True) == [("t", 0, ErrorCode.NONE)]
    found = controller.partition()
    assert (found.leader, found.isr, found.elr) == (2, (2,), ())
    assert found.leader_epoch > epoch


@pytest.mark.parametrize("lost", [(), (1, 3), (1, 2, 3)])
def test_a_state_topic_with_several_replicas_has_no_unclean_election(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
) -> None:
    """docs/semantics.md M16: those that are away may have more."""
    given_up(controller, monkeypatch, replicas=(1, 2, 3))
    controller.lose(*lost)
    assert elect(controller, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert controller.partition().leader == -1


@pytest.mark.parametrize(("counted_on", "elr"), [(1, ()), (-1, (1,))])
def test_no_replica_leads_a_state_topic_while_one_with_records_is_away(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch, counted_on: int, elr: tuple[int, ...]
) -> None:
    given_up(controller, monkeypatch, replicas=(1, 2, 3), counted_on=counted_on, elr=elr)
    controller.lose(1, 3)
    assert elect(controller, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert controller.partition().leader == -1
