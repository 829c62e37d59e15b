"""New producer ids, from blocks that the controller allocates: each id is unique in the cluster and used
once.

The rest of a block is lost when the process dies; ids have 64 bits, so the cluster does not run out of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

AllocateBlock = Callable[[], Awaitable[tuple[int, int]]]


class ProducerIds:
    """`allocate_block()` returns (first id, count) of a block that belongs to this process alone."""

    def __init__(self, allocate_block: AllocateBlock) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that no other producer has.  Raises KafkaError when the controller cannot be
        reached."""
        async with self._lock:
            if self._next >= self._end:
                first, count = await self._allocate_block()
                if count <= 0:
                    raise ValueError(f"the controller handed out a block of {count} producer ids")
                self._next, self._end = first, first + count
            producer_id = self._next
            self._next += 1
            return producer_id
