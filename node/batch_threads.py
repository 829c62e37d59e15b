"""Threads for what a client's batch may cost: unfolding it, walking a million records, compressing it again.

The loop does none of that for long: whoever has a large batch waits here, and everybody else goes on.  A request hands over one
piece of work at a time and awaits it, and so does a connection, whose appends happen in order; so the queue holds one piece a
connection, is served in order of arrival, and no connection waits behind more than one batch of each other one.  Memory is
bounded by the threads, each of which unfolds one batch at a time (`record_check.UNFOLDED_BYTES_MAX`).

What is done here must be pure: it reads the batch's bytes, and decides nothing.  The world may have changed when it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 2

T = TypeVar("T")


class BatchThreads:
    """Used on the loop's thread."""

    def __init__(self, threads: int = THREADS) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="batches")

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, from a thread.  Who is cancelled while it is queued takes it along."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def close(self) -> None:
        """What is queued is dropped; what is under way is waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._executor.shutdown)
