"""librdkafka in consumer groups of the new protocol (KIP-848, group.protocol=consumer), unmodified, against
three nodes.

The cluster is this module's own: members are killed, and the coordinator with them; so sessions are short.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.administration.group_descriptions import GroupDescription
from tidegate.node.cluster.internal_topics import CONSUMER_OFFSETS, partition_for
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.tests.started import started

from .protocol_cases import fresh

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("consumer-groups"), pytest.mark.timeout(240)]

SETTINGS = {
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 2_500,
    "broker.heartbeat.interval.ms": 300,
}
PARTITIONS = 6

# A member that is killed: it can neither leave nor commit.
MORTAL = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"})
consumer.subscribe([topic], on_assign=lambda _consumer, partitions: print(len(partitions), flush=True))
while True:
    consumer.poll(0.1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("consumer-groups"), nodes=3, settings=SETTINGS)
    with started(cluster):
        yield cluster


@pytest.fixture
async def topic(cluster: LocalCluster) -> str:
    name = fresh("shared")
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(name, PARTITIONS, 3, {"min.insync.replicas": "2"})])
    return name


@pytest.fixture
def make_reader(cluster: LocalCluster) -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(group: str, *topics: str, **settings: Any) -> Reader:
        readers.append(Reader(cluster.bootstrap, group, topics, settings))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


class Reader:
    """A consumer on a thread of its own, which alone touches it: confluent-kafka waits for a commit with the
    interpreter's lock held, and a rebalance of the same consumer may need it.  `events` are the partitions
    that it gained (+) and gave up (-)."""

    def __init__(self, bootstrap: str, group: str, topics: tuple[str, ...], settings: dict[str, Any]) -> None:
        from confluent_kafka import Consumer

        self.values: list[bytes] = []
        self.events: list[str] = []
        self.held: set[tuple[str, int]] = set()
        self.errors: list[str] = []
        own = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
        self.consumer = Consumer({**own, "enable.auto.commit": False, **settings})
        self.consumer.subscribe(
            list(topics), on_assign=self._gained, on_revoke=self._lost, on_lost=self._lost
        )
        self._stop = threading.Event()
        self._jobs: queue.Queue[tuple[Callable[[Any], Any], Future[Any]]] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _gained(self, _consumer: Any, partitions: list[Any]) -> None:
        self.held |= {(each.topic, each.partition) for each in partitions}
        if partitions:
            self.events.append("+" + ",".join(str(each.partition) for each in sorted(partitions)))

    def _lost(self, _consumer: Any, partitions: list[Any]) -> None:
        self.held -= {(each.topic, each.partition) for each in partitions}
        if partitions:
            self.events.append("-" + ",".join(str(each.partition) for each in sorted(partitions)))

    def _run(self) -> None:
        while not self._stop.is_set():
            while not self._jobs.empty():
                job, answer = self._jobs.get()
                try:
                    answer.set_result(job(self.consumer))
                except Exception as error:
                    answer.set_exception(error)
            message = self.consumer.poll(0.05)
            if message is None:
                continue
            if message.error():
                self.errors.append(str(message.error()))
            else:
                self.values.append(message.value())  # type: ignore[arg-type]

        self.consumer.close()

    def ask(self, job: Callable[[Any], Any]) -> Any:
        """What `job(consumer)` returns or raises, done between two polls."""
        answer: Future[Any] = Future()
        self._jobs.put((job, answer))
        return answer.result(60)

    def commit(self) -> None:
        """The coordinator may have to be looked for first, or the epoch may just have moved on."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + 60
        while True:
            try:
                self.ask(lambda consumer: consumer.commit(asynchronous=False))
                return
            except KafkaException:
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


def shared(readers: list[Reader], partitions: int = PARTITIONS) -> bool:
    """Each partition is held by one of them, and as many by each as can be."""
    held = [each for reader in readers for each in reader.held]
    sizes = [len(reader.held) for reader in readers]
    return len(held) == len(set(held)) == partitions and max(sizes) - min(sizes) <= 1


def produce(cluster: LocalCluster, topic: str, values: list[bytes]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number, value in enumerate(values):
        producer.produce(topic, value=value, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def committed(cluster: LocalCluster, group: str, topic: str) -> dict[int, int]:
    from confluent_kafka import Consumer, TopicPartition

    asking = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        places = asking.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], timeout=20)
        return {place.partition: place.offset for place in places if place.offset >= 0}
    finally:
        asking.close()


async def described_by_our_client(cluster: LocalCluster, group: str) -> GroupDescription:
    async with Admin(cluster.bootstrap) as admin:
        return await admin.describe_group(group)


async def coordinator_of(cluster: LocalCluster, group: str) -> LocalNode:
    async with Admin(cluster.bootstrap) as admin:
        views = {view.name: view for view in await admin.list_topics(internal=True)}
    partitions = views[CONSUMER_OFFSETS].partitions
    return cluster.node(partitions[partition_for(group, len(partitions))].leader)


def test_members_that_come_and_go_share_and_only_what_moves_stops(
    cluster: LocalCluster, topic: str, make_reader: Callable[..., Reader]
) -> None:
    group = fresh("group")
    first = make_reader(group, topic)
    until(lambda: shared([first]), "one has all")
    second = make_reader(group, f"^{topic}$")  # by a regular expression
    until(lambda: shared([first, second]), "two share")
    third = make_reader(group, topic)
    until(lambda: shared([first, second, third]), "three share")
    produce(cluster, topic, [b"%d" % number for number in range(120)])
    all_readers = [first, second, third]
    until(lambda: sum(len(reader.values) for reader in all_readers) == 120, "all is read")
    for reader in all_readers:
        reader.commit()
    assert committed(cluster, group, topic) == dict.fromkeys(range(PARTITIONS), 20)
    described = asyncio.run(described_by_our_client(cluster, group))
    assert (described.state, described.protocol, len(described.members)) == ("Stable", "uniform", 3)
    assert sorted(number for member in described.members for number in member.assignment[topic]) == list(
        range(PARTITIONS)
    )
    second.close()
    until(lambda: shared([first, third]), "the others have what was left")
    assert not [error for reader in all_readers for error in reader.errors]
    # Sticky: the first one gave up a part, twice, and never took anything back that it had given up before it
    # was free.
    assert [event[0] for event in first.events] == ["+", "-", "-", "+"], first.events


def test_a_member_that_is_killed_is_replaced_when_its_session_ends(
    cluster: LocalCluster, topic: str, make_reader: Callable[..., Reader]
) -> None:
    group = fresh("group")
    line = [sys.executable, "-c", MORTAL, cluster.bootstrap, group, topic]
    mortal = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert mortal.stdout is not None
        assert mortal.stdout.readline().strip() == str(PARTITIONS)
        reader = make_reader(group, topic)
        until(lambda: len(reader.held) == PARTITIONS // 2, "they share")
    finally:
        mortal.kill()
        mortal.wait()
    killed_at = time.monotonic()
    until(lambda: shared([reader]), "the survivor has all")
    assert time.monotonic() - killed_at > 1, "by the session, not by the connection"
    produce(cluster, topic, [b"%d" % number for number in range(12)])
    until(lambda: len(reader.values) == 12, "all is read")


async def test_a_coordinator_that_moves_takes_the_group_with_it(
    cluster: LocalCluster, topic: str, make_reader: Callable[..., Reader]
) -> None:
    """No member joins again and no partition moves, when the coordinator dies and when the restarted node
    coordinates again: the successor knows members, epochs and assignments from the log."""
    group = fresh("group")
    readers = [make_reader(group, topic), make_reader(group, topic)]
    await asyncio.to_thread(until, lambda: shared(readers), "they share")
    before = [list(reader.events) for reader in readers]
    await asyncio.to_thread(produce, cluster, topic, [b"before-%d" % number for number in range(60)])
    await asyncio.to_thread(until, lambda: sum(len(reader.values) for reader in readers) == 60, "all is read")
    for reader in readers:
        await asyncio.to_thread(reader.commit)
    node = await coordinator_of(cluster, group)
    node.kill()
    await node.wait_exit()
    await asyncio.to_thread(produce, cluster, topic, [b"after-%d" % number for number in range(60)])
    await asyncio.to_thread(
        until, lambda: sum(len(reader.values) for reader in readers) >= 120, "all is read again"
    )
    for reader in readers:
        await asyncio.to_thread(reader.commit)
    assert await asyncio.to_thread(committed, cluster, group, topic) == dict.fromkeys(range(PARTITIONS), 20)
    assert sum(len(reader.values) for reader in readers) == 120, "none is read twice"
    await node.start()
    await node.wait_ready()
    async with Admin(cluster.bootstrap) as admin:
        await _until_in_sync(admin, group, node)
        await admin.elect_leaders([(CONSUMER_OFFSETS, await _offsets_partition(admin, group))])
    assert await coordinator_of(cluster, group) is node
    await asyncio.to_thread(_two_sessions, readers)
    assert [reader.events for reader in readers] == before
    assert shared(readers)


async def _offsets_partition(admin: Admin, group: str) -> int:
    views = {view.name: view for view in await admin.list_topics(internal=True)}
    return partition_for(group, len(views[CONSUMER_OFFSETS].partitions))


async def _until_in_sync(admin: Admin, group: str, node: LocalNode) -> None:
    number = await _offsets_partition(admin, group)
    async with asyncio.timeout(60):
        while True:
            views = {view.name: view for view in await admin.list_topics(internal=True)}
            if node.id in views[CONSUMER_OFFSETS].partitions[number].in_sync_replicas:
                return
            await asyncio.sleep(0.1)


def _two_sessions(readers: list[Reader]) -> None:
    """A member from which the coordinator received nothing would be removed meanwhile."""
    until_s = time.monotonic() + 2 * SETTINGS["group.consumer.session.timeout.ms"] / 1000
    while time.monotonic() < until_s:
        assert shared(readers)
        time.sleep(0.1)


def test_a_restarted_static_member_gets_its_partitions_without_a_rebalance(
    cluster: LocalCluster, topic: str, make_reader: Callable[..., Reader]
) -> None:
    group = fresh("group")
    first = make_reader(group, topic, **{"group.instance.id": "one"})
    second = make_reader(group, topic, **{"group.instance.id": "two"})
    until(lambda: shared([first, second]), "they share")
    had, events = set(first.held), list(second.events)
    first.close()
    again = make_reader(group, topic, **{"group.instance.id": "one"})
    until(lambda: again.held == had, "it is back where it was")
    assert second.events == events


def test_offsets_in_transactions_are_fenced_by_the_member_epoch(
    cluster: LocalCluster, topic: str, make_reader: Callable[..., Reader]
) -> None:
    """KIP-447 with KIP-848: what a member read before it lost its partitions cannot be committed by it any
    more."""
    from confluent_kafka import KafkaException, Producer, TopicPartition

    group = fresh("group")
    produce(cluster, topic, [b"%d" % number for number in range(60)])
    reader = make_reader(group, topic)
    until(lambda: len(reader.values) == 60, "all is read")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": fresh("transaction")})
    producer.init_transactions(30)
    metadata = reader.ask(lambda consumer: consumer.consumer_group_metadata())
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, number, 5) for number in range(PARTITIONS)], metadata, 30
    )
    producer.commit_transaction(30)
    assert committed(cluster, group, topic) == dict.fromkeys(range(PARTITIONS), 5)
    other = make_reader(group, topic)
    until(lambda: shared([reader, other]), "they share: the epoch has moved on")
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], metadata, 30)
        producer.commit_transaction(30)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(30)
    now = reader.ask(lambda consumer: consumer.consumer_group_metadata())
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 9)], now, 30)
    producer.commit_transaction(30)
    assert committed(cluster, group, topic)[0] == 9


async def test_new_partitions_and_new_topics_are_given_out(
    cluster: LocalCluster, topic: str, make_reader: Callable[..., Reader]
) -> None:
    reader = make_reader(fresh("group"), f"^{topic}.*")
    await asyncio.to_thread(until, lambda: shared([reader]), "it has all")
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_partitions({topic: PARTITIONS + 2})
        await admin.create_topics([NewTopic(f"{topic}-two", 3, 3, {"min.insync.replicas": "2"})])
        await asyncio.to_thread(until, lambda: len(reader.held) == PARTITIONS + 5, "it has the new ones, too")
        await admin.delete_topics([f"{topic}-two"])
        await asyncio.to_thread(
            until, lambda: len(reader.held) == PARTITIONS + 2, "it gave up those that are gone"
        )


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_reading_group_migrates_to_the_new_protocol_and_back_by_member(
    cluster: LocalCluster, topic: str, make_reader: Callable[..., Reader], strategy: str
) -> None:
    """KIP-848's online migration: members of both protocols share the partitions, and each record is read."""
    group = fresh("group")
    classic = {
        "group.protocol": "classic", "partition.assignment.strategy": strategy, "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 300,
    }  # fmt: skip
    produced: set[bytes] = set()
    all_readers: list[Reader] = []

    def join(**settings: Any) -> Reader:
        all_readers.append(make_reader(group, topic, **settings))
        return all_readers[-1]

    def all_is_read_by(members: list[Reader], what: str) -> None:
        values = [b"%s-%d" % (what.encode(), number) for number in range(60)]
        produce(cluster, topic, values)
        produced.update(values)
        until(
            lambda: produced <= {value for reader in all_readers for value in reader.values},
            f"all is read {what}",
        )
        for reader in members:
            reader.commit()
        assert committed(cluster, group, topic) == dict.fromkeys(
            range(PARTITIONS), len(produced) // PARTITIONS
        )

    a, b = join(**classic), join(**classic)
    until(lambda: shared([a, b]), "the classic members share")
    all_is_read_by([a, b], "before")
    c = join()
    until(lambda: shared([a, b, c]), "a consumer member shares with them")
    all_is_read_by([a, b, c], "together")
    a.close()
    d = join()
    until(lambda: shared([b, c, d]), "the next was replaced")
    b.close()
    until(lambda: shared([c, d]), "the last classic member has gone")
    all_is_read_by([c, d], "moved")
    e = join(**classic)
    until(lambda: shared([c, d, e]), "a classic member is back")
    c.close()
    d.close()
    until(lambda: shared([e]), "the last consumer member has gone", 90)
    all_is_read_by([e], "back")
    assert asyncio.run(described_by_our_client(cluster, group)).protocol == strategy
    assert not [error for reader in all_readers for error in reader.errors]
