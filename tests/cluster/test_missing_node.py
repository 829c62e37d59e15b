"""One of three nodes is away: what is made now is made for three, and the third takes it up when it is
back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .conformance import Asker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

SETTINGS: dict[str, object] = {
    "auto.create.topics.enable": True, "broker.session.timeout.ms": 2500, "broker.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3,
}  # fmt: skip


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """A fresh one, whose third node was there once and is killed before anything is made."""
    cluster = LocalCluster(tmp_path / "cluster", nodes=3, settings=SETTINGS)
    await cluster.up()
    try:
        cluster.node(3).kill()
        await cluster.node(3).wait_exit()
        yield cluster
    finally:
        await cluster.down()


async def test_topics_for_three_are_made_while_one_of_three_is_away(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:

        async def is_away() -> bool:
            return not next(broker.alive for broker in await admin.list_brokers() if broker.node_id == 3)

        await eventually(is_away, "node 3 is fenced")
        await admin.create_topics([NewTopic("made", 2, 3, {"min.insync.replicas": "2"})])
        await admin.create_partitions({"made": 4})
        async with Asker(cluster.node(1).kafka_address) as asker:  # auto-creation
            fields = {"topics": [{"name": "asked-for"}], "allow_auto_topic_creation": True}
            for expected in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE):
                (topic,) = (await asker.ask(ApiKey.METADATA, 12, fields)).topics
                assert topic.error_code == expected
        # makes __transaction_state
        async with (
            Producer(cluster.bootstrap, transactional_id="first") as producer,
            producer.transaction(),
        ):
            for number in range(40):
                await producer.send("made", b"%d" % number, partition=number % 4)
        async with Consumer(cluster.bootstrap, group_id="first", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["made"])
            seen: set[bytes] = set()
            while len(seen) < 40:
                seen |= {record.value for record in await consumer.poll() if record.value is not None}
            await consumer.commit()  # makes __consumer_offsets
        made = ["made", "asked-for", "__transaction_state", "__consumer_offsets"]

        async def partitions() -> list[tuple[set[int], set[int], int]]:
            described = await admin.describe_topics(made, config=False)
            return [
                (set(p.replicas), set(p.in_sync_replicas), p.leader)
                for topic in described
                for p in topic.partitions
            ]

        found = await partitions()
        assert len(found) == 4 + 1 + 3 + 3
        assert all(replicas == {1, 2, 3} and isr == {1, 2} and leader != 3 for replicas, isr, leader in found)
        await cluster.node(3).start()
        await cluster.node(3).wait_ready()

        async def all_in_sync() -> bool:
            return all(isr == {1, 2, 3} for _, isr, _ in await partitions())

        await eventually(all_in_sync, "node 3 has a copy of everything")
