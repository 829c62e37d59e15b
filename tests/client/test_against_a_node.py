"""Consumer, admin, blocking facade and command line against one real node."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any
from uuid import uuid4

import pytest
from tidegate.client import (
    Admin,
    Consumer,
    FatalError,
    GroupChanged,
    GroupMetadata,
    KafkaError,
    LocalCluster,
    NewTopic,
    NoOffset,
    Producer,
    RebalanceListener,
    RequestError,
    blocking,
)
from tidegate.client.command_line import build
from tidegate.client.connecting.errors import ConnectionFailed
from tidegate.tests.eventually import eventually as wait_for
from tidegate.tests.started import started
from tidegate.wire.errors import ErrorCode
from typer.testing import CliRunner

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "group.initial.rebalance.delay.ms": 50,
        "group.min.session.timeout.ms": 500,
        "transaction.state.log.num.partitions": 4,
        "offsets.topic.num.partitions": 4,
    }
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, settings)
    with started(cluster):
        yield cluster.bootstrap


@pytest.fixture
async def topic(bootstrap: str) -> str:
    name = f"t-{uuid4().hex[:8]}"
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name, 4, 1)])
    return name


async def fill(
    bootstrap: str, topic: str, count: int, *, partition: int | None = None, timestamp_ms: int | None = None
) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(count):
            stamp = None if timestamp_ms is None else timestamp_ms + number
            target = number % 4 if partition is None else partition
            await producer.send(topic, b"%d" % number, partition=target, timestamp_ms=stamp)


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += [record.value for record in await consumer.poll(timeout_s=0.2)]
    return found


async def eventually(condition: Callable[[], bool], *consumers: Consumer) -> None:
    """Polls all consumers, each at its own pace as separate programs would, until the condition holds."""

    async def keep_polling(consumer: Consumer) -> None:
        while not condition():
            await consumer.poll(timeout_s=0.05)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for consumer in consumers:
            group.create_task(keep_polling(consumer))


async def test_every_record_once_without_a_group(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 1000)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, number) for number in range(4)])
        found = await take(consumer, 1000)
        assert sorted(int(value or b"") for value in found) == list(range(1000))
        assert await consumer.poll(timeout_s=0.1) == []
        assert consumer.positions() == {(topic, number): 250 for number in range(4)}
        assert consumer.lag((topic, 0)) == 0


async def test_seek_pause_resume_and_positions(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 40)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        assert len(await take(consumer, 20)) == 20
        consumer.seek((topic, 0), 7)
        assert await take(consumer, 3) == [b"28", b"32", b"36"]
        assert await consumer.position((topic, 0)) == 10
        consumer.pause((topic, 1))
        await consumer.seek_to_beginning()
        assert len(await take(consumer, 10)) == 10
        assert await consumer.poll(timeout_s=0.2) == []
        consumer.resume((topic, 1))
        assert len(await take(consumer, 10)) == 10
        await consumer.seek_to_end((topic, 0))
        assert await consumer.position((topic, 0)) == 10
        with pytest.raises(RequestError, match="offsets begin at 0"):
            consumer.seek((topic, 0), -1)
        with pytest.raises(KafkaError, match="not assigned"):
            consumer.seek((topic, 3), 1)


async def test_offsets_by_time(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 10, partition=0, timestamp_ms=1_000_000)
    async with Consumer(bootstrap) as consumer:
        found = await consumer.offsets_for_times({(topic, 0): 1_000_004, (topic, 1): 0})
        entry = found[topic, 0]
        assert entry is not None
        assert (entry.offset, entry.timestamp_ms) == (4, 1_000_004)
        assert found[topic, 1] is None
        assert (await consumer.offsets_for_times({(topic, 0): 2_000_000}))[topic, 0] is None
        assert await consumer.beginning_offsets([(topic, 0)]) == {(topic, 0): 0}
        assert await consumer.end_offsets([(topic, 0)]) == {(topic, 0): 10}


async def test_reset_policies_apply_where_there_is_no_offset_and_out_of_range(
    bootstrap: str, topic: str
) -> None:
    await fill(bootstrap, topic, 8)
    async with Consumer(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(NoOffset, match="seek"):
            await consumer.poll()
        consumer.seek((topic, 0), 99)
        with pytest.raises(NoOffset):
            async with asyncio.timeout(10):
                while True:
                    await consumer.poll(timeout_s=0.2)
        consumer.seek((topic, 0), 1)
        assert await take(consumer, 1) == [b"4"]
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 99)
        assert await take(consumer, 2) == [b"0", b"4"]


async def test_a_group_shares_the_partitions_and_rebalances_when_a_member_leaves(
    bootstrap: str, topic: str
) -> None:
    await fill(bootstrap, topic, 400)
    seen: list[tuple[str, Collection[tuple[str, int]]]] = []

    def listener(name: str) -> RebalanceListener:
        async def assigned(partitions: Collection[tuple[str, int]]) -> None:
            seen.append((f"{name} assigned", partitions))

        async def revoked(partitions: Collection[tuple[str, int]]) -> None:
            seen.append((f"{name} revoked", partitions))

        return RebalanceListener(assigned, revoked)

    options: dict[str, Any] = {
        "group_id": topic,
        "heartbeat_interval_ms": 100,
        "auto_offset_reset": "earliest",
    }
    async with Consumer(bootstrap, **options) as first:
        first.subscribe([topic], listener("first"))
        await eventually(lambda: len(first.assignment()) == 4, first)
        async with Consumer(bootstrap, **options) as second:
            second.subscribe([topic], listener("second"))
            await eventually(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
            assert first.assignment().isdisjoint(second.assignment())
            assert first.group_metadata().generation_id == second.group_metadata().generation_id
        await eventually(lambda: len(first.assignment()) == 4, first)
    names = [name for name, _ in seen]
    assert names[:2] == ["first assigned", "first revoked"]
    assert "second assigned" in names
    async with Admin(bootstrap) as admin:
        assert (await admin.describe_group(topic)).state == "Empty"


async def test_what_was_delivered_is_committed_and_nothing_more(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 10, partition=0)
    options: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest"}
    async with Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(topic)
        async for record in consumer:
            if record.offset == 3:
                break
    async with Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(topic)
        assert (await take(consumer, 6))[0] == b"4"
    with pytest.raises(ZeroDivisionError):
        async with Consumer(bootstrap, **options | {"group_id": topic + "-failing"}) as consumer:
            consumer.subscribe(topic)
            await take(consumer, 10)
            raise ZeroDivisionError
    async with Admin(bootstrap) as admin:
        assert await admin.group_offsets(topic + "-failing") == {}, (
            "after a failure nothing is committed on the way out"
        )


async def test_a_member_that_was_removed_cannot_commit(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 4)
    options: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest", "auto_commit": False}
    async with Consumer(
        bootstrap, **options, session_timeout_ms=600, heartbeat_interval_ms=100_000
    ) as silent:
        silent.subscribe(topic)
        await take(silent, 4)
        stale = silent.group_metadata()
        async with Consumer(bootstrap, **options) as other:
            other.subscribe(topic)
            await eventually(lambda: len(other.assignment()) == 4, other)
            with pytest.raises(GroupChanged, match="rebalanced"):
                await silent.commit()
            async with Producer(bootstrap, transactional_id=topic) as producer:
                with pytest.raises(KafkaError, match=r"removed|rebalanced"):
                    async with producer.transaction():
                        await producer.send_offsets_to_transaction({(topic, 0): 1}, stale)
                async with producer.transaction():
                    await producer.send_offsets_to_transaction({(topic, 0): 1}, other.group_metadata())
            committed = await other.committed()
            assert {key: entry.offset for key, entry in committed.items()} == {(topic, 0): 1}


@pytest.mark.parametrize("how", ["taken out", "did not poll"])
async def test_a_member_that_knows_that_it_was_removed_is_fenced_all_the_same(
    bootstrap: str, topic: str, how: str
) -> None:
    """KIP-447: what it has read, its successor may have committed; without its member id and generation the
    coordinator could not notice."""
    await fill(bootstrap, topic, 4)
    options: dict[str, Any] = {"group_id": topic, "auto_offset_reset": "earliest", "auto_commit": False}
    patience: dict[str, Any] = {"max_poll_interval_ms": 1500} if how == "did not poll" else {}
    async with (
        Consumer(bootstrap, **options, **patience, heartbeat_interval_ms=50) as slow,
        Admin(bootstrap) as admin,
    ):
        slow.subscribe(topic)
        await take(slow, 4)
        if how == "taken out":
            (member,) = (await admin.describe_group(topic)).members
            await admin.remove_group_members(topic, member_ids=[member.member_id])
        await wait_for(lambda: slow._membership is not None and slow._membership.lost)
        for left in (False, True):  # its successor is there, or was there and has left an empty group
            async with Consumer(bootstrap, **options) as successor:
                successor.subscribe(topic)
                await eventually(lambda found=successor: len(found.assignment()) == 4, successor)  # type: ignore[misc]
                if left:
                    await successor.close()
                with pytest.raises(GroupChanged, match="rebalanced"):
                    await slow.commit()
                async with Producer(bootstrap, transactional_id=topic) as producer:
                    with pytest.raises(KafkaError, match=r"removed|rebalanced"):
                        async with producer.transaction():
                            await producer.send_offsets_to_transaction(
                                slow.positions(), slow.group_metadata()
                            )
        assert await admin.group_offsets(topic) == {}


async def test_a_member_asks_again_for_a_share_that_it_could_not_start(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group counts on this member: without another join no member would read these partitions until the
    next rebalance."""
    await fill(bootstrap, topic, 4)
    async with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        with monkeypatch.context() as patch:

            async def unreachable(_topics: object) -> None:
                raise ConnectionFailed(ErrorCode.NETWORK_EXCEPTION, "no broker can be reached")

            patch.setattr(consumer, "_know_topics", unreachable)
            with pytest.raises(ConnectionFailed):
                await consumer.poll()
        assert sorted(await take(consumer, 4)) == [b"0", b"1", b"2", b"3"]  # type: ignore[type-var]


async def test_a_consumer_that_does_not_poll_gives_its_partitions_up(bootstrap: str, topic: str) -> None:
    options: dict[str, Any] = {"group_id": topic, "heartbeat_interval_ms": 50}
    async with (
        Consumer(bootstrap, **options, max_poll_interval_ms=300) as stuck,
        Consumer(bootstrap, **options) as other,
    ):
        stuck.subscribe(topic)
        await eventually(lambda: len(stuck.assignment()) == 4, stuck)
        other.subscribe(topic)
        await eventually(lambda: len(other.assignment()) == 4, other)
        lost: list[Collection[tuple[str, int]]] = []

        async def on_lost(partitions: Collection[tuple[str, int]]) -> None:
            lost.append(partitions)

        stuck.subscribe(topic, RebalanceListener(lost=on_lost))
        await eventually(lambda: len(stuck.assignment()) == 2, stuck, other)
        assert len(lost) == 1


async def test_a_static_member_keeps_its_partitions_over_a_restart(bootstrap: str, topic: str) -> None:
    options: dict[str, Any] = {"group_id": topic, "group_instance_id": "i-1", "heartbeat_interval_ms": 50}
    async with Consumer(bootstrap, **options) as consumer:
        consumer.subscribe(topic)
        await eventually(lambda: len(consumer.assignment()) == 4, consumer)
        generation = consumer.group_metadata().generation_id
    async with Consumer(bootstrap, **options) as again:
        again.subscribe(topic)
        await eventually(lambda: len(again.assignment()) == 4, again)
        assert again.group_metadata().generation_id == generation, "no rebalance"
        async with Consumer(bootstrap, **options) as usurper:
            usurper.subscribe(topic)
            await eventually(lambda: len(usurper.assignment()) == 4, usurper)
            with pytest.raises(FatalError, match=r"group\.instance\.id"):
                async with asyncio.timeout(20):
                    while True:
                        await again.poll(timeout_s=0.05)


async def test_read_committed_and_uncommitted_differ_by_what_is_open_or_aborted(
    bootstrap: str, topic: str
) -> None:
    key = (topic, 0)
    async with (
        Producer(bootstrap, transactional_id=topic, linger_ms=0) as producer,
        Consumer(bootstrap, auto_offset_reset="earliest") as careful,
        Consumer(bootstrap, auto_offset_reset="earliest", isolation="read_uncommitted") as eager,
    ):
        careful.assign([key])
        eager.assign([key])
        for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
            await producer.begin()
            await producer.send_and_wait(topic, value, partition=0)
            await (producer.commit() if commit else producer.abort())
        await producer.begin()
        await producer.send_and_wait(topic, b"open", partition=0)
        assert await take(eager, 4) == [b"a", b"b", b"c", b"open"]
        assert await take(careful, 2) == [b"a", b"c"]
        assert await careful.poll(timeout_s=0.2) == []
        end_committed = (await careful.end_offsets([key]))[key]
        assert end_committed < (await eager.end_offsets([key]))[key]
        await producer.commit()
        assert await take(careful, 1) == [b"open"]


async def test_consume_transform_produce_is_exactly_once_over_crashes(bootstrap: str, topic: str) -> None:
    """The worker is dropped in the middle of a transaction, again and again; input and output agree in the
    end."""
    out = topic + "-out"
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(out, 2, 1)])
    await fill(bootstrap, topic, 200)

    async def work(crash_after: int) -> bool:
        """True when the input is used up."""
        options: dict[str, Any] = {
            "auto_commit": False,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 600,
        }
        consumer = Consumer(bootstrap, group_id=topic, heartbeat_interval_ms=100, **options)
        producer = Producer(bootstrap, transactional_id=topic, linger_ms=0)
        try:
            await consumer.start()
            await producer.start()
            consumer.subscribe(topic)
            for turn in range(100):
                records = await consumer.poll(10, timeout_s=0.3)
                if not records and sum(consumer.positions().values()) == 200:
                    return True
                await producer.begin()
                for record in records:
                    await producer.send(out, record.value, key=record.key)
                await producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
                if turn == crash_after:
                    return False
                await producer.commit()
        finally:  # like a crash: no abort, no leave
            await producer._shut_down()
            await consumer._fetcher.close()
            if consumer._membership is not None:
                consumer._membership._stop_heartbeats()
            await consumer._cluster.close()
        return False

    async with asyncio.timeout(60):
        crash_after = 1
        while not await work(crash_after):
            crash_after += 2
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(out, 0), (out, 1)])
        values = await take(consumer, 200)
        assert sorted(int(value or b"") for value in values) == list(range(200))
        assert await consumer.poll(timeout_s=0.2) == []


async def test_admin_makes_changes_describes_and_deletes(bootstrap: str) -> None:
    name = f"t-{uuid4().hex[:8]}"
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name, 2, 1, {"max.message.bytes": "2000"})])
        with pytest.raises(RequestError, match="TOPIC_ALREADY_EXISTS.*" + name):
            await admin.create_topics([NewTopic(name, 2, 1)])
        with pytest.raises(RequestError, match=r"max\.message\.bytes"):
            await admin.create_topics([NewTopic(name + "x", 1, 1, {"max.mesage.bytes": "1"})])
        with pytest.raises(RequestError, match="INVALID_REPLICATION_FACTOR"):
            await admin.create_topics([NewTopic(name + "x", 1, 3)])
        await admin.create_partitions({name: 5})
        (described,) = await admin.describe_topics([name])
        assert len(described.partitions) == 5
        settings = {entry.name: (entry.value, entry.is_default) for entry in described.config}
        assert settings["max.message.bytes"] == ("2000", False)
        await admin.alter_config(name, {"max.message.bytes": None})
        await asyncio.sleep(0)
        assert name in [view.name for view in await admin.list_topics()]
        with pytest.raises(RequestError, match="topics create"):
            await admin.describe_topics(["no-such-topic"])
        with pytest.raises(KafkaError):
            await admin.describe_transaction("no-such-id")
        await admin.delete_topics([name])
        with pytest.raises(RequestError):
            await admin.describe_topics([name])
        cluster = await admin.describe_cluster()
        assert len(cluster.brokers) == 1
        assert admin.features["transaction.version"] == 2


async def test_admin_deletes_records_below_an_offset(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap, linger_ms=0) as producer, Admin(bootstrap) as admin:
        for _ in range(3):
            await producer.send_and_wait(topic, b"v", partition=0)
        assert await admin.delete_records({(topic, 0): 2, (topic, 1): -1}) == {(topic, 0): 2, (topic, 1): 0}
        assert await admin.beginning_offsets([(topic, 0)]) == {(topic, 0): 2}
        with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
            await admin.delete_records({(topic, 0): 4})


async def test_admin_sees_open_transactions(bootstrap: str, topic: str) -> None:
    async with (
        Producer(bootstrap, transactional_id=topic, linger_ms=0) as producer,
        Admin(bootstrap) as admin,
    ):
        await producer.begin()
        await producer.send_and_wait(topic, b"v", partition=1)
        described = await admin.describe_transaction(topic)
        assert (described.state, described.partitions) == ("Ongoing", {topic: [1]})
        identity = producer.identity
        assert (described.producer_id, described.producer_epoch) == (
            identity.producer_id,
            identity.producer_epoch,
        )
        (seen,) = await admin.describe_producers([(topic, 1)])
        assert seen.open_since_offset == 0
        assert topic in [entry.transactional_id for entry in await admin.list_transactions(["Ongoing"])]
        await producer.abort()
        assert topic not in [entry.transactional_id for entry in await admin.list_transactions(["Ongoing"])]


async def test_transactions_are_listed_by_producer_and_by_how_long_they_run(
    bootstrap: str, topic: str
) -> None:
    async with (
        Producer(bootstrap, transactional_id=topic, linger_ms=0) as producer,
        Admin(bootstrap) as admin,
    ):
        await producer.begin()
        await producer.send_and_wait(topic, b"v", partition=1)
        mine = [producer.identity.producer_id]
        assert [entry.transactional_id for entry in await admin.list_transactions(producer_ids=mine)] == [
            topic
        ]
        assert await admin.list_transactions(producer_ids=mine, running_for_ms=3_600_000) == []

        async def runs() -> bool:
            listed = await admin.list_transactions(running_for_ms=20)
            return [entry.transactional_id for entry in listed] == [topic]

        await wait_for(runs, "the transaction runs for 20 ms")
        await producer.abort()


async def test_an_administrator_takes_members_out_and_sets_and_forgets_offsets(
    bootstrap: str, topic: str
) -> None:
    group = f"g-{uuid4().hex[:8]}"
    static: dict[str, Any] = {
        "group_id": group,
        "session_timeout_ms": 60_000,
        "heartbeat_interval_ms": 100,
        "auto_commit": False,
    }
    first = Consumer(bootstrap, group_instance_id="a", **static)
    second = Consumer(bootstrap, group_instance_id="b", **static)
    async with first, second, asyncio.timeout(30):
        for consumer in (first, second):
            consumer.subscribe([topic])
        while (
            len(first.assignment()) + len(second.assignment()) != 4
            or not first.assignment()
            or not second.assignment()
        ):
            await asyncio.gather(first.poll(timeout_s=0.1), second.poll(timeout_s=0.1))
        await first.commit({(topic, 0): 1})
    # Static members that close stay in their group until their sessions end.
    async with Admin(bootstrap) as admin:
        assert len((await admin.describe_group(group)).members) == 2
        assert group not in [entry.group_id for entry in await admin.list_groups(["Empty"])]
        assert group not in [entry.group_id for entry in await admin.list_groups(types=["consumer"])]
        (listed,) = [entry for entry in await admin.list_groups(types=["classic"]) if entry.group_id == group]
        assert (listed.protocol_type, listed.type) == ("consumer", "classic")
        with pytest.raises(RequestError, match=r"NON_EMPTY_GROUP.*stop them first"):
            await admin.set_group_offsets(group, {(topic, 0): 3})
        with pytest.raises(RequestError, match=f"GROUP_SUBSCRIBED_TO_TOPIC.*{topic}-0"):
            await admin.delete_group_offsets(group, [(topic, 0)])
        with pytest.raises(RequestError, match=r"UNKNOWN_MEMBER_ID.*nobody.*no such member"):
            await admin.remove_group_members(group, instance_ids=["a", "nobody"])
        assert [member.group_instance_id for member in (await admin.describe_group(group)).members] == ["b"]
        await admin.remove_group_members(group, instance_ids=["b"])
        assert group in [entry.group_id for entry in await admin.list_groups(["Empty"])]
        await admin.set_group_offsets(group, {(topic, 0): 3, (topic, 1): 5})
        await admin.delete_group_offsets(group, [(topic, 0)])
        assert {key: entry.offset for key, entry in (await admin.group_offsets(group)).items()} == {
            (topic, 1): 5
        }
        await admin.delete_group(group)
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND"):
            await admin.delete_group(group)


def test_members_without_an_instance_are_taken_out_by_their_ids(bootstrap: str) -> None:
    """The blocking facade does the same as the asyncio client."""
    topic, group = f"t-{uuid4().hex[:8]}", f"g-{uuid4().hex[:8]}"
    with blocking.Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        with blocking.Consumer(bootstrap, group_id=group, auto_commit=False) as consumer:
            consumer.subscribe(topic)
            while not consumer.assignment():
                consumer.poll(timeout_s=0.1)
            (member,) = admin.describe_group(group).members
            admin.remove_group_members(group, member_ids=[member.member_id])
            with pytest.raises(GroupChanged):
                consumer.commit({(topic, 0): 1})
        admin.set_group_offsets(group, {(topic, 0): 2})
        assert admin.list_groups(["empty"], ["classic"])
        assert admin.group_offsets(group)[topic, 0].offset == 2
        admin.delete_group_offsets(group, [(topic, 0)])
        assert admin.group_offsets(group) == {}


async def test_an_idempotent_producer_goes_on_when_its_topic_is_made_anew(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin, Producer(bootstrap, linger_ms=0, batch_bytes=200) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"old %d" % number, partition=0)
        await admin.delete_topics([topic])
        await admin.create_topics([NewTopic(topic, 4, 1)])
        futures = [await producer.send(topic, b"%d" % number, partition=0) for number in range(100)]
        assert [(await future).offset for future in futures] == list(range(100))
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert await take(consumer, 100) == [b"%d" % number for number in range(100)]


def test_the_blocking_facade_does_the_same(bootstrap: str) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    with blocking.Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        assert topic in [view.name for view in admin.list_topics()]
    with blocking.Producer(bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            futures = producer.send_all(topic, [blocking.Send(b"%d" % number) for number in range(1200)])
        assert [future.result(5).offset for future in futures] == list(range(1200))
        with pytest.raises(ZeroDivisionError), producer.transaction():
            assert producer.send_and_wait(topic, b"never").offset == 1201
            raise ZeroDivisionError
    with blocking.Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        for record in consumer:
            if record.offset == 99:
                assert consumer.positions() == {(topic, 0): 100}
                consumer.commit()
                break
    with blocking.Consumer(bootstrap, group_id=topic) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(1, 10)[0].offset == 100
        assert consumer.group_metadata() != GroupMetadata(topic)


def test_the_command_line_end_to_end(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"t-{uuid4().hex[:8]}"

    monkeypatch.setenv("TIDEGATE_BOOTSTRAP", bootstrap)

    def call(*arguments: str, text: str = "", code: int = 0) -> str:
        done = CliRunner().invoke(build(arguments), list(arguments), input=text)
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.stderr

    assert call("topics", "create", topic, "-p", "2", "--config", "max.message.bytes=2000").startswith(
        f"created {topic}: 2"
    )
    assert "TOPIC_ALREADY_EXISTS" in call("topics", "create", topic, code=1)
    assert topic in call("topics", "list")
    call("produce", topic, "-s", ":", text="a:1\nb:2\nc:3\n")
    values = call("consume", topic, "--from-beginning", "--idle", "0", "--keys").splitlines()
    assert sorted(values) == ["a\t1", "b\t2", "c\t3"]
    found = [
        json.loads(line)
        for line in call("consume", topic, "--from-beginning", "--max", "2", "--json").splitlines()
    ]
    assert len(found) == 2
    assert found[0]["topic"] == topic
    call("consume", topic, "--from-beginning", "--max", "3", "--group", topic)
    group = json.loads(call("groups", "describe", topic, "--json"))
    assert sum(row["committed"] for row in group["partitions"]) == 3
    assert all(row["lag"] == 0 for row in group["partitions"])
    assert topic in call("groups", "list")
    described = json.loads(call("topics", "describe", topic, "--json"))
    assert sum(part["high_watermark"] for part in described[0]["partitions"]) == 3
    assert "MESSAGE_TOO_LARGE" in call("produce", topic, "x" * 3000, code=1)
    call("produce", topic, "d", "--transactional-id", topic)
    # a commit is answered when it is decided; the markers follow (docs/semantics.md T11)
    deadline = time.monotonic() + 20
    while "Complete" not in (shown := call("txns", "describe", topic)):
        assert time.monotonic() < deadline, shown
    assert json.loads(call("status", "--json"))["leaderless"] == 0
    assert call("groups", "describe", "nope", code=1).startswith(
        "error: GROUP_ID_NOT_FOUND: group 'nope' does not exist"
    )
    said = call("topics", "create", topic + "-a", topic, topic + "-b", code=1)
    assert said.count("TOPIC_ALREADY_EXISTS") == 1
    assert f"it was done for {topic}-a, {topic}-b" in said
    call("topics", "delete", topic)
    assert "topics create" in call("topics", "describe", topic, code=1)


async def test_a_reader_of_the_output_that_has_gone_is_no_error(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 2000, partition=0)
    command = [sys.executable, "-m", "tidegate.client.command_line", "consume", topic, "--from-beginning"]
    process = await asyncio.create_subprocess_exec(
        *command, "--bootstrap", bootstrap, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert await process.stdout.readline() == b"0\n"
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # what `head -1` does
    while process.returncode is None:  # it notices with the next record that it prints
        await fill(bootstrap, topic, 1, partition=0)
        await asyncio.sleep(0.02)
    assert process.returncode == 141
    assert await process.stderr.read() == b""


async def test_a_terminal_that_cannot_show_a_character_shows_its_escape(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap) as producer:
        await producer.send_and_wait(topic, "grün \N{SNOWMAN}", partition=0)
        await producer.send_and_wait(topic, b"\xff", partition=0)
    command = [
        sys.executable,
        "-m",
        "tidegate.client.command_line",
        "consume",
        topic,
        "--from-beginning",
        "--idle",
        "0",
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        "--bootstrap",
        bootstrap,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"gr\\xfcn \\u2603\n\\xff\n")
