"""Writes with acks=all to one partition: latency of one at a time, throughput of several in flight, by size
and replicas.

Flushed: every in-sync replica has the batch on disk before it is acknowledged (the default).  Not flushed:
`flush.policy=os`, every in-sync replica has it in its page cache.  The raw loop appends the same batches to a
file on the same disk, with fdatasync or without, in turns with the requests; it sends nothing over any
network, so it is an upper bound and no competitor.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tidegate.bench.cluster.fixture import Partition, RawFile, connect, leaders_of, make_topic, running
from tidegate.bench.storage.fixture import SIZES, batch_of, percentile
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire.errors import ErrorCode

POLICIES = {"flushed": "always", "not flushed": "os"}
IN_FLIGHT_BYTES = 4 << 20
IN_FLIGHT_MAX = 32
TURNS = 6
WARM_UP = 30


async def bench_writes(root: Path, node_counts: list[int], seconds: float) -> None:
    for nodes in node_counts:
        async with running(root / f"cluster-{nodes}", nodes) as cluster:
            for title, policy in POLICIES.items():
                print(f"\nacks=all, {nodes} replica{'s' if nodes > 1 else ''}, {title}")
                print(
                    f"{'batch':>8} {'p50 ms':>8} {'p99 ms':>8} {'raw p50':>8} {'raw p99':>8} {'over raw':>9} "
                    f"{'in flight':>10} {'MB/s':>8} {'raw MB/s':>9} {'ratio':>6}"
                )
                for name, size in SIZES.items():
                    await _cell(cluster, root / "raw", name, size, policy, seconds)


async def _cell(
    cluster: LocalCluster, raw_path: Path, name: str, size: int, policy: str, seconds: float
) -> None:
    replicas, batch = len(cluster.nodes), batch_of(size)
    topic = NewTopic(
        f"writes-{policy}-{size}", 1, replicas, {"flush.policy": policy, "max.message.bytes": str(2 << 20)}
    )
    await make_topic(cluster, topic)
    asked = await connect(cluster.nodes[0])
    connection = await connect(cluster.node((await leaders_of(asked, topic.name))[0]))
    asked.close()
    partition, raw, sync = Partition(connection, topic.name, 0, batch), RawFile(raw_path), policy == "always"
    for _ in range(WARM_UP):
        await _write(partition)
        raw.append(batch, sync=sync)
    latencies: list[float] = []
    raw_latencies: list[float] = []
    rates: list[float] = []
    in_flight = max(2, min(IN_FLIGHT_MAX, IN_FLIGHT_BYTES // size))
    for _ in range(TURNS):
        end = time.perf_counter() + seconds / TURNS
        while time.perf_counter() < end:
            latencies.append(await _write(partition))
        end = time.perf_counter() + seconds / TURNS / 2
        while time.perf_counter() < end:
            raw_latencies.append(raw.append(batch, sync=sync))
        rates.append(await _rate(partition, in_flight, seconds / TURNS) * size / 1e6)
    connection.close()
    raw.close()
    raw_path.unlink()
    middle, raw_middle = percentile(latencies, 0.5), percentile(raw_latencies, 0.5)
    rate, raw_rate = percentile(rates, 0.5), size / raw_middle / 1e6
    print(
        f"{name:>8} {middle * 1e3:8.3f} {percentile(latencies, 0.99) * 1e3:8.3f} {raw_middle * 1e3:8.3f} "
        f"{percentile(raw_latencies, 0.99) * 1e3:8.3f} {middle / raw_middle:9.1f} {in_flight:10} "
        f"{rate:8.1f} {raw_rate:9.1f} "
        f"{rate / raw_rate:6.2f}",
        flush=True,
    )


async def _write(partition: Partition) -> float:
    begin = time.perf_counter()
    code = await partition.write()
    if code is not ErrorCode.NONE:
        raise RuntimeError(f"a write was refused: {code.name}")
    return time.perf_counter() - begin


async def _rate(partition: Partition, in_flight: int, seconds: float) -> float:
    """Writes a second with so many of them in flight."""
    begin, count = time.perf_counter(), 0

    async def write_on() -> None:
        nonlocal count
        while time.perf_counter() - begin < seconds:
            await _write(partition)
            count += 1

    await asyncio.gather(*(write_on() for _ in range(in_flight)))
    return count / (time.perf_counter() - begin)
