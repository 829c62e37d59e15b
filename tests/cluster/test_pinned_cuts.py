"""Pinned cuts on three real nodes (docs/semantics.md C14 to C16): retention, DeleteRecords, the cleaner and a
failover leave what a cut reads as it is; then it is let go of."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.connecting.errors import RequestError
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.consuming.cut import Cut
from tidegate.client.consuming.cut_reader import read_cut
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.clock import SystemClock
from tidegate.wire.errors import ErrorCode, KafkaError

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("pinned-cuts"), pytest.mark.timeout(240)]

SETTINGS = {
    "log.cleaner.backoff.ms": 100, "log.retention.check.interval.ms": 100, "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}  # fmt: skip
DELETED = {"segment.bytes": "16384", "retention.ms": "3600000"}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"}
EVENTS, TABLE, FREE_EVENTS, FREE_TABLE = "events", "table", "free-events", "free-table"
WEEK_MS = 7 * 86_400_000
Records = list[tuple[str, int, bytes, bytes]]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", nodes=3, settings=SETTINGS)
    await cluster.up()
    try:
        yield cluster
    finally:
        await cluster.down()


async def write(cluster: LocalCluster, rounds: int, mark: bytes) -> None:
    """Events that go by time, and the newest values of few keys; to the same topics twice, one of them
    pinned."""
    async with Producer(cluster.bootstrap) as producer:
        for number in range(rounds):
            for topic in (EVENTS, TABLE, FREE_EVENTS, FREE_TABLE):
                value = mark + b"-%06d-" % number + b"x" * 400
                await producer.send(topic, value, b"key%d" % (number % 5), partition=0)


async def read(cluster: LocalCluster, cut: Cut) -> Records:
    """What a reader at the cut gets, from the partitions' leaders."""
    return sorted(
        [
            (record.topic, record.offset, record.key or b"", record.value or b"")
            async for record in read_cut(cluster.bootstrap, cut)
        ]
    )


async def read_up_to(cluster: LocalCluster, topic: str, end: int) -> list[int]:
    """The offsets below `end` that a consumer gets."""
    found: list[int] = []
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer, asyncio.timeout(60):
        consumer.assign([(topic, 0)])
        while await consumer.position((topic, 0)) < end:
            found += [record.offset for record in await consumer.poll(timeout_s=0.2)]
    return [offset for offset in found if offset < end]


def metric(cluster: LocalCluster, name: str) -> float:
    with urllib.request.urlopen(f"http://{cluster.node(1).metrics_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"tidegate_{name} ")))


async def moved_start(admin: Admin, topic: str) -> bool:
    return (await admin.beginning_offsets([(topic, 0)]))[topic, 0] > 0


async def until(look: Any) -> None:
    async with asyncio.timeout(60):
        while not await look():
            await SystemClock().sleep(0.1)


async def leaders(admin: Admin, *topics: str) -> set[int]:
    return {part.leader for topic in await admin.describe_topics(topics) for part in topic.partitions}


async def test_what_a_pinned_cut_reads_stays_whatever_would_take_it_away(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name, 1, 3, DELETED) for name in (EVENTS, FREE_EVENTS)]
            + [NewTopic(name, 1, 3, COMPACTED) for name in (TABLE, FREE_TABLE)]
        )
        open_one = Producer(cluster.bootstrap, transactional_id="open", transaction_timeout_ms=120_000)
        await open_one.start()
        await open_one.begin()
        for topic in (EVENTS, TABLE):
            await (await open_one.send(topic, b"of an open transaction", b"key1", partition=0))
        await write(cluster, 150, b"before")
        pinned = await admin.pin_cut("nightly", [EVENTS, TABLE], retention_ms=WEEK_MS)
        before = await read(cluster, pinned.cut)
        assert [record[:2] for record in before] == [
            (topic, offset) for topic in (EVENTS, TABLE) for offset in range(1, 151)
        ]
        await open_one.commit()
        await open_one.close()

        # what would take it away, and does where no pin is
        for topic in (EVENTS, FREE_EVENTS):
            await admin.alter_config(topic, {"retention.ms": "1"})
        await write(cluster, 150, b"after")
        await until(lambda: moved_start(admin, FREE_EVENTS))

        async def cleaned(topic: str = FREE_TABLE) -> bool:
            return len(await read_up_to(cluster, topic, 150)) < 100

        await until(cleaned)
        with pytest.raises(KafkaError, match="a pinned cut keeps them") as refused:
            await admin.delete_records({(EVENTS, 0): 10})
        assert refused.value.code is ErrorCode.POLICY_VIOLATION

        async def unchanged() -> None:
            found = await admin.describe_cut("nightly")
            assert found.cut == pinned.cut
            assert await read(cluster, found.cut) == before

        await unchanged()

        # each node leads once, and the first one comes back
        first = (await leaders(admin, EVENTS)).pop()
        cluster.node(first).kill()
        await until(lambda: other_leads(admin, first))
        await unchanged()
        await cluster.node(first).start()
        await cluster.node(first).wait_ready()
        second = (await leaders(admin, EVENTS)).pop()
        await until(lambda: all_in_sync(admin))
        cluster.node(second).kill()
        await until(lambda: other_leads(admin, second))
        await unchanged()
        await cluster.node(second).start()
        await cluster.node(second).wait_ready()

        assert metric(cluster, "pinned_cuts") == 1
        assert metric(cluster, "pinned_bytes") > 2 * 150 * 400
        (listed,) = await admin.list_cuts()
        assert (listed.name, listed.topics, listed.partitions) == ("nightly", (EVENTS, TABLE), 2)
        assert await admin.unpin_cut("nightly")
        assert not await admin.unpin_cut("nightly")
        await until(lambda: moved_start(admin, EVENTS))

        await until(lambda: cleaned(TABLE))
        with pytest.raises(RequestError, match="no cut is pinned as 'nightly'"):
            await admin.describe_cut("nightly")


async def other_leads(admin: Admin, gone: int) -> bool:
    with contextlib.suppress(KafkaError):
        return not await leaders(admin, EVENTS, TABLE) & {gone, -1}
    return False


async def all_in_sync(admin: Admin) -> bool:
    described = await admin.describe_topics((EVENTS, TABLE))
    return all(len(part.in_sync_replicas) == 3 for topic in described for part in topic.partitions)


async def test_a_pin_ends_by_itself_and_needs_every_replica(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap, timeout_s=20.0) as admin:
        await admin.create_topics([NewTopic(EVENTS, 1, 3, DELETED)])
        await admin.pin_cut("short", [EVENTS], retention_ms=2000)
        with pytest.raises(RequestError) as raised:
            await admin.pin_cut("short", [EVENTS], retention_ms=2000)
        assert raised.value.code is ErrorCode.DUPLICATE_RESOURCE
        assert [cut.name for cut in await admin.list_cuts()] == ["short"]

        async def gone() -> bool:
            return await admin.list_cuts() == []

        await until(gone)
        with pytest.raises(RequestError, match=r"cut\.retention\.max\.ms is 604800000"):
            await admin.pin_cut("long", [EVENTS], retention_ms=WEEK_MS + 1)
        follower = ({1, 2, 3} - await leaders(admin, EVENTS)).pop()
        cluster.node(follower).kill()
    async with Admin(cluster.bootstrap, timeout_s=6.0) as admin:
        with pytest.raises(KafkaError, match=rf"brokers \[{follower}\] have not reported"):
            await admin.pin_cut("lonely", [EVENTS], retention_ms=2000)
        await until(gone_of(admin))
        await cluster.node(follower).start()
        await cluster.node(follower).wait_ready()
        assert (await admin.pin_cut("lonely", [EVENTS], retention_ms=2000)).name == "lonely"


def gone_of(admin: Admin) -> Any:
    async def gone() -> bool:
        return await admin.list_cuts() == []

    return gone


async def test_a_cut_says_that_a_topic_of_it_was_deleted(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(EVENTS, 1, 3, DELETED), NewTopic(TABLE, 1, 3, COMPACTED)])
        await admin.pin_cut("both", [EVENTS, TABLE], retention_ms=WEEK_MS)
        await admin.delete_topics([TABLE])
        assert (await admin.describe_cut("both")).deleted_topics == (TABLE,)
        (listed,) = await admin.list_cuts()
        assert listed.deleted_topics == (TABLE,)
        assert await admin.unpin_cut("both")


async def test_a_cut_that_was_taken_before_is_pinned_while_it_is_whole(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(EVENTS, 1, 3, DELETED)])
        async with Producer(cluster.bootstrap) as producer:
            for number in range(20):
                await producer.send(EVENTS, b"%d" % number, partition=0)
        taken = await admin.take_cut([EVENTS])
        assert (await admin.pin_cut("whole", taken, retention_ms=WEEK_MS)).cut == taken
        await admin.unpin_cut("whole")
        await admin.delete_records({(EVENTS, 0): 10})
        with pytest.raises(KafkaError, match="events-0 starts at 10 by now, the cut at 0") as raised:
            await admin.pin_cut("lost", taken, retention_ms=WEEK_MS)
        assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await admin.list_cuts() == []
