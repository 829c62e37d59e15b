"""The cluster state is held against its invariants: each planted corruption is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ApplyResult, PartitionState, TopicState
from tidegate.controller.state.validation import StateValidator, violations

from .test_cluster_state import Applier, creation

Plant = Callable[[ClusterState], None]


def three_brokers() -> Applier:
    applier = Applier()
    for node_id in (1, 2, 3):
        applier.broker(node_id)
    applier(creation("t", (1, 2, 3), 2, UUID(int=1)))
    return applier


def put(state: ClusterState, topic: TopicState) -> None:
    state._topics.by_name[topic.name] = topic


def partition(**changes: Any) -> Plant:
    """Changes t-0, as a command that raises the partition epoch does."""

    def plant(state: ClusterState) -> None:
        topic = state.topics["t"]
        before = topic.partitions[0]
        after = replace(before, **{"partition_epoch": before.partition_epoch + 1, **changes})
        put(state, replace(topic, partitions={**topic.partitions, 0: after}))

    return plant


def broker(node_id: int, /, **changes: Any) -> Plant:
    def plant(state: ClusterState) -> None:
        state._brokers.by_id[node_id] = replace(state.brokers[node_id], **changes)

    return plant


def forget_id(state: ClusterState) -> None:
    state._topics._names.clear()


def add_a_gap(state: ClusterState) -> None:
    topic = state.topics["t"]
    put(state, replace(topic, partitions={**topic.partitions, 7: PartitionState((1,), (1,), leader=1)}))


ONE_STATE: dict[str, tuple[Plant, str]] = {
    "a leader outside of the ISR": (partition(leader=2, isr=(1, 3), leader_epoch=1), "leader outside"),
    "an ISR outside of the replicas": (partition(replicas=(1, 2)), "disjoint sets of replicas"),
    "an ELR next to a full ISR": (partition(isr=(1, 2), elr=(3,)), "next to a full ISR"),
    "an unregistered replica": (partition(replicas=(1, 2, 3, 9)), "not registered"),
    "a leader epoch past the partition epoch": (partition(leader_epoch=9), "past the partition epoch"),
    "an id that leads nowhere": (forget_id, "differ"),
    "a gap between the partitions": (add_a_gap, "not dense"),
    "a broker under another node id": (broker(2, node_id=3), "leads to broker 3"),
    "a broker epoch of the future": (broker(2, broker_epoch=10_000), "has epoch 10000"),
    "settings of nodes that no topic has": (
        lambda state: setattr(state, "node_configs", {-1: {"min.insync.replicas": "2"}}), "its defaults are"),
}  # fmt: skip

ONE_STEP: dict[str, tuple[Plant, str]] = {
    "a partition epoch that stands still": (partition(isr=(1, 2), partition_epoch=0), "did not rise"),
    "a leader within the same leader epoch": (partition(leader=2), "within leader epoch"),
    "a broker epoch that fell": (broker(3, broker_epoch=1), "its epoch fell"),
    "a new epoch without a fence": (broker(3, broker_epoch=8), "without a fence"),
    "a new epoch within an ISR": (broker(3, broker_epoch=8, fenced=True), "while it was in an ISR"),
    "a fenced broker that leads": (
        lambda state: (broker(2, fenced=True)(state), partition(leader=2, leader_epoch=1)(state))[0],
        "is not active"),
    "a controller epoch that fell": (lambda state: setattr(state, "controller_epoch", -1), "fell"),
    "producer ids that are given again": (lambda state: setattr(state, "next_producer_id", -5), "below 0"),
}  # fmt: skip


def test_a_sound_state_is_valid() -> None:
    state = three_brokers().state
    assert violations(state) == []
    StateValidator().check(state)


@pytest.mark.parametrize("what", list(ONE_STATE))
def test_a_corrupt_state_is_found(what: str) -> None:
    plant, found = ONE_STATE[what]
    state = three_brokers().state
    plant(state)
    assert any(found in each for each in violations(state))
    with pytest.raises(AssertionError):
        StateValidator().check(state)


@pytest.mark.parametrize("what", list(ONE_STEP | ONE_STATE))
def test_a_corrupt_step_is_found_in_what_the_command_changed(what: str) -> None:
    plant, _ = (ONE_STEP | ONE_STATE)[what]
    state, validator = three_brokers().state, StateValidator()
    validator.check(state)
    plant(state)
    result = ApplyResult(
        state.index, state.term, changed_topics=frozenset({"t"}),
        changed_partitions=frozenset({("t", 0), ("t", 7)}), changed_brokers=frozenset({2, 3}),
    )  # fmt: skip
    with pytest.raises(AssertionError, match=ONE_STEP[what][1] if what in ONE_STEP else "as of entry"):
        validator.check(state, result)


def test_a_step_is_judged_by_what_it_changed_alone() -> None:
    """So the check costs the same however many partitions the cluster has."""
    state, validator = three_brokers().state, StateValidator()
    validator.check(state)
    partition(elr=(3,))(state)
    validator.check(state, ApplyResult(state.index, state.term))
    with pytest.raises(AssertionError):
        validator.check(state)
