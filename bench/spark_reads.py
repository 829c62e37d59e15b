"""Rows a second of a whole Spark read from three nodes: with the compiled kernel, with numpy, and with
Spark's own Kafka connector; and at a cut, with the kernel, beside a transaction that is open in each
partition; all take turns.

    python -m bench.spark_reads [--jars DIR] [--records 1000000] [--values 200] [--codecs none zstd]
                                [--sources with_kernel kafka] [--first 5] [--cold 1]

Each read goes to Spark's sink `noop`, or is a `count()`.  `--cold` reads of each are left out, in which Java
compiles what it runs; the best and the median of the others are shown, their CPU time by part, and the most
memory that one of Spark's Python workers has had.  `prebuilt` is what Spark itself takes: one Arrow batch
again and again, no node, no network.
`--first`: also what the very first read and `count()` of a new Spark session take, each in a process of its
own, so many of each, taking turns.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster
from tidegate.spark import local_session
from tidegate.spark.decoding import kernel_decoder
from tidegate.spark.decoding.decode import Target, decode_batches
from tidegate.spark.reading.batch_reader import TidegateReader
from tidegate.spark.schema import spark_schema
from tidegate.spark.session import stop_session
from tidegate.spark.source import FORMAT, TidegateSource
from tidegate.wire.records import NewRecord, encode_batch, iterate_headers

from bench.process_cost import cpu_seconds, descendants, resident_mib
from bench.spark_streams import jars

PARTITIONS = 4
CORES = 2
AT_CUT = "at_cut"
PREBUILT = "prebuilt"
SOURCES = ("with_kernel", AT_CUT, "with_numpy", "kafka", PREBUILT)
FIRST_SOURCES = ("with_kernel", "kafka")
WORKERS = ("pyspark.daemon", "spark.fork_server")  # in the commands of Python workers
PREBUILT_ROWS = 1_000


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


class PrebuiltReader(DataSourceReader):
    """One Arrow batch again and again: what Spark itself takes for such rows, without nodes and a network."""

    def __init__(self, schema: StructType, rows: int, value_bytes: int) -> None:
        self._columns = tuple(schema.names)
        self._rows = rows
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        chunk = encode_batch(
            [NewRecord(b"%016d" % n, bytes(self._value_bytes)) for n in range(PREBUILT_ROWS)]
        )
        target = Target("prebuilt", partition.value, self._columns, 0, PREBUILT_ROWS)
        (batch,) = decode_batches(target, chunk, list(iterate_headers(chunk)))
        for _ in range(self._rows // PARTITIONS // PREBUILT_ROWS):
            yield batch


class Prebuilt(DataSource):
    @classmethod
    def name(cls) -> str:
        return PREBUILT

    def schema(self) -> StructType:
        return spark_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(schema, int(self.options["rows"]), int(self.options["valueBytes"]))


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


def begin_transaction(bootstrap: str, topic: str) -> Producer:
    """With a record in each partition, above all others: what reads committed records ends there, and a cut
    leaves it out."""
    settings = {"transactional.id": f"{topic}-open", "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": bootstrap} | settings)
    producer.init_transactions()
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, b"open", partition=partition)
    if producer.flush(60):
        raise SystemExit("the transaction was not written")
    return producer


@dataclass
class Cost:
    """Of the counted reads by one source."""

    rows_per_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)


def costs(reads: dict[str, Callable[[], Any]], rows: int, rounds: int, cold: int) -> dict[str, Cost]:
    """By name; the reads take turns."""
    found = {name: Cost() for name in reads}
    for number in range(cold + rounds):
        for name, read in reads.items():
            before, begin = cpu_by_part(), time.perf_counter()
            read()
            seconds = time.perf_counter() - begin
            if number >= cold:
                cost = found[name]
                cost.rows_per_s.append(rows / seconds)
                for part, now in cpu_by_part().items():
                    cost.cpu_s[part] = cost.cpu_s.get(part, 0.0) + now - before[part]
    return found


def new_session() -> SparkSession:
    spark = local_session("spark_reads", CORES)
    for source in (WithKernel, WithNumpy, Prebuilt):
        spark.dataSource.register(source)
    return spark


def reads_of(
    spark: SparkSession, source: str, address: str, topic: str, options: dict[str, int]
) -> dict[str, Callable[[], Any]]:
    """By name.  `address`: a Kafka listener for the connector, else one of gRPC."""
    reader = spark.read.format("with_kernel" if source == AT_CUT else source).option("subscribe", topic)
    if source == AT_CUT:
        reader.option("consistency", "cut")
    reader.option("kafka.bootstrap.servers" if source == "kafka" else "bootstrap", address)
    if source == PREBUILT:
        reader = spark.read.format(PREBUILT).options(**options)
    return {
        source: lambda: reader.load().write.format("noop").mode("overwrite").save(),
        f"{source} count()": lambda: reader.load().count(),
    }


def read_once(source: str, address: str, topic: str, name: str) -> None:
    """In a process of its own: prints the seconds that the first read of the session takes."""
    spark = local_session("spark_reads", CORES)
    # the source as users have it: the classes of a program go to the workers by value
    name = name.replace(WithKernel.name(), FORMAT)
    read = reads_of(spark, source.replace(WithKernel.name(), FORMAT), address, topic, {})[name]
    begin = time.perf_counter()
    read()
    print(f"{time.perf_counter() - begin:.2f}")
    stop_session(spark)


def first_read_s(source: str, address: str, topic: str, name: str) -> float:
    command = [sys.executable, "-m", "bench.spark_reads", "--once", source, address, topic, name]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(run.stdout.split()[-1])


def is_worker(command: str) -> bool:
    return any(name in command for name in WORKERS)


def worker_peak_mb() -> float:
    """The most resident memory that a live Python worker of this process's Spark has had."""
    workers = [pid for pid, command in descendants(os.getpid()).items() if is_worker(command)]
    return max((resident_mib([pid], "VmHWM") * 1.048576 for pid in workers), default=0.0)


def cpu_by_part() -> dict[str, float]:
    """CPU seconds so far of Spark's JVM, of its Python workers, and of the nodes."""
    parts = dict.fromkeys(("JVM", "workers", "nodes"), 0.0)
    for pid, command in descendants(os.getpid()).items():
        part = "JVM" if "java" in command.split(" ")[0] else "workers" if is_worker(command) else "nodes"
        with suppress(FileNotFoundError):  # it has ended
            parts[part] += cpu_seconds([pid])
    return parts


async def with_cluster(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with LocalCluster(Path(folder), nodes=3) as cluster:
            spark = await asyncio.to_thread(new_session)
            try:
                async with Admin(cluster.bootstrap) as admin:
                    for value_bytes in arguments.values:
                        for codec in arguments.codecs:
                            topic = f"{codec}-{value_bytes}"
                            await admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
                            await asyncio.to_thread(
                                measure, spark, cluster, topic, value_bytes, codec, arguments
                            )
                            await admin.delete_topics([topic])
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
    opened = begin_transaction(cluster.bootstrap, topic) if AT_CUT in arguments.sources else None
    addresses = {
        source: cluster.bootstrap if source == "kafka" else cluster.node(1).grpc_address
        for source in arguments.sources
    }
    reads: dict[str, Callable[[], Any]] = {}
    rows = {"rows": arguments.records, "valueBytes": value_bytes}
    for source, address in addresses.items():
        reads |= reads_of(spark, source, address, topic, rows)
    for name, cost in costs(reads, arguments.records, arguments.rounds, arguments.cold).items():
        best, median = max(cost.rows_per_s) / 1e6, statistics.median(cost.rows_per_s) / 1e6
        rows = arguments.records * arguments.rounds
        cpu = ", ".join(f"{part} {seconds / rows * 1e6:.2f}" for part, seconds in cost.cpu_s.items())
        print(
            f"{value_bytes:>5} B {codec:<7}{name:<22}{best:>7.2f} M rows/s, median {median:.2f}; "
            f"CPU us/row: {cpu}",
            flush=True,
        )
    print(f"{value_bytes:>5} B {codec:<7}a Python worker took up to {worker_peak_mb():.0f} MB", flush=True)
    if opened is not None:
        opened.abort_transaction()
    first: dict[str, list[float]] = {}
    for _ in range(arguments.first):
        for source, address in (each for each in addresses.items() if each[0] in FIRST_SOURCES):
            for name in (source, f"{source} count()"):
                first.setdefault(name, []).append(first_read_s(source, address, topic, name))
    for name, seconds in first.items():
        print(
            f"{value_bytes:>5} B {codec:<7}first {name:<22}{min(seconds):>6.1f} s, "
            f"median {statistics.median(seconds):.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--values", type=int, nargs="+", default=[200], help="bytes of a value")
    parser.add_argument("--codecs", nargs="+", default=["none", "zstd"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cold", type=int, default=1)
    parser.add_argument("--once", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--jars", type=Path, help="a folder with the connector's; else Maven fetches them")
    arguments = parser.parse_args()
    if kernel_decoder.kernel is None:
        parser.error("this installation has no kernel: `make kernel`")
    if arguments.once:
        read_once(*arguments.once)
        return
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, jars(arguments.jars)))} pyspark-shell"
    asyncio.run(with_cluster(arguments))


if __name__ == "__main__":
    main()
