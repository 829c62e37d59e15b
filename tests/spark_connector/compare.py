"""Runs a case through both sources on one cluster, and says where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from .cases import Case, Read, Stream
from .topics import Topics

OURS, THEIRS = "tidegate", "kafka"
RUN_S = 90
FAILURES = (PySparkException, Py4JError)
KEY = ("topic", "partition", "offset")
IMPATIENT = {
    "kafkaConsumer.pollTimeoutMs": "4000",
    "fetchOffset.numRetries": "2",
    "fetchOffset.retryIntervalMs": "50",
    "kafka.default.api.timeout.ms": "10000",
    "kafka.request.timeout.ms": "9000",
}
"""For the connector, which waits for two minutes otherwise before it says what is wrong."""

Row = tuple[object, ...]


@dataclass(slots=True)
class Outcome:
    """What a source gave: columns, rows of each micro-batch (of a batch read: of the one), and the error that
    ended it."""

    columns: str = ""
    batches: list[list[Row]] = field(default_factory=list)
    tasks: int = 0
    error: str = ""

    @property
    def rows(self) -> int:
        return sum(map(len, self.batches))


@dataclass(frozen=True, slots=True)
class Verdict:
    case: Case
    lines: list[str]
    """Where they differ; empty when they do not."""
    rows: int
    refused: bool

    @property
    def result(self) -> str:
        if self.lines:
            return f"differs: {self.case.differs}" if self.case.differs else "**differs**"
        count = f"{self.rows:,} row{'s' if self.rows != 1 else ''}"
        if self.refused:
            return f"equal, {count}, then refused by both" if self.rows else "refused by both"
        return f"equal, {count}"

    @property
    def unexplained(self) -> bool:
        return bool(self.lines) and not self.case.differs

    @property
    def stale(self) -> bool:
        return bool(self.case.differs) and not self.lines


class Comparison:
    """One session and one cluster for all cases."""

    def __init__(
        self, spark: SparkSession, topics: Topics, addresses: Mapping[str, str], folder: Path
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._addresses = addresses
        self._folder = folder
        self._cases = 0

    def judge(self, case: Case) -> Verdict:
        self._cases += 1
        match case:
            case Read():
                found = {source: self._read(source, case) for source in (OURS, THEIRS)}
            case Stream():
                found = self._stream(case)
        ours, theirs = found[OURS], found[THEIRS]
        return Verdict(case, differences(ours, theirs), ours.rows, bool(ours.error))

    def _options(self, source: str, options: Mapping[str, str]) -> dict[str, str]:
        given = IMPATIENT if source == THEIRS else {}
        return given | {"kafka.bootstrap.servers": self._addresses[source]} | dict(options)

    def _read(self, source: str, case: Read) -> Outcome:
        outcome = Outcome()
        given = {**case.options, **(case.ours if source == OURS else case.theirs)}
        try:
            frame = self._spark.read.format(source).options(**self._options(source, given)).load()
            outcome.columns = columns(frame)
            if case.tasks:
                outcome.tasks = frame.rdd.getNumPartitions()
            outcome.batches.append(rows(frame))
        except FAILURES as error:
            outcome.error = first_line(error)
        return outcome

    def _stream(self, case: Stream) -> dict[str, Outcome]:
        name = f"stream-{self._cases}"
        self._topics.create(name)
        found = {source: Outcome() for source in (OURS, THEIRS)}
        given = {option: value.replace("{t}", name) for option, value in case.options.items()}
        if not given.keys() & {"subscribe", "subscribePattern", "assign"}:
            given["subscribe"] = name
        for step in case.steps:
            step(self._topics, name)
            for source, outcome in found.items():
                if not outcome.error:
                    self._run(source, given, outcome, self._folder / f"{name}-{source}")
        return found

    def _run(self, source: str, given: Mapping[str, str], outcome: Outcome, checkpoint: Path) -> None:
        """Until the stream has read what there is."""

        def take(frame: DataFrame, _batch_id: int) -> None:
            outcome.batches.append(rows(frame))

        try:
            frame = self._spark.readStream.format(source).options(**self._options(source, given)).load()
            outcome.columns = columns(frame)
            writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(RUN_S):
                query.stop()
                outcome.error = f"did not end within {RUN_S} s"
        except FAILURES as error:
            outcome.error = first_line(error)


def differences(ours: Outcome, theirs: Outcome) -> list[str]:
    """In words, a line each."""
    lines = []
    if bool(ours.error) != bool(theirs.error):
        lines.append(f"error: {ours.error or 'none'} | {theirs.error or 'none'}")
    if ours.columns != theirs.columns and not (ours.error and theirs.error):
        lines.append(f"columns: {ours.columns} | {theirs.columns}")
    if ours.tasks != theirs.tasks:
        lines.append(f"tasks: {ours.tasks} | {theirs.tasks}")
    counts = [len(batch) for batch in ours.batches], [len(batch) for batch in theirs.batches]
    if counts[0] != counts[1]:
        lines.append(f"rows: {counts[0]} | {counts[1]}")
    for number, (one, other) in enumerate(zip(ours.batches, theirs.batches, strict=False)):
        odd = [(mine, its) for mine, its in zip(one, other, strict=False) if mine != its]
        if odd:
            lines.append(f"batch {number}, {len(odd)} rows, first: {odd[0][0]} | {odd[0][1]}")
    return lines


def columns(frame: DataFrame) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)


def rows(frame: DataFrame) -> list[Row]:
    """Sorted by place; bytes as bytes, timestamps in microseconds."""
    exact = frame.withColumn("timestamp", frame["timestamp"].cast("double"))
    found = [tuple(_plain(value) for value in row) for row in exact.collect()]
    names = exact.columns
    places = [names.index(name) for name in KEY]
    return sorted(found, key=lambda row: tuple(str(row[place]).zfill(20) for place in places))


def _plain(value: Any) -> object:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [tuple(_plain(part) for part in each) for each in value]
    return value


def first_line(error: Exception) -> str:
    """What a person reads: of a failed task, the line that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by") or "Error:" in line]
    return (lines[0] + (f" ... {causes[-1]}" if causes else ""))[:400]
