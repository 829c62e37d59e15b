"""The write latency of one client (the bystander) while others overload the same nodes.

    python bench/bystander [pipelined] [insistent] [large] [batches] [probes] [silence]
                           [--directory DIR] [--nodes 1,3] [--rounds 5]

Without a name, all of them.  The bystander writes with acks=all, one record at a time with a short pause; the
others are separate processes, which share the machine's cores with the nodes.  Every row has the latency of
the bystander's writes before and during the load, and the number of lost broker sessions; `probes` requests
/livez and /readyz instead.

    pipelined   300 connections send 50 Metadata requests each, and are reset before they read an answer
    insistent   the same connections stay, read all answers, and begin anew
    large       8 connections send requests of 1 MB, as fast as they are answered, and the bystander sends
                small ones
    batches     2 MB of the batches that cost a broker most: highly compressed, or with a million records
    probes      70, then 500 connections to the metrics port that say nothing; others that ask and never read
                the answer
    silence     2,000 gRPC connections that say nothing, at one node: their cost; whether others are served
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from tidegate.bench.bystander.crowds import CROWDS, bench_crowd
from tidegate.bench.bystander.probes import bench_probes
from tidegate.bench.bystander.silence import bench_silence


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(CROWDS)}, probes, silence")
    arguments.add_argument(
        "--directory", type=Path, help="a folder on the disk to measure (default: the temporary one)"
    )
    arguments.add_argument(
        "--nodes", type=numbers, default=[1, 3], help="nodes of the cluster, and replicas of what is written"
    )
    arguments.add_argument("--rounds", type=int, default=5, help="how often each crowd comes")
    chosen = arguments.parse_args()
    unknown = [part for part in chosen.parts if part not in (*CROWDS, "probes", "silence")]
    if unknown:
        arguments.error(f"unknown: {', '.join(unknown)}")
    for part in chosen.parts or (*CROWDS, "probes", "silence"):
        for nodes in chosen.nodes:
            root = Path(tempfile.mkdtemp(prefix="tidegate-bench-", dir=chosen.directory))
            before = os.getloadavg()[0]
            try:
                if part == "probes":
                    asyncio.run(bench_probes(root, nodes, chosen.rounds))
                elif part == "silence":
                    asyncio.run(bench_silence(root))
                else:
                    asyncio.run(bench_crowd(root, part, nodes, chosen.rounds))
            finally:
                shutil.rmtree(root)
            print(f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after", flush=True)


if __name__ == "__main__":
    main()
