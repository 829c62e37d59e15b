"""Benchmarks of a cluster of real processes: metadata commands, failover, ten thousand partitions, replicated
writes.

    python bench/cluster [metadata] [failover] [partitions] [writes]
                         [--directory DIR] [--rounds 9] [--partitions 10000] [--replicas 3,1] [--nodes 1,3,5]
                         [--seconds 3]
    python bench/cluster recovery [--partitions 3000] [--cpu-percent 20]

Without a name, all of the first line.  Nodes, clients and other programs of the machine share its cores, so
every part prints the load, and where a raw loop (append, fdatasync) can stand beside a figure it runs in the
same minutes, on the same disk, in turns.  Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from tidegate.bench.cluster.failover import bench_failover
from tidegate.bench.cluster.metadata import bench_metadata
from tidegate.bench.cluster.partitions import bench_partitions
from tidegate.bench.cluster.recovery import bench_recovery
from tidegate.bench.cluster.writes import bench_writes


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "parts", nargs="*", metavar="part", help="metadata, failover, partitions, writes, recovery"
    )
    arguments.add_argument(
        "--directory", type=Path, help="a folder on the disk to measure (default: the temporary one)"
    )
    arguments.add_argument(
        "--rounds", type=int, default=9, help="kills of each kind, turns of metadata commands"
    )
    arguments.add_argument("--partitions", type=int, help="default: 10,000; of a recovery 3,000")
    arguments.add_argument(
        "--cpu-percent", type=int, default=20, help="of one core, for all nodes that recover together"
    )
    arguments.add_argument(
        "--replicas", type=numbers, default=[3, 1], help="replication factors of the many partitions"
    )
    arguments.add_argument(
        "--nodes", type=numbers, default=[1, 3, 5], help="nodes, and replicas, of the writes"
    )
    arguments.add_argument("--seconds", type=float, default=3.0, help="of each cell of the writes")
    chosen = arguments.parse_args()
    parts = {
        "metadata": lambda root: bench_metadata(root, chosen.rounds),
        "failover": lambda root: bench_failover(root, chosen.rounds),
        "partitions": lambda root: bench_partitions(root, chosen.partitions or 10_000, chosen.replicas),
        "writes": lambda root: bench_writes(root, chosen.nodes, chosen.seconds),
        "recovery": lambda root: bench_recovery(root, chosen.partitions or 3_000, chosen.cpu_percent),
    }
    unknown = [part for part in chosen.parts if part not in parts]
    if unknown:
        arguments.error(f"unknown: {', '.join(unknown)}")
    for part in chosen.parts or [part for part in parts if part != "recovery"]:
        root = Path(tempfile.mkdtemp(prefix="tidegate-bench-", dir=chosen.directory))
        before = os.getloadavg()[0]
        try:
            asyncio.run(parts[part](root))
        finally:
            shutil.rmtree(root)
        print(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after", flush=True)


if __name__ == "__main__":
    main()
