"""Thousands of partitions on three nodes: to make them, to start with them, to lose a node, to hold them and do nothing.

"leaders" is the time until every partition has a leader that has taken up its office, as the nodes themselves count them; the
detection time of the failover is the session (see `failover.py`).  "pause" is the longest time that a surviving node left a
request without an answer meanwhile.  Memory is resident memory above that of the same nodes without the partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ground import READY_S, NodeLogs, connect, make_topic, number_in, running
from process_cost import cpu_seconds, resident_mib
from tidegate.client.admin import NewTopic
from tidegate.client.local_cluster import LocalCluster, LocalNode
from tidegate.wire.api import ApiKey

SESSION_MS = 6000
SETTINGS: dict[str, object] = {
    "broker.session.timeout.ms": SESSION_MS,
    "leader.imbalance.check.interval.seconds": 5,  # leaderships are back where they belong when the next figure is taken
}
IDLE_S = 20.0
SETTLE_S = 8.0
PING_S = 0.01


async def bench_partitions(root: Path, count: int, factors: list[int]) -> None:
    for replicas in factors:
        print(f"\n{count} partitions, replication factor {replicas}, three nodes", flush=True)
        async with running(root / f"cluster-{replicas}", 3, SETTINGS) as cluster:
            await _one(cluster, count, replicas)


async def _one(cluster: LocalCluster, count: int, replicas: int) -> None:
    empty_mib = [resident_mib([pid]) for pid in _pids(cluster)]
    await _idle(cluster, "idle without partitions")
    begin = time.perf_counter()
    async with _pings(cluster.nodes) as worst:
        await make_topic(cluster, NewTopic("many", count, replicas))
    say("made, led and in sync", time.perf_counter() - begin, pause=max(worst))
    _memory(cluster, empty_mib, count * replicas / 3)
    await _idle(cluster, "idle")
    begin = time.perf_counter()
    await cluster.down(READY_S)
    say("clean stop", time.perf_counter() - begin)
    await _start(cluster, count, "start after a clean stop")
    _memory(cluster, empty_mib, count * replicas / 3)
    await _idle(cluster, "idle after the start")
    if replicas > 1:
        await _lose_one(cluster, count)
    for node in cluster.nodes:
        node.kill()
    await asyncio.gather(*(node.wait_exit() for node in cluster.nodes))
    await _start(cluster, count, "start after all were killed")


def say(what: str, seconds: float, *, pause: float | None = None, more: str = "") -> None:
    paused = "" if pause is None else f"   longest pause of a node {pause:6.3f} s"
    print(f"{what:>44} {seconds:8.2f} s{paused}{more}", flush=True)


def _pids(cluster: LocalCluster) -> list[int]:
    return [node.pid for node in cluster.nodes if node.pid is not None]


def _memory(cluster: LocalCluster, empty_mib: list[float], logs: float) -> None:
    """`logs`: how many of them a node holds."""
    found = [resident_mib([pid]) for pid in _pids(cluster)]
    each = [(mib - empty) * 1024 / logs for mib, empty in zip(found, empty_mib, strict=True)]
    print(f"{'memory of a node':>44} {' '.join(f'{mib:.0f}' for mib in found)} MiB "
          f"(empty: {' '.join(f'{mib:.0f}' for mib in empty_mib)}); KiB a replica: {' '.join(f'{kib:.1f}' for kib in each)}",
          flush=True)  # fmt: skip


async def _idle(cluster: LocalCluster, what: str) -> None:
    await asyncio.sleep(SETTLE_S)
    before = [cpu_seconds([pid]) for pid in _pids(cluster)]
    await asyncio.sleep(IDLE_S)
    shares = [100 * (cpu_seconds([pid]) - earlier) / IDLE_S for pid, earlier in zip(_pids(cluster), before, strict=True)]
    print(f"{what:>44} {' '.join(f'{share:.1f}' for share in shares)} % of a core, by node", flush=True)


async def _start(cluster: LocalCluster, count: int, what: str) -> None:
    begin = time.perf_counter()
    for node in cluster.nodes:
        await node.start()
    ready = asyncio.gather(*(node.wait_ready(READY_S) for node in cluster.nodes))
    await _all_led(cluster.nodes, count)
    led = time.perf_counter() - begin
    await ready
    say(f"{what}: leaders", led)
    say("all ready, in sync everywhere", time.perf_counter() - begin)


async def _all_led(nodes: list[LocalNode], count: int) -> None:
    deadline = time.perf_counter() + READY_S
    while time.perf_counter() < deadline:
        answers = await asyncio.gather(*(node.status(READY_S) for node in nodes), return_exceptions=True)
        if sum(answer.leaders for answer in answers if not isinstance(answer, BaseException)) >= count:
            return
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{count} partitions have no leaders after {READY_S:g} s")


async def _lose_one(cluster: LocalCluster, count: int) -> None:
    """A node that is not the active controller is killed, and comes back."""
    active = await cluster.active_controller()
    victim = next(node for node in cluster.nodes if node is not active)
    survivors = [node for node in cluster.nodes if node is not victim]
    logs = NodeLogs(cluster)
    async with _pings(survivors) as worst:
        killed = time.time()
        victim.kill()
        await _all_led(survivors, count)
        led = time.time()
    at, line = logs.first("broker_session_expired")
    detected = at - (number_in(line, "silent_ms") - SESSION_MS) / 1000
    say("a node killed: detection", detected - killed)
    say("beyond it: leaders", led - detected, pause=max(worst))
    await victim.wait_exit()
    begin = time.perf_counter()
    async with _pings(survivors) as worst:
        await victim.start()
        await victim.wait_ready(READY_S)
    say("it comes back: ready, in sync everywhere", time.perf_counter() - begin, pause=max(worst))


@asynccontextmanager
async def _pings(nodes: list[LocalNode]) -> AsyncIterator[list[float]]:
    """Asks each node something small all the time; the longest wait of each, in seconds."""
    worst = [0.0] * len(nodes)

    async def ping(place: int, node: LocalNode) -> None:
        connection = await connect(node)
        try:
            while True:
                begin = time.perf_counter()
                await connection.request(ApiKey.DESCRIBE_CLUSTER, {})
                worst[place] = max(worst[place], time.perf_counter() - begin)
                await asyncio.sleep(PING_S)
        finally:
            connection.close()

    tasks = [asyncio.create_task(ping(place, node)) for place, node in enumerate(nodes)]
    try:
        yield worst
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [result for result in results if not isinstance(result, asyncio.CancelledError)]
        if failed:
            raise failed[0]
