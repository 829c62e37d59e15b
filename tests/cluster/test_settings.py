"""Settings of topics and brokers, asked of a real node: described as Kafka does, changed at run time, and
followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer as LibrdkafkaProducer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire.api import ApiKey
from tidegate.wire.compression import Compression
from tidegate.wire.records import decode_batch, iterate_headers

from .conformance import Asker
from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("settings"), pytest.mark.timeout(120)]

TOPIC = 2
BROKER = 4
SET = 0
DELETE = 1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with kept_up(
        LocalCluster(tmp_path_factory.mktemp("settings"), nodes=1, settings={"min.insync.replicas": 1})
    ) as cluster:
        yield cluster


@pytest.fixture
async def asker(node: LocalCluster) -> AsyncIterator[Asker]:
    async with Asker(node.node(1).kafka_address) as found:
        yield found


async def make(asker: Asker, name: str, **configs: str) -> None:
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": settings,
    }
    answer = await asker.ask(
        ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False}
    )
    assert answer.topics[0].error_code == 0, answer


async def change(asker: Asker, kind: int, resource: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [
        {"name": name, "config_operation": operation, "value": value} for name, operation, value in changes
    ]
    fields = {
        "resources": [{"resource_type": kind, "resource_name": resource, "configs": configs}],
        "validate_only": False,
    }
    return int((await asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)).responses[0].error_code)


async def described(asker: Asker, kind: int, resource: str) -> dict[str, tuple[Any, int]]:
    """Name -> value and source."""
    wanted = {"resource_type": kind, "resource_name": resource, "configuration_keys": None}
    fields = {"resources": [wanted], "include_synonyms": True, "include_documentation": True}
    (result,) = (await asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, fields)).results
    assert result.error_code == 0, result
    return {config.name: (config.value, int(config.config_source)) for config in result.configs}


async def stored(asker: Asker, topic: str, wanted: int) -> bytes:
    """The partition's batches as the node has them, at least so many records."""
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
                 "log_start_offset": -1, "partition_max_bytes": 1 << 20}  # fmt: skip
    fields = {
        "replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1, "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip
    for _ in range(100):
        answer = await asker.ask(ApiKey.FETCH, 11, fields)
        data = bytes(answer.responses[0].partitions[0].records or b"")
        if sum(header.record_count for _position, header in iterate_headers(data)) >= wanted:
            return data
    raise AssertionError(answer)


async def test_a_topic_without_settings_shows_none_and_unset_ones_can_be_deleted(asker: Asker) -> None:
    await make(asker, "plain")
    found = await described(asker, TOPIC, "plain")
    assert {source for _value, source in found.values()} == {3, 5}
    assert found["min.insync.replicas"] == (
        "1",
        3,
    )
    never_set = ("flush.ms", "compression.type", "leader.replication.throttled.replicas")
    assert await change(asker, TOPIC, "plain", *((name, DELETE, None) for name in never_set)) == 0
    assert await change(asker, BROKER, "1", ("follower.replication.throttled.rate", DELETE, None)) == 0
    assert await described(asker, TOPIC, "plain") == found


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
async def test_what_librdkafka_sends_in_any_codec_is_kept_in_the_topics(
    node: LocalCluster, asker: Asker, target: str
) -> None:
    name = f"kept-as-{target}"
    await make(asker, name, compression_type=target)
    sent = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        settings = {
            "bootstrap.servers": node.bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
        }
        producer = LibrdkafkaProducer(settings)
        for number in range(100):
            value = f"{codec} {number} ".encode() * 20
            producer.produce(name, value, headers={"codec": codec})
            sent.append(value)
        assert await asyncio.to_thread(producer.flush, 30) == 0
    data = await stored(asker, name, len(sent))
    headers = [header for _position, header in iterate_headers(data)]
    codec = Compression.NONE if target == "uncompressed" else Compression[target.upper()]  # type: ignore[assignment]
    assert {header.compression for header in headers} == {codec}
    assert [
        record.value for position, _header in iterate_headers(data) for record in decode_batch(data, position)
    ] == sent
    assert all(header.producer_id >= 0 and header.base_sequence >= 0 for header in headers)


async def test_a_topic_follows_the_brokers_settings_unless_it_has_its_own(asker: Asker) -> None:
    await make(asker, "follows")
    await make(asker, "has-its-own", retention_ms="5000")
    assert (
        await change(asker, BROKER, "", ("log.retention.ms", SET, "7000"), ("message.max.bytes", SET, "2000"))
        == 0
    )
    follows, own = await described(asker, TOPIC, "follows"), await described(asker, TOPIC, "has-its-own")
    assert follows["retention.ms"] == ("7000", 3)
    assert own["retention.ms"] == ("5000", 1)
    assert await change(asker, BROKER, "1", ("log.retention.ms", SET, "6000")) == 0
    assert (await described(asker, TOPIC, "follows"))["retention.ms"] == ("6000", 2)
    assert (await described(asker, BROKER, "1"))["log.retention.ms"] == ("6000", 2)
    assert await described(asker, BROKER, "") == {
        "log.retention.ms": ("7000", 3), "message.max.bytes": ("2000", 3), "min.insync.replicas": ("1", 3)
    }  # fmt: skip
    for broker in ("", "1"):
        names = ("log.retention.ms", "message.max.bytes")
        assert await change(asker, BROKER, broker, *((name, DELETE, None) for name in names)) == 0
    assert (await described(asker, TOPIC, "follows"))["retention.ms"] == ("604800000", 5)


async def test_a_log_applies_its_brokers_new_settings(node: LocalCluster, asker: Asker) -> None:
    await make(asker, "small-batches")
    assert await change(asker, BROKER, "", ("message.max.bytes", SET, "2000")) == 0
    producer = LibrdkafkaProducer({"bootstrap.servers": node.bootstrap})

    async def until_answered_with(code: int) -> None:
        """Logs take it up one after the other, soon after the answer."""
        failed: list[Any] = []
        for _ in range(100):
            producer.produce(
                "small-batches", bytes(3000), on_delivery=lambda error, _message: failed.append(error)
            )
            assert await asyncio.to_thread(producer.flush, 30) == 0
            if (failed[-1].code() if failed[-1] is not None else 0) == code:
                return
        raise AssertionError(failed[-1])

    await until_answered_with(10)  # MESSAGE_TOO_LARGE
    assert await change(asker, BROKER, "", ("message.max.bytes", DELETE, None)) == 0
    await until_answered_with(0)


async def test_max_connections_set_at_run_time_makes_a_node_refuse_more(
    node: LocalCluster, asker: Asker
) -> None:
    assert await change(asker, BROKER, "1", ("max.connections.per.ip.overrides", SET, "127.0.0.1:1")) == 0
    async with Asker(node.node(1).kafka_address) as second:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await described(second, BROKER, "1")
    assert await change(asker, BROKER, "1", ("max.connections.per.ip.overrides", DELETE, None)) == 0
    async with Asker(node.node(1).kafka_address) as third:
        assert (await described(third, BROKER, "1"))["max.connections.per.ip.overrides"] == ("", 5)
