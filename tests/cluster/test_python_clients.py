"""The Kafka clients of Python, unmodified, against three nodes: transactions, groups and offsets, the same
for all of them.

What each of them does alone (codecs, administration) is in test_real_clients.py and
test_real_admin_clients.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.processes.local_cluster import LocalCluster

from .python_clients import (
    Aiokafka,
    Client,
    ConfluentKafka,
    Found,
    KafkaPython,
    Member,
    Producer,
    Reader,
    Work,
    leaving,
    until,
    until_they_share,
)

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("python-clients"), pytest.mark.timeout(180)]

ALL = [ConfluentKafka, KafkaPython, Aiokafka]
WITH_KIP_447 = pytest.mark.parametrize("client", [ConfluentKafka, KafkaPython], indirect=True)
MakeTopic = Callable[..., str]


@pytest.fixture(params=ALL, ids=lambda kind: kind.__name__)
def client(request: pytest.FixtureRequest, shared_cluster: LocalCluster) -> Iterator[Client]:
    made = request.param(shared_cluster.bootstrap)
    yield made
    if isinstance(made, Aiokafka):
        made.close()


def read(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    """Everything committed, sorted; a commit is answered before its markers (docs/semantics.md T11), so the
    last may need a moment."""
    reader = ConfluentKafka(cluster.bootstrap).reader(topic, None)
    found: list[bytes] = []

    def all_found() -> bool:
        found.extend(value for _partition, _offset, value in reader.poll())
        return len(found) >= count

    try:
        until(f"{count} records are read", all_found)
        for _ in range(3):
            found.extend(value for _partition, _offset, value in reader.poll())
    finally:
        reader.close()
    return sorted(found)


def fill(client: Client, topic: str, partitions: int, values: list[bytes]) -> None:
    """Round the partitions, ten records a transaction."""
    producer = client.producer(f"fill-{topic}")
    for first in range(0, len(values), 10):
        part = values[first : first + 10]
        producer.begin()
        for partition in range(partitions):
            producer.send(topic, partition, part[partition::partitions])
        producer.commit()
    producer.close()


def numbered(what: str, count: int) -> list[bytes]:
    return [b"%s-%03d" % (what.encode(), number) for number in range(count)]


def transform(producer: Producer, found: Found, source: str, target: str, group: Any) -> None:
    """A transaction with the output of these records and where reading goes on; not yet ended."""
    producer.begin()
    offsets = {}
    for partition in {partition for partition, _offset, _value in found}:
        part = [(offset, value) for where, offset, value in found if where == partition]
        producer.send(target, partition, [value.replace(b"in-", b"out-") for _offset, value in part])
        offsets[(source, partition)] = part[-1][0] + 1
    producer.move(offsets, group)


def read_again(found: Found, reader: Reader) -> None:
    first = {partition: offset for partition, offset, _value in reversed(found)}
    for partition in first.keys() & reader.assigned():
        reader.seek(partition, first[partition])


def group_offsets(cluster: LocalCluster, group: str) -> dict[int, int]:
    async def ask() -> dict[int, int]:
        async with Admin(cluster.bootstrap) as admin:
            return {
                partition: found.offset
                for (_topic, partition), found in (await admin.group_offsets(group)).items()
            }

    return asyncio.run(ask())


def transaction_state(cluster: LocalCluster, transactional_id: str) -> str:
    async def ask() -> str:
        async with Admin(cluster.bootstrap) as admin:
            return (await admin.describe_transaction(transactional_id)).state

    return asyncio.run(ask())


class TestTransactions:
    def test_a_second_instance_fences_the_first(
        self, client: Client, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        topic = make_topic(partitions=1)
        zombie = client.producer(topic)
        zombie.begin()
        zombie.send(topic, 0, [b"zombie"])
        second = client.producer(topic)
        assert client.refusal(zombie.commit) in client.fenced
        second.begin()
        second.send(topic, 0, [b"second"])
        second.commit()
        assert read(shared_cluster, topic, 1) == [b"second"]
        zombie.close()
        second.close()

    def test_a_transaction_past_its_timeout_is_aborted_and_the_next_is_good(
        self, client: Client, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        topic = make_topic(partitions=1)
        late = client.producer(topic, timeout_ms=3000)
        late.begin()
        late.send(topic, 0, [b"late"])
        until("it is aborted", lambda: transaction_state(shared_cluster, topic) == "CompleteAbort")
        assert client.refusal(late.commit) in client.fenced
        late.close()
        following = client.producer(topic)
        following.begin()
        following.send(topic, 0, [b"next"])
        following.commit()
        following.close()
        assert read(shared_cluster, topic, 1) == [b"next"]

    @WITH_KIP_447
    def test_offsets_move_with_the_output(
        self, client: Client, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        """The first transaction is aborted and its records are read again.  aiokafka's is in
        test_real_clients.py."""
        source, target = make_topic(partitions=2), make_topic(partitions=2)
        fill(client, source, 2, numbered("in", 60))
        producer, done = client.producer(target), []
        aborted: Found = []

        def work(found: Found, reader: Reader) -> None:
            transform(producer, found, source, target, reader.group())
            if aborted:
                producer.commit()
                done.extend(found)
            else:
                producer.abort()
                aborted.extend(found)
                read_again(found, reader)

        with leaving() as announce:
            member = announce(Member(lambda: client.reader(source, source), work))
            until("all is transformed", lambda: len(done) == 60 or member.failure is not None)
            assert member.failure is None
        producer.close()
        assert read(shared_cluster, target, 60) == numbered("out", 60)
        # markers lie between
        until("the offsets moved", lambda: group_offsets(shared_cluster, source) == {0: 35, 1: 35})

    @WITH_KIP_447
    def test_a_member_that_left_cannot_move_offsets(
        self, client: Client, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        """docs/semantics.md O5."""
        source, target = make_topic(partitions=1), make_topic(partitions=1)
        fill(client, source, 1, numbered("in", 5))
        reader, found = client.reader(source, source), []

        def some() -> bool:
            found.extend(reader.poll())
            return bool(found)

        until("it has read", some)
        group = reader.group()
        reader.close()
        producer = client.producer(target)
        assert client.refusal(lambda: transform(producer, found, source, target, group)) in client.left_behind
        producer.abort()
        producer.begin()
        producer.send(target, 0, [b"after"])
        producer.commit()
        producer.close()
        assert read(shared_cluster, target, 1) == [b"after"]
        assert group_offsets(shared_cluster, source) == {}


class TestGroups:
    def test_an_eager_group_shares_and_hands_over(self, client: Client, make_topic: MakeTopic) -> None:
        topic = make_topic(partitions=4)
        with leaving() as announce:
            one = announce(Member(lambda: client.reader(topic, topic)))
            until_they_share(4, one)
            two = announce(Member(lambda: client.reader(topic, topic)))
            until_they_share(4, one, two)
            assert one.assigned == {0, 1} or one.assigned == {2, 3}, "ranges"
            one.leave()
            until_they_share(4, two)

    @WITH_KIP_447
    def test_a_cooperative_group_gives_up_only_what_moves(
        self, client: Client, make_topic: MakeTopic
    ) -> None:
        """KIP-429: the first member is never seen without what it keeps.  aiokafka has no such assignor."""
        topic = make_topic(partitions=4)
        with leaving() as announce:
            one = announce(Member(lambda: client.reader(topic, topic, assignor="cooperative-sticky")))
            until_they_share(4, one)
            since = len(one.history)
            two = announce(Member(lambda: client.reader(topic, topic, assignor="cooperative-sticky")))
            until_they_share(4, one, two)
            kept = one.assigned
            assert len(kept) == 2
            assert all(kept <= assigned for assigned in one.history[since:])
            two.leave()
            until_they_share(4, one)
            assert all(kept <= assigned for assigned in one.history[since:])

    def test_a_static_member_comes_back_without_a_rebalance(
        self, client: Client, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        """KIP-345: its partitions wait for it, and the other member does not notice."""
        topic = make_topic(partitions=4)
        with leaving() as announce:
            one = announce(Member(lambda: client.reader(topic, topic, instance="one")))
            two = announce(Member(lambda: client.reader(topic, topic, instance="two")))
            until_they_share(4, one, two)
            had, noticed = one.assigned, len(two.history)
            one.leave()
            again = announce(Member(lambda: client.reader(topic, topic, instance="one")))
            until_they_share(4, again, two)
            assert again.assigned == had
            assert len(two.history) == noticed

    def test_nothing_is_lost_while_members_come_and_go(self, client: Client, make_topic: MakeTopic) -> None:
        source = make_topic(partitions=4)
        handled: list[bytes] = []

        def work(found: Found, reader: Reader) -> None:
            handled.extend(value for _partition, _offset, value in found)
            client.refusal(reader.commit)  # refused in a rebalance: another member reads these records again

        come_and_go(client, source, lambda: work, handled)

    @WITH_KIP_447
    def test_nothing_is_doubled_while_members_come_and_go(
        self, client: Client, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        source, target = make_topic(partitions=4), make_topic(partitions=4)
        handled: list[bytes] = []
        producers: list[Producer] = []

        def work_of_one() -> Work:
            producer = client.producer(f"{target}-{len(producers)}")
            producers.append(producer)

            def work(found: Found, reader: Reader) -> None:
                refused = client.refusal(lambda: transform(producer, found, source, target, reader.group()))
                if not refused:
                    producer.commit()
                    handled.extend(value for _partition, _offset, value in found)
                else:
                    assert refused in client.left_behind
                    producer.abort()
                    read_again(found, reader)

            return work

        sent = come_and_go(client, source, work_of_one, handled)
        for each in producers:
            each.close()
        assert read(shared_cluster, target, len(sent)) == sorted(
            value.replace(b"in-", b"out-") for value in sent
        )


def come_and_go(
    client: Client, source: str, work_of_one: Callable[[], Work], handled: list[bytes]
) -> list[bytes]:
    """Members join and leave while records are written.  When every record was handled, all of them."""
    with leaving() as announce, Feeder(client, source, 4) as feeder:

        def join() -> Member:
            work = work_of_one()
            return announce(Member(lambda: client.reader(source, source), work))

        one = join()
        until_they_share(4, one)
        two = join()
        until_they_share(4, one, two)
        one.leave()
        until_they_share(4, two)
        three = join()
        until_they_share(4, two, three)
        two.leave()
        until_they_share(4, three)
        sent = feeder.stop()
        until("every record is handled", lambda: set(sent) <= set(handled) or three.failure is not None)
        assert [each.failure for each in (one, two, three)] == [None, None, None]
    assert len(sent) >= 40
    return sent


class Feeder:
    """Writes numbered records, some to each partition, until it is stopped."""

    def __init__(self, client: Client, topic: str, partitions: int) -> None:
        self._producer = client.producer(f"feeder-{topic}")
        self._topic, self._partitions = topic, partitions
        self._running = True
        self._sent: list[bytes] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        try:
            while self._running:
                self._producer.begin()
                for partition in range(self._partitions):
                    values = [b"in-%d" % (len(self._sent) + number) for number in range(2)]
                    self._producer.send(self._topic, partition, values)
                    self._sent += values
                self._producer.commit()
        except Exception as error:
            self._failure = error

    def stop(self) -> list[bytes]:
        """All that was committed."""
        self._running = False
        self._thread.join(30)
        if self._failure is not None:
            raise self._failure
        return self._sent

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._thread.join(30)
        self._producer.close()


class TestOffsets:
    def test_committed_offsets_are_found_by_the_next_reader(
        self, client: Client, make_topic: MakeTopic
    ) -> None:
        topic = make_topic(partitions=1)
        fill(client, topic, 1, numbered("value", 10))
        with closing(client.reader(topic, topic)) as first:
            until("it is a member", lambda: bool(first.poll() or first.assigned()))
            assert first.committed(0) is None
            first.commit({0: (4, "half way")})
        with closing(client.reader(topic, topic)) as following:
            found: Found = []

            def rest() -> bool:
                found.extend(following.poll())
                return len(found) >= 6

            until("the rest is read", rest)
            assert [value for _partition, _offset, value in found] == numbered("value", 10)[4:]
            note = "" if isinstance(client, Aiokafka) else "half way"
            assert following.committed(0) == (4, note)

    @pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 11), ("none", None)])
    def test_a_reader_without_an_offset_is_reset(
        self, client: Client, make_topic: MakeTopic, reset: str, first: int | None
    ) -> None:
        topic = make_topic(partitions=1)
        fill(client, topic, 1, numbered("value", 10))
        with closing(client.reader(topic, topic, reset=reset)) as reader:
            found: Found = []

            def some() -> bool:
                if reset == "latest":
                    fill(client, topic, 1, [b"new"])
                found.extend(reader.poll())
                return bool(found)

            refused = client.refusal(lambda: until("a record", some))
            if first is None:
                assert refused in client.no_offset
            else:
                assert refused == ""
                assert found[0][1] >= first
                assert (found[0][2] == b"new") is (reset == "latest")

    def test_offsets_are_found_by_time(self, client: Client, make_topic: MakeTopic) -> None:
        topic = make_topic(partitions=1)
        before = int(time.time() * 1000)
        fill(client, topic, 1, numbered("value", 10))
        with closing(client.reader(topic, None)) as reader:
            until("it knows the topic", lambda: bool(reader.poll()))
            assert reader.offset_at(0, before - 1000) == 0
            assert reader.offset_at(0, before + 60_000) is None
