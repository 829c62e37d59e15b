"""PySpark's stream reader: on the driver one instance for the life of a query, in each task a pickled copy.

Spark calls, in one trigger: `initialOffset` (until the first micro-batch is in its log), `latestOffset`,
`reportLatestOffset`, `partitions`; and in the tasks `read`.  `commit(end)` comes one micro-batch late and
never for the last one.  The `start` of `latestOffset` says the same earlier: what lies before it is finished.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ...runtime.logs import get
from ..executors import SentToExecutors
from ..options import StreamOptions, client_security
from ..reading.planning import share_tasks
from ..reading.range_reader import RangePartition, RangeReader
from .driver import StreamDriver
from .group_commits import GroupCommits, kafka_committer
from .offsets import Json, from_json, to_json

log = get(__name__)


class TidegateStreamReader(SentToExecutors, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's text."""

    def __init__(self, options: StreamOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._ranges = RangeReader(options.read, columns)
        self._driver: StreamDriver | None = None  # made on the driver, by the first call there

    def initialOffset(self) -> Json:
        return to_json(self._on_driver().initial())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        before = from_json(start)
        reached = self._on_driver().latest(before, unlimited=isinstance(limit, ReadAllAvailable))
        return start if reached is before else to_json(reached)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Python has no combined limit: the first that is set stands for all, and `latestOffset` keeps all of
        them."""
        if self._options.offsets_max is not None:
            return ReadMaxRows(self._options.offsets_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        if self._options.offsets_min is not None:
            return ReadMinRows(self._options.offsets_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Json | None:
        return self._on_driver().report()

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver().stop_at_present()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        if start == end:  # after a restart Spark shows where the query was
            return []
        planned = self._on_driver().plan(from_json(start), from_json(end), reads_data=bool(self._columns))
        if self._options.read.partitions_min is not None:
            return [RangePartition((part,)) for part in planned]
        tasks = share_tasks(
            planned, self._options.shared_task_bytes, self._options.read.partition_records_max
        )
        return [RangePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._ranges.read(partition)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _on_driver(self) -> StreamDriver:
        if self._driver is None:
            client = self._ranges.connect()
            commits = None
            if self._options.group is not None:
                security = client_security(self._options.read.security)
                connect = kafka_committer(self._options.group_bootstrap, security)
                commits = GroupCommits(self._options.group, connect)
            self._driver = StreamDriver(client, self._options, commits)
            if self._options.read.ignored:
                log.warning("options_without_meaning_here", options=", ".join(self._options.read.ignored))
        return self._driver
