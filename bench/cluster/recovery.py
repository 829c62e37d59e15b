"""A cluster that was killed, with thousands of partitions a node, started by `tidegate cluster up` with next
to no CPU.

1. Three nodes, every partition on each of them, a record in every one, acknowledged by all.  SIGKILL to all
   nodes at once.
2. `tidegate cluster up --timeout`, while all nodes together get a part of one core (cgroup v1,
   `cpu_quota.py`): the time is too short on purpose.  It must end with an error, say how far the nodes are,
   and leave them running.
3. `tidegate cluster up`, which waits as long as the nodes make progress: it must end with all of them ready,
   the very processes that the first one started, and every acknowledged record must be there.

The benchmark prints the progress as a user sees it (without a terminal: a line from time to time), times, and
the work of a node.  Needs root, and the `cpu` controller.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path

from tidegate.bench.cluster.fixture import READY_S, make_topic, statuses
from tidegate.bench.cluster.partitions import Phase, say
from tidegate.chaos.machine.cpu_quota import SharedCpuQuota
from tidegate.chaos.run.node_logs import count_logs, loud
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster

TOPIC = "many"
NODES = 3
GIVE_UP_S = 45.0
UP_S_MAX = 1800.0
LOOK_S = 0.02


async def bench_recovery(root: Path, partitions: int, cpu_percent: int) -> None:
    directory = root / "killed"
    print(
        f"\nthree nodes with {partitions} partitions each, killed at once, started with "
        f"{cpu_percent} % of one core for all",
        flush=True,
    )
    cluster = LocalCluster(directory, nodes=NODES, detached=True)
    try:
        await cluster.up(READY_S)
        await _fill(cluster, partitions)
        phase = Phase(cluster)
        for node in cluster.nodes:
            node.kill()
        await asyncio.gather(*(node.wait_exit() for node in cluster.nodes))
        phase.say("all nodes killed")
        logged = {node.id: node.log_path.stat().st_size for node in cluster.nodes}
        cluster.release()  # the command holds the ports from here on
        with SharedCpuQuota(cpu_percent * 10) as quota:
            joining = asyncio.create_task(_join(directory, quota))
            try:
                await _start(directory)
            finally:
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
        await _judge(LocalCluster.attach(directory), partitions, logged)
    finally:
        left = LocalCluster.attach(directory)
        await left.down(READY_S)


async def _fill(cluster: LocalCluster, partitions: int) -> None:
    await make_topic(cluster, NewTopic(TOPIC, partitions, NODES))
    async with Producer(cluster.bootstrap, acks=-1) as producer:
        sent = [
            await producer.send(TOPIC, f"value {number}", partition=number) for number in range(partitions)
        ]
        await asyncio.gather(*sent)


async def _join(directory: Path, quota: SharedCpuQuota) -> None:
    """Every node is under the quota as soon as its process exists."""
    known: set[int] = set()
    while True:
        for record in directory.glob("node-*/process.json"):
            found = re.search(r'"pid": (\d+)', record.read_text(errors="replace"))
            if found and int(found[1]) not in known and quota.take(int(found[1])):
                known.add(int(found[1]))
        await asyncio.sleep(LOOK_S)


async def _start(directory: Path) -> None:
    began = time.perf_counter()
    code, progress, last = await _up(directory, ["--timeout", f"{GIVE_UP_S:g}"], began)
    _require(
        code == 1,
        f"`cluster up --timeout {GIVE_UP_S:g}` ended with {code}, not 1: the quota is too large for "
        "this test",
    )
    _require("they go on: " in last, f"it did not say that the nodes go on: {last}")
    first = _running(directory)
    _require(len(first) == NODES, f"of {NODES} nodes only {sorted(first)} run after the wait was given up")
    say(f"`cluster up --timeout {GIVE_UP_S:g}` gave up, nodes go on", time.perf_counter() - began)
    code, more, last = await _up(directory, [], began)
    _require(code == 0, f"`cluster up` ended with {code}: {last}")
    say("`cluster up`: all nodes ready, since the first start", time.perf_counter() - began)
    _require(_running(directory) == first, "a node was stopped and started again")
    print(f"{'progress seen by the user':>44} {len(progress)} and {len(more)} lines", flush=True)


def _running(directory: Path) -> dict[int, int]:
    cluster = LocalCluster.attach(directory)
    try:
        return {node.id: node.pid for node in cluster.nodes if node.pid is not None}
    finally:
        cluster.release()


async def _up(directory: Path, options: list[str], began: float) -> tuple[int, list[str], str]:
    """Exit code, the lines of progress, and the last line."""
    command = [
        str(Path(sys.executable).with_name("tidegate")),
        "cluster",
        "up",
        "--data",
        str(directory),
        *options,
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert process.stderr is not None
    progress, last = [], ""
    try:
        async with asyncio.timeout(UP_S_MAX):
            async for line in process.stderr:
                last = line.decode(errors="replace").rstrip()
                if re.match(r"node \d+ .*: \d+ of \d+ logs", last):
                    progress.append(last)
                print(f"{time.perf_counter() - began:10.1f} s  {last}", flush=True)
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    return code, progress, last


async def _judge(cluster: LocalCluster, partitions: int, logged: dict[int, int]) -> None:
    try:
        for node in cluster.nodes:
            with node.log_path.open(errors="replace") as lines:
                lines.seek(logged[node.id])
                since = lines.read()
            starts, stops = since.count(" node_starting "), since.count(" node_stopping ")
            _require(
                (starts, stops) == (1, 0), f"node {node.id} was started {starts} times, stopped {stops} times"
            )
            unclean = re.search(r" log_directory_opened .*clean=False", since)
            _require(unclean is not None, f"node {node.id} had nothing to recover")
        begin = time.perf_counter()
        while True:
            said = await statuses(cluster.nodes)
            if (
                len(said) == NODES
                and sum(s.leaders for s in said) >= partitions
                and not any(s.under_replicated for s in said)
            ):
                break
            _require(time.perf_counter() - begin < READY_S, "not every partition is led and in sync")
            await asyncio.sleep(0.1)
        async with Admin(cluster.bootstrap, timeout_s=READY_S) as admin:
            ends = await admin.end_offsets([(TOPIC, number) for number in range(partitions)])
        lost = [partition for partition, end in ends.items() if end < 1]
        _require(not lost and len(ends) == partitions, f"{len(lost)} acknowledged records are gone")
        print(f"{'acknowledged records found':>44} {len(ends)} of {partitions}", flush=True)
        print(
            f"{'recovered logs, by node':>44} {' '.join(str(status.recovered_logs) for status in said)}",
            flush=True,
        )
        counted = count_logs(node.log_path for node in cluster.nodes)
        loudest = ", ".join(f"{event} {count}" for (_, event), count in loud(counted).most_common())
        print(
            f"{'lines that the nodes logged':>44} {counted.total()}, at WARNING and above: "
            f"{loudest or 'none'}",
            flush=True,
        )
    finally:
        cluster.release()


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"FAILED: {otherwise}")
