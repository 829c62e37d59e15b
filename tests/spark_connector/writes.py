"""Writes each case of `write_cases.py` through Spark's Kafka connector and through this sink, on one node and
in one Spark session, and compares the records that a reader of committed records finds, and errors
(`command.py` has the options).

    python -m tests.spark_connector.writes [--only WORD] [--write] [--jars DIR]
"""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from tidegate.client import LocalCluster, NewTopic
from tidegate.client.blocking import Admin, Consumer, Producer

from bench.spark_streams import CONNECTOR

from .command import Comparing
from .write_cases import WRITES, Write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-connector-writes.md"
OURS, THEIRS = "tidegate", "kafka"
PARTITIONS, ROWS, TASKS = 3, 12, 2
INPUT = "input"
COLUMNS = 132
NOW_MS_MIN = 1_750_000_000_000

Record = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a sink did: the records in the topic, or why it refused."""

    records: Counter[Record]
    error: str


@dataclass(frozen=True, slots=True)
class Verdict:
    case: Write
    lines: list[str]
    """Where they differ; empty when they do not."""
    records: int
    is_refused: bool

    @property
    def result(self) -> str:
        if self.lines:
            return f"differs: {self.case.differs}" if self.case.differs else "**differs**"
        return "refused by both" if self.is_refused else f"equal, {self.records} records"

    @property
    def unexplained(self) -> bool:
        return bool(self.lines) and not self.case.differs

    @property
    def stale(self) -> bool:
        return bool(self.case.differs) and not self.lines


class Comparison:
    """One session and one node for all cases."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._folder = spark, bootstrap, folder
        self._cases = 0

    def judge(self, case: Write) -> Verdict:
        self._cases += 1
        found = {sink: self._written(sink, case, f"w{self._cases}-{sink}") for sink in (OURS, THEIRS)}
        ours, theirs = found[OURS], found[THEIRS]
        lines = []
        if bool(ours.error) != bool(theirs.error):
            lines.append(f"errors: ours {ours.error or 'none'!r}, the connector's {theirs.error or 'none'!r}")
        elif not ours.error and ours.records != theirs.records:
            lines.append(f"only ours: {list((ours.records - theirs.records).items())[:3]}")
            lines.append(f"only the connector's: {list((theirs.records - ours.records).items())[:3]}")
        if ours.error and ours.records:
            lines.append(f"ours wrote {sum(ours.records.values())} records and failed")
        return Verdict(case, lines, sum(ours.records.values()), bool(ours.error))

    def _written(self, sink: str, case: Write, topic: str) -> Outcome:
        with Admin(self._bootstrap) as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        options = {name: value.replace("{t}", topic) for name, value in case.options.items()}
        options["kafka.bootstrap.servers"] = self._bootstrap
        error = ""
        try:
            if case.mode.startswith("stream"):
                self._stream(sink, case, options, topic)
            else:
                self._batch(sink, case, options, topic)
        except (PySparkException, Py4JError) as failure:
            error = str(failure).partition("\n")[0]
        return Outcome(self._records(topic, case), error)

    def _batch(self, sink: str, case: Write, options: dict[str, str], topic: str) -> None:
        self._spark.range(0, ROWS, 1, TASKS).createOrReplaceTempView("rows")
        frame = self._selected(case, "rows", topic)
        writer = frame.write.format(sink).options(**options)
        (writer if case.mode == "default" else writer.mode(case.mode)).save()

    def _stream(self, sink: str, case: Write, options: dict[str, str], topic: str) -> None:
        """Both read by this source: the sinks are compared."""
        read = self._spark.readStream.format(OURS).option("kafka.bootstrap.servers", self._bootstrap)
        read = read.option("subscribe", INPUT).option("startingOffsets", "earliest")
        rows = read.option("maxOffsetsPerTrigger", "6").load().selectExpr("cast(key as string) as id")
        mode = case.mode.partition(" ")[2]
        if mode != "append":
            rows = rows.groupBy("id").count()
        rows.createOrReplaceTempView("streamed")
        writer = self._selected(case, "streamed", topic).writeStream.format(sink).options(**options)
        writer = writer.option("checkpointLocation", str(self._folder / topic)).outputMode(mode)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _selected(self, case: Write, view: str, topic: str) -> DataFrame:
        *first, last = (column.replace("{t}", topic) for column in case.columns)
        expression, _, condition = last.partition(" where ")
        chosen = f"select {', '.join([*first, expression])} from {view}"
        return self._spark.sql(f"{chosen} where {condition}" if condition else chosen)

    def _records(self, topic: str, case: Write) -> Counter[Record]:
        """Where the partition does not follow from the row, it is not compared; nor is the time of a
        record, only whether it is the row's or that of the write."""
        places = [(topic, number) for number in range(PARTITIONS)]
        names = [column.rpartition(" as ")[2] for column in case.columns]
        found: Counter[Record] = Counter()
        with (
            Admin(self._bootstrap) as admin,
            Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            while (ends := admin.end_offsets(places)) != admin.end_offsets(places, read_committed=True):
                time.sleep(0.01)
            consumer.assign(places)
            while any(consumer.positions().get(place, 0) < end for place, end in ends.items()):
                for record in consumer.poll(timeout_s=0.2):
                    is_placed = record.key is not None or names.count("partition") > 0
                    is_now = record.timestamp_ms > NOW_MS_MIN
                    found[
                        record.partition if is_placed else None, record.key, record.value,
                        tuple(record.headers), "the write's" if is_now else record.timestamp_ms,
                    ] += 1  # fmt: skip
        return found


def fill(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(INPUT, 1, 1)])
    with Producer(bootstrap) as producer:
        for number in range(ROWS):
            producer.send_and_wait(INPUT, b"v", key=b"%d" % (number % 5))


def page(verdicts: Sequence[Verdict]) -> str:
    same = sum(not verdict.lines for verdict in verdicts)
    said = (
        f"The sink of `spark-sql-kafka-0-10` {CONNECTOR} and this one ([writing](spark.md#writing)), in one "
        "Spark session on one node: types of columns, options and modes. The records that a reader of "
        "committed records finds are compared, and whether a write is refused. "
        f"{len(verdicts)} cases, of which {same} are the same; each other one has its reason. "
        "Made by `make spark-connector`."
    )
    lines = ["# Writes beside Spark's Kafka connector", "", textwrap.fill(said, COLUMNS), ""]
    lines += ["| case | columns | Tidegate beside the connector |", "|---|---|---|"]
    for verdict in verdicts:
        columns = " ".join(f"`{column}`" for column in verdict.case.columns).replace("|", "\\|")
        lines.append(f"| {verdict.case.title} | {columns} | {verdict.result} |")
    return "\n".join([*lines, ""])


@contextmanager
def judging(
    spark: SparkSession, cluster: LocalCluster, folder: Path, _cases: Sequence[Write]
) -> Iterator[Callable[[Write], Verdict]]:
    fill(cluster.bootstrap)
    yield Comparison(spark, cluster.bootstrap, folder).judge


COMPARING = Comparing(
    "tests.spark_connector.writes", (__doc__ or "").partition("\n\n")[0],
    WRITES, lambda case: case.title, {"transaction.state.log.num.partitions": 2}, judging, PAGE, page,
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(COMPARING.main())
