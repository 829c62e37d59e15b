"""Sends the same raw requests to Tidegate and to Apache Kafka and shows where the answers are not the same.

    python -m bench.answers [--nodes 1|3] [--only fetches|groups|restart] [--cache DIR] [--directory DIR]

Needs Java 17, and Maven for the first time (see bench/kafka_peer.py).  Ends with 1 when an answer differs in
a way that is not listed in `known.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tidegate.processes.local_cluster import LocalCluster

from ..kafka_peer import KafkaCluster, default_cache, jars
from .group_script import announced, groups
from .known import known
from .script import ONE_NODE, THREE_NODES, after_restart, before_restart
from .side import Connection, Side, differences


def addresses(bootstrap: str) -> dict[int, tuple[str, int]]:
    pairs = (address.rsplit(":", 1) for address in bootstrap.split(","))
    return {node: (host, int(port)) for node, (host, port) in enumerate(pairs, 1)}


def wait_for(side: Side) -> None:
    def listens() -> bool:
        try:
            for address in side.addresses.values():
                Connection(address).close()
        except OSError:
            return False
        return True

    side.wait_until(listens, "a listener")
    time.sleep(1)


async def run(nodes: int, only: str | None, cache: Path, directory: Path) -> int:
    scripts = [
        each
        for each in ((*ONE_NODE, announced, groups) if nodes == 1 else THREE_NODES)
        if only in (None, each.__name__)
    ]
    kafka_cluster = KafkaCluster(directory / "kafka", nodes, jars(cache))
    kafka_cluster.format()
    kafka_cluster.start()
    try:
        settings: dict[str, object] = {"auto.create.topics.enable": False}
        if nodes == 1:
            settings |= {
                f"{name}.replication.factor": 1
                for name in ("offsets.topic", "transaction.state.log", "default")
            }
            settings |= {"transaction.state.log.min.isr": 1}
        async with LocalCluster(directory / "tidegate", nodes=nodes, settings=settings) as own:
            ours = Side("Tidegate", addresses(own.bootstrap))
            kafka = Side("Kafka", addresses(kafka_cluster.bootstrap))
            for side in (ours, kafka):
                await asyncio.to_thread(wait_for, side)
                for script in scripts:
                    await asyncio.to_thread(script, side)
            if nodes == 1 and only in (None, "restart"):
                for side in (ours, kafka):
                    await asyncio.to_thread(before_restart, side)
                    side.close()
                await own.node(1).terminate()
                await own.node(1).start()
                await own.node(1).wait_ready(60)
                kafka_cluster.stop()
                kafka_cluster.start()
                for side in (ours, kafka):
                    await asyncio.to_thread(wait_for, side)
                    await asyncio.to_thread(after_restart, side)
            for side in (ours, kafka):
                side.close()
    finally:
        kafka_cluster.stop()
    unexpected = 0
    reasons: dict[str, int] = {}
    for label in dict.fromkeys((*ours.answers, *kafka.answers)):
        for path, here, there in differences(ours.answers.get(label), kafka.answers.get(label)):
            reason = known(label, path, here, there)
            if reason is None:
                unexpected += 1
                print(f"{label}: {path}: {here!r}, Kafka has {there!r}")
            else:
                reasons[reason] = reasons.get(reason, 0) + 1
    print(f"{len(kafka.answers)} answers compared, {unexpected} fields differ without being known to")
    for reason, times in reasons.items():
        print(f"  known, {times} fields: {reason}")
    return 1 if unexpected else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.answers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--only")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        return asyncio.run(run(arguments.nodes, arguments.only, arguments.cache, Path(directory)))


if __name__ == "__main__":
    sys.exit(main())
