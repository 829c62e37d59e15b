"""The writer of a stream; PySpark 4.0 does not have what it derives from.

A micro-batch is one job: the sink is the option `sinkId`, else the query's id, and the batch is the
micro-batch's number, so that one that Spark runs again after a restart writes nothing when it is committed
already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ...proto import jobs_pb2 as pb
from ...wire.errors import ErrorCode
from ..executors import SentToExecutors
from .options import WriteOptions
from .results import WriteError
from .rows import Layout
from .writer import Sink, attempt_of

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class TidegateStreamWriter(SentToExecutors, DataSourceStreamArrowWriter):
    """Of a micro-batch: Spark builds one for the tasks, and another one for the commit."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._named_sink = options.sink
        self._sink = Sink(options, layout)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        sink, batch = (
            self._named_sink or context.getLocalProperty(QUERY_ID),
            context.getLocalProperty(BATCH_ID),
        )
        if sink is None or batch is None:
            raise WriteError(
                ErrorCode.UNSUPPORTED_VERSION, f"this Spark does not say {QUERY_ID} and {BATCH_ID} in a task"
            )
        return self._sink.write(pb.Job(sink=sink, batch=batch), attempt_of(context), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        self._sink.commit(messages, str(batch_id))

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        self._sink.abort(messages, str(batch_id))
