"""Threads for the expensive work on a client's batch: decompressing it, walking a million records,
compressing it again.

The loop does none of that for long: the request with a large batch waits here, and all others go on.  A
request hands over one piece of work at a time and awaits it, and so does a connection, whose appends happen
in order; so the queue holds one piece a connection, is served in order of arrival, and no connection waits
behind more than one batch of each other one.  Memory is bounded by the threads, each of which unfolds one
batch at a time (`record_check.UNFOLDED_BYTES_MAX`).

What is done here must be pure: it reads the batch's bytes, and decides nothing.  The world may have changed
when it returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ...storage.log.lookup import BatchNotDecoded, DecodedBatches
from ...wire.errors import ErrorCode, KafkaError

THREADS: Final = 2
LOOKED_INTO_MAX: Final = 32
"""Batches for one look-up: mostly it is one, more where compaction has taken away the records that headers
speak of."""

T = TypeVar("T")


class BatchThreads:
    """Used on the loop's thread."""

    def __init__(self, threads: int = THREADS) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="batches")

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` in a thread and returns or raises what it does.  A caller cancelled while `work` is
        queued removes it."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def ask(self, question: Callable[[DecodedBatches], T]) -> T:
        """The answer of `question`.  When it needs a decoded batch a thread decodes it, and then `question`
        runs again, with the state of that time.  Raises what `question` raises, and OFFSET_NOT_AVAILABLE,
        which clients retry, after `LOOKED_INTO_MAX` batches."""
        decoded = DecodedBatches()
        for _ in range(LOOKED_INTO_MAX):
            try:
                return question(decoded)
            except BatchNotDecoded as missing:
                decoded.add(missing, await self.run(missing.look))
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"{LOOKED_INTO_MAX} batches, and no answer: ask again"
        )

    async def close(self) -> None:
        """Drops queued work, and waits for the work in threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._executor.shutdown)
