"""A reader of committed records that watches the output all the time, and keeps what it saw when."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from tidegate.client import Admin, Consumer, KafkaError
from tidegate.runtime.clock import SystemClock

SETTLE_S: Final = 90.0
PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Seen:
    """A record, with what `stamped` says about it."""

    place: tuple[int, int]  # partition and offset
    seen_ms: int
    row: str
    batch: str
    session: str
    attempt: str


def parsed(place: tuple[int, int], seen_ms: int, value: bytes) -> tuple[int, Seen]:
    about = json.loads(value)
    return about["run"], Seen(
        place, seen_ms, about["row"], about["batch"], about["session"], about["attempt"]
    )


class Watcher:
    """Of one topic, from its start."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._places = [(topic, number) for number in range(partitions)]
        self._consumer = Consumer(bootstrap, auto_offset_reset="earliest")
        self._task: asyncio.Task[None] | None = None
        self.seen: dict[int, list[Seen]] = defaultdict(list)

    async def start(self) -> None:
        await self._consumer.start()
        self._consumer.assign(self._places)
        self._task = asyncio.create_task(self._watch(), name="watcher")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.close()

    async def _watch(self) -> None:
        clock = SystemClock()
        while True:
            try:
                records = await self._consumer.poll(timeout_s=0.1)
            except KafkaError:  # all brokers may be away
                await asyncio.sleep(PAUSE_S)
                continue
            for record in records:
                run, seen = parsed((record.partition, record.offset), clock.wall_ms(), record.value or b"")
                self.seen[run].append(seen)

    async def settle(self) -> None:
        """Until nothing is undecided, and everything has been read."""
        async with Admin(self._bootstrap) as admin, asyncio.timeout(SETTLE_S):
            while True:
                try:
                    ends = await admin.end_offsets(self._places)
                    stable = await admin.end_offsets(self._places, read_committed=True)
                except KafkaError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                positions = self._consumer.positions()
                if ends == stable and all(positions.get(place, 0) >= end for place, end in ends.items()):
                    return
                assert self._task is not None
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(PAUSE_S)

    async def read_again(self, *, committed: bool) -> dict[int, list[Seen]]:
        """Everything, by another reader: of committed records, or of all."""
        found: dict[int, list[Seen]] = defaultdict(list)
        isolation = "read_committed" if committed else "read_uncommitted"
        async with (
            Admin(self._bootstrap) as admin,
            Consumer(self._bootstrap, auto_offset_reset="earliest", isolation=isolation) as consumer,
        ):
            ends = await admin.end_offsets(self._places)
            consumer.assign(self._places)
            while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
                for record in await consumer.poll(timeout_s=0.2):
                    run, seen = parsed((record.partition, record.offset), 0, record.value or b"")
                    found[run].append(seen)
        return found
