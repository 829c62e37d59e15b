"""SIGKILL to the next acknowledged write, for the leader of a partition and for the active controller.

A leader's death is noticed by its silence: the session ends `broker.session.timeout.ms` after the last
heartbeat that arrived. That is the detection time, and it is read from the controller's log
(`broker_session_expired`, less its lateness); everything after it counts: noticing it late, the election, its
journal on a majority, the new leader, the write on all in-sync replicas.

The controller's death closes its connections, which the other voters see at once: there everything from the
kill on counts, up to the next acknowledged metadata command.  A partition that the killed node led as well is
written to again when its new controller has given it a whole session of its own; that row counts from the end
of this session.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from tidegate.bench.cluster.fixture import (
    NodeLogs,
    connect,
    leaders_of,
    make_topic,
    next_write,
    number_in,
    running,
)
from tidegate.bench.cluster.metadata import BROKER_ID, client_of, register
from tidegate.bench.storage.fixture import batch_of
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.proto import controller_pb2 as pb

SESSION_MS = 2000
SETTINGS: dict[str, object] = {
    "broker.session.timeout.ms": SESSION_MS,
    "broker.heartbeat.interval.ms": 500,
    "controller.quorum.election.timeout.ms": 500,
}
TOPIC = NewTopic("failover", 6, 3)
BATCH = batch_of(1 << 10)
READY_S = 60.0

Rows = dict[str, list[tuple[float, float]]]
"""Seconds of detection, and beyond it, by the killed process and the awaited event."""


async def bench_failover(root: Path, rounds: int) -> None:
    rows: Rows = {"leader: write": [], "controller: command": [], "controller and leader: write": []}
    async with running(root / "cluster", 3, SETTINGS) as cluster:
        await make_topic(cluster, TOPIC)
        for number in range(2 * rounds):
            await _kill(cluster, rows, controller=bool(number % 2))
    print(f"\nfailover, three nodes, {SESSION_MS} ms session: seconds from SIGKILL")
    print(
        f"{'killed, waited for':>30} {'kills':>6} {'detection':>10} {'beyond p50':>11} {'least':>8} "
        f"{'most':>8}"
    )
    for name, found in rows.items():
        beyond = [after for _, after in found]
        print(
            f"{name:>30} {len(found):6} {statistics.median(d for d, _ in found):10.3f} "
            f"{statistics.median(beyond):11.3f} "
            f"{min(beyond):8.3f} {max(beyond):8.3f}"
        )


async def _kill(cluster: LocalCluster, rows: Rows, *, controller: bool) -> None:
    """One kill, and the killed node back and in sync again."""
    active = await cluster.active_controller()
    victim, partition = await _victim(cluster, active, controller)
    survivors = [node for node in cluster.nodes if node is not victim]
    client = client_of(cluster)
    broker_epoch = await register(client)
    logs = NodeLogs(cluster)
    killed = time.time()
    victim.kill()
    writing = asyncio.create_task(next_write(cluster, survivors, TOPIC.name, partition, BATCH))
    if controller:
        while True:
            try:
                request = pb.AllocateProducerIdsRequest(node_id=BROKER_ID, broker_epoch=broker_epoch)
                await client.allocate_producer_ids(request, timeout_s=0.05)
                break
            except Exception:  # no controller yet, or it does not know of the election yet
                await asyncio.sleep(0.005)
        rows["controller: command"].append((0.0, time.time() - killed))
    written = await writing
    at, line = logs.first("broker_session_expired", lambda line: f"node={victim.id} " in line)
    detected = at - (number_in(line, "silent_ms") - SESSION_MS) / 1000
    rows["controller and leader: write" if controller else "leader: write"].append(
        (detected - killed, written - detected)
    )
    await client.close()
    await victim.wait_exit()
    await victim.start()
    await victim.wait_ready(READY_S)


async def _victim(cluster: LocalCluster, active: LocalNode, controller: bool) -> tuple[LocalNode, int]:
    """The node to kill, and a partition that it leads."""
    while True:
        asked = await connect(active)
        leaders = await leaders_of(asked, TOPIC.name)
        asked.close()
        for number, leader in leaders.items():
            if leader >= 0 and (leader == active.id) is controller:
                return cluster.node(leader), number
        await asyncio.sleep(0.1)  # the preferred replicas become leaders again after some time
