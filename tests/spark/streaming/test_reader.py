"""PySpark's stream reader without Spark: it is called as Spark calls it, and asks scripted nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from tidegate.security.client_security import ClientSecurity
from tidegate.spark.options import parse_stream_options
from tidegate.spark.reading.range_reader import RangePartition
from tidegate.spark.streaming import reader as stream_reader
from tidegate.spark.streaming.driver import StreamDriver
from tidegate.spark.streaming.group_commits import GroupCommits
from tidegate.spark.streaming.offsets import from_json
from tidegate.spark.streaming.reader import TidegateStreamReader

from ..conftest import Partition, Script, numbered_batches

ALL = ReadAllAvailable()
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="x";'
Made = Callable[..., TidegateStreamReader]


@pytest.fixture
def made(scripted: Script) -> Iterator[Made]:
    """Makes readers of `flights` that begin at its start; those end with the test."""
    readers: list[TidegateStreamReader] = []

    def make(columns: tuple[str, ...] = ("offset",), **options: str) -> TidegateStreamReader:
        given = {"bootstrap": scripted.endpoints[0], "subscribe": "flights", "startingOffsets": "earliest"}
        readers.append(TidegateStreamReader(parse_stream_options(given | options), columns))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def ranges(tasks: list[InputPartition]) -> list[list[tuple[int, int, int]]]:
    """Of each task the partitions, and what it reads of them."""
    found = []
    for task in tasks:
        assert isinstance(task, RangePartition)
        found.append([(part.partition, part.start, part.end) for part in task.value or ()])
    return found


def test_micro_batches_read_what_lies_between_their_offsets(made: Made) -> None:
    reader = made()
    start = reader.initialOffset()
    assert from_json(start).positions == {("flights", 0): 0}
    end = reader.latestOffset(start, ALL)
    assert from_json(end).positions == {("flights", 0): 30}
    assert reader.latestOffset(end, ALL) is end, "nothing is new"
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["offsetsBehindLatest"] == {"flights": {"0": 0}}
    (task,) = reader.partitions(start, end)
    assert [row for batch in reader.read(task) for row in batch.column(0).to_pylist()] == list(range(30))
    assert reader.partitions(end, end) == []


def test_where_a_query_was_needs_no_node(made: Made, scripted: Script) -> None:
    """Spark asks for it after a restart, of the last offsets in its log."""
    first = made()
    end = first.latestOffset(first.initialOffset(), ALL)
    before = scripted.described
    assert made().partitions(end, dict(end)) == []
    assert scripted.described == before


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "8k"}, ReadMaxBytes(8 << 10)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "8k"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "8k", "minOffsetsPerTrigger": "3"}, ReadMaxBytes(8 << 10)),
        (
            {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "8k", "minOffsetsPerTrigger": "3"},
            ReadMaxRows(5),
        ),
    ],
)
def test_the_first_limit_that_is_set_stands_for_all(
    made: Made, options: dict[str, str], wanted: ReadLimit
) -> None:
    assert made(**options).getDefaultReadLimit() == wanted


def test_a_trigger_is_limited_unless_spark_wants_all(made: Made) -> None:
    reader = made(maxOffsetsPerTrigger="5")
    start = reader.initialOffset()
    limited = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert from_json(limited).positions == {("flights", 0): 5}
    assert from_json(reader.latestOffset(start, ALL)).positions == {("flights", 0): 30}


def test_a_stream_that_takes_what_is_available_now_reads_nothing_later(made: Made, scripted: Script) -> None:
    reader = made()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ALL)
    scripted.partitions[0] = Partition(numbered_batches(11))
    assert reader.latestOffset(end, ALL) is end


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, [[0, 1, 2]]),
        ({"minBytesPerPartition": "2"}, [[0, 1], [2]]),  # a range of the script has one byte
        ({"minBytesPerPartition": "0"}, [[0], [1], [2]]),
        ({"maxRecordsPerPartition": "65"}, [[0, 1], [2]]),
        ({"minPartitions": "2"}, [[0], [1], [2]]),
    ],
)
def test_small_ranges_share_a_task_unless_a_number_of_tasks_is_asked_for(
    made: Made, scripted: Script, options: dict[str, str], tasks: list[list[int]]
) -> None:
    scripted.partitions = {number: Partition(numbered_batches(10)) for number in range(3)}
    reader = made(**options)
    start = reader.initialOffset()
    planned = ranges(reader.partitions(start, reader.latestOffset(start, ALL)))
    assert planned == [[(number, 0, 30) for number in task] for task in tasks]


@pytest.mark.parametrize(("columns", "reads_data"), [(("offset",), True), ((), False)])
def test_leaders_estimate_what_is_read_and_not_what_is_counted(
    made: Made, columns: tuple[str, ...], reads_data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    plan = StreamDriver.plan

    def noted(driver: StreamDriver, *offsets: Any, **named: Any) -> Any:
        asked.append(named["reads_data"])
        return plan(driver, *offsets, **named)

    monkeypatch.setattr(StreamDriver, "plan", noted)
    reader = made(columns)
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, ALL))
    assert asked == [reads_data]
    if not reads_data:
        monkeypatch.setattr("tidegate.spark.reading.range_reader.count_range", lambda *_: 30)
    assert sum(batch.num_rows for batch in reader.read(task)) == 30


def test_a_stopped_stream_lets_go_of_its_connections(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[StreamDriver] = []
    close = StreamDriver.close
    monkeypatch.setattr(StreamDriver, "close", lambda driver: (closed.append(driver), close(driver))[1])
    reader = made()
    reader.stop()
    assert closed == [], "it had none"
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    driver = reader._driver
    reader.stop()
    reader.stop()
    assert closed == [driver]
    assert reader.initialOffset() == start, "a new driver does what that one did"


class Group(GroupCommits):
    """Keeps what it is told; has no thread."""

    made: list[Group]

    def __init__(self, group: str, connect: Callable[[], Any]) -> None:
        self.name, self.connect, self.stored = group, connect, list[dict[tuple[str, int], int]]()
        self.is_left = False
        Group.made.append(self)

    def store(self, positions: Mapping[tuple[str, int], int]) -> None:
        self.stored.append(dict(positions))

    def close(self) -> None:
        self.is_left = True


def test_a_group_that_is_named_gets_the_offsets_of_the_stream(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    Group.made = []
    monkeypatch.setattr(stream_reader, "GroupCommits", Group)
    asked: list[tuple[tuple[str, ...], ClientSecurity | None]] = []
    monkeypatch.setattr(stream_reader, "kafka_committer", lambda *given: asked.append(given))
    made().initialOffset()
    assert Group.made == []
    reader = made(commitToGroup="etl", commitBootstrap="k:9092")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.latestOffset(end, ALL)
    (group,) = Group.made
    assert (group.name, group.stored) == ("etl", [{("flights", 0): 30}])
    reader.stop()
    assert group.is_left
    secured = made(
        commitToGroup="etl",
        commitBootstrap="k:9092",
        **{
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": JAAS,
        },
    )
    secured.prepareForTriggerAvailableNow()  # asks no node
    security = ClientSecurity("SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="x")
    assert asked == [(("k:9092",), None), (("k:9092",), security)]


@pytest.mark.parametrize("ignored", [{}, {"groupIdPrefix": "x", "kafkaConsumer.pollTimeoutMs": "7"}])
def test_options_without_a_meaning_are_named_once(
    made: Made, ignored: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reader = made(**ignored)
        reader.latestOffset(reader.initialOffset(), ALL)
    lines = [line for line in caplog.messages if "options_without_meaning_here" in line]
    assert len(lines) == min(1, len(ignored))
    assert all(name in line for line in lines for name in ignored)
