"""Each broker asks every other one who it is, until the one that is meant has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tidegate.controller.model import BrokerState
from tidegate.node.reachability import Prober, Question, ReachedBy, parse
from tidegate.runtime.clock import SystemClock
from tidegate.wire.errors import ErrorCode, KafkaError

QUESTION = Question((1, 10), (2, 20))


def broker(node_id: int, epoch: int, *, fenced: bool = False) -> BrokerState:
    return BrokerState(node_id, "x", epoch, fenced, "", f"node-{node_id}", 9092, f"node-{node_id}", 9093)


def test_a_question_says_who_asks_and_whom() -> None:
    assert parse(QUESTION.client_id) == QUESTION


@pytest.mark.parametrize("client_id", ["app", "tidegate-reach", "tidegate-reach/1/2/3", "tidegate-reach/1/2/3/x", "a/1/2/3/4"])
def test_other_client_ids_ask_nothing(client_id: str) -> None:
    assert parse(client_id) is None


def test_only_the_life_that_is_meant_counts_the_question() -> None:
    reached_by = ReachedBy()
    everybody: Callable[[int], bool] = lambda _: True  # noqa: E731
    assert not reached_by.asked(QUESTION, (2, 21), everybody)
    assert not reached_by.asked(QUESTION, (3, 20), everybody)
    assert list(reached_by.lives) == []
    assert reached_by.asked(QUESTION, (2, 20), everybody)
    assert reached_by.asked(Question((1, 9), (2, 20)), (2, 20), everybody), "a late one takes nothing back"
    assert reached_by.asked(Question((7, 1), (2, 20)), (2, 20), lambda _: False), "not of this cluster"
    assert list(reached_by.lives) == [(1, 10)]


async def test_others_are_asked_until_they_are_found_and_again_in_their_next_life() -> None:
    brokers = {1: broker(1, 10), 2: broker(2, 20), 3: broker(3, 30, fenced=True)}
    asked: list[int] = []
    answers: list[bool | KafkaError] = [KafkaError(ErrorCode.NETWORK_EXCEPTION, "nobody there"), False, True, True, True]

    async def ask(other: BrokerState, question: Question) -> bool:
        assert question == Question((1, 10), (other.node_id, other.broker_epoch))
        asked.append(other.broker_epoch)
        answer = answers.pop(0)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    prober = Prober(lambda: (1, 10), brokers.values, ask, SystemClock())
    prober.start()

    async def until(expected: list[int]) -> None:
        async with asyncio.timeout(20):
            while asked != expected:
                await asyncio.sleep(0.005)

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
