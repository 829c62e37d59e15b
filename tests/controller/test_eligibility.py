"""One rule says which brokers may be in an ISR; the leader, the active controller and the log ask it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.controller.planning.partitions.isr_changes import _change_error
from tidegate.controller.state.eligibility import Eligibility, Ineligible, isr_eligibility
from tidegate.controller.state.model import (
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    BrokerState,
    PartitionState,
    TopicState,
)
from tidegate.controller.state.partition_changes import changed_partition
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime.clock import ManualClock
from tidegate.wire.errors import ErrorCode

LEVEL = SUPPORTED_FEATURES[METADATA_VERSION]
YES, NOT_NOW, NEVER = Eligibility.YES, Eligibility.NOT_NOW, Eligibility.NEVER
TOPIC_ID = UUID(int=9)
REPLICA = (TOPIC_ID.bytes, 0)
LEADER = BrokerState(1, "life", 30, False, "", "h", 1, "h", 2)
BROKER = BrokerState(2, "life", 40, False, "", "h", 1, "h", 2)
FENCED, STOPPING = replace(BROKER, fenced=True), replace(BROKER, shutting_down=True)
OFFLINE = replace(BROKER, offline_replicas=frozenset({REPLICA}))
ELSEWHERE = replace(BROKER, offline_replicas=frozenset({(TOPIC_ID.bytes, 1)}))


@pytest.mark.parametrize(
    ("broker", "broker_epoch", "joining", "member"),
    [
        (BROKER, 40, YES, YES),
        (BROKER, -1, YES, YES),
        (BROKER, 39, NEVER, NEVER),
        (BROKER, 41, NOT_NOW, NOT_NOW),
        (None, 40, NOT_NOW, NOT_NOW),
        (FENCED, 40, NOT_NOW, NOT_NOW),
        (STOPPING, 40, NEVER, YES),
        (STOPPING, 41, NOT_NOW, NOT_NOW),
        (OFFLINE, 40, NOT_NOW, YES),
        (ELSEWHERE, 40, YES, YES),
    ],
)
def test_the_metadata_decides_which_replicas_may_be_in_an_isr(
    broker: BrokerState | None, broker_epoch: int, joining: Eligibility, member: Eligibility
) -> None:
    assert isr_eligibility(broker, broker_epoch, replica=REPLICA) is joining
    assert isr_eligibility(broker, broker_epoch, replica=REPLICA, joins=False) is member


CASES: dict[Ineligible, tuple[BrokerState | None, int]] = {
    Ineligible.UNREGISTERED: (None, 40),
    Ineligible.FORMER_EPOCH: (BROKER, 39),
    Ineligible.LATER_EPOCH: (BROKER, 41),
    Ineligible.SHUTTING_DOWN: (STOPPING, 40),
    Ineligible.FENCED: (FENCED, 40),
    Ineligible.OFFLINE: (OFFLINE, 40),
}
"""A broker and a broker epoch that only this reason keeps out."""


def log_refuses(broker: BrokerState | None, epoch: int, level: int, *, joins: bool) -> bool:
    brokers = {1: LEADER} | ({} if broker is None else {2: broker})
    before = PartitionState((1, 2), (1,) if joins else (1, 2), leader=1)
    topic = TopicState("t", TOPIC_ID, {}, {0: before}, {})
    change = pb.PartitionChange(leader=1, isr=(1, 2), isr_broker_epochs=(-1, epoch), last_known_leader=1)
    found = changed_partition(brokers, {METADATA_VERSION: level}, topic, before, change)
    return found == ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("reason", Ineligible)
def test_each_reason_keeps_a_broker_out_of_the_isr(reason: Ineligible, joins: bool) -> None:
    assert reason in CASES, "give the reason its row in CASES"
    expected = reason.eligibility if joins or not reason.only_joins else YES
    broker, epoch = CASES[reason]
    assert isr_eligibility(broker, epoch, joins=joins, replica=REPLICA) is expected


@pytest.mark.parametrize("since", [None, 1, 3], ids=["never", "always", "since level 3"])
@pytest.mark.parametrize("reason", [reason for reason in Ineligible if reason.level is not None])
def test_the_log_refuses_for_a_reason_from_its_level_on(
    monkeypatch: pytest.MonkeyPatch, reason: Ineligible, since: int | None
) -> None:
    """It applies old entries again: below the level it takes what it once took.  (`test_features.py` holds
    that a new reason has no level of a release.)"""
    monkeypatch.setattr(reason, "level", since)
    for level in range(LEVEL + 1):  # 0: no level is finalised yet
        assert log_refuses(*CASES[reason], level, joins=True) == (
            since is not None and max(level, 1) >= since
        )


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize(
    ("broker", "epoch"),
    list(itertools.product([BROKER, *(broker for broker, _ in CASES.values()), ELSEWHERE], [-1, 39, 40, 41])),
)
def test_leader_controller_and_log_ask_the_one_rule(
    broker: BrokerState | None, epoch: int, joins: bool
) -> None:
    is_refused = isr_eligibility(broker, epoch, joins=joins, replica=REPLICA) is not YES
    is_refused_by_log = isr_eligibility(broker, epoch, joins=joins, level=LEVEL) is not YES
    assert log_refuses(broker, epoch, LEVEL, joins=joins) == is_refused_by_log
    brokers = {1: LEADER} | ({} if broker is None else {2: broker})
    before = PartitionState((1, 2), (1,) if joins else (1, 2), leader=1)
    topic = TopicState("t", TOPIC_ID, {}, {0: before}, {})
    state = cast(Any, SimpleNamespace(brokers=brokers))
    if joins:
        change = rpc.IsrChange(isr=(1, 2), isr_broker_epochs=(-1, epoch))
        answer = _change_error(state, 1, change, topic, before)
        assert answer == (ErrorCode.INELIGIBLE_REPLICA if is_refused else None)
        view = ClusterView(1, cast(Any, SimpleNamespace(state=state)), cast(Any, None), ManualClock())
        assert (view.isr_eligibility(TOPIC_ID, 0, 2, epoch) is not YES) == is_refused
