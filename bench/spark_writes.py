"""Rows a second that Spark writes into a topic of three nodes, through this sink, exactly-once, and through
Spark's Kafka connector, at-least-once, taking turns; and the most memory that a Python worker of ours had.

    python -m bench.spark_writes [--jars DIR] [--rows 200000] [--bytes 200] [--rounds 3]

Needs `mvn` on the path to fetch the connector's jars, unless --jars names a folder that has them.  The first
round of each is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin

from bench.spark_streams import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODES, PARTITIONS, TASKS = 3, 6, 2
SINKS = ("tidegate", "kafka")
SAME = {"kafka.batch.size": str(256 << 10), "kafka.linger.ms": "5"}


def workers_memory_mib() -> float:
    """The most that one Python worker of this process's Java has had."""
    most = 0
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or b"pyspark.worker" not in (folder / "cmdline").read_bytes():
                continue
            if not _descends(int(folder.name)):
                continue
            status = (folder / "status").read_text()
        except OSError:  # it has ended meanwhile
            continue
        most = max(most, int(status.partition("VmHWM:")[2].split()[0]))
    return most / 1024


def _descends(process: int) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def rows(spark: SparkSession, count: int, value_bytes: int) -> DataFrame:
    value = f"cast(rpad(cast(id as string), {value_bytes}, 'x') as binary) as value"
    return spark.range(0, count, 1, TASKS).selectExpr("cast(id % 10000 as string) as key", value)


def measure(spark: SparkSession, bootstrap: str, given: argparse.Namespace) -> None:
    times: dict[str, list[float]] = {sink: [] for sink in SINKS}
    for number in range(given.rounds + 1):
        for sink in SINKS if number % 2 else reversed(SINKS):
            topic = f"{sink}-{number}"
            with Admin(bootstrap) as admin:
                admin.create_topics([NewTopic(topic, PARTITIONS, NODES)])
            options = SAME | {"kafka.bootstrap.servers": bootstrap, "topic": topic}
            began_s = time.perf_counter()
            writer = rows(spark, given.rows, given.bytes).write.format(sink).options(**options)
            writer.mode("append").save()
            if number:
                times[sink].append(time.perf_counter() - began_s)
    for sink in SINKS:
        best, median = min(times[sink]), statistics.median(times[sink])
        print(
            f"{sink:<9} best {given.rows / best:,.0f} rows/s ({best:.2f} s), median "
            f"{given.rows / median:,.0f} rows/s ({median:.2f} s)"
        )
    print(f"the most that a Python worker had: {workers_memory_mib():.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, jars(given.jars)))} pyspark-shell"
    from tidegate.spark.session import local_session, stop_session

    with tempfile.TemporaryDirectory() as place:
        cluster = LocalCluster(Path(place) / "cluster", NODES)
        asyncio.run(cluster.up())
        try:
            spark = local_session("bench")
            try:
                measure(spark, cluster.bootstrap, given)
            finally:
                stop_session(spark)
        finally:
            asyncio.run(cluster.down())


if __name__ == "__main__":
    main()
