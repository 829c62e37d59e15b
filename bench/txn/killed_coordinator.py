"""SIGKILL of a transaction's coordinator to the producer's next commit.

The producer's partitions are led by other nodes as far as possible, but their replicas live on all three; the
next `commit` that returns counts.  Detection is read from the controller's log as in `bench/cluster
failover`: the session's end.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from tidegate.bench.cluster.failover import READY_S, SESSION_MS, SETTINGS
from tidegate.bench.cluster.fixture import NodeLogs, make_topic, number_in, running
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster

TRANSACTIONAL_ID = "bench-failover"


async def bench_coordinator(root: Path, rounds: int) -> None:
    rows: list[tuple[float, float]] = []
    async with running(root / "cluster", 3, SETTINGS) as cluster:
        await make_topic(cluster, NewTopic("bench", 6, 3))
        async with Producer(cluster.bootstrap, transactional_id=TRANSACTIONAL_ID) as producer:
            rows += [await _kill(cluster, producer) for _ in range(rounds)]
    beyond = sorted(after for _, after in rows)
    print(
        f"\na coordinator is killed, three nodes, {SESSION_MS} ms session: seconds from SIGKILL to "
        "the next commit"
    )
    print(f"{'kills':>6} {'detection':>10} {'beyond p50':>11} {'least':>8} {'most':>8}")
    print(
        f"{len(rows):6} {statistics.median(each for each, _ in rows):10.3f} "
        f"{statistics.median(beyond):11.3f} "
        f"{beyond[0]:8.3f} {beyond[-1]:8.3f}"
    )


async def _kill(cluster: LocalCluster, producer: Producer) -> tuple[float, float]:
    """(detection, beyond it) in seconds; the killed node is back and in sync afterwards."""
    await _commit(producer)
    async with Admin(cluster.bootstrap) as admin:
        victim = cluster.node((await admin.describe_transaction(TRANSACTIONAL_ID)).coordinator)
    logs, killed = NodeLogs(cluster), time.time()
    victim.kill()
    await _commit(producer)
    committed = time.time()
    at, line = logs.first("broker_session_expired", lambda line: f"node={victim.id} " in line)
    detected = at - (number_in(line, "silent_ms") - SESSION_MS) / 1000
    await victim.wait_exit()
    await victim.start()
    await victim.wait_ready(READY_S)
    return detected - killed, committed - detected


async def _commit(producer: Producer) -> None:
    async with producer.transaction():
        for partition in range(6):
            await producer.send("bench", b"v", partition=partition)
