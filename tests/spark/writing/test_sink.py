"""Spark writes to a real node: a reader of committed records sees each row once, whatever fails and whatever
is run again."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.administration.admin import Admin as AsyncAdmin
from tidegate.client.administration.descriptions import JobListing
from tidegate.client.blocking import Admin, Consumer, Producer
from tidegate.client.consuming.fetched import ConsumerRecord
from tidegate.client.producing.partitioner import partition_of_key
from tidegate.spark.java import java_home
from tidegate.spark.session import LOOPBACK, settings, stop_session
from tidegate.spark.source import register
from tidegate.tests.started import started

from .jobs_stub import AnswerLost, servers

# A test cut off in the middle of a call to the JVM leaves the session unusable for the others.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

READY_S = 120
PARTITIONS = 3
TASKS_FAIL_MAX = 3


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """As `local_session`, but a task that fails is run again, as on a cluster."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    os.environ["JAVA_HOME"] = str(java_home())
    builder = SparkSession.builder.master(f"local[2,{TASKS_FAIL_MAX}]").appName("tidegate-sink")
    for name, value in settings(2).items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    register(session)
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    state = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, state)
    with started(cluster):
        yield cluster


@pytest.fixture
def topic(node: LocalCluster) -> str:
    return made(node, f"t-{uuid4().hex[:8]}")


def made(node: LocalCluster, name: str) -> str:
    with Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    return name


def write(frame: DataFrame, node: LocalCluster, topic: str | None = None, **options: str) -> None:
    given = {"kafka.bootstrap.servers": node.bootstrap} | ({"topic": topic} if topic else {}) | options
    frame.write.format("tidegate").options(**given).mode("append").save()


def committed(node: LocalCluster, topic: str) -> list[ConsumerRecord]:
    """Everything committed, once nothing is undecided any more."""
    places = [(topic, number) for number in range(PARTITIONS)]
    found: list[ConsumerRecord] = []
    with Admin(node.bootstrap) as admin, Consumer(node.bootstrap, auto_offset_reset="earliest") as consumer:
        while admin.end_offsets(places) != (ends := admin.end_offsets(places, read_committed=True)):
            pass
        consumer.assign(places)
        while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
            found += consumer.poll(timeout_s=0.2)
    return found


def values(node: LocalCluster, topic: str) -> list[int]:
    return sorted(int(record.value or b"-1") for record in committed(node, topic))


def everything(node: LocalCluster, topic: str) -> int:
    """Records of any outcome, markers too."""
    with Admin(node.bootstrap) as admin:
        return sum(admin.end_offsets([(topic, number) for number in range(PARTITIONS)]).values())


def jobs(node: LocalCluster, sink: str) -> list[JobListing]:
    async def ask() -> list[JobListing]:
        async with AsyncAdmin(node.bootstrap) as admin:
            return await admin.list_jobs([], sink=sink)

    return asyncio.run(ask())


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value")


def test_each_row_is_a_record_with_its_columns(spark: SparkSession, node: LocalCluster, topic: str) -> None:
    other = made(node, f"{topic}-other")
    frame = spark.range(0, 60, 1, 3).select(
        f.when(f.col("id") % 2 == 0, f.concat(f.lit("k"), f.col("id").cast("string"))).alias("key"),
        f.col("id").cast("string").cast("binary").alias("value"),
        f.when(f.col("id") < 50, topic).otherwise(other).alias("topic"),
        f.when(f.col("id") % 3 == 0, 1).alias("partition"),
        f.timestamp_millis(1_700_000_000_000 + f.col("id")).alias("timestamp"),
        f.when(
            f.col("id") == 7,
            f.array(f.struct(f.lit("h").alias("key"), f.lit(b"v").alias("value"))),
        ).alias("headers"),
    )
    write(frame, node, **{"kafka.compression.type": "zstd", "kafka.batch.size": "200"})
    records = committed(node, topic)
    found = {int(record.value or b"-1"): record for record in records}
    assert (len(records), sorted(found)) == (50, list(range(50)))
    assert len(committed(node, other)) == 10
    for number, record in found.items():
        key = b"k%d" % number if number % 2 == 0 else None
        assert (record.key, record.timestamp_ms) == (key, 1_700_000_000_000 + number)
        assert list(record.headers) == ([("h", b"v")] if number == 7 else [])
        if number % 3 == 0:
            assert record.partition == 1
        elif key is not None:
            assert record.partition == partition_of_key(key, PARTITIONS)


def test_a_job_that_is_run_again_writes_nothing(spark: SparkSession, node: LocalCluster, topic: str) -> None:
    for _ in range(2):
        write(numbers(spark, 1000), node, topic, sinkId="nightly", jobId=topic)
        assert values(node, topic) == list(range(1000))
        size = everything(node, topic)
    assert everything(node, topic) == size
    with pytest.raises(Exception, match=r"was committed with 1,000 rows before, and has 1,001 now"):
        write(numbers(spark, 1001), node, topic, sinkId="nightly", jobId=topic)
    write(numbers(spark, 1001), node, topic, sinkId="nightly", jobId=topic, failOnReplayMismatch="false")
    assert everything(node, topic) == size
    write(numbers(spark, 10), node, topic)
    assert Counter(values(node, topic)) == Counter([*range(1000), *range(10)])


MANY = 150_000
"""So many rows that the first are written while the last wait in the buffers between Spark's steps."""
WRITTEN_MIN = 5_000
PATIENCE_S = 60.0
SMALL_BATCHES = {"kafka.linger.ms": "0", "kafka.batch.size": "4096"}


def failing(frame: DataFrame, node: LocalCluster, topic: str, fails: Callable[[int], bool]) -> DataFrame:
    """The attempts of a task that `fails` names fail after many of their rows are in the log."""
    bootstrap = node.bootstrap

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if fails(context.attemptNumber()):
            places = [(topic, number) for number in range(PARTITIONS)]
            gives_up_at = time.monotonic() + PATIENCE_S
            with Admin(bootstrap) as admin:
                while sum(admin.end_offsets(places).values()) < WRITTEN_MIN:
                    assert time.monotonic() < gives_up_at, "too few of its records are in the log"
            raise RuntimeError("this attempt fails")

    return frame.mapInArrow(fail, "value string")


def test_a_task_that_fails_after_its_records_is_run_again(
    spark: SparkSession, node: LocalCluster, topic: str
) -> None:
    frame = failing(numbers(spark, MANY, tasks=1), node, topic, lambda attempt: attempt == 0)
    write(frame, node, topic, sinkId=topic, **SMALL_BATCHES)
    assert everything(node, topic) >= MANY + WRITTEN_MIN  # the first attempt has written
    assert values(node, topic) == list(range(MANY))
    (job,) = jobs(node, topic)
    assert (job.state, job.winners) == ("committed", 1)


def test_a_job_whose_task_fails_for_good_is_aborted_and_the_next_run_writes_it(
    spark: SparkSession, node: LocalCluster, topic: str
) -> None:
    frame = failing(numbers(spark, MANY, tasks=1), node, topic, lambda attempt: True)
    with pytest.raises(Exception, match="this attempt fails"):
        write(frame, node, topic, sinkId=topic, jobId="day", **SMALL_BATCHES)
    assert [job.state for job in jobs(node, topic)] == ["aborted"]
    assert values(node, topic) == []
    write(numbers(spark, 1000), node, topic, sinkId=topic, jobId="day")
    assert values(node, topic) == list(range(1000))


def test_without_rows_no_job_is_opened(spark: SparkSession, node: LocalCluster, topic: str) -> None:
    write(numbers(spark, 0), node, topic, sinkId=topic)
    write(numbers(spark, 10).where("value = 'none'"), node, topic, sinkId=topic)
    assert (jobs(node, topic), everything(node, topic)) == ([], 0)


@pytest.fixture
def losing(node: LocalCluster) -> Iterator[Callable[[int], tuple[AnswerLost, str]]]:
    with servers() as serve:

        def start(lost: int) -> tuple[AnswerLost, str]:
            service = AnswerLost(node.node(1).grpc_address, lost)
            return service, serve(service)

        yield start


def test_a_commit_whose_answer_is_lost_is_asked_again(
    spark: SparkSession,
    node: LocalCluster,
    topic: str,
    losing: Callable[[int], tuple[AnswerLost, str]],
) -> None:
    service, address = losing(2)
    write(numbers(spark, 100), node, topic, jobBootstrap=address)
    assert (service.commits, service.aborts) == (3, 0)
    assert values(node, topic) == list(range(100))


def test_the_abort_after_a_lost_commit_takes_nothing_back(
    spark: SparkSession,
    node: LocalCluster,
    topic: str,
    losing: Callable[[int], tuple[AnswerLost, str]],
) -> None:
    service, address = losing(10**6)
    given = {"jobBootstrap": address, "retryTimeoutMs": "1000", "sinkId": topic, "jobId": "once"}
    with pytest.raises(Exception, match="the answer is lost"):
        write(numbers(spark, 100), node, topic, **given)
    assert service.aborts >= 1
    assert values(node, topic) == list(range(100))
    write(numbers(spark, 100), node, topic, sinkId=topic, jobId="once")
    assert values(node, topic) == list(range(100))


def test_a_stream_goes_on_from_its_checkpoint_and_replays_nothing_without_it(
    spark: SparkSession, node: LocalCluster, topic: str, tmp_path: Path
) -> None:
    source = made(node, f"{topic}-source")

    def send(*some: int) -> None:
        with Producer(node.bootstrap) as producer:
            for number in some:
                producer.send_and_wait(source, b"%d" % number, key=b"%d" % number)

    def run(checkpoint: str, limit: int = 10, **options: str) -> None:
        frame = (
            spark.readStream.format("tidegate")
            .options(bootstrap=node.bootstrap, subscribe=source, startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", limit)
            .schema("key binary, value binary")
            .load()
        )
        given = {"bootstrap": node.bootstrap, "topic": topic, "checkpointLocation": checkpoint} | options
        writer = frame.writeStream.format("tidegate").options(**given).outputMode("append")
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(READY_S)
        finally:
            query.stop()

    def forget_last_commit(checkpoint: Path) -> None:
        """As if the driver had ended between the job's commit and Spark's own."""
        last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (checkpoint / "commits" / name).unlink()

    first = tmp_path / "first"
    send(*range(25))
    run(str(first), sinkId=topic)
    assert values(node, topic) == list(range(25))
    forget_last_commit(first)
    size = everything(node, topic)
    run(str(first), sinkId=topic)
    assert (values(node, topic), everything(node, topic)) == (list(range(25)), size)
    second = str(tmp_path / "second")  # the first one is lost
    run(second, sinkId=topic)
    assert (values(node, topic), everything(node, topic)) == (list(range(25)), size)
    send(*range(25, 30))
    run(second, sinkId=topic)
    assert values(node, topic) == list(range(30))
    size = everything(node, topic)
    with pytest.raises(Exception, match=r"batch 0 of sink \S+ was committed with \d+ rows before, and has"):
        run(str(tmp_path / "cut otherwise"), 6, sinkId=topic)
    assert (values(node, topic), everything(node, topic)) == (list(range(30)), size)
    third = tmp_path / "third"
    run(str(third))  # by the query's own id
    assert Counter(values(node, topic)) == Counter([*range(30), *range(30)])
    forget_last_commit(third)
    run(str(third))
    assert Counter(values(node, topic)) == Counter([*range(30), *range(30)])


def test_a_stream_that_updates_writes_in_foreach_batch_exactly_once(
    spark: SparkSession, node: LocalCluster, topic: str, tmp_path: Path
) -> None:
    source = made(node, f"{topic}-source")
    with Producer(node.bootstrap) as producer:
        for number in range(8):
            producer.send_and_wait(source, b"%d" % number, partition=0)
    bootstrap, ran = node.bootstrap, []

    def twice(rows: DataFrame, batch: int) -> None:
        ran.append(batch)
        for sink in (topic, topic, f"{topic}/again"):  # the second is the first run again
            given = {"bootstrap": bootstrap, "topic": topic, "sinkId": sink, "batchId": str(batch)}
            rows.write.format("tidegate").options(**given).mode("append").save()

    read = spark.readStream.format("tidegate").options(bootstrap=bootstrap, subscribe=source)
    read = read.options(startingOffsets="earliest", maxOffsetsPerTrigger=4)
    counts = read.load().groupBy("partition").count().selectExpr("cast(count as string) as value")
    writer = counts.writeStream.foreachBatch(twice).outputMode("update")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(READY_S)
    finally:
        query.stop()
    assert (ran, values(node, topic)) == ([0, 1], [4, 4, 8, 8])
    write(numbers(spark, 1), node, topic, sinkId=topic, batchId="0")  # below the sink's last one
    with pytest.raises(Exception, match="was committed with 1 rows before, and has 3 now"):
        write(numbers(spark, 3), node, topic, sinkId=topic, batchId="0")
    assert values(node, topic) == [4, 4, 8, 8]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("value", {}, "no topic: give the option 'topic'"),
        ("value as body", {"topic": "t"}, "has no column 'body'"),
        ("id as value", {"topic": "t"}, "has type bigint, not binary or string"),
        ("value, id as partition", {"topic": "t"}, "column 'partition' has type bigint, not int"),
        ("value", {"topic": "t", "jobId": "7"}, "digits alone number the batches of a sink"),
        ("value", {"topic": "t", "kafka.acks": "1"}, "every record must be on all in-sync replicas"),
        ("value, cast(null as string) as topic", {}, "column 'topic' is null or empty"),
        ("value, cast(7 as int) as partition", {"topic": "TOPIC"}, "column 'partition' is 7"),
    ],
)
def test_what_cannot_be_written_has_one_clear_error(
    spark: SparkSession, node: LocalCluster, topic: str, columns: str, options: dict[str, str], said: str
) -> None:
    frame = spark.range(3).selectExpr("id", "cast(id as string) as value").selectExpr(*columns.split(", "))
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(Exception, match=said):
        write(frame, node, **given)
    assert everything(node, topic) == 0


def test_a_broker_that_is_away_is_named(spark: SparkSession, node: LocalCluster, topic: str) -> None:
    given = {"topic": topic, "retryTimeoutMs": "500", "kafka.bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(Exception, match="named its gRPC listener: are these Kafka listeners"):
        write(numbers(spark, 3), node, **given)


def test_a_topic_is_not_overwritten(spark: SparkSession, node: LocalCluster, topic: str) -> None:
    writer = numbers(spark, 3).write.format("tidegate").options(bootstrap=node.bootstrap, topic=topic)
    with pytest.raises(Exception, match="append"):
        writer.mode("overwrite").save()
    assert everything(node, topic) == 0
