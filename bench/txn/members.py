"""How long a group of many members is without its partitions when one joins, leaves, or the coordinator is
killed.

The members are Tidegate's consumers in one process, with a heartbeat every 500 ms: a member learns of a
rebalance by its next heartbeat, so half of that is in the figures on average, and all of it in the slowest
member's.  Time counts from the change to the moment when every member holds its partitions of the new
generation.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from tidegate.bench.cluster.fixture import make_topic, running
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer

HEARTBEAT_MS = 500
SETTINGS: dict[str, object] = {"group.initial.rebalance.delay.ms": 0}
READY_S = 120.0


class Member:
    """One consumer, polled until `stop`."""

    def __init__(self, bootstrap: str) -> None:
        self.consumer = Consumer(
            bootstrap,
            group_id="bench",
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=30_000,
            auto_commit=False,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self.consumer.subscribe(["bench"])
        self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            await self.consumer.poll(timeout_s=0.2)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.close()


async def bench_rebalance(root: Path, nodes: int, members: int, rounds: int) -> None:
    async with running(root / "cluster", nodes, SETTINGS) as cluster:
        await make_topic(cluster, NewTopic("bench", members + 1, nodes))
        group = [Member(cluster.bootstrap) for _ in range(members)]
        begun = time.perf_counter()
        await asyncio.gather(*(member.start() for member in group))
        await _settled(group, members + 1)
        first = time.perf_counter() - begun
        joins, leaves = [], []
        for _ in range(rounds):
            newcomer = Member(cluster.bootstrap)
            begun = time.perf_counter()
            await newcomer.start()
            await _settled([*group, newcomer], members + 1)
            joins.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            await newcomer.stop()
            await _settled(group, members + 1)
            leaves.append(time.perf_counter() - begun)
        await asyncio.gather(*(member.stop() for member in group))
    print(
        f"\nrebalance of {members} members, {nodes} nodes, heartbeats every {HEARTBEAT_MS} ms: "
        "seconds until all is shared"
    )
    print(f"{'all join at once':>18} {first:7.2f}")
    for name, found in (("one more joins", joins), ("one leaves", leaves)):
        print(f"{name:>18} {statistics.median(found):7.2f} (least {min(found):.2f}, most {max(found):.2f})")


async def _settled(group: list[Member], partitions: int) -> None:
    """Every partition belongs to exactly one member, all of one generation."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        shares = [member.consumer.assignment() for member in group]
        generations = {member.consumer.group_metadata().generation_id for member in group}
        if sum(map(len, shares)) == partitions == len(set().union(*shares)) and len(generations) == 1:
            return
        await asyncio.sleep(0.01)
    raise SystemExit(f"the group did not settle within {READY_S:.0f} s")
