"""What a consumer does besides reading, against a real node whose groups hold two members: leaving and coming
back, other topics, partitions that are paused, groups that do not take it; and a producer that wants no
answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from tidegate.client import (
    Admin,
    Consumer,
    KafkaError,
    LocalCluster,
    NewTopic,
    Producer,
    RebalanceListener,
    RequestError,
)
from tidegate.client.connecting.cluster import Cluster
from tidegate.client.consuming.group_membership import GroupMembership, MembershipSettings
from tidegate.runtime.clock import SystemClock
from tidegate.tests.started import started
from tidegate.wire.errors import ErrorCode

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "group.initial.rebalance.delay.ms": 50, "group.max.size": 2, "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
    }  # fmt: skip
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, settings)
    with started(cluster):
        yield cluster.bootstrap


async def make(bootstrap: str, partitions: int = 2) -> str:
    name = f"t-{uuid4().hex[:8]}"
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name, partitions, 1)])
    return name


async def send(bootstrap: str, topic: str, *values: bytes, partition: int = 0) -> None:
    async with Producer(bootstrap, linger_ms=0) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=partition)


async def take(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [
                record.value or b"" for record in await consumer.poll(count - len(found), timeout_s=0.1)
            ]
    return found


async def until_assigned(consumer: Consumer, topic: str) -> None:
    async with asyncio.timeout(30):
        while {name for name, _ in consumer.assignment()} != {topic}:
            await consumer.poll(timeout_s=0.1)


async def test_unsubscribe_commits_and_leaves_and_a_new_subscription_continues(bootstrap: str) -> None:
    topic, group = await make(bootstrap, 1), f"g-{uuid4().hex[:8]}"
    await send(bootstrap, topic, b"0", b"1", b"2")
    async with (
        Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer,
        Admin(bootstrap) as admin,
    ):
        consumer.subscribe(topic)
        assert await take(consumer, 2) == [b"0", b"1"]
        await consumer.unsubscribe()
        assert consumer.assignment() == set()
        assert await consumer.poll(timeout_s=0.05) == []
        described = await admin.describe_group(group)
        assert (described.state, described.members) == ("Empty", [])
        consumer.subscribe(topic)
        assert await take(consumer, 1) == [b"2"]


async def test_the_listener_hears_that_everything_goes_and_may_still_commit(bootstrap: str) -> None:
    topic, group = await make(bootstrap, 1), f"g-{uuid4().hex[:8]}"
    await send(bootstrap, topic, b"0", b"1", b"2")
    events: list[str] = []
    consumer = Consumer(bootstrap, group_id=group, auto_commit=False, auto_offset_reset="earliest")

    async def assigned(_partitions: object) -> None:
        events.append("assigned")

    async def revoked(partitions: object) -> None:
        assert partitions == {(topic, 0)}
        await consumer.commit()
        events.append("revoked")

    async with consumer:
        for left in (b"0", b"1"):
            consumer.subscribe(topic, RebalanceListener(assigned, revoked))
            assert await take(consumer, 1) == [left]
            if left == b"0":
                await consumer.unsubscribe()
    assert events == ["assigned", "revoked"] * 2, "by unsubscribe, and by close"
    async with Admin(bootstrap) as admin:
        assert (await admin.group_offsets(group))[topic, 0].offset == 2


async def test_after_a_failure_the_listener_is_not_asked_to_commit(bootstrap: str) -> None:
    """What was delivered last was perhaps not processed."""
    topic, group = await make(bootstrap, 1), f"g-{uuid4().hex[:8]}"
    await send(bootstrap, topic, b"0")

    async def revoked(_partitions: object) -> None:
        raise AssertionError("it was told")

    with pytest.raises(ZeroDivisionError):
        async with Consumer(bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.subscribe(topic, RebalanceListener(revoked=revoked))
            await take(consumer, 1)
            raise ZeroDivisionError
    async with Admin(bootstrap) as admin:
        assert await admin.group_offsets(group) == {}
        assert (await admin.describe_group(group)).members == []


async def test_another_subscription_takes_the_place_of_the_first(bootstrap: str) -> None:
    first, second = await make(bootstrap), await make(bootstrap)
    async with Consumer(bootstrap, group_id=f"g-{uuid4().hex[:8]}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(first)
        await until_assigned(consumer, first)
        consumer.subscribe([second])
        await until_assigned(consumer, second)
        await send(bootstrap, first, b"not read")
        await send(bootstrap, second, b"read")
        assert await take(consumer, 1) == [b"read"]
        with pytest.raises(RequestError, match="unsubscribe"):
            consumer.assign([(first, 0)])


async def test_a_paused_partition_is_kept_and_read_later_others_continue(bootstrap: str) -> None:
    topic = await make(bootstrap)
    await send(bootstrap, topic, b"a", b"b")
    await send(bootstrap, topic, b"x", partition=1)
    async with Consumer(bootstrap, group_id=f"g-{uuid4().hex[:8]}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        await until_assigned(consumer, topic)
        await consumer.seek_to_beginning()
        consumer.pause((topic, 0))
        assert consumer.paused() == {(topic, 0)}
        assert await take(consumer, 1) == [b"x"]
        assert await consumer.poll(timeout_s=0.1) == []
        assert len(consumer.assignment()) == 2
        consumer.resume((topic, 0))
        assert consumer.paused() == set()
        assert await take(consumer, 2) == [b"a", b"b"]


async def test_a_full_group_and_a_bad_session_timeout_are_errors_with_advice(bootstrap: str) -> None:
    topic, group = await make(bootstrap), f"g-{uuid4().hex[:8]}"
    async with (
        Consumer(bootstrap, group_id=group) as one,
        Consumer(bootstrap, group_id=group) as two,
        asyncio.timeout(60),
    ):
        for consumer in (one, two):
            consumer.subscribe(topic)
        while not one.assignment() or not two.assignment() or one.assignment() & two.assignment():
            await asyncio.gather(one.poll(timeout_s=0.05), two.poll(timeout_s=0.05))
        async with Consumer(bootstrap, group_id=group) as three:
            three.subscribe(topic)
            with pytest.raises(KafkaError, match=r"GROUP_MAX_SIZE_REACHED.*group\.max\.size"):
                await three.poll()
    async with Consumer(
        bootstrap, group_id=f"{group}-2", session_timeout_ms=100, heartbeat_interval_ms=30
    ) as hasty:
        hasty.subscribe(topic)
        with pytest.raises(KafkaError, match=r"INVALID_SESSION_TIMEOUT.*group\.min\.session\.timeout\.ms"):
            await hasty.poll()


async def test_a_producer_that_wants_no_answers_gets_none_and_its_records_arrive(bootstrap: str) -> None:
    topic = await make(bootstrap, 1)
    async with Producer(bootstrap, acks=0, linger_ms=0) as producer:
        sent = [await producer.send_and_wait(topic, b"%d" % number, partition=0) for number in range(20)]
        assert {each.offset for each in sent} == {-1}
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert await take(consumer, 20) == [b"%d" % number for number in range(20)]


async def test_a_silent_coordinator_is_left_before_the_session_ends() -> None:
    """Its successor gives every member one session to come; a request waits for longer than most of them
    are."""
    asked: list[dict[str, Any]] = []

    async def ask_coordinator(*_: object, **bounds: Any) -> Any:
        asked.append(bounds)
        return SimpleNamespace(error_code=0)

    cluster = SimpleNamespace(
        clock=SystemClock(), on_metadata=lambda _listener: None, ask_coordinator=ask_coordinator
    )
    settings = MembershipSettings("g", None, ("range",), 6_000, 2_000, 300_000, request_timeout_s=30.0)
    assert (
        await GroupMembership(cast(Cluster, cluster), settings, lambda: None)._heartbeat() is ErrorCode.NONE
    )
    assert asked[0]["timeout_s"] == 3.0
