"""The clock port: the manual clock moves only by `advance`."""

from __future__ import annotations

import asyncio
import time

import pytest
from tidegate.runtime.clock import ManualClock, SystemClock, until_next


def test_timers_run_in_order_of_due_time_each_at_its_own_time() -> None:
    clock = ManualClock()
    seen: list[tuple[str, float]] = []
    clock.call_later(2.0, lambda: seen.append(("second", clock.monotonic())))
    clock.call_later(1.0, lambda: seen.append(("first", clock.monotonic())))
    clock.call_later(2.0, lambda: seen.append(("third", clock.monotonic())))
    clock.advance(1.5)
    assert seen == [("first", 1.0)]
    clock.advance(10)
    assert seen == [("first", 1.0), ("second", 2.0), ("third", 2.0)]
    assert clock.monotonic() == 11.5


def test_a_timer_set_by_a_timer_runs_in_the_same_advance_when_due() -> None:
    clock = ManualClock()
    seen: list[float] = []

    def again() -> None:
        seen.append(clock.monotonic())
        if len(seen) < 3:
            clock.call_later(1.0, again)

    clock.call_later(1.0, again)
    clock.advance(5)
    assert seen == [1.0, 2.0, 3.0]


def test_periodic_work_that_begins_at_any_time_comes_together() -> None:
    assert {now + until_next(now, 0.5) for now in (7.02, 7.2, 7.4)} == {7.5}
    assert until_next(7.5, 0.5) == 0.5
    assert until_next(7.4999, 0.5) == pytest.approx(0.5001), "a timer that rang early rings once"


def test_a_cancelled_timer_never_runs() -> None:
    clock = ManualClock()
    seen: list[int] = []
    timer = clock.call_later(1.0, lambda: seen.append(1))
    other = clock.call_later(1.0, lambda: seen.append(2))
    clock.call_later(0.5, other.cancel)
    timer.cancel()
    timer.cancel()
    clock.advance(2)
    assert seen == []


def test_wall_time_randomness_and_identifiers_replay_from_the_seed() -> None:
    one, two, other = ManualClock(seed=7), ManualClock(seed=7), ManualClock(seed=8)
    assert [one.random(), str(one.uuid())] == [two.random(), str(two.uuid())]
    assert one.uuid() != other.uuid()
    before = one.wall_ms()
    one.advance(1.5)
    assert one.wall_ms() == before + 1500


async def test_sleeping_on_a_manual_clock_waits_for_an_advance() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert not task.done()
    clock.advance(0.1)
    await task


async def test_a_sleep_that_was_cancelled_does_not_disturb_its_timer() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    clock.advance(10)


async def test_the_system_clock_moves_by_itself() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    fired = asyncio.Event()
    clock.call_later(0.001, fired.set)
    await asyncio.wait_for(fired.wait(), 5)
    await clock.sleep(0)
    assert clock.monotonic() > before
    assert clock.wall_ms() > 1_700_000_000_000
    assert 0 <= clock.random() < 1
    assert clock.uuid() != clock.uuid()


def test_time_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still then, and a lease would outlive the session that the others have ended."""
    slept_s = 0.0
    read = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: read(which) + (slept_s if which == time.CLOCK_BOOTTIME else 0.0)
    )
    clock = SystemClock()
    before_s, before_ms = clock.monotonic(), clock.steady_ms()
    slept_s = 3600.0
    assert clock.monotonic() - before_s >= 3600
    assert clock.steady_ms() - before_ms >= 3_600_000
