"""Metadata commands through the active controller: gRPC, journal and fdatasync on a majority of three voters,
applied, answered.

The command is the smallest that changes something: a block of producer ids, requested by a broker that is
registered for this alone and stays fenced.  The raw loop appends as many bytes as its journal entry has and
syncs, one after the other.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from tidegate.bench.cluster.fixture import RawFile, running
from tidegate.bench.storage.fixture import percentile
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.state.features import SUPPORTED, as_messages
from tidegate.processes.local_cluster import LocalCluster
from tidegate.proto import controller_pb2 as pb
from tidegate.runtime.clock import SystemClock

WRITERS = (1, 16, 256)
COMMANDS = 400
ENTRY_BYTES = 80
BROKER_ID = 99


async def bench_metadata(root: Path, rounds: int) -> None:
    async with running(root / "cluster", 3) as cluster:
        client = client_of(cluster)
        raw = RawFile(root / "raw")
        broker_epoch = await register(client)
        took: dict[int, list[float]] = {writers: [] for writers in WRITERS}
        rates: dict[int, list[float]] = {writers: [] for writers in WRITERS}
        raw_took: list[float] = []
        await _commands(client, broker_epoch, 16, COMMANDS)  # connections, first syncs
        for _ in range(rounds):
            raw_took += [raw.append(bytes(ENTRY_BYTES), sync=True) for _ in range(COMMANDS // 4)]
            for writers in WRITERS:
                begin = time.perf_counter()
                times = await _commands(client, broker_epoch, writers, COMMANDS)
                rates[writers].append(len(times) / (time.perf_counter() - begin))
                took[writers] += times
        raw.close()
        await client.close()
    raw_s = percentile(raw_took, 0.5)
    print(
        f"\nmetadata commands, three voters with fsync; raw append and fdatasync: p50 {raw_s * 1e3:.2f} ms, "
        f"p99 {percentile(raw_took, 0.99) * 1e3:.2f} ms, {1 / raw_s:.0f}/s"
    )
    print(f"{'writers':>8} {'commands/s':>11} {'of raw':>7} {'p50 ms':>8} {'p99 ms':>8} {'p50 over raw':>13}")
    for writers in WRITERS:
        rate, middle = statistics.median(rates[writers]), percentile(took[writers], 0.5)
        print(
            f"{writers:>8} {rate:11.0f} {rate * raw_s:7.2f} {middle * 1e3:8.2f} "
            f"{percentile(took[writers], 0.99) * 1e3:8.2f} "
            f"{middle / raw_s:13.2f}"
        )


def client_of(cluster: LocalCluster) -> ControllerClient:
    return ControllerClient({node.id: node.grpc_address for node in cluster.nodes[:3]}, SystemClock())


async def register(client: ControllerClient) -> int:
    """The epoch of a broker that exists for its commands only."""
    request = pb.RegisterBrokerRequest(
        node_id=BROKER_ID,
        incarnation=f"bench-{time.time_ns()}",
        supported_features=as_messages(SUPPORTED),
        kafka_host="127.0.0.1",
        kafka_port=1,
        grpc_host="127.0.0.1",
        grpc_port=1,
    )
    return (await client.register_broker(request)).broker_epoch


async def _commands(client: ControllerClient, broker_epoch: int, writers: int, count: int) -> list[float]:
    """Seconds that each of `count` commands took, `writers` of them in flight at a time."""
    took: list[float] = []

    async def write() -> None:
        while len(took) < count:
            begin = time.perf_counter()
            await client.allocate_producer_ids(
                pb.AllocateProducerIdsRequest(node_id=BROKER_ID, broker_epoch=broker_epoch)
            )
            took.append(time.perf_counter() - begin)

    await asyncio.gather(*(write() for _ in range(writers)))
    return took
