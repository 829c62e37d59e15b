"""The Clock port in virtual time, one a process: identifiers and jitter come from the history's seed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from random import Random

from .virtual_loop import VirtualLoop

START_WALL_MS = 1_700_000_000_000


class VirtualClock:
    """See `runtime.clock.Clock`."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return START_WALL_MS + int(self._loop.time() * 1000)

    steady_ms = wall_ms

    def random(self) -> float:
        return self._random.random()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
