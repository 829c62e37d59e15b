"""Spark reads real logs through the real data service, by one session for all tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from tidegate.node.data import data_service
from tidegate.runtime.connections.file_sending import FilePart
from tidegate.spark.session import local_session, stop_session
from tidegate.storage.log.bulk_read import BulkRead
from tidegate.wire.records import NewRecord

from .served import ServedCluster, Step, committed, history

# A test cut off in the middle of a call to the JVM leaves the session unusable for the others: a slow machine
# gets its time.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

PARTITIONS = 3
STEPS = {partition: history(partition, 250) for partition in range(PARTITIONS)}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("tidegate-tests")
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path_factory.mktemp("nodes")) as served:
        for partition, steps in STEPS.items():
            served.fill("flights", partition, steps, leader=1 + partition % 2)
        yield served


@pytest.fixture
def load(spark: SparkSession, cluster: ServedCluster) -> Callable[..., DataFrame]:
    def make(schema: str | None = None, **options: str) -> DataFrame:
        reader = (
            spark.read.format("tidegate")
            .option("bootstrap", cluster.bootstrap)
            .options(**({"subscribe": "flights"} | options))
        )
        return (reader.schema(schema) if schema else reader).load()

    return make


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def wanted(steps: dict[int, list[Step]] = STEPS) -> list[tuple[int, int, bytes | None, bytes | None, int]]:
    return sorted(
        (partition, offset, record.key, record.value, record.timestamp_ms)
        for partition, script in steps.items()
        for offset, record in committed(script)
    )


def data_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp)").collect()
    return sorted((p, o, k and bytes(k), v if v is None else bytes(v), t) for p, o, k, v, t in rows)


def test_every_committed_record_is_read_once_with_all_its_columns(load: Callable[..., DataFrame]) -> None:
    frame = load(includeHeaders="true", maxBytesPerPartition="50k")
    assert frame.rdd.getNumPartitions() > PARTITIONS  # split inside partitions
    assert data_rows(frame) == wanted()
    assert [tuple(row) for row in frame.select("topic", "timestampType").distinct().collect()] == [
        ("flights", 0)
    ]
    headers = {
        (row.partition, row.offset): row.headers
        for row in frame.select("partition", "offset", "headers").collect()
    }
    for partition, steps in STEPS.items():
        for offset, record in committed(steps):
            found = headers[partition, offset]
            assert (found and [(entry.key, bytes(entry.value)) for entry in found]) == (
                list(record.headers) or None
            )


def test_read_uncommitted_sees_the_aborted_records_too(load: Callable[..., DataFrame]) -> None:
    everything = sum(len(step.records) for steps in STEPS.values() for step in steps)
    assert load("offset long", isolation="read_uncommitted").count() == everything > len(wanted())


def test_bounds_and_assignment_choose_the_records(spark: SparkSession, cluster: ServedCluster) -> None:
    reader = (
        spark.read.format("tidegate")
        .option("bootstrap", cluster.bootstrap)
        .option("assign", '{"flights":[1]}')
    )
    frame = (
        reader.option("startingOffsets", '{"flights":{"1":100}}')
        .option("endingOffsets", '{"flights":{"1":900}}')
        .load()
    )
    assert data_rows(frame) == [row for row in wanted() if row[0] == 1 and 100 <= row[1] < 900]


def test_rows_without_columns_are_counted_and_no_data_is_read(
    spark: SparkSession, cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark pushes no aggregate down to a Python source; a schema without columns needs none."""
    for name in ("run", "locate"):
        monkeypatch.setattr(BulkRead, name, lambda self: pytest.fail("data was read"))
    reader = (
        spark.read.format("tidegate").option("bootstrap", cluster.bootstrap).option("subscribe", "flights")
    )
    rows = reader.schema(StructType()).load()
    assert rows.count() == len(wanted())
    assert rows.columns == []
    some = reader.option(
        "endingOffsets", json.dumps({"flights": {str(partition): 300 for partition in range(PARTITIONS)}})
    )
    assert some.schema(StructType()).load().count() == sum(offset < 300 for _, offset, *_ in wanted())


def test_a_count_reaches_a_python_source_as_a_read_of_all_columns(spark: SparkSession) -> None:
    """When this fails, Spark has learned to ask for fewer: then `count()` need not read."""

    class ColumnsAsked(DataSource):  # in here, Spark sends it to its workers by value
        """As many rows as columns that Spark asks for."""

        @classmethod
        def name(cls) -> str:
            return "columns_asked"

        def schema(self) -> str:
            return "key binary, value binary, offset long"

        def reader(self, schema: StructType) -> DataSourceReader:
            columns = len(schema.fields)

            class Reader(DataSourceReader):
                def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
                    return iter([(None,) * columns] * columns)

            return Reader()

    spark.dataSource.register(ColumnsAsked)
    rows = spark.read.format("columns_asked").load()
    assert rows.count() == 3
    assert rows.select("offset").count() == 3
    assert spark.read.format("columns_asked").schema("offset long").load().count() == 1


def test_the_user_schema_is_a_projection(load: Callable[..., DataFrame]) -> None:
    assert load("value binary").columns == ["value"]
    assert rows_of(load("offset long, partition int")) == [
        (o, p) for o, p in sorted((w[1], w[0]) for w in wanted())
    ]
    with pytest.raises(AnalysisException, match="cast it in Spark"):
        load("value string").count()


def test_a_pattern_that_matches_no_topic_reads_no_rows(spark: SparkSession, cluster: ServedCluster) -> None:
    reader = (
        spark.read.format("tidegate")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("kafka.client.id", "x")
    )
    assert reader.option("subscribePattern", "nothing-.*").load().collect() == []


def test_tasks_are_as_many_as_asked_for_and_read_every_record_once(load: Callable[..., DataFrame]) -> None:
    frame = load(minPartitions="17", maxMemoryPerTask="8m")
    assert frame.rdd.getNumPartitions() == 17
    assert data_rows(frame) == wanted()
    assert load("offset long", maxRecordsPerPartition="300").rdd.getNumPartitions() > 17


def test_latest_is_frozen_by_the_first_action(cluster: ServedCluster, load: Callable[..., DataFrame]) -> None:
    cluster.fill("growing", 0, history(9, 30), leader=1)
    frame = load("offset long", subscribe="growing")
    before = frame.count()
    cluster.append("growing", 0, [NewRecord(b"k", b"v", (), 1_700_000_900_000)] * 7)
    assert frame.count() == before
    assert load("offset long", subscribe="growing").count() == before + 7
    assert load("offset long", subscribe="growing", startingTimestamp="1700000900000").count() == 7


def test_option_errors_are_raised_at_load(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'startingOffsets'"):
        load(startingOfsets="earliest")
    with pytest.raises(AnalysisException, match="topic 'nosuch' does not exist"):
        load(subscribe="nosuch", retryTimeoutMs="100").count()


def test_a_leader_that_moves_and_a_server_that_dies_change_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in the middle of streams: partition 0 moves to node 2, then node 1 dies and node 2 takes over all
    it led."""
    monkeypatch.setattr(data_service, "FILE_CHUNK_BYTES_MAX", 4_000)
    steps = {partition: history(20 + partition, 200) for partition in range(2)}
    reads, lock = 0, threading.Lock()
    original = BulkRead.locate
    with ServedCluster(tmp_path) as cluster:
        for partition, script in steps.items():
            cluster.fill("flights", partition, script, leader=1)

        def locate(read: BulkRead) -> tuple[FilePart, int]:
            nonlocal reads
            with lock:
                reads += 1
                now = reads
            if now == 6:
                cluster.move("flights", 0, 2)
            elif now == 25:
                cluster.move("flights", 1, 2)
                cluster.kill_server(1)
            return original(read)

        monkeypatch.setattr(BulkRead, "locate", locate)
        reader = (
            spark.read.format("tidegate")
            .option("bootstrap", cluster.bootstrap)
            .option("subscribe", "flights")
        )
        found = data_rows(reader.load())
        assert reads > 30
    assert found == wanted(steps)
