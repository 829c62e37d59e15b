"""Thousands of partitions on three nodes: creation, start, loss of a node, and idle cost.

"leaders" is the time until every partition has an active leader, by the nodes' own counts; the detection time
of the failover is the session (see `failover.py`).  "pause" is the longest time in which a surviving node did
not answer a request.  Memory is resident memory above that of the same nodes without the partitions.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidegate.bench.cluster.fixture import (
    READY_S,
    NodeLogs,
    connect,
    make_topic,
    number_in,
    running,
    statuses,
)
from tidegate.bench.process_cost import cpu_seconds, resident_mib
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.wire.api import ApiKey

SESSION_MS = 6000
SETTINGS: dict[str, object] = {
    "broker.session.timeout.ms": SESSION_MS,
    # leaderships are back where they belong when the next figure is taken
    "leader.imbalance.check.interval.seconds": 5,
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
    phase = Phase(cluster)
    async with _pings(cluster.nodes) as worst:
        await make_topic(cluster, NewTopic("many", count, replicas))
    phase.say("made, led and in sync", pause=max(worst))
    _memory(cluster, empty_mib, count * replicas / 3)
    await _idle(cluster, "idle")
    await _stop(cluster, "first clean stop")
    await _start(cluster, count, "start after a clean stop")
    _memory(cluster, empty_mib, count * replicas / 3)
    await _idle(cluster, "idle after the start")
    if replicas > 1:
        await _lose_one(cluster, count)
    await _stop(cluster, "another clean stop")
    await _start(cluster, count, "start")
    for node in cluster.nodes:
        node.kill()
    await asyncio.gather(*(node.wait_exit() for node in cluster.nodes))
    await _start(cluster, count, "start after all were killed")


class Phase:
    """Wall-clock seconds and the nodes' CPU seconds since it was made: on a busy machine the latter say
    more."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._begin, self._cpu = time.perf_counter(), _nodes_cpu_s(cluster)

    def say(self, what: str, *, pause: float | None = None) -> None:
        cpu_s = _nodes_cpu_s(self._cluster) - self._cpu
        say(what, time.perf_counter() - self._begin, more=f"{cpu_s:8.2f} s CPU of all nodes", pause=pause)


def _nodes_cpu_s(cluster: LocalCluster) -> float:
    """Of the running nodes, and of the ended ones."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cpu_seconds(_pids(cluster)) + ended.ru_utime + ended.ru_stime


def say(what: str, seconds: float, *, more: str = "", pause: float | None = None) -> None:
    paused = "" if pause is None else f"   longest pause of a node {pause:.3f} s"
    print(f"{what:>44} {seconds:8.2f} s{more}{paused}", flush=True)


def _pids(cluster: LocalCluster) -> list[int]:
    return [node.pid for node in cluster.nodes if node.pid is not None]


def _memory(cluster: LocalCluster, empty_mib: list[float], logs: float) -> None:
    """`logs`: how many of them a node holds."""
    found = [resident_mib([pid]) for pid in _pids(cluster)]
    each = [(mib - empty) * 1024 / logs for mib, empty in zip(found, empty_mib, strict=True)]
    print(
        f"{'memory of a node':>44} {' '.join(f'{mib:.0f}' for mib in found)} MiB "
        f"(empty: {' '.join(f'{mib:.0f}' for mib in empty_mib)}); KiB a replica: "
        f"{' '.join(f'{kib:.1f}' for kib in each)}",
        flush=True,
    )


async def _idle(cluster: LocalCluster, what: str) -> None:
    await asyncio.sleep(SETTLE_S)
    before = [cpu_seconds([pid]) for pid in _pids(cluster)]
    await asyncio.sleep(IDLE_S)
    shares = [
        100 * (cpu_seconds([pid]) - earlier) / IDLE_S
        for pid, earlier in zip(_pids(cluster), before, strict=True)
    ]
    print(f"{what:>44} {' '.join(f'{share:.1f}' for share in shares)} % of a core, by node", flush=True)


async def _stop(cluster: LocalCluster, what: str) -> None:
    phase = Phase(cluster)
    await asyncio.gather(*(node.terminate(READY_S) for node in cluster.nodes))
    phase.say(what)


async def _start(cluster: LocalCluster, count: int, what: str) -> None:
    phase = Phase(cluster)
    for node in cluster.nodes:
        await node.start()
    ready = asyncio.gather(*(node.wait_ready(READY_S) for node in cluster.nodes))
    await _all_led(cluster.nodes, count)
    phase.say(f"{what}: leaders")
    await ready
    phase.say("all ready, in sync everywhere")


async def _all_led(nodes: list[LocalNode], count: int) -> None:
    deadline = time.perf_counter() + READY_S
    while time.perf_counter() < deadline:
        if sum(status.leaders for status in await statuses(nodes)) >= count:
            return
        await asyncio.sleep(0.02)
    raise TimeoutError(f"{count} partitions have no leaders after {READY_S:g} s")


async def _lose_one(cluster: LocalCluster, count: int) -> None:
    """Kills a node that is not the active controller, and starts it again."""
    active = await cluster.active_controller()
    victim = next(node for node in cluster.nodes if node is not active)
    survivors = [node for node in cluster.nodes if node is not victim]
    logs = NodeLogs(cluster)
    async with _pings(survivors) as worst:
        victim.kill()
        killed = time.time()
        await victim.wait_exit()
        phase = Phase(cluster)
        await _all_led(survivors, count)
        led = time.time()
    at, line = logs.first("broker_session_expired")
    detected = at - (number_in(line, "silent_ms") - SESSION_MS) / 1000
    phase.say("a node killed: leaders", pause=max(worst))
    say("of these, detection", detected - killed)
    say("beyond it", led - detected)
    phase = Phase(cluster)
    async with _pings(survivors) as worst:
        await victim.start()
        await victim.wait_ready(READY_S)
    phase.say("it comes back: ready, in sync everywhere", pause=max(worst))


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
        ended = [result for result in results if isinstance(result, BaseException)]
        failed = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
        if failed:
            raise failed[0]
