"""How long an operation is tried again."""

from __future__ import annotations

import pytest
from tidegate.runtime.clock import ManualClock, SystemClock
from tidegate.spark.retry import RetryBudget


def test_the_shorter_time_of_an_unknown_topic_holds_for_such_answers_alone() -> None:
    clock = ManualClock()
    budget = RetryBudget(clock, timeout_s=10, unknown_topic_s=2)
    clock.advance(3)
    assert budget.wait()
    assert budget.wait(topic_unknown=True), "it begins with the first such answer"
    clock.advance(2)
    assert not budget.wait(topic_unknown=True)
    assert budget.wait()


def test_an_unknown_topic_gets_no_more_than_the_whole_time() -> None:
    clock = ManualClock()
    budget = RetryBudget(clock, timeout_s=1, unknown_topic_s=5)
    assert budget.wait(topic_unknown=True)
    clock.advance(1)
    assert not budget.wait(topic_unknown=True)
    budget.renew()
    assert budget.wait(topic_unknown=True)


class Ticking(SystemClock):
    """Each look at it takes two seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 2.0
        return self.now

    def random(self) -> float:
        return 0.0


def test_a_long_wait_tells_once_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    budget = RetryBudget(Ticking(), 10.0, 10.0)
    told: list[int] = []
    while budget.wait(reason="connection refused"):
        told.append(len(caplog.records))
    assert told == [0, 0, 1, 1]


def test_a_wait_without_a_reason_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    budget = RetryBudget(Ticking(), 10.0, 10.0)
    while budget.wait():
        assert not caplog.records
