"""`auto.create.topics.enable`: a topic that a client asks for is made, when both sides want that, and only
then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from confluent_kafka import Producer as LibrdkafkaProducer
from tidegate.client.administration.admin import Admin
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .conformance import Asker
from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("auto-creation"), pytest.mark.timeout(120)]

PARTITIONS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings: dict[str, object] = {"auto.create.topics.enable": True, "num.partitions": PARTITIONS}
    settings["default.replication.factor"] = 1
    with kept_up(LocalCluster(tmp_path_factory.mktemp("auto"), nodes=1, settings=settings)) as cluster:
        yield cluster


@pytest.fixture
async def asker(node: LocalCluster) -> AsyncIterator[Asker]:
    async with Asker(node.node(1).kafka_address) as found:
        yield found


async def asked(asker: Asker, name: str, version: int, *, create: bool = True) -> tuple[ErrorCode, int]:
    """The error, and how many partitions the topic has."""
    fields = {"topics": [{"name": name}], "allow_auto_topic_creation": create}
    (topic,) = (await asker.ask(ApiKey.METADATA, version, fields)).topics
    return ErrorCode(topic.error_code), len(topic.partitions)


@pytest.mark.parametrize("version", [0, 1, 3, 4, 9, 12])
async def test_a_requested_topic_is_created_and_found_by_the_next_request(asker: Asker, version: int) -> None:
    name = f"made-by-{version}"
    assert await asked(asker, name, version) == (ErrorCode.LEADER_NOT_AVAILABLE, 0)
    assert await asked(asker, name, version) == (ErrorCode.NONE, PARTITIONS)


async def test_without_auto_creation_the_client_gets_unknown_topic(asker: Asker) -> None:
    """Since version 4 the client decides as well."""
    for version in (4, 9, 12):
        assert await asked(asker, "unwanted", version, create=False) == (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            0,
        )


async def test_names_that_cannot_be_and_those_of_state_topics_are_not_made(asker: Asker) -> None:
    assert (await asked(asker, "no/such", 9))[0] is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await asked(asker, "__transaction_state", 9))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await asked(asker, "a.name", 9)
    # metrics would confuse the two
    assert (await asked(asker, "a_name", 9))[0] is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_many_clients_that_ask_at_once_get_one_topic(node: LocalCluster) -> None:
    async def one() -> ErrorCode:
        async with Asker(node.node(1).kafka_address) as asker:
            return (await asked(asker, "crowd", 9))[0]

    answers = set(await asyncio.gather(*(one() for _ in range(20))))
    assert answers <= {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE}
    async with Admin(node.bootstrap) as admin:
        assert [view.name for view in await admin.list_topics()].count("crowd") == 1


async def test_producers_create_missing_topics_and_consumers_do_not(node: LocalCluster) -> None:
    async with Producer(node.bootstrap, transactional_id="auto") as producer, producer.transaction():
        await producer.send("by-our-own", b"1")
    librdkafka = LibrdkafkaProducer({"bootstrap.servers": node.bootstrap})
    librdkafka.produce("by-librdkafka", b"1")
    assert librdkafka.flush(30) == 0
    async with (
        Consumer(node.bootstrap, auto_offset_reset="earliest", max_block_s=2) as consumer,
        Admin(node.bootstrap) as admin,
    ):
        for topic in ("by-our-own", "by-librdkafka"):
            consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
            async with asyncio.timeout(30):
                while not await consumer.poll():
                    pass
        assert "by-nobody" not in [view.name for view in await admin.list_topics()]
        consumer.assign([("by-nobody", 0)])
        with pytest.raises(Exception, match="by-nobody"):
            await consumer.poll()
        assert "by-nobody" not in [view.name for view in await admin.list_topics()]
