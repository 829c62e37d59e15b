"""Producer epochs that are used up after four transactions instead of 32,767 (docs/semantics.md T7).

Each client goes through several producer ids here, by each way that leads to one: a new instance, the end of
a transaction under TV2, a fence, a timeout.  What it wrote is read exactly once or not at all, and nothing
hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.clock import SystemClock

from .programs import CASE_TIMEOUT_S, at_work, numbered
from .python_clients import Aiokafka, Client, ConfluentKafka, KafkaPython, until
from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("worn-epochs"), pytest.mark.timeout(180)]

MAX_EPOCH = 4
JAVA_CASES = {
    "abortedRecordsAreNeverRead": {
        "committed": [value for each in range(3) for value in numbered(f"committed-{each}", 5)],
    },
    "aSecondInstanceFencesTheFirst": {"committed": ["second"]},
    "offsetsMoveWithTheOutput": {"committed": numbered("out", 60), "offsets": {"0": 30, "1": 30}},
}


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"transaction.max.producer.epoch": MAX_EPOCH, "group.initial.rebalance.delay.ms": 100}
    with kept_up(LocalCluster(tmp_path_factory.mktemp("worn"), nodes=3, settings=settings)) as cluster:
        yield cluster


@pytest.fixture
def topic(worn: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)

    async def make() -> None:
        async with Admin(worn.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 2, 3, {"min.insync.replicas": "2"})])

    asyncio.run(make())
    return name


@pytest.fixture(params=[ConfluentKafka, KafkaPython, Aiokafka], ids=lambda kind: kind.__name__)
def client(request: pytest.FixtureRequest, worn: LocalCluster) -> Iterator[Client]:
    made: Client = request.param(worn.bootstrap)
    yield made
    if isinstance(made, Aiokafka):
        made.close()


async def _read(bootstrap: str, topic: str) -> list[bytes]:
    """Everything committed, once nothing is open any more."""
    places = [(topic, 0), (topic, 1)]
    async with (
        Admin(bootstrap) as admin,
        Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(60),
    ):
        while await admin.end_offsets(places) != (
            ends := await admin.end_offsets(places, read_committed=True)
        ):
            await SystemClock().sleep(0.02)
        assert await admin.hanging_transactions(places, idle_ms=0) == []
        consumer.assign(places)
        found: list[bytes] = []
        while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
            found += [record.value or b"" for record in await consumer.poll(timeout_s=0.2)]
    return sorted(found)


async def _producer_id(bootstrap: str, transactional_id: str) -> int:
    async with Admin(bootstrap) as admin:
        return (await admin.describe_transaction(transactional_id)).producer_id


async def test_our_own_client_goes_on_over_several_producer_ids(worn: LocalCluster, topic: str) -> None:
    """Under TV2 every end of a transaction takes an epoch."""
    ids: list[int] = []
    expected: list[bytes] = []
    async with Producer(worn.bootstrap, transactional_id=topic, linger_ms=0) as producer:
        for number in range(14):
            await producer.begin()
            for partition in (0, 1):
                await producer.send(topic, b"%d" % number, partition=partition)
            if number % 3 == 1:
                await producer.abort()
            else:
                await producer.commit()
                expected += [b"%d" % number] * 2
            ids.append(producer.identity.producer_id)
            assert producer.identity.producer_epoch < MAX_EPOCH
    assert len(set(ids)) >= 3
    assert await _read(worn.bootstrap, topic) == sorted(expected)


def test_each_instance_takes_an_epoch_and_then_another_id(
    client: Client, worn: LocalCluster, topic: str
) -> None:
    """Under TV1 InitProducerId does: of a new instance, over a transaction that the last one left open."""
    ids: set[int] = set()
    expected: list[bytes] = []
    for number in range(6):
        producer = client.producer(topic)
        ids.add(asyncio.run(_producer_id(worn.bootstrap, topic)))
        for outcome in ("commit", "abort"):
            value = b"%s-%d" % (outcome.encode(), number)
            producer.begin()
            producer.send(topic, number % 2, [value])
            producer.commit() if outcome == "commit" else producer.abort()
            expected += [value] if outcome == "commit" else []
        zombie = producer
        zombie.begin()
        zombie.send(topic, 0, [b"zombie-%d" % number])
        following = client.producer(topic)
        assert client.refusal(zombie.commit) != "", "fenced, also across a change of the producer id"
        following.close()
        zombie.close()
    assert len(ids) >= 3
    assert asyncio.run(_read(worn.bootstrap, topic)) == sorted(expected)


def test_a_timeout_at_the_last_epoch_ends_the_transaction(
    client: Client, worn: LocalCluster, topic: str
) -> None:
    async def state() -> str:
        async with Admin(worn.bootstrap) as admin:
            return (await admin.describe_transaction(topic)).state

    for number in range(MAX_EPOCH):  # every epoch there is, the last one as well
        late = client.producer(topic, timeout_ms=1000)
        late.begin()
        late.send(topic, 0, [b"late-%d" % number])
        until("it is aborted", lambda: asyncio.run(state()) == "CompleteAbort")
        assert client.refusal(late.commit) != ""
        late.close()
    last = client.producer(topic)
    last.begin()
    last.send(topic, 1, [b"good"])
    last.commit()
    last.close()
    assert asyncio.run(_read(worn.bootstrap, topic)) == [b"good"]


@pytest.mark.parametrize("name", ["java-3.9", "java-4"])
def test_java(name: str, worn: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Java 4 speaks TV2: EndTxn gives it the next producer id."""
    with at_work(name, worn, list(JAVA_CASES), tmp_path_factory) as program:
        for case, expected in JAVA_CASES.items():
            saw: dict[str, Any] = program.saw(case, CASE_TIMEOUT_S)
            assert {key: saw[key] for key in expected} == expected  # type: ignore[attr-defined]
