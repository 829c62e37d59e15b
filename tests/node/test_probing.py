"""Each broker asks every other one for its identity, until the intended broker has answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.controller.planning.brokers.reachability import Life
from tidegate.controller.state.model import BrokerState
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.node.cluster.peers import confirm_identity
from tidegate.node.lifecycle.probing import Asked, Prober, Probing, Question, ReachedBy, parse
from tidegate.runtime.clock import SystemClock
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

QUESTION = Question((1, 10), (2, 20))


def broker(node_id: int, epoch: int, *, fenced: bool = False) -> BrokerState:
    return BrokerState(node_id, "x", epoch, fenced, "", f"node-{node_id}", 9092, f"node-{node_id}", 9093)


def test_a_question_names_both_brokers_and_their_epochs() -> None:
    assert parse(QUESTION.client_id) == QUESTION


@pytest.mark.parametrize(
    "client_id",
    [
        "app",
        "tidegate-reach",
        "tidegate-reach/1/2/3",
        "tidegate-reach/1/2/3/x",
        "a/1/2/3/4",
        "tidegate-reach/-1/2/3/4",
        "tidegate-reach/1/2/3/-1",
        "tidegate-reach/1/2_0/3/4",
        "tidegate-reach/1/\u0662/3/4",
        "tidegate-reach/2147483648/2/3/4",
        "tidegate-reach/1/9223372036854775808/3/4",
        "tidegate-reach/1/99999999999999999999/3/4",
        f"tidegate-reach/1/{'9' * 5000}/3/4",
    ],
)
def test_other_client_ids_ask_nothing(client_id: str) -> None:
    assert parse(client_id) is None


def test_only_the_life_that_is_meant_counts_the_question() -> None:
    reached_by = ReachedBy()
    all_brokers: Callable[[Life], bool] = lambda _: True  # noqa: E731
    assert reached_by.asked(QUESTION, (2, 21), all_brokers) is Asked.REFUSED
    assert reached_by.asked(QUESTION, (3, 20), all_brokers) is Asked.REFUSED
    assert list(reached_by.lives) == []
    assert reached_by.asked(QUESTION, (2, 20), all_brokers) is Asked.NOTED
    assert reached_by.asked(QUESTION, (2, 20), all_brokers) is Asked.KNOWN
    assert list(reached_by.lives) == [(1, 10)]


@pytest.mark.parametrize("forged_epoch", [0, 9, 11, (1 << 63) - 1])
def test_only_a_life_that_is_registered_counts_and_a_forged_one_hides_none(forged_epoch: int) -> None:
    """Any Kafka client can ask in the name of a broker."""
    reached_by, registered = ReachedBy(), {(1, 10)}
    forged = Question((1, forged_epoch), (2, 20))
    assert reached_by.asked(forged, (2, 20), registered.__contains__) is Asked.REFUSED
    assert reached_by.asked(QUESTION, (2, 20), registered.__contains__) is Asked.NOTED
    assert reached_by.asked(forged, (2, 20), registered.__contains__) is Asked.REFUSED
    assert list(reached_by.lives) == [(1, 10)]
    next_life = Question((1, 30), (2, 20))
    assert reached_by.asked(next_life, (2, 20), registered.__contains__) is Asked.REFUSED, (
        "not known here yet: it asks again"
    )
    registered = {(1, 30)}
    assert reached_by.asked(next_life, (2, 20), registered.__contains__) is Asked.NOTED
    assert list(reached_by.lives) == [(1, 30)]


async def test_a_broker_beats_early_only_for_what_is_news() -> None:
    """Whatever a client asks, and however often: the question is answered, and one heartbeat tells of the
    broker that asked."""
    early: list[None] = []
    lifecycle = SimpleNamespace(
        broker_epoch=7, not_reached_by=(2,), heartbeat_soon=lambda: early.append(None)
    )
    metadata = SimpleNamespace(state=SimpleNamespace(brokers={2: broker(2, 20)}))
    cluster, own = ClusterView(1, cast(Any, metadata), cast(Any, None), SystemClock()), (1, 7)
    reached_by = ReachedBy()
    beat: Any = early.append
    node = Probing(cluster, cast(Any, lifecycle), reached_by, cast(Any, None), SystemClock(), beat)
    for epoch, accepted in (
        (99999999999999999, False),
        (19, False),
        (20, True),
        (20, True),
        (21, False),
        (20, True),
    ):
        assert node.accept_question(Question((2, epoch), own)) is accepted
    assert not node.accept_question(Question((5, 20), own))
    assert list(reached_by.lives) == [(2, 20)]
    assert len(early) == 1


async def test_others_are_asked_until_found_and_again_in_their_next_life() -> None:
    brokers = {1: broker(1, 10), 2: broker(2, 20), 3: broker(3, 30, fenced=True)}
    asked: list[int] = []
    answers: list[bool | KafkaError] = [
        KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody there"),
        False,
        True,
        True,
        True,
    ]

    async def ask(other: BrokerState, question: Question) -> bool:
        assert question == Question((1, 10), (other.node_id, other.broker_epoch))
        asked.append(other.broker_epoch)
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    failures: list[BaseException] = []
    prober = Prober(lambda: (1, 10), brokers.values, ask, SystemClock(), failures.append)
    prober.start()

    async def until(expected: list[int]) -> None:
        await eventually(lambda: asked == expected)

    try:
        await until([20, 20, 20])
        brokers[2] = broker(2, 25)
        prober.brokers_changed()
        await until([20, 20, 20, 25])
        brokers[3] = broker(3, 30)
        prober.brokers_changed()
        await until([20, 20, 20, 25, 30])
    finally:
        await prober.stop()
    assert failures == []


async def test_a_broker_that_cannot_be_asked_at_all_keeps_none_from_being_asked() -> None:
    """Its address can be no host's name, or asking it fails in a way that was not foreseen."""
    brokers = {
        2: dataclasses.replace(broker(2, 20), kafka_host="node..dom"),
        3: broker(3, 30),
        4: broker(4, 40),
    }
    failures: list[BaseException] = []
    asked: list[int] = []

    async def ask(other: BrokerState, question: Question) -> bool:
        asked.append(other.node_id)
        if other.node_id == 2:
            return await confirm_identity(other, question.client_id, 1 << 20, 1.0, None)
        if other.node_id == 3:
            raise UnicodeError("not foreseen")
        return asked.count(4) > 1

    prober = Prober(lambda: (1, 10), brokers.values, ask, SystemClock(), failures.append)
    prober.start()
    try:
        await eventually(lambda: asked.count(2) >= 3 and asked.count(3) >= 3 and asked.count(4) >= 2)
        assert failures == []
        assert asked.count(4) == 2
    finally:
        await prober.stop()


async def test_a_prober_that_ends_by_a_defect_says_so() -> None:
    failures: list[BaseException] = []

    def brokers() -> list[BrokerState]:
        raise RuntimeError("a defect")

    async def ask(other: BrokerState, question: Question) -> bool:
        return True

    prober = Prober(lambda: (1, 10), brokers, ask, SystemClock(), failures.append)
    prober.start()
    await eventually(lambda: failures)
    await prober.stop()
    assert str(failures[0]) == "a defect"
