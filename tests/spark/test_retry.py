"""How long an operation is tried again."""

from __future__ import annotations

from tidegate.runtime.clock import ManualClock
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
