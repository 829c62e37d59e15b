"""Benchmarks of transactions and groups on a cluster of real processes: commits, a dead coordinator, readers,
rebalances.

    python bench/txn [commits] [coordinator] [lag] [rebalance] [loading]
                     [--directory DIR] [--nodes 3] [--seconds 4] [--rounds 5] [--members 100]

Without a name, all of them.  Producers and consumers of `commits` and `lag` are librdkafka's, as it comes
(TV1); the others are Tidegate's own client (TV2).  All share the machine's cores with the nodes, so every
part prints the load, and `commits` prints the nodes' share of the CPU.  The raw figure beside them is an
append with fdatasync on the same disk, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from tidegate.bench.txn.commits import bench_commits
from tidegate.bench.txn.killed_coordinator import bench_coordinator
from tidegate.bench.txn.lag import bench_lag
from tidegate.bench.txn.loading import bench_loading
from tidegate.bench.txn.members import bench_rebalance


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "parts", nargs="*", metavar="part", help="commits, coordinator, lag, rebalance, loading"
    )
    arguments.add_argument(
        "--directory", type=Path, help="a folder on the disk to measure (default: the temporary one)"
    )
    arguments.add_argument(
        "--nodes", type=int, default=3, help="nodes of the cluster, and replicas of every partition"
    )
    arguments.add_argument(
        "--seconds", type=float, default=4.0, help="of each row of the commits, and of the lag"
    )
    arguments.add_argument("--rounds", type=int, default=5, help="kills, and rebalances of each kind")
    arguments.add_argument("--members", type=int, default=100)
    chosen = arguments.parse_args()
    parts = {
        "commits": lambda root: bench_commits(root, chosen.nodes, chosen.seconds),
        "coordinator": lambda root: bench_coordinator(root, chosen.rounds),
        "lag": lambda root: bench_lag(root, chosen.nodes, chosen.seconds),
        "loading": bench_loading,
        "rebalance": lambda root: bench_rebalance(root, chosen.nodes, chosen.members, chosen.rounds),
    }
    unknown = [part for part in chosen.parts if part not in parts]
    if unknown:
        arguments.error(f"unknown: {', '.join(unknown)}")
    for part in chosen.parts or parts:
        root = Path(tempfile.mkdtemp(prefix="tidegate-bench-", dir=chosen.directory))
        before = os.getloadavg()[0]
        try:
            asyncio.run(parts[part](root))
        finally:
            shutil.rmtree(root)
        print(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after", flush=True)


if __name__ == "__main__":
    main()
