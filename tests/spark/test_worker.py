"""What a Spark worker keeps between tasks, and what it hands to Spark at once; without Spark itself."""

from __future__ import annotations

import gc
import os
from collections import OrderedDict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tidegate.spark import range_reader
from tidegate.spark.channels import Channels
from tidegate.spark.range_reader import RangePartition, join_small_batches
from tidegate.spark.source import TidegateSource

from .conftest import Partition, Script, numbered_batches


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Channels]:
    """Those of a worker that has just begun."""
    channels = Channels()
    monkeypatch.setattr(range_reader, "_worker_channels", OrderedDict({(): (None, channels)}))
    yield channels
    channels.close()


def test_connections_stay_open_between_tasks(scripted: Script, channels: Channels) -> None:
    scripted.partitions = {number: Partition(numbered_batches(2), leader=number % 2) for number in range(20)}
    read = TidegateSource({"kafka.bootstrap.servers": scripted.endpoints[0], "subscribe": "flights"})
    reader = read.reader(read.schema())
    tasks = reader.partitions()
    assert len(tasks) == 20
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.column(4).to_pylist()]  # type: ignore[union-attr]
    assert rows == [0, 1, 2, 3, 4, 5] * 20
    assert channels.opened == 2


def test_a_channel_to_a_node_that_is_away_does_not_outlive_its_task(
    scripted: Script, channels: Channels
) -> None:
    """gRPC would go on trying to connect, from every idle worker."""
    read = TidegateSource({"bootstrap": f"127.0.0.1:1,{scripted.endpoints[1]}", "subscribe": "flights"})
    reader = read.reader(read.schema())
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 30  # type: ignore[union-attr]
    assert set(channels._open) == set(scripted.endpoints.values())


def test_the_channel_that_was_not_used_for_longest_is_closed() -> None:
    channels = Channels(channels_max=2)
    first, second = channels.to("127.0.0.1:1"), channels.to("127.0.0.1:2")
    assert channels.to("127.0.0.1:1") is first
    channels.to("127.0.0.1:3")
    assert channels.to("127.0.0.1:1") is first
    assert channels.to("127.0.0.1:2") is not second
    channels.close()


def test_tasks_of_two_users_share_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_worker_channels", OrderedDict())

    def channels_of(user: str) -> Channels:
        jaas = f'ScramLoginModule required username="{user}" password="x";'
        return range_reader._channels_of(
            (("sasl.jaas.config", jaas), ("security.protocol", "SASL_PLAINTEXT"))
        )[1]

    alice, bob = channels_of("alice"), channels_of("bob")
    assert alice is not bob
    assert channels_of("alice") is alice
    for number in range(range_reader.CHANNEL_SETS_MAX):
        channels_of(f"other-{number}")
    assert channels_of("alice") is not alice


def test_a_forked_process_opens_its_own_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    channels = Channels()
    before = channels.to("127.0.0.1:1")
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    assert channels.to("127.0.0.1:1") is not before
    channels.close()
    before.close()


def test_batches_are_joined_only_within_their_bound() -> None:
    batch = pa.record_batch({"value": pa.array([bytes(1_000)] * 4)})
    joined = list(join_small_batches([batch] * 20, 10_000))
    assert sum(each.num_rows for each in joined) == 80
    assert {each.num_rows for each in joined} == {8}


def test_a_task_reads_its_ranges_one_after_the_other(scripted: Script, channels: Channels) -> None:
    scripted.partitions = {number: Partition(numbered_batches(2)) for number in range(3)}
    read = TidegateSource({"bootstrap": scripted.endpoints[0], "subscribe": "flights"})
    ranges = tuple(part for task in read.reader(read.schema()).partitions() for part in task.value)
    rows = list(read.reader(read.schema()).read(RangePartition(ranges)))
    assert len(rows) == 1
    assert rows[0].column(3).to_pylist() == [0] * 6 + [1] * 6 + [2] * 6
    assert rows[0].column(4).to_pylist() == [0, 1, 2, 3, 4, 5] * 3


def test_what_a_worker_has_loaded_is_frozen_once_and_not_counted(
    scripted: Script, channels: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count it walks over all of it: 9 ms a task."""
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("counted"))
    range_reader._freeze_once.cache_clear()
    read = TidegateSource({"bootstrap": scripted.endpoints[0], "subscribe": "flights"})
    reader = read.reader(read.schema())
    for task in [*reader.partitions()] * 3:
        assert sum(batch.num_rows for batch in reader.read(task)) == 30  # type: ignore[union-attr]
    assert frozen == [1]
