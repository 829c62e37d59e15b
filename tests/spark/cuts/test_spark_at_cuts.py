"""Spark reads at cuts: a batch, and streams whose micro-batches end at cuts, by one session."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tidegate.client.consuming.cut import Cut
from tidegate.spark import cut
from tidegate.spark.session import local_session, stop_session
from tidegate.wire.records import ControlType

from ..served import ServedCluster
from .cut_taker import CutTaker
from .test_plans_at_cuts import OPEN, STEPS, inside, mark, write

# A test cut off in the middle of a call to the JVM leaves the session unusable for the others.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

READY_S = 120
Rows = list[tuple[int, int]]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session("tidegate-cuts")
    yield session
    stop_session(session)


@pytest.fixture
def taker(tmp_path: Path) -> Iterator[CutTaker]:
    served = ServedCluster(tmp_path)
    taker = CutTaker(served)
    with served:
        for partition, steps in STEPS.items():
            served.fill("flights", partition, steps, leader=1 + partition)
        yield taker


@pytest.fixture
def cluster(taker: CutTaker) -> ServedCluster:
    return taker.cluster


@pytest.fixture
def load(spark: SparkSession, cluster: ServedCluster) -> Callable[..., DataFrame]:
    def make(schema: StructType | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("tidegate").options(bootstrap=cluster.bootstrap, **options)
        return (reader.schema(schema) if schema is not None else reader).load()

    return make


def rows_of(frame: DataFrame) -> Rows:
    return sorted((row[0], row[1]) for row in frame.select("partition", "offset").collect())


def test_a_batch_reads_a_cut_that_is_given_pinned_or_taken(
    load: Callable[..., DataFrame], taker: CutTaker, cluster: ServedCluster
) -> None:
    now = cut(cluster.bootstrap, "flights")
    taker.pinned["month-end"] = now.to_proto()
    taken = load(subscribe="flights", consistency="cut", maxBytesPerPartition="20k")
    assert rows_of(taken) == inside()
    cluster.extend("flights", 0, [write(-1, -1)])
    cluster.extend("flights", 1, [mark(OPEN, ControlType.COMMIT)])
    assert rows_of(taken) == inside(), "it is frozen"
    assert rows_of(load(cut=now.to_json())) == inside()
    assert rows_of(load(cut="month-end", minPartitions="7")) == inside()
    assert load(StructType(), cut=now.to_json()).count() == len(inside())
    assert Cut.from_json(now.to_json()) == now


def test_a_read_committed_batch_misses_what_is_above_an_open_transaction(
    load: Callable[..., DataFrame],
) -> None:
    plain = rows_of(load(subscribe="flights"))
    assert set(plain) < set(inside())
    assert len(inside()) - len(plain) > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consistency": "cut", "endingOffsets": "latest"}, "'endingOffsets' and 'consistency' both"),
        ({"cut": "c", "isolation": "read_committed"}, "'isolation' and 'cut' both"),
        ({"cut": '{"version": 9}'}, "version 9"),
        ({"cut": "unknown"}, "no cut is pinned as 'unknown'"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(
    load: Callable[..., DataFrame], options: dict[str, str], message: str
) -> None:
    with pytest.raises((AnalysisException, PySparkException), match=message):
        load(**({"subscribe": "flights"} | options)).collect()


class Stream:
    """A stream that can be stopped and started again, and what its micro-batches had."""

    def __init__(self, spark: SparkSession, cluster: ServedCluster, checkpoint: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._checkpoint = checkpoint
        self.batches: dict[int, Rows] = {}
        self.fails = False

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Reads what there is now; gives the source's progress of each micro-batch."""
        given = {"bootstrap": self._cluster.bootstrap, "subscribe": "flights", "startingOffsets": "earliest"}
        frame = self._spark.readStream.format("tidegate").options(**(given | options)).load()
        writer = frame.select("partition", "offset").writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(READY_S)
        return [json.loads(progress.json)["sources"][0] for progress in query.recentProgress]

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        """A micro-batch that is run again has the same rows."""
        rows = rows_of(frame)
        assert self.batches.setdefault(batch_id, rows) == rows
        if self.fails:
            raise RuntimeError("the first run")


def test_each_micro_batch_ends_at_a_cut_also_when_it_is_run_again(
    spark: SparkSession, taker: CutTaker, cluster: ServedCluster, tmp_path: Path
) -> None:
    stream = Stream(spark, cluster, tmp_path / "checkpoint")
    (progress,) = stream.run(consistency="cut")
    assert stream.batches == {0: inside()}
    assert progress["endOffset"]["version"] == 2
    assert progress["endOffset"]["topics"]["flights"]["undecided"] == {"1": {str(OPEN): 0}}
    # It commits, after a last record; and the micro-batch that has it fails at its first run.
    cluster.extend("flights", 1, [write(OPEN, 2, 1), mark(OPEN, ControlType.COMMIT)])
    last = cluster.end("flights", 1) - 2
    stream.fails = True
    with pytest.raises(StreamingQueryException, match="the first run"):
        stream.run(consistency="cut")
    cluster.extend("flights", 0, [write(-1, -1)])
    stream.fails = False
    stream.run(consistency="cut")
    end = cluster.end("flights", 0)
    assert stream.batches == {0: inside(), 1: [(1, 0), (1, 1), (1, last)], 2: [(0, end - 2), (0, end - 1)]}


def test_a_checkpoint_at_a_cut_is_not_continued_without(
    spark: SparkSession, cluster: ServedCluster, tmp_path: Path
) -> None:
    stream = Stream(spark, cluster, tmp_path / "checkpoint")
    stream.run(consistency="cut")
    cluster.extend("flights", 0, [write(-1, -1)])
    with pytest.raises(StreamingQueryException, match="consistency=cut"):
        stream.run()
