"""Runs each crowd, and measures the bystander's writes meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tidegate.bench.cluster.fixture import Partition, connect, leaders_of, make_topic, running
from tidegate.bench.storage.fixture import batch_of, percentile
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire.errors import ErrorCode

CROWDS = {
    "pipelined": ("pipelined", "paused"),
    "insistent": ("insistent",),
    "large": ("large",),
    "batches": (
        "zeros",
        "one-zstd",
        "one-gzip",
        "one-lz4",
        "many-records",
        "walked-records",
        "repeated-deltas",
        "compacted",
    ),
}
"""Part -> the arguments of `crowd.py`."""
PAUSE_S = 0.005
CALM_S = 2.0
AFTERWARDS_S = 0.5
CROWD_S_MAX = 120.0
SESSION_LOST = ("broker_session_expired", "leaderships_suspended")


class Bystander:
    """Writes one record at a time; records the begin and the latency of each write."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.writes: list[tuple[float, float]] = []
        self.refused: list[str] = []

    async def write_on(self) -> None:
        while True:
            begun = time.perf_counter()
            code = await self._partition.write()
            self.writes.append((begun, time.perf_counter() - begun))
            if code is not ErrorCode.NONE:
                self.refused.append(code.name)
            await asyncio.sleep(PAUSE_S)

    def took_ms(self, begin: float, end: float) -> list[float]:
        """The latencies of all writes that were in flight between two instants."""
        return [took * 1e3 for at, took in self.writes if at + took >= begin and at <= end]


async def bench_crowd(root: Path, part: str, nodes: int, rounds: int) -> None:
    print(f"\n{part}, {nodes} node{'s' if nodes > 1 else ''}: a bystander's writes (acks=all), milliseconds")
    print(
        f"{'crowd':>16} {'calm p50':>9} {'calm p99':>9} {'p50':>8} {'p99':>8} {'most':>8} "
        f"{'p99/calm':>9} {'refused':>8} "
        f"{'crowd s':>8} {'sessions lost':>14}"
    )
    for crowd in CROWDS[part]:
        async with running(root / crowd, nodes) as cluster:
            await _measure(cluster, crowd, nodes, rounds)


async def _measure(cluster: LocalCluster, crowd: str, nodes: int, rounds: int) -> None:
    await make_topic(cluster, NewTopic("bystander", 1, nodes))
    await make_topic(
        cluster, NewTopic("crowd", 1, nodes, {"cleanup.policy": "compact"} if crowd == "compacted" else {})
    )
    asked = await connect(cluster.nodes[0])
    leader = (await leaders_of(asked, "bystander"))[0]
    crowd_at = cluster.node((await leaders_of(asked, "crowd"))[0]).kafka_address
    asked.close()
    if crowd in CROWDS["pipelined"] + CROWDS["insistent"]:
        # any node answers Metadata: here the node that the bystander needs
        crowd_at = cluster.node(leader).kafka_address
    connection = await connect(cluster.node(leader))
    bystander = Bystander(Partition(connection, "bystander", 0, batch_of(100)))
    writing = asyncio.create_task(bystander.write_on())
    lost_before = _sessions_lost(cluster)
    await _come("warm", crowd_at)  # the first request of a kind makes the node import its classes
    began = time.perf_counter()
    await asyncio.sleep(CALM_S)
    calm = bystander.took_ms(began + CALM_S / 4, time.perf_counter())
    meanwhile: list[float] = []
    took_s = 0.0
    for _ in range(rounds):
        begun = time.perf_counter()
        await _come(crowd, crowd_at)
        took_s += time.perf_counter() - begun
        await asyncio.sleep(AFTERWARDS_S)
        if writing.done():
            writing.result()
        meanwhile += bystander.took_ms(begun, time.perf_counter())
        if not meanwhile:
            meanwhile = [(time.perf_counter() - begun) * 1e3]
    writing.cancel()
    connection.close()
    calm_p99, p99 = percentile(calm, 0.99), percentile(meanwhile, 0.99)
    print(
        f"{crowd:>16} {percentile(calm, 0.5):9.1f} {calm_p99:9.1f} {percentile(meanwhile, 0.5):8.1f} "
        f"{p99:8.1f} "
        f"{max(meanwhile):8.1f} {p99 / calm_p99:9.1f} {len(bystander.refused):8} {took_s / rounds:8.2f} "
        f"{_sessions_lost(cluster) - lost_before:14}",
        flush=True,
    )


async def _come(crowd: str, address: str) -> None:
    program = Path(__file__).with_name("crowd.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), crowd, address, stdin=subprocess.DEVNULL
    )
    try:
        await asyncio.wait_for(process.wait(), CROWD_S_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise SystemExit(f"the crowd {crowd} ended with {process.returncode}")


def _sessions_lost(cluster: LocalCluster) -> int:
    return sum(
        sum(event in line for event in SESSION_LOST)
        for node in cluster.nodes
        for line in node.log_path.open()
    )
