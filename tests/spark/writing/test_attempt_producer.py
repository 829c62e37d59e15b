"""What one task attempt sends to a real node: errors come within seconds, and what waits is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin
from tidegate.client.requests.transaction_requests import Identity
from tidegate.proto import jobs_pb2 as pb
from tidegate.spark.channels import Channels
from tidegate.spark.connection import UNKNOWN_TOPIC_TIMEOUT_S
from tidegate.spark.writing import attempt_producer
from tidegate.spark.writing.attempt_producer import Acknowledgements, AttemptProducer
from tidegate.spark.writing.jobs_client import JobsClient
from tidegate.spark.writing.options import WriteOptions
from tidegate.spark.writing.results import WriteError
from tidegate.spark.writing.rows import Row
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import NewRecord

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

Make = Callable[[], AttemptProducer]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1)
    asyncio.run(cluster.up())
    yield cluster
    asyncio.run(cluster.down())


@pytest.fixture
def make(node: LocalCluster) -> Iterator[Make]:
    """Producers of attempts of one job, closed at the end."""
    options = WriteOptions((node.bootstrap,))
    jobs = JobsClient(
        pb.Job(sink="etl", batch=f"b{uuid4().hex[:8]}"), [node.bootstrap], (), Channels(), 30_000
    )
    made: list[AttemptProducer] = []

    def one() -> AttemptProducer:
        opened = jobs.open_attempt(f"a{len(made)}", 60_000)
        identity = Identity(opened.producer_id, opened.producer_epoch)
        made.append(AttemptProducer(options, None, opened.transactional_id, identity))
        return made[-1]

    yield one
    for producer in made:
        producer.close()
    jobs.abort()
    jobs.close()


def rows(topic: str, count: int) -> list[Row]:
    return [Row(topic, None, NewRecord(None, b"%d" % number, (), 0)) for number in range(count)]


def test_a_topic_that_is_missing_is_named_within_seconds(make: Make) -> None:
    producer = make()
    producer.start()
    began_s = time.monotonic()
    with pytest.raises(WriteError, match="'missing' does not exist, and the brokers do not make it") as found:
        producer.send(rows("missing", 3))
    assert found.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        time.monotonic() - began_s < 3 * UNKNOWN_TOPIC_TIMEOUT_S
    )  # a busy machine; kafka.max.block.ms is 60 s


def test_tiny_rows_that_wait_are_bounded_by_their_number(
    node: LocalCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, waiting_max = f"t-{uuid4().hex[:8]}", 100
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    monkeypatch.setattr(attempt_producer, "RECORDS_WAITING_MAX", waiting_max)
    waiting: list[int] = []
    producer = make()

    def count(self: Acknowledgements, place: object) -> None:
        waiting.append(producer._sent - self.count)
        self.count += 1

    monkeypatch.setattr(Acknowledgements, "set_result", count)
    producer.start()
    producer.send(rows(topic, 2_000))
    producer.finish()
    assert len(waiting) == 2_000
    assert max(waiting) <= waiting_max
