"""What an idle cluster costs: milliseconds of CPU a second of each node, by thread, and how often each thread
wakes.

    python bench/idle.py [--nodes 3] [--partitions 4] [--seconds 20] [--profile]

No client writes or reads; the partitions of one topic have a replica on every node: followers fetch from
leaders, nodes send heartbeats and probes, and the quorum's leader sends its own heartbeats.  A node that may
use 20 ms a second (`tidegate chaos run starved`) has the rest for its clients.  The first row of a node is
the whole process; those below are its threads, from /proc/PID/task.  Aims: an idle node below 8 ms a second,
the active controller below 12.

`--profile` needs py-spy (`pip install py-spy`): it prints which functions the time of each node went to.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from tidegate.bench.cluster.fixture import make_topic, running
from tidegate.client.administration.admin import NewTopic  # type: ignore[attr-defined]
from tidegate.processes.local_cluster import LocalNode

SETTLED_S = 8.0
ROWS = 8

Used = dict[int, tuple[str, int, int]]
"""By thread: its name, nanoseconds on a core, how often it slept."""


def used(pid: int) -> Used:
    """Of all threads of the process, so far."""
    found: Used = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        try:
            ran_ns = int((folder / "schedstat").read_text().split()[0])
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            found[int(folder.name)] = status["Name"].strip(), ran_ns, int(status["voluntary_ctxt_switches"])
        except FileNotFoundError:
            continue  # the thread has ended
    return found


def show(node: LocalNode, role: str, before: Used, after: Used, seconds: float) -> None:
    """A row for the process, and one for each of the threads that used most."""
    rows = []
    for thread, (name, ran_ns, slept) in after.items():
        _, ran_before, slept_before = before.get(thread, ("", 0, 0))
        rows.append(((ran_ns - ran_before) / 1e6 / seconds, (slept - slept_before) / seconds, name))
    print(
        f"node {node.id} {role:>11} {sum(row[0] for row in rows):8.2f} ms/s "
        f"{sum(row[1] for row in rows):8.1f} wake-ups/s"
    )
    for ran_ms, wakes, name in sorted(rows, reverse=True)[:ROWS]:
        if ran_ms >= 0.05:
            print(f"{name:>18} {ran_ms:8.2f} ms/s {wakes:8.1f} wake-ups/s")


def profiled(node: LocalNode, output: Path, seconds: float) -> subprocess.Popen[bytes]:
    command = [
        "py-spy", "record", "--pid", str(node.pid), "--duration", str(int(seconds)), "--rate", "500",
        "--nonblocking",
        "--threads", "--format", "raw", "--output", str(output),
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def show_profile(node: LocalNode, output: Path) -> None:
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in output.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        for frame in set(frames):
            total[frame] += int(count)
    print(f"node {node.id}: samples in the function itself, samples with all it calls")
    for frame, samples in own.most_common(25):
        print(f"{samples:8} {total[frame]:8}  {frame}")
    for frame, samples in total.most_common(45):
        print(f"         {samples:8}  {frame}")


async def measure(root: Path, nodes: int, partitions: int, seconds: float, profile: bool) -> None:
    async with running(root / "cluster", nodes) as cluster:
        if partitions:
            await make_topic(cluster, NewTopic("idle", partitions, nodes))
        await asyncio.sleep(SETTLED_S)
        active = await cluster.active_controller()
        await asyncio.sleep(2.0)
        pids = {node.id: node.pid for node in cluster.nodes if node.pid is not None}
        before = {node_id: used(pid) for node_id, pid in pids.items()}
        profiles = (
            {node.id: profiled(node, root / f"profile-{node.id}", seconds) for node in cluster.nodes}
            if profile
            else {}
        )
        await asyncio.sleep(seconds)
        after = {node_id: used(pid) for node_id, pid in pids.items()}
        for node in cluster.nodes:
            role = "controller" if node is active else "broker"
            show(node, role, before[node.id], after[node.id], seconds)
        for node in cluster.nodes:
            if node.id in profiles:
                await asyncio.to_thread(profiles[node.id].wait)
                show_profile(node, root / f"profile-{node.id}")


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--directory", type=Path, help="a folder on the disk to use (default: the temporary one)"
    )
    arguments.add_argument("--nodes", type=int, default=3)
    arguments.add_argument(
        "--partitions", type=int, default=4, help="each with a replica on every node; 0: no topic"
    )
    arguments.add_argument("--seconds", type=float, default=20.0)
    arguments.add_argument(
        "--profile", action="store_true", help="by py-spy, which is not installed with this project"
    )
    chosen = arguments.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tidegate-bench-", dir=chosen.directory))
    before = os.getloadavg()[0]
    try:
        asyncio.run(measure(root, chosen.nodes, chosen.partitions, chosen.seconds, chosen.profile))
    finally:
        shutil.rmtree(root)
    print(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after", flush=True)


if __name__ == "__main__":
    main()
