"""The Clock port: time, timers, and (because a replay must fix them too) randomness and fresh identifiers.

`monotonic()` is for durations and deadlines and never goes back; `wall_ms()` is written into records and may
jump. No decision that can lose data may depend on `wall_ms()`.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A pending callback; `cancel()` is idempotent and after it the callback never runs."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Everything that differs between one run and the next although the inputs are the same."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never decreases, and goes on while the machine is suspended."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""

    def steady_ms(self) -> int:
        """The wall time of this process's start plus the monotonic time since: comparable with stored wall
        times, and unaffected when an administrator sets the clock, so that no timeout comes hours early or
        late."""

    def random(self) -> float:
        """A float in [0, 1): jitter only, never identity."""

    def uuid(self) -> uuid.UUID:
        """A fresh identifier, unique across the cluster."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Runs `callback` once on the event loop after `delay_s` seconds."""

    async def sleep(self, delay_s: float) -> None:
        """Waits; cancellable."""


def until_next(now_s: float, period_s: float) -> float:
    """Seconds until the next multiple of the period.  What a node does periodically it does at multiples, so
    that one wake-up serves many (as Linux's `round_jiffies`): on an idle node the wake-ups are the cost."""
    left_s = period_s - now_s % period_s
    return left_s if left_s > period_s / 100 else left_s + period_s  # a timer that rang early rings once


class SystemClock:
    """The real clock; timers run on the running asyncio loop, and come late by as long as the machine was
    suspended.

    The holder of a lease looks at the time, not at a timer: the leases of a suspended machine have expired
    when it wakes.
    """

    def __init__(self) -> None:
        self._started_at_ms = self.wall_ms() - int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return self._started_at_ms + int(self.monotonic() * 1000)

    def random(self) -> float:
        return random.random()

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class _ManualTimer:
    __slots__ = ("callback", "cancelled", "due", "order")

    def __init__(self, due: float, order: int, callback: Callable[[], None]) -> None:
        self.due = due
        self.order = order
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that moves only by `advance(seconds)`, which runs the timers that fall due in the order of
    their due times.

    It is part of the product, so that code built on Tidegate can be tested without sleeping as well.
    """

    def __init__(self, *, start_wall_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        self._now = 0.0
        self._start_wall_ms = start_wall_ms
        self.wall_step_ms = 0  # by how much the wall clock was set forward (or back)
        self._random = random.Random(seed)
        self._timers: list[_ManualTimer] = []
        self._order = 0

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return self._start_wall_ms + self.wall_step_ms + int(self._now * 1000)

    def steady_ms(self) -> int:
        return self._start_wall_ms + int(self._now * 1000)

    def random(self) -> float:
        return self._random.random()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self._order += 1
        timer = _ManualTimer(self._now + max(0.0, delay_s), self._order, callback)
        self._timers.append(timer)
        return timer

    async def sleep(self, delay_s: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call_later(delay_s, lambda: None if future.done() else future.set_result(None))
        await future

    def advance(self, seconds: float) -> None:
        """Moves time forward and runs every timer that falls due on the way, each at its own due time."""
        end = self._now + seconds
        while True:
            due = [timer for timer in self._timers if timer.due <= end and not timer.cancelled]
            if not due:
                break
            timer = min(due, key=lambda t: (t.due, t.order))
            self._timers.remove(timer)
            self._now = max(self._now, timer.due)
            timer.callback()
        self._timers = [timer for timer in self._timers if not timer.cancelled]
        self._now = end
