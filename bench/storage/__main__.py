"""The cost of a log over the bare system calls: appends, group commit, reads, recovery, memory, cleaning.

    python bench/storage [append] [commit] [read] [recovery] [creation] [partitions] [memory] [index]
                         [cleaning]
                         [--directory DIR] [--megabytes 128] [--recover-megabytes 10240] [--partitions 1000]
                         [--clean-megabytes 16]

Without a name, all of them.  Beside every figure stands a raw loop of the same size in the same run (pwrite,
fdatasync, pread), and their ratio.  Log and raw loop take turns, within a millisecond where nothing is
flushed, and medians of the turns are compared: what else the machine does then meets both alike.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tidegate.bench.storage.appends import bench_append, bench_commit
from tidegate.bench.storage.cleaning import bench_cleaning
from tidegate.bench.storage.creation import bench_creation
from tidegate.bench.storage.indexes import bench_index
from tidegate.bench.storage.memory import bench_memory
from tidegate.bench.storage.reads import bench_read
from tidegate.bench.storage.recovery import bench_partitions, bench_recovery


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = "append, commit, read, recovery, creation, partitions, memory, index, cleaning"
    arguments.add_argument("parts", nargs="*", metavar="part", help=names)
    arguments.add_argument(
        "--directory", type=Path, help="a folder on the disk to measure (default: the temporary one)"
    )
    arguments.add_argument("--megabytes", type=int, default=128, help="data for each size of batch")
    arguments.add_argument("--recover-megabytes", type=int, default=10_240, help="the log to recover")
    arguments.add_argument("--partitions", type=int, default=1000)
    arguments.add_argument("--clean-megabytes", type=int, default=16, help="each log to clean")
    chosen = arguments.parse_args()
    parts = {
        "append": lambda root: bench_append(root, chosen.megabytes),
        "commit": bench_commit,
        "read": lambda root: bench_read(root, chosen.megabytes),
        "recovery": lambda root: bench_recovery(root, chosen.recover_megabytes),
        "creation": lambda root: bench_creation(root, chosen.partitions),
        "partitions": lambda root: bench_partitions(root, chosen.partitions),
        "memory": lambda root: bench_memory(root, chosen.partitions),
        "index": bench_index,
        "cleaning": lambda root: bench_cleaning(root, chosen.clean_megabytes),
    }
    unknown = [part for part in chosen.parts if part not in parts]
    if unknown:
        arguments.error(f"unknown: {', '.join(unknown)}")
    for part in chosen.parts or parts:
        root = Path(tempfile.mkdtemp(prefix="tidegate-bench-", dir=chosen.directory))
        try:
            parts[part](root)
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
