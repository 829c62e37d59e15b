"""Groups that rebalance without stopping (KIP-429): our consumers among themselves, and together with
librdkafka's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator
from typing import Any
from uuid import uuid4

import confluent_kafka
import pytest
from tidegate.client import Admin, Consumer, LocalCluster, NewTopic, Producer, RebalanceListener
from tidegate.tests.eventually import eventually
from tidegate.tests.started import started

pytestmark = pytest.mark.cluster
PARTITIONS = 6
Places = set[tuple[str, int]]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 500}
    cluster = LocalCluster(tmp_path_factory.mktemp("cooperative"), nodes=1, settings=settings)
    with started(cluster):
        yield cluster.bootstrap


@pytest.fixture
async def topic(bootstrap: str) -> str:
    name = f"t-{uuid4().hex[:8]}"
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    return name


class Member:
    """A consumer that polls by itself, with the events of its rebalance listener."""

    def __init__(
        self, bootstrap: str, topic: str, assignors: tuple[str, ...] = ("cooperative-sticky",), **more: Any
    ) -> None:
        self.consumer = Consumer(
            bootstrap,
            group_id=topic,
            heartbeat_interval_ms=50,
            auto_offset_reset="earliest",
            assignors=assignors,
            **more,
        )
        self.topic = topic
        self.events: list[tuple[str, Places]] = []
        self.values: list[bytes | None] = []
        self._polling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Member:
        def note(what: str) -> Any:
            async def events(partitions: Collection[tuple[str, int]]) -> None:
                self.events.append((what, set(partitions)))

            return events

        await self.consumer.start()
        self.consumer.subscribe(
            self.topic, RebalanceListener(note("assigned"), note("revoked"), note("lost"))
        )
        self._polling = asyncio.create_task(self._poll())
        return self

    async def _poll(self) -> None:
        while True:
            self.values += [record.value for record in await self.consumer.poll(timeout_s=0.2)]

    async def __aexit__(self, *_: object) -> None:
        assert self._polling is not None
        self._polling.cancel()
        await asyncio.gather(self._polling, return_exceptions=True)
        await self.consumer.close()

    @property
    def holds(self) -> Places:
        return {tuple(each) for each in self.consumer.assignment()}  # type: ignore[misc]

    def gone(self) -> Places:
        return set().union(*(partitions for what, partitions in self.events if what != "assigned"))


async def fill(bootstrap: str, topic: str, first: int, count: int) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(first, first + count):
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


async def test_what_stays_is_read_on_and_what_moves_is_read_once(bootstrap: str, topic: str) -> None:
    await fill(bootstrap, topic, 0, 60)
    async with Member(bootstrap, topic) as first:
        await eventually(lambda: len(first.holds) == PARTITIONS and len(first.values) == 60)
        async with Member(bootstrap, topic) as second:
            await eventually(lambda: len(first.holds) == len(second.holds) == PARTITIONS // 2)
            assert first.holds.isdisjoint(second.holds)
            assert first.gone() == second.holds, "only what moved was given up"
            assert [what for what, _ in first.events].count("revoked") == 1
            assert second.gone() == set()
            await fill(bootstrap, topic, 60, 60)
            await eventually(lambda: len(first.values) + len(second.values) == 120)
            kept = set(first.holds)
        await eventually(lambda: len(first.holds) == PARTITIONS)
        assert not first.gone() & kept
        assert first.events[-1] == ("assigned", first.holds - kept)
        assert sorted(first.values + second.values, key=lambda value: int(value or b"")) == [
            b"%d" % n for n in range(120)
        ]


async def test_a_member_that_was_removed_has_lost_what_it_held(bootstrap: str, topic: str) -> None:
    async with Member(bootstrap, topic, session_timeout_ms=30_000, max_poll_interval_ms=60_000) as member:
        await eventually(lambda: len(member.holds) == PARTITIONS)
        membership = member.consumer._membership
        assert membership is not None
        async with Member(bootstrap, topic) as other:
            await eventually(lambda: len(other.holds) == PARTITIONS // 2)
            await membership.leave()  # as the coordinator would see it after a session without heartbeats
            membership.lost = True
            held = set(member.holds)
            await eventually(lambda: ("lost", held) in member.events and len(member.holds) == PARTITIONS // 2)
            await eventually(
                lambda: len(other.holds) == PARTITIONS // 2 and member.holds.isdisjoint(other.holds)
            )


async def test_with_another_assignor_beside_it_everything_is_given_up_first(
    bootstrap: str, topic: str
) -> None:
    """A member that may have to use `range` cannot keep a partition while it joins."""
    async with Member(bootstrap, topic, ("cooperative-sticky", "range")) as first:
        await eventually(lambda: len(first.holds) == PARTITIONS)
        async with Member(bootstrap, topic, ("range",)) as second:
            await eventually(lambda: len(first.holds) == len(second.holds) == PARTITIONS // 2)
            assert len(first.gone()) == PARTITIONS


@pytest.mark.parametrize("leader", ["ours", "theirs"])
async def test_together_with_librdkafka(bootstrap: str, topic: str, leader: str) -> None:
    """The first in the group leads, and shares out for both."""
    theirs: Places = set()
    over = threading.Event()
    settings = {
        "bootstrap.servers": bootstrap, "group.id": topic,
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 100, "auto.offset.reset": "earliest",
    }  # fmt: skip

    def run() -> None:
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([topic])
        while not over.is_set():
            consumer.poll(0.05)
            theirs.clear()
            theirs.update((each.topic, each.partition) for each in consumer.assignment())
        consumer.close()

    def shared(ours: Member) -> bool:
        return len(ours.holds) == PARTITIONS // 2 == len(theirs.copy()) and ours.holds.isdisjoint(
            theirs.copy()
        )

    thread = asyncio.create_task(asyncio.to_thread(run)) if leader == "theirs" else None
    if thread is not None:
        await eventually(lambda: len(theirs) == PARTITIONS)
    try:
        async with Member(bootstrap, topic) as ours:
            if thread is None:
                await eventually(lambda: len(ours.holds) == PARTITIONS)
                thread = asyncio.create_task(asyncio.to_thread(run))
            await eventually(lambda: shared(ours))
            if leader == "ours":
                assert len(ours.gone()) == PARTITIONS // 2
        await eventually(lambda: len(theirs.copy()) == PARTITIONS)
    finally:
        over.set()
        if thread is not None:
            await thread
