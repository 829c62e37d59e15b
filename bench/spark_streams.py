"""A trigger of a Spark stream, through this source and through Spark's Kafka connector, on one node, taking
turns: milliseconds of an empty trigger and of one with 10,000 records, and whether both cut the same ranges.

    python -m bench.spark_streams [--jars DIR] [--rounds 3] [--batches 20] [--sink]

With --sink each writes back into a topic, by its own sink: ours exactly-once, the connector's at-least-once.

Needs `mvn` on the path to fetch the connector's jars, unless --jars names a folder that has them.  Spark's
progress reports say what a trigger took.  The first round of each is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Producer, Send

from bench.kafka_peer import default_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "4.2.0"
JARS = (
    "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2",
)  # fmt: skip
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies><dependency>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""
PARTITIONS = 4
TRIGGER_RECORDS = 10_000
VALUE = b"x" * 200
IDLE_TRIGGERS = 40
TOPIC, COPIES = "flights", "copies"
SOURCES = ("tidegate", "kafka")


def jars(given: Path | None) -> list[Path]:
    """The connector and what it needs beside Spark."""
    folder = given or fetched("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR)
    return [path for name in JARS for path in folder.glob(f"{name}-*.jar")]


def fetched(group: str, artifact: str, version: str) -> Path:
    """The folder of its jars and of those that it needs, from Maven or from an earlier run."""
    folder = default_cache() / f"{artifact}-{version}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as place:
            pom = POM.format(group=group, artifact=artifact, version=version)
            (Path(place) / "pom.xml").write_text(pom)
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
            subprocess.run([*command, "-DincludeScope=runtime"], cwd=place, check=True)
            shutil.copytree(Path(place) / "libs", folder)
    return folder


class Bench:
    """One session and one node for all rounds."""

    def __init__(
        self, spark: SparkSession, cluster: LocalCluster, folder: Path, *, writes_back: bool
    ) -> None:
        self._spark = spark
        self._writes_back, self._bootstrap = writes_back, cluster.bootstrap
        self._addresses = {"tidegate": cluster.node(1).grpc_address, "kafka": cluster.bootstrap}
        self._folder = folder
        self._queries = 0

    def _start(self, source: str, trigger: dict[str, Any], **options: str) -> Any:
        self._queries += 1
        given = {"kafka.bootstrap.servers": self._addresses[source], "subscribe": TOPIC} | options
        given["kafka.isolation.level"] = "read_committed"
        frame = self._spark.readStream.format(source).options(**given).load()
        if self._writes_back:
            writer = frame.select("value").writeStream.format(source)
            writer = writer.options(**{"kafka.bootstrap.servers": self._bootstrap, "topic": COPIES})
        else:
            writer = frame.select("value", "partition", "offset").writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self._folder / f"{source}-{self._queries}"))
        return writer.trigger(**trigger).start()

    def filled(self, source: str) -> tuple[list[float], list[dict[str, int]]]:
        """Milliseconds of each trigger with TRIGGER_RECORDS, and where each ended."""
        query = self._start(
            source,
            {"availableNow": True},
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(TRIGGER_RECORDS),
        )
        query.awaitTermination()
        times, ends = [], []
        for progress in (json.loads(each.json) for each in query.recentProgress):
            if progress["numInputRows"]:
                assert progress["numInputRows"] == TRIGGER_RECORDS, progress
                times.append(float(progress["durationMs"]["triggerExecution"]))
                end = progress["sources"][0]["endOffset"]
                ends.append(end["topics"][TOPIC]["offsets"] if source == "tidegate" else end[TOPIC])
        return times, ends

    def idle(self, source: str) -> list[float]:
        """Milliseconds of each trigger that finds nothing."""
        query = self._start(source, {"processingTime": "0 seconds"}, startingOffsets="latest")
        times: list[float] = []
        while len(times) < IDLE_TRIGGERS:
            query.processAllAvailable()
            reports = [json.loads(each.json) for each in query.recentProgress]
            times = [
                float(each["durationMs"]["triggerExecution"])
                for each in reports
                if each["numInputRows"] == 0 and "addBatch" not in each["durationMs"]
            ]
        query.stop()
        return times


def fill(cluster: LocalCluster, batches: int) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (TOPIC, COPIES)])
    records = batches * TRIGGER_RECORDS
    with Producer(cluster.bootstrap) as producer:
        sends = (Send(VALUE, partition=number % PARTITIONS) for number in range(records))
        for sent in producer.send_all(TOPIC, sends):
            sent.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20, help="micro-batches of a round")
    parser.add_argument("--sink", action="store_true", help="write back into a topic")
    given = parser.parse_args()
    found = ",".join(map(str, jars(given.jars)))
    idle_reports = "--conf spark.sql.streaming.noDataProgressEventInterval=0"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {found} {idle_reports} pyspark-shell"
    from tidegate.spark.session import local_session, stop_session

    with tempfile.TemporaryDirectory() as place:
        cluster = LocalCluster(Path(place) / "node", 1)
        asyncio.run(cluster.up())
        try:
            fill(cluster, given.batches)
            spark = local_session("bench")
            try:
                bench = Bench(spark, cluster, Path(place), writes_back=given.sink)
                measure(bench, given.rounds)
            finally:
                stop_session(spark)
        finally:
            asyncio.run(cluster.down())


def measure(bench: Bench, rounds: int) -> None:
    filled: dict[str, list[float]] = {source: [] for source in SOURCES}
    idle: dict[str, list[float]] = {source: [] for source in SOURCES}
    ranges: dict[str, list[dict[str, int]]] = {}
    for number in range(rounds + 1):
        for source in SOURCES if number % 2 else reversed(SOURCES):
            times, ranges[source] = bench.filled(source)
            filled[source] += times if number else []
            idle[source] += bench.idle(source) if number else []
    for what, times_of in (("10,000 records", filled), ("empty", idle)):
        medians = {source: statistics.median(times_of[source]) for source in SOURCES}
        print(
            f"{what:<16} p50 ms: "
            + ", ".join(f"{source} {medians[source]:g} of {len(times_of[source])}" for source in SOURCES)
            + f"; ratio {medians['tidegate'] / max(1.0, medians['kafka']):.2f}"
        )
    same = sum(one == other for one, other in zip(*ranges.values(), strict=True))
    print(f"micro-batches that end at the same offsets: {same} of {len(ranges['kafka'])}")


if __name__ == "__main__":
    main()
