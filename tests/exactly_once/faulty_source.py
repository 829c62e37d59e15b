"""The product's data source, which fails at one step of one run.

A fault happens once: the first process that comes to the step makes the file `taken` in the run's folder.  In
tasks it happens in the first attempt of one partition; in a stream in its second micro-batch, which has a
former and a later one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType
from tidegate.proto import jobs_pb2 as pb
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.options import client_security
from tidegate.spark.source import TidegateSource
from tidegate.spark.writing.jobs_client import JobsClient
from tidegate.spark.writing.options import WriteOptions
from tidegate.spark.writing.results import Attempt
from tidegate.spark.writing.rows import Layout
from tidegate.spark.writing.stream_writer import BATCH_ID, TidegateStreamWriter
from tidegate.spark.writing.writer import Sink, TidegateWriter

from .steps import IN_TASK, Action, Point

FORMAT: Final = "tidegate-faulty"
OPTION: Final = "fault"
PARTITION_HIT: Final = 1
BATCH_HIT: Final = "1"
SLOW_S: Final = 1.5
WAIT_S: Final = 120.0
PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Fault:
    """Of one run; its folder is on the machine of all processes."""

    point: Point
    action: Action
    folder: str

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Fault:
        return cls(**json.loads(text))

    def at(self, point: Point, batch: str | None) -> None:
        """Called at each step, in tasks and on the driver; `batch` of a stream."""
        if point != self.point or batch not in (None, BATCH_HIT):
            return
        if point in IN_TASK:
            context = TaskContext.get()
            assert context is not None
            if (context.partitionId(), context.attemptNumber()) != (PARTITION_HIT, 0):
                return
        folder = Path(self.folder)
        try:
            os.close(os.open(folder / "taken", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.action == "fail":
            raise RuntimeError(f"the fault: {point}")
        if self.action == "exit":
            os._exit(17)
        (folder / "reached").touch()
        deadline_s = time.monotonic() + WAIT_S
        while not (folder / "go").exists():
            assert time.monotonic() < deadline_s, "the harness did not answer"
            time.sleep(PAUSE_S)


def stamped(fault: Fault, run: int, session: str, *, is_slow: bool) -> object:
    """For `mapInArrow`: the rows get the attempt that writes them, as JSON in the column `value`."""

    def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty(BATCH_ID)
        if is_slow and (context.partitionId(), context.attemptNumber()) == (0, 0):
            time.sleep(SLOW_S)  # so that Spark runs the task twice
        about = {
            "run": run, "session": session, "batch": batch_id or "",
            "attempt": f"{context.partitionId()}-{context.taskAttemptId()}",
        }  # fmt: skip
        for batch in batches:
            values = [json.dumps(about | {"row": row}) for row in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [batch.column(1), pa.array(values, pa.string())], ["key", "value"]
            )
        if fault.point == "after rows":
            time.sleep(0.3)  # they are sent meanwhile
            fault.at("after rows", batch_id)

    return stamp


class FaultyJobs(JobsClient):
    """The product's, with the steps around two of its calls."""

    def __init__(self, fault: Fault, job: pb.Job, options: WriteOptions) -> None:
        channels = Channels(security=client_security(options.security))
        super().__init__(job, options.bootstrap, options.job_bootstrap, channels, options.retry_timeout_ms)
        self._fault = fault
        self._batch = job.batch if job.batch.isdecimal() else None
        self._name = job.batch

    def prepare_attempt(self, attempt: Attempt, timeout_ms: int) -> pb.PrepareAttemptReply:
        self._fault.at("before prepare", self._batch)
        reply = super().prepare_attempt(attempt, timeout_ms)
        self._fault.at("after prepare", self._batch)
        return reply

    def commit(self, winners: Sequence[Attempt], rows: int) -> pb.JobReply:
        self._fault.at("before commit", self._batch)
        reply = super().commit(winners, rows)
        names = [winner.attempt for winner in reply.winners]
        found = {"batch": self._name, "winners": names, "decided_ms": reply.decided_ms}
        (Path(self._fault.folder) / f"decision-{self._name}").write_text(json.dumps(found))
        self._fault.at("after commit", self._batch)
        return reply


class FaultySink(Sink):
    """The product's, with those calls."""

    def __init__(self, options: WriteOptions, layout: Layout, fault: Fault) -> None:
        super().__init__(options, layout)
        self._fault = fault

    def client(self, job: pb.Job) -> JobsClient:
        return FaultyJobs(self._fault, job, self._options)


class FaultySource(TidegateSource):
    """As the product's, with the option `fault`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._fault = Fault.of(options[OPTION])
        super().__init__({name: value for name, value in options.items() if name.lower() != OPTION})

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = super().writer(schema, overwrite)
        assert isinstance(writer, TidegateWriter)
        writer._sink = FaultySink(writer._sink._options, writer._sink._layout, self._fault)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, TidegateStreamWriter)
        writer._sink = FaultySink(writer._sink._options, writer._sink._layout, self._fault)
        return writer
