"""KIP-392 with real clients: a consumer that names its rack reads from the replica there, else from the
leader."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.request import urlopen

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("shared-cluster"), pytest.mark.timeout(180)]

VALUES = [f"{number:04}-".encode() + b"x" * 10_000 for number in range(200)]
BYTES = sum(map(len, VALUES))


def bytes_sent(cluster: LocalCluster, node_id: int) -> float:
    """Of records, to consumers and followers."""
    with urlopen(f"http://{cluster.node(node_id).metrics_address}/metrics", timeout=10) as page:
        found = re.search(
            r'^tidegate_bytes_total\{direction="out"\} (\S+)$', page.read().decode(), re.MULTILINE
        )
    assert found is not None
    return float(found[1])


async def filled(cluster: LocalCluster, topic: str) -> int:
    """Writes VALUES, and returns a follower of the topic's only partition."""
    async with Producer(cluster.bootstrap) as producer:
        await asyncio.gather(*[await producer.send(topic, value) for value in VALUES])
    async with Admin(cluster.bootstrap) as admin:
        (description,) = await admin.describe_topics([topic])
    partition = description.partitions[0]
    return next(node for node in partition.replicas if node != partition.leader)


def read_by_librdkafka(bootstrap: str, topic: str, rack: str) -> list[bytes]:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition
    from confluent_kafka import Consumer as ConfluentConsumer

    consumer = ConfluentConsumer({"bootstrap.servers": bootstrap, "group.id": topic, "client.rack": rack})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    try:
        while len(values) < len(VALUES):
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            values.append(message.value())  # type: ignore[arg-type]
    finally:
        consumer.close()
    return values


async def read_by_own_client(bootstrap: str, topic: str, rack: str) -> list[bytes]:
    values: list[bytes] = []
    async with Consumer(bootstrap, auto_offset_reset="earliest", rack=rack) as consumer:
        consumer.assign([(topic, 0)])
        while len(values) < len(VALUES):
            polled = await consumer.poll(timeout_s=30)
            assert polled
            values += [record.value or b"" for record in polled]
    return values


@pytest.mark.parametrize("client", ["librdkafka", "tidegate"])
async def test_a_consumer_reads_from_the_replica_in_its_rack(
    shared_cluster: LocalCluster, make_topic: Callable[..., str], client: str
) -> None:
    topic = await asyncio.to_thread(make_topic, partitions=1)
    follower = await filled(shared_cluster, topic)
    rack, bootstrap = f"rack-{follower}", shared_cluster.bootstrap
    before = bytes_sent(shared_cluster, follower)
    if client == "librdkafka":
        values = await asyncio.to_thread(read_by_librdkafka, bootstrap, topic, rack)
    else:
        values = await read_by_own_client(bootstrap, topic, rack)
    assert values == VALUES
    assert bytes_sent(shared_cluster, follower) - before > BYTES / 2, "the follower of that rack served it"


@pytest.mark.parametrize("rack", ["", "rack-of-nobody"])
async def test_any_other_consumer_reads_from_the_leader(
    shared_cluster: LocalCluster, make_topic: Callable[..., str], rack: str
) -> None:
    topic = await asyncio.to_thread(make_topic, partitions=1)
    follower = await filled(shared_cluster, topic)
    before = bytes_sent(shared_cluster, follower)
    assert await read_by_own_client(shared_cluster.bootstrap, topic, rack) == VALUES
    assert bytes_sent(shared_cluster, follower) - before < BYTES / 2


async def test_a_consumer_goes_back_to_the_leader_when_its_replica_is_gone(own_cluster: LocalCluster) -> None:
    async with Admin(own_cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("nearby", 1, 3, {"min.insync.replicas": "2"})])
    follower = await filled(own_cluster, "nearby")
    async with Consumer(
        own_cluster.bootstrap, auto_offset_reset="earliest", rack=f"rack-{follower}"
    ) as consumer:
        consumer.assign([("nearby", 0)])
        seen = [record.value for record in await consumer.poll(max_records=1, timeout_s=30)]
        own_cluster.node(follower).kill()
        async with Producer(own_cluster.bootstrap) as producer:
            await (await producer.send("nearby", b"last"))
        while not seen or seen[-1] != b"last":
            polled = await consumer.poll(timeout_s=30)
            assert polled
            seen += [record.value for record in polled]
    assert seen == [*VALUES, b"last"]
