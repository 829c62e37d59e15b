"""What a node says of partitions that others lead: the leader and its address (KIP-951), and the producers
that it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .conformance import Asker
from .protocol_cases import records

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("shared-cluster"), pytest.mark.timeout(120)]


async def layout(cluster: LocalCluster, topic: str) -> tuple[Any, int, int]:
    """(topic id, leader, a follower) of the topic's only partition."""
    fields = {"topics": [{"name": topic}], "response_partition_limit": 1, "cursor": None}
    async with Asker(address(cluster, 1)) as asker:
        (description,) = (await asker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, fields)).topics
    (partition,) = description.partitions
    leader = partition.leader_id
    return description.topic_id, leader, next(node for node in partition.replica_nodes if node != leader)


def address(cluster: LocalCluster, node: int) -> str:
    return cluster.bootstrap.split(",")[node - 1]


def produced(topic: str, topic_id: Any, data: bytes) -> dict[str, Any]:
    part = {"name": topic, "topic_id": topic_id, "partition_data": [{"index": 0, "records": data}]}
    return {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": [part]}


@pytest.mark.parametrize("version", [10, 12, 13])
def test_a_produce_to_a_follower_learns_the_leaders_address(
    shared_cluster: LocalCluster, make_topic: Callable[..., str], version: int
) -> None:
    asyncio.run(_produce_at_a_follower(shared_cluster, make_topic(1), version))


async def _produce_at_a_follower(shared_cluster: LocalCluster, topic: str, version: int) -> None:
    topic_id, leader, follower = await layout(shared_cluster, topic)
    async with Asker(address(shared_cluster, follower)) as asker:
        answer = await asker.ask(ApiKey.PRODUCE, version, produced(topic, topic_id, records()))
    part = answer.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part.current_leader.leader_id == leader
    assert part.current_leader.leader_epoch >= 0
    (endpoint,) = answer.node_endpoints
    assert endpoint.node_id == leader
    assert f"{endpoint.host}:{endpoint.port}" == address(shared_cluster, leader)


@pytest.mark.parametrize("version", [16, 18])
def test_a_fetch_from_a_follower_learns_the_leaders_address(
    shared_cluster: LocalCluster, make_topic: Callable[..., str], version: int
) -> None:
    asyncio.run(_fetch_at_a_follower(shared_cluster, make_topic(1), version))


async def _fetch_at_a_follower(shared_cluster: LocalCluster, topic: str, version: int) -> None:
    topic_id, leader, follower = await layout(shared_cluster, topic)
    part = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1,
            "partition_max_bytes": 1 << 20}  # fmt: skip
    fields = {
        "max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 24, "isolation_level": 0, "session_id": 0,
        "session_epoch": 0,
        "topics": [{"topic_id": topic_id, "partitions": [part]}], "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip
    async with Asker(address(shared_cluster, follower)) as asker:
        answer = await asker.ask(ApiKey.FETCH, version, fields)
    found = answer.responses[0].partitions[0]
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert found.current_leader.leader_id == leader
    (endpoint,) = answer.node_endpoints
    assert endpoint.node_id == leader
    assert f"{endpoint.host}:{endpoint.port}" == address(shared_cluster, leader)


def test_a_follower_describes_the_producers_that_its_replica_knows(
    shared_cluster: LocalCluster, make_topic: Callable[..., str]
) -> None:
    """`kafka-transactions find-hanging --broker-id` asks each replica's node."""
    asyncio.run(_producers_at_a_follower(shared_cluster, make_topic(1)))


async def _producers_at_a_follower(shared_cluster: LocalCluster, topic: str) -> None:
    topic_id, leader, follower = await layout(shared_cluster, topic)
    identity = {"producer_id": 987_654, "producer_epoch": 3, "base_sequence": 0}
    async with Asker(address(shared_cluster, leader)) as asker:
        answer = await asker.ask(ApiKey.PRODUCE, 9, produced(topic, topic_id, records(2, **identity)))
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    fields = {"topics": [{"name": topic, "partition_indexes": [0, 5]}]}
    async with Asker(address(shared_cluster, follower)) as asker:
        described = await asker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, fields)
    here, missing = described.topics[0].partitions
    assert [(p.producer_id, p.producer_epoch, p.last_sequence) for p in here.active_producers] == [
        (987_654, 3, 1)
    ]
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
