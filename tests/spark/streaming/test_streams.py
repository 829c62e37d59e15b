"""Streams of a Spark session that read a real node: where they go on, and what they say of loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Producer, Send
from tidegate.spark.session import local_session, stop_session
from tidegate.tests.started import started

# A test cut off in the middle of a call to the JVM leaves the session unusable for the others.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

READY_S = 120


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("tidegate-streams")
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, settings)
    with started(cluster):
        yield cluster


@pytest.fixture
def admin(node: LocalCluster) -> Iterator[Admin]:
    with Admin(node.bootstrap) as client:
        yield client


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"t-{uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 2, 1)])
    return name


def send(node: LocalCluster, topic: str, *numbers: int) -> None:
    """To partition number % 2; a partition's values ascend."""
    with Producer(node.bootstrap) as producer:
        sends = [Send(b"%d" % number, partition=number % 2) for number in numbers]
        for sent in producer.send_all(topic, sends):
            sent.result()


@dataclass
class Stream:
    """A stream that can be stopped and started again: the checkpoint and what it has read stay."""

    spark: SparkSession
    bootstrap: str
    checkpoint: Path
    options: dict[str, str]
    batches: dict[int, list[int]] = field(default_factory=dict)
    """Per micro-batch, the values that it read."""
    before: Callable[[int], None] = lambda batch_id: None

    def start(self, *, available_now: bool = False, **options: str) -> StreamingQuery:
        given = {"bootstrap": self.bootstrap} | self.options | options
        frame = self.spark.readStream.format("tidegate").options(**given).schema("value binary").load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query: StreamingQuery = (writer.trigger(availableNow=True) if available_now else writer).start()
        return query

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Reads what there is now, and gives the source's progress of each micro-batch."""
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(READY_S)
        return [json.loads(progress.json)["sources"][0] for progress in query.recentProgress]

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self.before(batch_id)
        self.batches[batch_id] = [int(bytes(row.value)) for row in frame.collect()]

    def values(self) -> list[int]:
        return sorted(value for batch in self.batches.values() for value in batch)


@pytest.fixture
def stream(spark: SparkSession, node: LocalCluster, topic: str, tmp_path: Path) -> Stream:
    bootstrap = node.node(1).grpc_address
    return Stream(
        spark, bootstrap, tmp_path / "checkpoint", {"subscribe": topic, "startingOffsets": "earliest"}
    )


def test_a_stream_goes_on_from_its_checkpoint_and_reads_what_is_committed(
    stream: Stream, node: LocalCluster, topic: str
) -> None:
    send(node, topic, *range(10))
    with Producer(node.bootstrap, transactional_id=f"{topic}-writer") as producer:
        with producer.transaction():
            producer.send(topic, b"10", partition=0)
        producer.begin()
        producer.send_and_wait(topic, b"999", partition=1)
        producer.abort()
        query = stream.start()
        query.processAllAvailable()
        assert stream.values() == list(range(11))
        with producer.transaction():
            producer.send(topic, b"11", partition=1)
        query.processAllAvailable()
    query.stop()
    send(node, topic, 12, 13)
    # where a new query would begin means nothing to one that has a checkpoint
    query = stream.start(startingOffsets="latest")
    query.processAllAvailable()
    assert stream.values() == list(range(14))
    assert len(stream.batches) >= 3
    query.stop()


def test_available_now_ends_with_what_there_was_in_limited_micro_batches(
    stream: Stream, node: LocalCluster, topic: str
) -> None:
    send(node, topic, *range(100))
    stream.before = lambda batch_id: send(node, topic, 1_000 + 2 * batch_id)
    progress = stream.run(maxOffsetsPerTrigger="30", minOffsetsPerTrigger="30")
    assert stream.values() == list(range(100))
    assert [len(batch) for batch in stream.batches.values()] == [30, 30, 30, 10]
    first = progress[0]
    (name,) = first["endOffset"]["topics"]
    assert (name, first["endOffset"]["topics"][name]["offsets"]) == (topic, {"0": 15, "1": 15})
    assert first["latestOffset"]["offsetsBehindLatest"] == {topic: {"0": 35, "1": 35}}
    assert first["latestOffset"]["maxOffsetsBehindLatest"] == 35
    assert first["numInputRows"] == 30


def test_new_partitions_and_topics_are_found(
    stream: Stream, node: LocalCluster, topic: str, admin: Admin
) -> None:
    stream.options = {"subscribePattern": f"{topic}.*", "startingOffsets": "latest"}
    send(node, topic, 0, 1)
    query = stream.start()
    query.processAllAvailable()
    assert stream.values() == []
    admin.create_partitions({topic: 3})
    admin.create_topics([NewTopic(f"{topic}-too", 1, 1)])
    with Producer(node.bootstrap) as producer:
        producer.send_and_wait(topic, b"2", partition=2)
        producer.send_and_wait(f"{topic}-too", b"3", partition=0)
    # Found by the next description of the topics.
    while stream.values() != [2, 3] and query.isActive:
        query.processAllAvailable()
    assert stream.values() == [2, 3]
    query.stop()


def test_a_first_micro_batch_that_failed_is_run_again_with_the_same_records(
    stream: Stream, node: LocalCluster, topic: str
) -> None:
    """It began at *latest*; by the next start that is elsewhere, and Spark's log has only its end."""
    stream.options["startingOffsets"] = "latest"
    send(node, topic, 0, 1)

    def fail(batch_id: int) -> None:
        if batch_id == 1:
            raise ZeroDivisionError

    stream.before = fail
    query = stream.start()
    query.processAllAvailable()
    query.stop()
    (stream.checkpoint / "commits" / "0").unlink()
    (stream.checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    stream.batches.clear()
    log = stream.checkpoint / "offsets" / "0"
    lines = log.read_text().splitlines()
    end = json.loads(lines[2])
    assert end == {"version": 1, "topics": end["topics"], "initial": True}
    send(node, topic, 2, 3, 4, 5)
    # As if the first trigger had found 2 and 3, and the driver had died then.
    (entry,) = end["topics"].values()
    entry["begins"] = dict(entry["offsets"])
    entry["offsets"] = {number: at + 1 for number, at in entry["offsets"].items()}
    lines[2] = json.dumps({"version": 1, "topics": end["topics"]})
    log.write_text("\n".join(lines))
    (stream.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    stream.before = lambda batch_id: None
    stream.run()
    assert sorted(stream.batches[0]) == [2, 3]
    assert stream.values() == [2, 3, 4, 5]


def test_a_checkpoint_of_the_official_connector_is_continued(
    stream: Stream, node: LocalCluster, topic: str
) -> None:
    """It has offsets without a version and without ids of topics."""
    send(node, topic, *range(10))
    stream.run()
    log = stream.checkpoint / "offsets" / "0"
    lines = log.read_text().splitlines()
    lines[2] = json.dumps({topic: json.loads(lines[2])["topics"][topic]["offsets"]})
    log.write_text("\n".join(lines))
    (stream.checkpoint / "offsets" / ".0.crc").unlink(missing_ok=True)
    send(node, topic, 10, 11)
    stream.run()
    assert stream.values() == list(range(12))


def test_a_topic_made_again_stops_the_stream_or_is_read_from_its_start(
    stream: Stream, node: LocalCluster, topic: str, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    send(node, topic, 0, 1, 2)
    stream.run()
    (checkpointed,) = json.loads((stream.checkpoint / "offsets" / "0").read_text().splitlines()[2])[
        "topics"
    ].values()
    admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic, 2, 1)])
    send(node, topic, 10, 11, 12, 13, 14)
    query = stream.start()
    with pytest.raises(StreamingQueryException) as failure:
        query.awaitTermination(READY_S)
    said = str(failure.value)
    assert f"topic '{topic}' was deleted and made again" in said
    assert f"id {checkpointed['id']}, and now there is one with id " in said
    assert "failOnDataLoss=false" in said
    assert stream.values() == [0, 1, 2]
    stream.run(failOnDataLoss="false")
    assert stream.values() == [0, 1, 2, 10, 11, 12, 13, 14]
    stream.run()
    assert stream.values() == [0, 1, 2, 10, 11, 12, 13, 14]


def test_only_records_that_are_gone_unread_are_a_loss(
    stream: Stream, node: LocalCluster, topic: str, admin: Admin
) -> None:
    send(node, topic, *range(10))
    stream.run()
    admin.delete_records({(topic, 0): 5, (topic, 1): 4})  # all of them read
    stream.run()
    send(node, topic, *range(10, 20))
    admin.delete_records({(topic, 0): 7})
    query = stream.start(available_now=True)
    with pytest.raises(StreamingQueryException, match=f"{topic}-0: the stream is at offset 5, .* 2 offsets"):
        query.awaitTermination(READY_S)
    stream.run(failOnDataLoss="false")
    assert stream.values() == [*range(10), *(number for number in range(10, 20) if number not in (10, 12))]


def test_the_group_has_the_offsets_of_finished_micro_batches(
    stream: Stream, node: LocalCluster, topic: str, admin: Admin
) -> None:
    send(node, topic, *range(11))
    group = f"g-{topic}"
    stream.run(commitToGroup=group, commitBootstrap=node.bootstrap, maxOffsetsPerTrigger="4")
    committed = {key: found.offset for key, found in admin.group_offsets(group).items()}
    assert committed == {(topic, 0): 6, (topic, 1): 5}
    assert admin.describe_group(group).state == "Empty"
    send(node, topic, 12)
    stream.run(commitToGroup=group, bootstrap=node.bootstrap)  # one that has Kafka's listeners
    assert admin.group_offsets(group)[topic, 0].offset == 7


def test_a_group_that_cannot_be_reached_does_not_stop_the_stream(
    stream: Stream, node: LocalCluster, topic: str
) -> None:
    send(node, topic, 0, 1)
    stream.run(commitToGroup="nowhere", commitBootstrap="127.0.0.1:1")
    assert stream.values() == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' belongs to a batch read"),
        ({"startingOffsets": '{"other":{"0":1}}'}, "startingOffsets must name every partition"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger '-1' must be a whole number"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"subscribe": "nosuch"}, "topic 'nosuch' does not exist"),
    ],
)
def test_options_that_fit_no_stream_end_it_with_one_clear_error(
    stream: Stream, options: dict[str, str], message: str
) -> None:
    with pytest.raises((AnalysisException, StreamingQueryException), match=message) as raised:
        stream.run(**options)
    assert "another exception occurred" not in str(raised.value)


def test_a_batch_read_takes_the_options_of_a_stream_for_what_they_are(
    spark: SparkSession, node: LocalCluster, topic: str
) -> None:
    send(node, topic, 0, 1)
    reader = spark.read.format("tidegate").option("bootstrap", node.node(1).grpc_address)
    reader = reader.option("subscribe", topic)
    assert reader.option("maxOffsetsPerTrigger", "1").load().count() == 2
    with pytest.raises(AnalysisException, match="a batch read would be empty"):
        reader.option("startingOffsets", "latest").load().count()
