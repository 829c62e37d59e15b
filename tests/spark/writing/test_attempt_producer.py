"""What one task attempt sends to a real node: errors come within seconds, and what waits is bounded."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from tidegate.client import ConsumerRecord, LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Consumer
from tidegate.client.connecting.errors import RequestError
from tidegate.client.producing.accumulator import RECORD_OVERHEAD_BYTES, Accumulator, ProducerBatch
from tidegate.client.producing.partitioner import partition_of_key
from tidegate.client.requests.transaction_requests import Identity
from tidegate.proto import jobs_pb2 as pb
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.connecting.retry import UNKNOWN_TOPIC_TIMEOUT_S
from tidegate.spark.writing.attempt_producer import AttemptProducer
from tidegate.spark.writing.jobs_client import JobsClient
from tidegate.spark.writing.options import parse_write_options
from tidegate.spark.writing.results import WriteError
from tidegate.spark.writing.rows import ROWS_MAX, Layout, Rows, rows_of
from tidegate.tests.started import started
from tidegate.wire.errors import ErrorCode, KafkaError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

Make = Callable[[Mapping[str, str]], AttemptProducer]
MEMORY_BYTES = 1 << 16


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1)
    with started(cluster):
        yield cluster


@pytest.fixture
def make(node: LocalCluster) -> Iterator[Make]:
    """Producers of attempts of one job, closed at the end."""
    jobs = JobsClient(
        pb.Job(sink="etl", batch=f"b{uuid4().hex[:8]}"), [node.bootstrap], (), Channels(), 30_000
    )
    made: list[AttemptProducer] = []

    def one(given: Mapping[str, str]) -> AttemptProducer:
        options = parse_write_options({"bootstrap": node.bootstrap} | dict(given))
        opened = jobs.open_attempt(f"a{len(made)}", 60_000)
        identity = Identity(opened.producer_id, opened.producer_epoch)
        made.append(AttemptProducer(options, None, opened.transactional_id, identity))
        return made[-1]

    yield one
    for producer in made:
        producer.close()
    jobs.abort()
    jobs.close()


def rows(topic: str, count: int, partition: int | None = None) -> Rows:
    columns = [
        pa.array([b"%d" % number for number in range(count)]),
        pa.array([partition] * count, pa.int32()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, ["value", "partition"])
    (found,) = rows_of(batch, Layout(("value", "partition"), topic), 0)
    return found


def test_a_topic_that_is_missing_is_named_within_seconds(make: Make) -> None:
    producer = make({})
    producer.start()
    began_s = time.monotonic()
    with pytest.raises(WriteError, match="'missing' does not exist, and the brokers do not make it") as found:
        producer.send(rows("missing", 3))
    assert found.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        time.monotonic() - began_s < 3 * UNKNOWN_TOPIC_TIMEOUT_S
    )  # a busy machine; kafka.max.block.ms is 60 s


def test_what_waits_is_bounded_and_every_row_is_acknowledged(
    node: LocalCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, most = f"t-{uuid4().hex[:8]}", [0]
    grown = Accumulator._grown

    def watched(self: Accumulator, batch: ProducerBatch, size: int) -> bool:
        most[0] = max(most[0], self.used_bytes + size)
        return grown(self, batch, size)

    monkeypatch.setattr(Accumulator, "_grown", watched)
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    producer = make({"kafka.buffer.memory": str(MEMORY_BYTES)})
    producer.start()
    for _ in range(4):
        producer.send(rows(topic, ROWS_MAX))
    producer.finish()
    assert MEMORY_BYTES // 2 < most[0] <= MEMORY_BYTES
    assert producer._sent == 4 * ROWS_MAX
    assert values(node, topic, 4 * ROWS_MAX) == sorted(
        b"%d" % (number // 4) for number in range(4 * ROWS_MAX)
    )


def test_a_row_without_an_acknowledgement_fails_the_attempt(node: LocalCluster, make: Make) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    producer = make({})
    producer.start()
    producer.send(rows(topic, 3))
    producer._sent += 1
    with pytest.raises(WriteError, match="4 records were sent and 3 acknowledged"):
        producer.finish()


def test_batches_that_the_topic_finds_too_large_are_halved(node: LocalCluster, make: Make) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1, {"max.message.bytes": "10000"})])
    producer = make({})
    producer.start()
    producer.send(rows(topic, ROWS_MAX, 1))
    producer.finish()
    assert values(node, topic, ROWS_MAX) == sorted(b"%d" % number for number in range(ROWS_MAX))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.max.request.size": "1024"}, "a row of 2016 bytes for .* raise kafka.max.request.size"),
        (
            {"kafka.buffer.memory": str(MEMORY_BYTES), "kafka.max.request.size": "1000000"},
            "a row of 100016 bytes for .* raise kafka.buffer.memory",
        ),
    ],
)
def test_a_row_that_never_fits_names_the_option(
    node: LocalCluster, make: Make, options: dict[str, str], message: str
) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    producer = make(options)
    producer.start()
    value = bytes(int(message.split()[3]) - RECORD_OVERHEAD_BYTES)
    batch = pa.RecordBatch.from_arrays([pa.array([b"small", value])], ["value"])
    with pytest.raises(RequestError, match=message):
        producer.send(next(rows_of(batch, Layout(("value",), topic), 0)))


def test_a_partition_that_the_topic_does_not_have_is_named(node: LocalCluster, make: Make) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    producer = make({})
    producer.start()
    with pytest.raises(RequestError, match=f"column 'partition' is 2, and '{topic}' has 2"):
        producer.send(rows(topic, 3, 2))


def test_a_record_that_the_leader_refuses_fails_the_attempt_with_its_reason(
    node: LocalCluster, make: Make
) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, {"max.message.bytes": "500"})])
    producer = make({})
    producer.start()
    batch = pa.RecordBatch.from_arrays([pa.array([bytes(1000)])], ["value"])
    large = next(rows_of(batch, Layout(("value",), topic), 0))
    producer.send(large)
    for go_on in (producer.finish, partial(producer.send, large)):
        with pytest.raises(KafkaError, match=r"max\.message\.bytes") as refused:
            go_on()
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert "abort()" not in str(refused.value), "Spark's user has no such call"


def test_keys_choose_partitions_as_kafkas_clients_do(node: LocalCluster, make: Make) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    producer = make({})
    producer.start()
    keys = [b"%d" % number for number in range(20)]
    for names, columns in (
        (["key", "value"], [pa.array(keys), pa.array(keys)]),
        (["value"], [pa.array([b"no key"])]),
    ):
        batch = pa.RecordBatch.from_arrays(columns, names)
        producer.send(next(rows_of(batch, Layout(tuple(names), topic), 0)))
    producer.finish()
    found = {record.key: record.partition for record in stored(node, topic, 21)}
    assert found.keys() == {None, *keys}
    assert {key: found[key] for key in keys} == {key: partition_of_key(key, 2) for key in keys}


def test_a_broker_that_does_not_answer_is_an_error_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    options = parse_write_options({"bootstrap": address, "kafka.max.block.ms": "300"})
    producer = AttemptProducer(options, None, "tidegate.job/etl/b/a", Identity(1, 0))
    with pytest.raises(KafkaError, match="the brokers"):
        producer.start()
    producer.close()
    assert not producer._thread.is_alive()


@pytest.mark.parametrize("starts", [True, False])
def test_what_is_closed_keeps_no_thread_and_no_connection(make: Make, starts: bool) -> None:
    producer = make({})
    parts = None
    if starts:
        producer.start()
        parts = producer._parts
        assert parts is not None
    for _ in range(2):
        producer.close()
        assert not producer._thread.is_alive()
        assert producer._loop.is_closed()
    assert parts is None or parts.cluster._closed


def test_a_task_that_is_interrupted_leaves_nothing_running(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, began, cancelled = make({}), threading.Event(), threading.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def result(_: Any, timeout: float | None = None) -> None:
        assert began.wait(10)
        raise KeyboardInterrupt

    producer.start()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Future, "result", result)
        producer._call(work())
    assert cancelled.wait(10)


def values(node: LocalCluster, topic: str, count: int) -> list[bytes]:
    return sorted(record.value or b"" for record in stored(node, topic, count))


def stored(node: LocalCluster, topic: str, count: int) -> list[ConsumerRecord]:
    """All records in the log, also while nothing is committed."""
    with Consumer(node.bootstrap, isolation="read_uncommitted", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        found: list[ConsumerRecord] = []
        while len(found) < count:
            found += consumer.poll()
        assert sum(consumer.end_offsets([(topic, 0), (topic, 1)]).values()) == count
    return found
