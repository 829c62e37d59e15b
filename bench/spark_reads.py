"""Rows a second of a whole Spark read from three nodes: with the compiled kernel, with numpy, and with
Spark's own Kafka connector; all take turns.

    python -m bench.spark_reads [--jars DIR] [--records 1000000] [--values 200] [--codecs none zstd]

Each read goes to Spark's sink `noop`, or is a `count()`.  A first read of each is left out; the best and the
median of the others are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster
from tidegate.spark import local_session
from tidegate.spark.decoding import kernel_decoder
from tidegate.spark.session import stop_session
from tidegate.spark.source import TidegateReader, TidegateSource

from bench.spark_streams import jars

PARTITIONS = 4
CORES = 2
SOURCES = ("with_kernel", "with_numpy", "kafka")


class ChosenReader(TidegateReader):
    """Reads with the kernel, or without it."""

    has_kernel = True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        kernel_decoder.kernel = (
            importlib.import_module("tidegate.spark.decoding.kernel") if self.has_kernel else None
        )
        return super().read(partition)


class WithKernel(TidegateSource):
    @classmethod
    def name(cls) -> str:
        return "with_kernel"

    def reader(self, schema: StructType) -> DataSourceReader:
        reader = super().reader(schema)
        reader.__class__ = ChosenReader
        return reader


class WithNumpy(WithKernel):
    @classmethod
    def name(cls) -> str:
        return "with_numpy"

    def reader(self, schema: StructType) -> DataSourceReader:
        reader: Any = super().reader(schema)
        reader.has_kernel = False
        return reader


def fill(bootstrap: str, topic: str, records: int, value_bytes: int, codec: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "acks": "all"}
    )
    rng = random.Random(7)
    text = b'"carrier":"UA","origin":"EWR","dest":"IAH"} ' * (1 + value_bytes // 40)
    for number in range(records):
        key = b"%016d" % number
        value = (rng.randbytes(value_bytes // 6).hex().encode() + text)[
            :value_bytes
        ]  # a third is hard to compress
        while True:
            try:
                producer.produce(topic, value, key, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise SystemExit("not all records were written")


def rows_per_second(reads: dict[str, Callable[[], None]], rows: int, rounds: int) -> dict[str, list[float]]:
    """By name; the reads take turns."""
    found: dict[str, list[float]] = {name: [] for name in reads}
    for number in range(rounds + 1):
        for name, read in reads.items():
            begin = time.perf_counter()
            read()
            if number:
                found[name].append(rows / (time.perf_counter() - begin))
    return found


def reads_of(spark: SparkSession, cluster: LocalCluster, topic: str) -> dict[str, Any]:
    def frame(source: str) -> Any:
        reader = spark.read.format(source).option("subscribe", topic)
        if source == "kafka":
            return reader.option("kafka.bootstrap.servers", cluster.bootstrap).load()
        return reader.option("bootstrap", cluster.node(1).grpc_address).load()

    def noop(source: str) -> Callable[[], None]:
        return lambda: frame(source).write.format("noop").mode("overwrite").save()

    reads: dict[str, Any] = {source: noop(source) for source in SOURCES}
    reads |= {f"{source} count()": lambda source=source: frame(source).count() for source in SOURCES}
    return reads


async def with_cluster(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with LocalCluster(Path(folder), nodes=3) as cluster:
            spark = await asyncio.to_thread(local_session, "spark_reads", CORES)
            try:
                for source in (WithKernel, WithNumpy):
                    spark.dataSource.register(source)
                async with Admin(cluster.bootstrap) as admin:
                    for value_bytes in arguments.values:
                        for codec in arguments.codecs:
                            topic = f"{codec}-{value_bytes}"
                            await admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
                            await asyncio.to_thread(
                                measure, spark, cluster, topic, value_bytes, codec, arguments
                            )
            finally:
                await asyncio.to_thread(stop_session, spark)


def measure(
    spark: SparkSession,
    cluster: LocalCluster,
    topic: str,
    value_bytes: int,
    codec: str,
    arguments: argparse.Namespace,
) -> None:
    fill(cluster.bootstrap, topic, arguments.records, value_bytes, codec)
    reads = reads_of(spark, cluster, topic)
    for name, found in rows_per_second(reads, arguments.records, arguments.rounds).items():
        best, median = max(found) / 1e6, statistics.median(found) / 1e6
        print(
            f"{value_bytes:>5} B {codec:<7}{name:<22}{best:>7.2f} M rows/s, median {median:.2f}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--values", type=int, nargs="+", default=[200], help="bytes of a value")
    parser.add_argument("--codecs", nargs="+", default=["none", "zstd"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jars", type=Path, help="a folder with the connector's; else Maven fetches them")
    arguments = parser.parse_args()
    if kernel_decoder.kernel is None:
        parser.error("this installation has no kernel: `make kernel`")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, jars(arguments.jars)))} pyspark-shell"
    asyncio.run(with_cluster(arguments))


if __name__ == "__main__":
    main()
