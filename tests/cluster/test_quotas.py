"""Quotas of three nodes: a client above its quota is slowed down, and no other; a change holds from the next
request on, and after restarts and a failover.  `make quotas` measures for longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.security.quotas import QuotaKind
from tidegate.tests.quotas.clients import (
    BATCH_BYTES,
    RECORD_BYTES,
    Measured,
    ask,
    beside,
    fill,
    make_topic,
    produce_for,
    quotas,
    read_for,
    set_quota,
)
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

RATE = 300_000.0
SECONDS = 4.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "cluster", 3, {"controller.quota.window.num": 2}) as found:
        yield found


def assert_held(measured: Measured, rate: float) -> None:
    """A window may be used at once, and the last request is charged when it is done."""
    sent = measured.records * RECORD_BYTES
    assert 0.7 * rate * (measured.seconds - 1) <= sent <= rate * (measured.seconds + 1) + 2 * BATCH_BYTES


async def test_a_client_above_its_quota_is_slowed_down_and_no_other(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap
    for topic in ("written", "read", "other"):
        await asyncio.to_thread(make_topic, bootstrap, topic, 3)
    await asyncio.to_thread(fill, bootstrap, "read", 500)
    set_quota(bootstrap, QuotaKind.PRODUCE, RATE, client_id="slow")
    set_quota(bootstrap, QuotaKind.FETCH, RATE, client_id="slow")
    work = partial(produce_for, bootstrap, "written", "slow", SECONDS)
    written, other = await beside(bootstrap, "other", "fast", work)
    assert_held(written, RATE)
    assert other.latency_s(0.9) < 0.5
    assert_held(await asyncio.to_thread(read_for, bootstrap, "read", "slow", SECONDS), RATE)

    set_quota(bootstrap, QuotaKind.PRODUCE, 3 * RATE, client_id="slow")
    faster = await asyncio.to_thread(produce_for, bootstrap, "written", "slow", SECONDS)
    assert_held(faster, 3 * RATE)

    kept = {(("client-id", "slow"),): {"producer_byte_rate": 3 * RATE, "consumer_byte_rate": RATE}}
    assert quotas(bootstrap) == kept
    controller = await cluster.active_controller()
    controller.kill()
    await controller.wait_exit()
    alive = next(node for node in cluster.nodes if node is not controller)
    await cluster.active_controller()
    assert quotas(alive.kafka_address) == kept
    await controller.start()
    await controller.wait_ready()
    assert quotas(controller.kafka_address) == kept
    await cluster.down()
    await cluster.up()
    assert quotas(bootstrap) == kept
    assert_held(await asyncio.to_thread(produce_for, bootstrap, "written", "slow", SECONDS), 3 * RATE)


def create(bootstrap: str, version: int, topics: dict[str, int], client_id: str) -> Any:
    """Topics, with their numbers of partitions."""
    wanted = [
        {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
        for name, count in topics.items()
    ]
    fields = {"topics": wanted, "timeout_ms": 20_000, "validate_only": False}
    return ask(bootstrap, ApiKey.CREATE_TOPICS, version, fields, client_id)


async def test_topics_are_made_at_the_rate_of_a_quota(cluster: LocalCluster) -> None:
    """KIP-599.  The quota is the cluster's, not a node's; older clients are slowed down instead."""
    bootstrap, exceeded = cluster.bootstrap, ErrorCode.THROTTLING_QUOTA_EXCEEDED
    kind = QuotaKind.CONTROLLER_MUTATION
    set_quota(bootstrap, kind, 0.1, client_id="strict")
    set_quota(bootstrap, kind, 0.1, client_id="older")
    answer = create(bootstrap, 7, {"first": 3, "second": 1}, "strict")
    assert {topic.name: topic.error_code for topic in answer.topics} == {"first": 0, "second": exceeded}
    assert 10 < answer.throttle_time.total_seconds() <= 11
    other = cluster.nodes[-1].kafka_address
    refused = create(other, 7, {"second": 1}, "strict").topics[0]
    assert (refused.error_code, refused.error_message) == (
        exceeded,
        "The throttling quota has been exceeded.",
    )
    answer = create(bootstrap, 5, {"third": 3, "fourth": 1}, "older")
    assert {topic.error_code for topic in answer.topics} == {0}
    assert answer.throttle_time.total_seconds() > 10
    gone = ask(bootstrap, ApiKey.DELETE_TOPICS, 5, {"topic_names": ["first"], "timeout_ms": 20_000}, "strict")
    assert gone.responses[0].error_code == exceeded
    wider = {"topics": [{"name": "first", "count": 9, "assignments": None}], "timeout_ms": 20_000}
    answer = ask(bootstrap, ApiKey.CREATE_PARTITIONS, 3, {**wider, "validate_only": False}, "strict")
    assert answer.results[0].error_code == exceeded
    set_quota(bootstrap, kind, None, client_id="strict")
    assert create(bootstrap, 7, {"second": 1}, "strict").topics[0].error_code == 0
