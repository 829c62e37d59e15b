"""A node cleans and expires its logs while clients use it, is killed in the middle of a swap, and every
client reads the same."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import NewRecord, encode_batch

from .witness import raw_produce

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("log-upkeep"), pytest.mark.timeout(120)]

SETTINGS = {
    "log.cleaner.backoff.ms": 100, "log.retention.check.interval.ms": 100, "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}  # fmt: skip
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "0",
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", nodes=1, settings=SETTINGS, fault_points=True)
    await cluster.up()
    try:
        yield cluster
    finally:
        await cluster.down()


async def create(cluster: LocalCluster, name: str, **config: str) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name, 1, 1, {key.replace("_", "."): value for key, value in config.items()})]
        )


async def write(cluster: LocalCluster, topic: str, rounds: int, truth: dict[bytes, bytes]) -> None:
    """Updates and deletions, committed and aborted, compressed; `truth` is what they come to."""
    async with Producer(cluster.bootstrap, transactional_id="writer", compression="gzip") as producer:
        for number in range(rounds):
            commit = number % 3 != 0
            await producer.begin()
            changes: dict[bytes, bytes | None] = {}
            for key in (b"key%d" % (number % 7), b"key%d" % (number % 5 + 3)):
                changes[key] = None if number % 11 == 5 else b"value-%d-" % number * 8
                await producer.send(topic, changes[key], key, partition=0)
            if commit:
                await producer.commit()
                for key, value in changes.items():
                    truth.pop(key, None)
                    truth.update({key: value} if value is not None else {})
            else:
                await producer.abort()


def folder_bytes(cluster: LocalCluster, topic: str) -> int:
    """Of the files that are there: the node removes some while they are counted."""
    found = 0
    for path in cluster.directory.glob(f"**/{topic}-0/*.log"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def metric(cluster: LocalCluster, name: str) -> float:
    with urllib.request.urlopen(f"http://{cluster.node(1).metrics_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"tidegate_{name} ")))


async def read_all(cluster: LocalCluster, topic: str) -> dict[bytes, bytes]:
    async with Admin(cluster.bootstrap) as admin:
        end = (await admin.end_offsets([(topic, 0)]))[topic, 0]
    found: dict[bytes, bytes] = {}
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        async with asyncio.timeout(30):
            while await consumer.position((topic, 0)) < end:
                for record in await consumer.poll(timeout_s=0.2):
                    found.pop(record.key, None)  # type: ignore[arg-type]
                    found.update({record.key: record.value} if record.value is not None else {})  # type: ignore[dict-item]
    return found


def read_by_kafka_python(cluster: LocalCluster, topic: str) -> dict[bytes, bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest",
        enable_auto_commit=False, consumer_timeout_ms=3000,
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0)])
    found: dict[bytes, bytes] = {}
    for record in consumer:
        found.pop(record.key, None)
        found.update({record.key: record.value} if record.value is not None else {})
    consumer.close()
    return found


async def test_a_compacted_topic_reads_the_same_after_a_kill_in_a_swap(
    cluster: LocalCluster,
) -> None:
    truth: dict[bytes, bytes] = {}
    await create(cluster, "table", **COMPACTED)
    await write(cluster, "table", 150, truth)
    written = 150 * 2 * 60

    async def is_small() -> bool:
        return metric(cluster, "log_cleaner_runs_total") > 0 and folder_bytes(cluster, "table") < written / 2

    await eventually(is_small, "the topic is cleaned")
    assert await read_all(cluster, "table") == truth
    assert await asyncio.to_thread(read_by_kafka_python, cluster, "table") == truth
    assert metric(cluster, "cleaner_uncleanable_partitions") == 0

    await cluster.node(1).arm_fault("log.swap_decided", match={"directory": "table-0"})
    writing = asyncio.create_task(write(cluster, "table", 60, truth))
    await asyncio.wait_for(cluster.node(1).wait_exit(), 30)
    await cluster.node(1).start()
    await cluster.node(1).wait_ready()
    await asyncio.wait_for(writing, 60)  # the producer goes on where it was
    assert await read_all(cluster, "table") == truth
    assert await asyncio.to_thread(read_by_kafka_python, cluster, "table") == truth
    await eventually(lambda: _true(not list(cluster.directory.glob("**/*.deleted"))), "old files are gone")


async def _true(value: bool) -> bool:
    return value


async def test_records_without_a_key_are_refused_in_a_compacted_topic(cluster: LocalCluster) -> None:
    await create(cluster, "table", **COMPACTED)
    address = cluster.node(1).kafka_address
    answer = await raw_produce(address, "table", encode_batch([NewRecord(None, b"v", (), -1)]))
    assert answer.error is ErrorCode.INVALID_RECORD
    assert (
        await raw_produce(address, "table", encode_batch([NewRecord(b"k", b"v", (), -1)]))
    ).error is ErrorCode.NONE


async def test_old_segments_expire_and_consumers_get_the_new_log_start(cluster: LocalCluster) -> None:
    await create(cluster, "events", segment_bytes="4096", retention_bytes="10000", retention_ms="-1")
    async with Producer(cluster.bootstrap, batch_bytes=1000, linger_ms=0) as producer:
        for number in range(60):
            await producer.send_and_wait("events", b"v" * 900, b"k%d" % number, partition=0)
    async with Admin(cluster.bootstrap) as admin:

        async def has_moved() -> bool:
            return (await admin.beginning_offsets([("events", 0)]))["events", 0] > 30

        await eventually(has_moved, "the log start moves")
    await eventually(
        lambda: _true(folder_bytes(cluster, "events") < 20_000), "the old segments leave the disk"
    )
    assert folder_bytes(cluster, "events") >= 10_000
    assert metric(cluster, "expired_segments_total") > 5
