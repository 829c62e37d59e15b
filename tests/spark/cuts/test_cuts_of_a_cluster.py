"""Cuts as three real nodes take them, read by every reader; and a bank whose balance each of them shows."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tidegate.client import Admin, LocalCluster, NewTopic, read_cut
from tidegate.client.blocking import Producer
from tidegate.client.command_line import build
from tidegate.client.consuming.cut import Cut, Order
from tidegate.spark import count_committed, cut
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.options import parse_options, parse_stream_options
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.spark.reading.planning import PlannedRange, plan
from tidegate.spark.streaming.driver import StreamDriver
from tidegate.spark.streaming.offsets import StreamOffset, from_json, to_json
from tidegate.tests.eventually import eventually
from tidegate.tests.started import started
from tidegate.wire.records import decode_batch
from typer.testing import CliRunner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 2}
    cluster = LocalCluster(tmp_path_factory.mktemp("nodes"), 3, settings)
    with started(cluster):
        yield cluster


@pytest.fixture
async def topic(cluster: LocalCluster) -> str:
    name = f"bank-{uuid4().hex[:8]}"
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(name, PARTITIONS, 3)])
    return name


def transfers(bootstrap: str, topic: str, name: str, stop: threading.Event, slow_s: float) -> None:
    """Moves money between two accounts in each transaction; some are aborted, some stay open for a while."""
    rng = random.Random(name)
    with Producer(bootstrap, transactional_id=name) as producer:
        while not stop.is_set():
            first, second = rng.sample(range(PARTITIONS), 2)
            amount = rng.randint(1, 50)
            producer.begin()
            producer.send_and_wait(topic, b"%d" % -amount, partition=first)
            if rng.random() < 0.2:
                stop.wait(slow_s)
            producer.send_and_wait(topic, b"%d" % amount, partition=second)
            (producer.abort if rng.random() < 0.2 else producer.commit)()


class Bank:
    """Three producers whose transfers sum up to nothing, until it is closed."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=transfers, args=(bootstrap, topic, f"{topic}-{number}", self._stop, 0.05 * number)
            )
            for number in range(3)
        ]

    def __enter__(self) -> Bank:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


Rows = Counter[tuple[int, int, int]]  # partition, offset, amount


def read(cluster: LocalCluster, parts: list[PlannedRange]) -> Rows:
    client = DataClient([cluster.node(1).grpc_address], retry_timeout_ms=30_000)
    found: Rows = Counter()
    for part in parts:
        request = RangeRequest(
            part.topic, part.topic_id, part.partition, part.start, part.end, False, True, part.at_cut
        )
        for chunk in fetch_range(client, request):
            for position, _ in chunk.visible:
                for record in decode_batch(chunk.records, position):
                    if part.start <= record.offset < part.end:
                        found[part.partition, record.offset, int(record.value or b"0")] += 1
    client.close()
    return found


def until(condition: Callable[[], bool]) -> None:
    asyncio.run(eventually(condition, timeout_s=60))


def balance(rows: Rows) -> int:
    return sum(amount for _, _, amount in rows.elements())


def test_every_cut_shows_the_same_balance(cluster: LocalCluster, topic: str) -> None:
    address = cluster.node(1).grpc_address
    before: Cut | None = None
    sizes, excluded = [], 0
    with Bank(cluster.bootstrap, topic):
        until(lambda: count_committed(address, topic) > 50)
        for _ in range(15):
            client = DataClient([address], retry_timeout_ms=30_000)
            now = cut(cluster.bootstrap, topic)
            rows = read(cluster, plan(client, parse_options({"bootstrap": address, "cut": now.to_json()})))
            client.close()
            assert balance(rows) == 0
            assert max(rows.values()) == 1
            assert count_committed(address, topic, cut=now) == rows.total()
            assert before is None or before.order(now) in (Order.OLDER, Order.SAME)
            before, excluded = now, excluded + sum(len(part.undecided) for part in now.partitions.values())
            sizes.append(rows.total())
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    assert excluded, "no cut has left a transaction out"


def test_the_micro_batches_of_a_stream_each_balance(cluster: LocalCluster, topic: str) -> None:
    address = cluster.node(1).grpc_address
    given = {"bootstrap": address, "subscribe": topic, "startingOffsets": "earliest", "consistency": "cut"}
    stream = StreamDriver(DataClient([address], retry_timeout_ms=30_000), parse_stream_options(given))
    whole: Rows = Counter()
    batches: list[tuple[StreamOffset, StreamOffset, Rows]] = []

    def go_on(at: StreamOffset) -> StreamOffset:
        reached = stream.latest(at, unlimited=True)
        if reached is at:
            return at
        end = from_json(json.loads(json.dumps(to_json(reached))))
        rows = read(cluster, stream.plan(at, end))
        assert balance(rows) == 0
        batches.append((at, end, rows))
        whole.update(rows)
        return end

    at = stream.initial()
    with Bank(cluster.bootstrap, topic):
        until(lambda: count_committed(address, topic) > 20)
        for _ in range(15):
            at = go_on(at)
    now = cut(cluster.bootstrap, topic)
    until(lambda: count_committed(address, topic) == count_committed(address, topic, cut=now))
    at = go_on(at)
    assert max(whole.values()) == 1
    assert whole.total() == count_committed(address, topic)
    assert any(end.undecided[key] for _, end, _ in batches for key in end.undecided)
    for start, end, rows in batches:
        assert read(cluster, stream.plan(start, end)) == rows, "a micro-batch that is run again"
    stream.close()


async def values(bootstrap: str, at: Cut) -> list[bytes | None]:
    return [record.value async for record in read_cut(bootstrap, at)]


def tidegate(bootstrap: str, *arguments: str) -> str:
    given = [*arguments, "--bootstrap", bootstrap]
    found = CliRunner().invoke(build(given), given)
    assert found.exit_code == 0, found.output
    return found.output


async def test_committed_records_above_an_open_transaction_are_in_every_reader_at_a_cut(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    bootstrap = cluster.bootstrap

    def write() -> Producer:
        opened = Producer(bootstrap, transactional_id=f"{topic}-open")
        opened.start()
        opened.begin()
        opened.send_and_wait(topic, b"open", partition=0)
        with Producer(bootstrap, transactional_id=f"{topic}-done") as done, done.transaction():
            for partition in range(PARTITIONS):
                done.send_and_wait(topic, b"done %d" % partition, partition=partition)
        return opened

    opened = await asyncio.to_thread(write)
    done = [b"done %d" % partition for partition in range(PARTITIONS)]
    async with Admin(bootstrap) as admin:
        now = await admin.take_cut([topic])
    assert await values(bootstrap, now) == done
    assert await asyncio.to_thread(count_committed, bootstrap, topic, cut=now) == len(done)
    assert await asyncio.to_thread(count_committed, bootstrap, topic) < len(done), "read_committed"
    text = await asyncio.to_thread(tidegate, bootstrap, "cuts", "take", topic)
    (tmp_path / "now.json").write_text(text)
    printed = "".join(f"{value.decode()}\n" for value in done)
    given = ("consume", topic, "--cut")
    assert await asyncio.to_thread(tidegate, bootstrap, *given, str(tmp_path / "now.json")) == printed
    pin = ("cuts", "pin", topic, "--topic", topic, "--retention-ms", "600000")
    await asyncio.to_thread(tidegate, bootstrap, *pin)
    await asyncio.to_thread(opened.commit)
    await asyncio.to_thread(opened.close)
    assert await asyncio.to_thread(tidegate, bootstrap, *given, topic) == printed, (
        "the pinned one, by its name"
    )
    client = DataClient(bootstrap.split(","), retry_timeout_ms=30_000)
    named = parse_options({"bootstrap": bootstrap, "cut": topic})
    assert len(await asyncio.to_thread(plan, client, named)) == PARTITIONS
    client.close()
    assert await values(bootstrap, now) == done
    later = await asyncio.to_thread(tidegate, bootstrap, *given, "now")
    assert sorted(later.split("\n")) == sorted(["open", *printed.split("\n")])


async def test_a_cut_outlives_the_leaders_that_it_was_taken_from(cluster: LocalCluster, topic: str) -> None:
    address = cluster.bootstrap
    with Bank(address, topic):
        await asyncio.to_thread(until, lambda: count_committed(address, topic) > 20)
        now = await asyncio.to_thread(cut, address, topic)
    whole = await values(address, now)
    assert sum(int(value or b"0") for value in whole) == 0
    node = cluster.node(2)
    node.kill()
    await node.wait_exit()
    try:
        assert await values(address, now) == whole
    finally:
        await node.start()
        await node.wait_ready()
