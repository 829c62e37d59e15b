"""Elections that an operator asks for: who is elected, and what each partition is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_active_controller import Office
from tidegate.controller import topics
from tidegate.controller.active import Plan
from tidegate.controller.requested_elections import plan_elections
from tidegate.proto import controller_pb2 as rpc
from tidegate.wire.errors import ErrorCode


@pytest.fixture
def office() -> Office:
    office = Office()
    office.join(1, 2, 3)
    return office


def elect(office: Office, *keys: tuple[str, int], unclean: bool = False) -> list[tuple[str, int, ErrorCode]]:
    """Without keys: every partition."""
    names = [rpc.PartitionName(topic=topic, partition=partition) for topic, partition in keys]
    request = rpc.ElectLeadersRequest(unclean=unclean, every_partition=not keys, partitions=names)
    elections = plan_elections(office.state, request)
    office.carry_out(elections.plan)
    return [(result.topic, result.partition, ErrorCode(result.error)) for result in elections.outcome(office.state)]


def all_but_one_lost(office: Office) -> None:
    """Node 3 alone is back; 1 and 2 were the last in sync."""
    office.topic()
    office.lose(3)
    office.lose(1, 2)
    office.register(3, "second")
    office.beat(3)
    assert office.partition().leader == -1


def allow_unclean(office: Office) -> None:
    change = rpc.AlterConfigsRequest(topics=[{"name": "t", "set": {"unclean.leader.election.enable": "true"}}])
    office.carry_out(Plan(topics.plan_configuration(office.state, change).operations))


def test_leadership_returns_to_the_preferred_replica_when_asked(office: Office) -> None:
    office.topic()
    first = office.partition().preferred_leader
    assert elect(office, ("t", 0)) == [("t", 0, ErrorCode.ELECTION_NOT_NEEDED)]
    office.lose(first)
    assert office.partition().leader != first
    assert elect(office, ("t", 0)) == [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]


def test_what_does_not_exist_is_its_own_answer(office: Office) -> None:
    office.topic()
    found = elect(office, ("nope", 0), ("t", 9), ("t", 0))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == [("nope", 0, unknown), ("t", 9, unknown), ("t", 0, ErrorCode.ELECTION_NOT_NEEDED)]


def test_every_partition_answers_only_where_something_was_to_be_done(office: Office) -> None:
    office.topic()
    assert elect(office) == []
    assert elect(office, unclean=True) == []


def test_an_unclean_election_is_refused_where_the_topic_does_not_allow_it(office: Office) -> None:
    all_but_one_lost(office)
    assert elect(office, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert office.partition().leader == -1


def test_an_unclean_election_is_held_where_the_topic_allows_it(office: Office) -> None:
    all_but_one_lost(office)
    allow_unclean(office)
    assert elect(office, ("t", 0), unclean=True) == [("t", 0, ErrorCode.NONE)]
    assert office.partition().leader == 3
    assert elect(office, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELECTION_NOT_NEEDED)]


def test_an_election_that_lost_its_race_is_not_reported_as_done(office: Office) -> None:
    all_but_one_lost(office)
    allow_unclean(office)
    request = rpc.ElectLeadersRequest(unclean=True, partitions=[rpc.PartitionName(topic="t", partition=0)])
    elections = plan_elections(office.state, request)
    assert elections.wanted
    (result,) = elections.outcome(office.state)  # the plan was not carried out
    assert result.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE and office.partition().leader == -1


def given_up(
    office: Office,
    monkeypatch: pytest.MonkeyPatch,
    *,
    replicas: tuple[int, ...] = (2,),
    counted_on: int = -1,
    elr: tuple[int, ...] = (),
) -> None:
    """`t` counts as a state topic; nobody of its replicas is counted on, or one is."""
    office.topic(replicas=replicas)
    topic = office.state.topics["t"]
    monkeypatch.setattr(type(topic), "internal", property(lambda topic: True))
    partition = topic.partitions[0]
    topic.partitions[0] = replace(partition, leader=-1, isr=(), elr=elr, last_known_leader=counted_on)


def test_of_a_state_topic_the_only_replica_leads_when_the_operator_names_the_partition(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up(office, monkeypatch)
    epoch = office.partition().leader_epoch
    refused = [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert elect(office, unclean=True) == refused  # not named
    assert elect(office, ("t", 0), unclean=False) != [("t", 0, ErrorCode.NONE)]
    assert elect(office, ("t", 0), unclean=True) == [("t", 0, ErrorCode.NONE)]
    found = office.partition()
    assert (found.leader, found.isr, found.elr) == (2, (2,), ()) and found.leader_epoch > epoch


@pytest.mark.parametrize("lost", [(), (1, 3), (1, 2, 3)])
def test_of_a_state_topic_with_several_replicas_nobody_is_ever_elected_uncleanly(
    office: Office, monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
) -> None:
    """docs/semantics.md M16: those that are away may have more."""
    given_up(office, monkeypatch, replicas=(1, 2, 3))
    office.lose(*lost)
    assert elect(office, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert office.partition().leader == -1


@pytest.mark.parametrize(("counted_on", "elr"), [(1, ()), (-1, (1,))])
def test_of_a_state_topic_nobody_else_leads_while_one_is_away_that_has_its_records(
    office: Office, monkeypatch: pytest.MonkeyPatch, counted_on: int, elr: tuple[int, ...]
) -> None:
    given_up(office, monkeypatch, replicas=(1, 2, 3), counted_on=counted_on, elr=elr)
    office.lose(1, 3)
    assert elect(office, ("t", 0), unclean=True) == [("t", 0, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)]
    assert office.partition().leader == -1
