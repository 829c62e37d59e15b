"""What a cut costs: milliseconds to take one with few and with many partitions, and those of a commit, alone
and beside cuts that are taken one after the other.  Three nodes, replication 3.

    python -m bench.cuts [--partitions 1,50,500] [--cuts 15]

A producer commits one record a transaction all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median

from tidegate.client import Admin, LocalCluster, NewTopic, Producer
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.reading.cuts import take_cut

NODES = 3
RETRY_TIMEOUT_MS = 60_000
ALONE_S = 5.0
COMMITTED_TOPIC = "beside"


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def shown(milliseconds: list[float]) -> str:
    return f"median {median(milliseconds):.1f} ms, longest {max(milliseconds):.0f} ms ({len(milliseconds)})"


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """In milliseconds."""
    began_s = time.perf_counter()
    await call()
    return 1000 * (time.perf_counter() - began_s)


class Committer:
    """Transactions of one record, one after the other."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.took_ms: list[float] = []

    async def run(self) -> None:
        while True:
            self.took_ms.append(await timed(self._transaction))

    async def _transaction(self) -> None:
        async with self._producer.transaction():
            await self._producer.send(COMMITTED_TOPIC, b"v")


async def measure(cluster: LocalCluster, partition_counts: list[int], cuts: int) -> None:
    bootstrap = cluster.bootstrap
    client = DataClient((cluster.nodes[0].grpc_address,), retry_timeout_ms=RETRY_TIMEOUT_MS)
    async with Admin(bootstrap) as admin, Producer(bootstrap, transactional_id="beside") as producer:
        topics = [NewTopic(f"t-{partitions}", partitions, NODES) for partitions in partition_counts]
        await admin.create_topics([NewTopic(COMMITTED_TOPIC, 1, NODES), *topics])
        committer = Committer(producer)
        task = asyncio.create_task(committer.run())
        try:
            await asyncio.sleep(ALONE_S)
            print(f"a commit, alone: {shown(committer.took_ms)}", flush=True)
            for topic in topics:
                take = partial(asyncio.to_thread, take_cut, client, [topic.name])
                await take()  # the node learns who leads
                committer.took_ms.clear()
                took_ms = [await timed(take) for _ in range(cuts)]
                print(f"a cut of {topic.partitions} partitions: {shown(took_ms)}", flush=True)
                print(f"  a commit beside them: {shown(committer.took_ms)}", flush=True)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            client.close()


async def run(partition_counts: list[int], cuts: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(Path(folder) / "cluster", NODES)
        await cluster.up()
        try:
            await measure(cluster, partition_counts, cuts)
        finally:
            await cluster.down()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=numbers, default=[1, 50, 500])
    parser.add_argument("--cuts", type=int, default=15)
    given = parser.parse_args()
    asyncio.run(run(given.partitions, given.cuts))


if __name__ == "__main__":
    main()
