"""Partitions move between real nodes while they are written and read, and whatever happens to the nodes
(KIP-455).

The tests leave the cluster as whole as they found it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.client import Admin, Consumer, NewTopic, Producer
from tidegate.client.connecting.errors import RequestError
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode

from .protocol_cases import fresh
from .witness import log_of

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("roomy"), pytest.mark.timeout(180)]


@pytest.fixture
def cluster(roomy_cluster: LocalCluster) -> LocalCluster:
    return roomy_cluster


@pytest.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.bootstrap) as admin:
        yield admin


async def topic_on(admin: Admin, *replicas: int, partitions: int = 1, min_in_sync: int = 2) -> str:
    """A fresh topic of which every partition lies on `replicas`."""
    name = fresh("moved")
    await admin.create_topics(
        [NewTopic(name, partitions, len(replicas), {"min.insync.replicas": str(min_in_sync)})]
    )
    await admin.reassign_partitions({(name, number): replicas for number in range(partitions)})
    await settled(admin, name, replicas, range(partitions))
    return name


async def replicas_of(admin: Admin, name: str, number: int = 0) -> tuple[list[int], set[int], int]:
    (described,) = await admin.describe_topics([name], config=False)
    part = described.partitions[number]
    return list(part.replicas), set(part.in_sync_replicas), part.leader


async def settled(admin: Admin, name: str, replicas: tuple[int, ...], numbers: range = range(1)) -> None:
    """Waits until the partitions lie on exactly these replicas, all in sync."""

    async def there() -> bool:
        states = [await replicas_of(admin, name, number) for number in numbers]
        return all(state[0] == list(replicas) and state[1] == set(replicas) for state in states)

    await eventually(there, f"{name} on {replicas}", 60)
    assert name not in {move.topic for move in await admin.list_reassignments()}


class Load:
    """Writes numbered records with acks=all until it is stopped; every one must be acknowledged."""

    def __init__(self, cluster: LocalCluster, topic: str, size: int = 0) -> None:
        self._cluster, self._topic, self._size = cluster, topic, size
        self._stopping = False
        self.written = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Load:
        self._task = asyncio.create_task(self._write())
        await self.more(20)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        assert self._task is not None
        await self._task

    async def more(self, count: int) -> None:
        goal = self.written + count

        async def reached() -> bool:
            assert self._task is not None
            if self._task.done():
                self._task.result()
            return self.written >= goal

        await eventually(reached, f"{count} more records", 60)

    async def _write(self) -> None:
        async with Producer(self._cluster.bootstrap, acks="all") as producer:
            while not self._stopping:
                await producer.send_and_wait(
                    self._topic, b"%08d" % self.written + b"." * self._size, partition=0
                )
                self.written += 1


async def read_all(cluster: LocalCluster, topic: str) -> list[int]:
    found: list[int] = []
    async with Admin(cluster.bootstrap) as admin:
        end = (await admin.end_offsets([(topic, 0)]))[topic, 0]
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while await consumer.position((topic, 0)) < end:
            found += [int(bytes(record.value or b"")[:8]) for record in await consumer.poll()]
    return found


def folders(cluster: LocalCluster, topic: str) -> dict[int, bool]:
    """Which nodes have data of the topic's first partition on their disks."""
    return {node.id: bool(list(Path(node.data_path).glob(f"**/{topic}-0"))) for node in cluster.nodes}


async def test_a_partition_moves_under_load_and_leaves_nothing_behind(
    cluster: LocalCluster, admin: Admin
) -> None:
    topic = await topic_on(admin, 1, 2, 3)
    async with Load(cluster, topic) as load:
        await admin.reassign_partitions({(topic, 0): (4, 3, 2)})
        await settled(admin, topic, (4, 3, 2))
        assert (await replicas_of(admin, topic))[2] != 1, "the leader was handed over"
        await load.more(20)
    assert await read_all(cluster, topic) == list(range(load.written))

    async def gone() -> bool:
        return folders(cluster, topic) == {1: False, 2: True, 3: True, 4: True}

    await eventually(gone, "the removed replica's folder is deleted", 30)


async def test_one_replica_becomes_three_and_one_again(cluster: LocalCluster, admin: Admin) -> None:
    topic = await topic_on(admin, 1)
    async with Load(cluster, topic) as load:
        await admin.reassign_partitions({(topic, 0): (2, 3, 4)})
        await settled(admin, topic, (2, 3, 4))
        await load.more(10)
        await admin.reassign_partitions({(topic, 0): (3,)})
        await settled(admin, topic, (3,))
        await load.more(10)
    assert await read_all(cluster, topic) == list(range(load.written))


async def test_a_move_to_a_dead_broker_waits_shows_itself_and_is_cancelled(
    cluster: LocalCluster, admin: Admin
) -> None:
    topic = await topic_on(admin, 1, 2, 3)
    await cluster.node(4).terminate()
    try:
        async with Load(cluster, topic) as load:
            await admin.reassign_partitions({(topic, 0): (4, 1, 2)})
            (move,) = [move for move in await admin.list_reassignments() if move.topic == topic]
            assert (move.replicas, move.adding, move.removing) == ((1, 2, 3, 4), (4,), (3,))
            assert move.leader_bytes is not None
            assert move.leader_bytes > 0
            assert move.copied_bytes == 0
            await load.more(20)
            await admin.reassign_partitions({(topic, 0): None})
            await settled(admin, topic, (1, 2, 3))
            with pytest.raises(RequestError, match="does not move") as refused:
                await admin.reassign_partitions({(topic, 0): None})
            assert refused.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await read_all(cluster, topic) == list(range(load.written))
    finally:
        await cluster.node(4).start()
        await cluster.node(4).wait_ready()


async def test_moves_survive_a_dead_controller_and_a_restart_of_the_new_replica(
    cluster: LocalCluster, admin: Admin
) -> None:
    topic = await topic_on(admin, 1, 2, 3)
    await cluster.node(4).terminate()
    await admin.reassign_partitions({(topic, 0): (4, 1, 2)})
    controller = await cluster.active_controller()
    controller.kill()
    await controller.wait_exit()
    await controller.start()
    await controller.wait_ready()
    assert topic in {move.topic for move in await admin.list_reassignments()}, (
        "the next controller knows of it"
    )
    await cluster.node(4).start()
    await settled(admin, topic, (4, 1, 2))
    await cluster.node(4).wait_ready()


async def test_a_replica_moved_off_a_stopped_broker_is_deleted_at_its_return(
    cluster: LocalCluster, admin: Admin
) -> None:
    topic = await topic_on(admin, 1, 2, 4)
    await cluster.node(4).terminate()
    try:
        await admin.reassign_partitions({(topic, 0): (1, 2, 3)})
        await settled(admin, topic, (1, 2, 3))
        assert folders(cluster, topic)[4], "it cannot know yet"
    finally:
        await cluster.node(4).start()
        await cluster.node(4).wait_ready()
    assert not folders(cluster, topic)[4]
    assert "log_that_moved_away_removed" in log_of(cluster, 4)


async def test_a_topic_that_moves_is_deleted(cluster: LocalCluster, admin: Admin) -> None:
    topic = await topic_on(admin, 1, 2, 3)
    await cluster.node(4).terminate()
    try:
        await admin.reassign_partitions({(topic, 0): (4, 1, 2)})
        await admin.delete_topics([topic])
        assert topic not in {move.topic for move in await admin.list_reassignments()}
    finally:
        await cluster.node(4).start()
        await cluster.node(4).wait_ready()

    async def gone() -> bool:
        return not any(folders(cluster, topic).values())

    await eventually(gone, "every folder is deleted", 30)


async def test_many_partitions_move_at_once_and_one_refusal_holds_up_no_other(
    cluster: LocalCluster, admin: Admin
) -> None:
    topic = await topic_on(admin, 1, 2, 3, partitions=12)
    targets: dict[tuple[str, int], tuple[int, ...]] = {(topic, number): (2, 3, 4) for number in range(12)}
    with pytest.raises(RequestError, match=r"unknown brokers \[77\]"):
        await admin.reassign_partitions({**targets, (topic, 0): (77,)})
    await settled(admin, topic, (2, 3, 4), range(1, 12))
    assert (await replicas_of(admin, topic))[0] == [1, 2, 3]


async def test_the_state_topics_move_and_transactions_go_on(cluster: LocalCluster, admin: Admin) -> None:
    topic = await topic_on(admin, 1, 2, 3)
    async with Producer(cluster.bootstrap, transactional_id=fresh("mover")) as producer:
        for number in range(30):
            async with producer.transaction():
                await producer.send(topic, b"%08d" % number, partition=0)
            if number == 5:
                (state,) = await admin.describe_topics(["__transaction_state"], config=False)
                targets = {
                    (state.name, part.partition): ((part.partition % 3) + 2, 1) for part in state.partitions
                }
                await admin.reassign_partitions(targets)
        await eventually(lambda: _nothing_moves(admin), "the state topic has moved", 60)
        for number in range(30, 40):
            async with producer.transaction():
                await producer.send(topic, b"%08d" % number, partition=0)
    assert await read_all(cluster, topic) == list(range(40))


async def _nothing_moves(admin: Admin) -> bool:
    return not await admin.list_reassignments()


async def test_kafka_python_moves_lists_and_cancels(cluster: LocalCluster, admin: Admin) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    topic = await topic_on(admin, 1, 2, 3)
    await cluster.node(4).terminate()
    try:
        theirs = await asyncio.to_thread(lambda: KafkaAdminClient(bootstrap_servers=cluster.bootstrap))
        key = TopicPartition(topic, 0)
        await asyncio.to_thread(theirs.alter_partition_reassignments, {key: [1, 2, 4]})
        listed = await asyncio.to_thread(theirs.list_partition_reassignments)
        assert topic in str(listed)
        assert "4" in str(listed)
        await asyncio.to_thread(theirs.alter_partition_reassignments, {key: None})
        await settled(admin, topic, (1, 2, 3))
        assert topic not in str(await asyncio.to_thread(theirs.list_partition_reassignments))
        await asyncio.to_thread(theirs.close)
    finally:
        await cluster.node(4).start()
        await cluster.node(4).wait_ready()
