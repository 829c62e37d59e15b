"""Transactions by size, by partitions and by producers: how many a second, and how long their commits take.

Each producer repeats one transaction: `records` of 100 bytes, spread over so many partitions in turn.  The
commit's time is that of the call, which first waits for the records that are still on their way.  At the end
the committed records are counted. The clients run at a lower priority than the nodes, which would have cores
of their own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from tidegate.bench.cluster.fixture import RawFile, make_topic, running
from tidegate.bench.process_cost import cpu_seconds
from tidegate.bench.storage.fixture import percentile
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.processes.local_cluster import LocalCluster

VALUE = b"v" * 100
PARTITIONS_MAX = 50
ROWS = [
    (records, partitions, producers)
    for producers in (1, 50)
    for records in (1, 100, 10_000)
    for partitions in (1, 10, 50)
    if partitions <= records
]
TIMEOUT_S = 60.0


class Worker(threading.Thread):
    """One producer until `end`; `begun` releases all of them at once."""

    def __init__(
        self, bootstrap: str, name: str, records: int, partitions: int, begun: threading.Barrier
    ) -> None:
        super().__init__(daemon=True)
        self.commits: list[float] = []
        self.seconds = 0.0
        self.error: Exception | None = None
        self._settings = {
            "bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0 if records == 1 else 5,
            "log_level": 0,
            "queue.buffering.max.messages": 1_000_000,
        }  # fmt: skip
        self._records, self._partitions, self._begun = records, partitions, begun
        self.seconds_wanted = 0.0

    def run(self) -> None:
        # of this thread, and of the client's threads: fifty clients would starve the nodes on the same cores
        os.nice(10)
        try:
            producer = Producer(self._settings)
            producer.init_transactions(TIMEOUT_S)
            self._transaction(producer)  # opens connections and fetches metadata
            self._begun.wait(TIMEOUT_S)
            begun = time.perf_counter()
            while (spent := time.perf_counter() - begun) < self.seconds_wanted or not self.commits:
                self.commits.append(self._transaction(producer))
            self.seconds = max(spent, time.perf_counter() - begun)
        except Exception as error:  # raised by `join`
            self.error = error
            self._begun.abort()

    def _transaction(self, producer: Producer) -> float:
        """Seconds of the commit."""
        producer.begin_transaction()
        for number in range(self._records):
            while True:
                try:
                    producer.produce("bench", VALUE, partition=number % self._partitions)
                    break
                except BufferError:
                    producer.poll(0.05)
        begin = time.perf_counter()
        producer.commit_transaction(TIMEOUT_S)
        return time.perf_counter() - begin


async def bench_commits(root: Path, nodes: int, seconds: float) -> None:
    raw = RawFile(root / "raw")
    print(f"\ntransactions, {nodes} nodes and replicas, records of {len(VALUE)} bytes, librdkafka")
    print(
        f"{'records':>8} {'partitions':>11} {'producers':>10} {'commits/s':>10} {'records/s':>10} "
        f"{'p50 ms':>8} {'p99 ms':>8} "
        f"{'node CPU ms':>12} {'raw p50 ms':>11}"
    )
    async with running(root / "cluster", nodes) as cluster:
        await make_topic(cluster, NewTopic("bench", PARTITIONS_MAX, nodes))
        total = 0
        for number, (records, partitions, producers) in enumerate(ROWS):
            raw_s = [raw.append(b"r" * 512, sync=True) for _ in range(50)]
            pids = [node.pid for node in cluster.nodes if node.pid is not None]
            before = cpu_seconds(pids)
            workers = await asyncio.to_thread(_run, cluster, number, records, partitions, producers, seconds)
            cpu = cpu_seconds(pids) - before
            commits = sorted(each for worker in workers for each in worker.commits)
            rate = sum(len(worker.commits) / worker.seconds for worker in workers)
            count = len(commits) + producers
            total += count * records
            print(
                f"{records:8} {partitions:11} {producers:10} {rate:10.1f} {rate * records:10.0f} "
                f"{percentile(commits, 0.5) * 1e3:8.1f} {percentile(commits, 0.99) * 1e3:8.1f} "
                f"{cpu / count * 1e3:12.2f} "
                f"{percentile(raw_s, 0.5) * 1e3:11.2f}",
                flush=True,
            )
        await _check(cluster, total)
    raw.close()


def _run(
    cluster: LocalCluster, row: int, records: int, partitions: int, producers: int, seconds: float
) -> list[Worker]:
    begun = threading.Barrier(producers)
    workers = [
        Worker(cluster.bootstrap, f"row-{row}-{each}", records, partitions, begun)
        for each in range(producers)
    ]
    for worker in workers:
        worker.seconds_wanted = seconds
        worker.start()
    for worker in workers:
        worker.join()
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    return workers


async def _check(cluster: LocalCluster, wanted: int) -> None:
    """Every committed record exists once, and no transaction stays open: a producer has its answer before the
    markers are written, so it is the high watermark that read_committed has to reach."""
    found, places = 0, [("bench", partition) for partition in range(PARTITIONS_MAX)]
    async with Admin(cluster.bootstrap) as admin:
        ends = await admin.end_offsets(places)
    reader = Consumer(cluster.bootstrap, auto_offset_reset="earliest", max_poll_records=20_000)
    async with reader as consumer, asyncio.timeout(300):
        consumer.assign(places)
        while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
            found += len(await consumer.poll())
    if found != wanted:
        raise SystemExit(f"{found} records are committed, and {wanted} were acknowledged")
    print(f"all {found} committed records were read")
