"""How long an operation is tried again."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from tidegate.runtime.clock import ManualClock, SystemClock
from tidegate.spark.connecting import retry
from tidegate.spark.connecting.retry import RetryBudget, StallWatchdog


def test_the_shorter_time_of_an_unknown_topic_holds_for_such_answers_alone() -> None:
    clock = ManualClock()
    budget = RetryBudget(clock, timeout_s=10, unknown_topic_s=2)
    clock.advance(3)
    assert budget.wait()
    assert budget.wait(topic_unknown=True), "it begins with the first such answer"
    clock.advance(2)
    assert not budget.wait(topic_unknown=True)
    assert budget.wait()
    budget.renew()
    assert budget.wait(topic_unknown=True), "each such time begins anew after progress"


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


class Steady(ManualClock):
    def random(self) -> float:
        return 0.5


def test_each_wait_is_twice_as_long_up_to_a_second_and_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited_s = Steady(), []

    class Wait:
        def wait(self, timeout_s: float) -> None:
            waited_s.append(round(timeout_s, 6))
            clock.advance(timeout_s)

    monkeypatch.setattr(retry, "threading", SimpleNamespace(Event=Wait))
    budget = RetryBudget(clock, timeout_s=4, unknown_topic_s=4)
    while budget.wait():
        pass
    assert waited_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 0.45]
    budget.renew()
    budget.wait()
    assert waited_s[-1] == 0.05


class Looks:
    """Of a watchdog, three each time; no thread looks by itself."""

    def __init__(self) -> None:
        self._is_over = itertools.cycle([False, False, True])

    def wait(self, timeout_s: float) -> bool:
        return next(self._is_over)


def test_a_silence_is_told_once_and_only_while_someone_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    started = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(retry, "threading", SimpleNamespace(Event=Looks, Thread=lambda **_: started))
    clock, told = ManualClock(), []
    watch = StallWatchdog(clock, 10, lambda: told.append("silent"))
    with watch:
        clock.advance(9)
        watch._look()
    clock.advance(11)
    watch._look()
    assert told == []
    with watch:
        clock.advance(11)
        watch._look()
    assert told == ["silent"]
    assert watch.has_stalled


def test_what_is_heard_begins_the_time_anew_from_the_next_look_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = ManualClock(), []
    steps = iter([9.0, 9.0, 9.0, 9.0])

    class HeardTwice:
        """Before the first and the second look something has come."""

        looks = 0

        def wait(self, _: float) -> bool:
            self.looks += 1
            if self.looks <= 2:
                watch.renew()
            step = next(steps, None)
            clock.advance(step or 0)
            return step is None

    started = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr(retry, "threading", SimpleNamespace(Event=HeardTwice, Thread=lambda **_: started))
    watch = StallWatchdog(clock, 10, lambda: told.append(clock.monotonic()))
    begun = clock.monotonic()
    with watch:
        watch._look()
    assert told == [begun + 36.0], "18 s after the second look; before, never more than 10 s of silence"
