"""The one way in which tests wait for something that no event announces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

ROUNDS_AT_ONCE = 50
PAUSE_S_MIN, PAUSE_S_MAX = 0.001, 0.02


async def eventually(condition: Callable[[], object], what: str = "", timeout_s: float = 30.0) -> None:
    """Returns when `condition()`, which may be a coroutine function, is true.

    The first rounds only give way to the other tasks of the loop; then pauses grow from one millisecond to
    twenty.  Fails with `what` after `timeout_s` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline, rounds, pause_s = loop.time() + timeout_s, 0, PAUSE_S_MIN
    while True:
        met = condition()
        if inspect.isawaitable(met):
            met = await met
        if met:
            return
        if loop.time() >= deadline:
            raise AssertionError(
                f"not within {timeout_s:g} s: {what or inspect.getsource(condition).strip()}"
            )
        rounds += 1
        if rounds > ROUNDS_AT_ONCE:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        else:
            await asyncio.sleep(0)
