"""The reader of a batch: ranges on the driver, records in the tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...runtime.logs import get
from ..executors import SentToExecutors
from ..options import ReadOptions
from ..worker_memory import keep_memory_in_daemon
from .planning import plan
from .range_reader import RangePartition, RangeReader

log = get(__name__)


class TidegateReader(SentToExecutors, DataSourceReader):
    """Plans on the driver; a pickled copy reads in each task."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._ranges = RangeReader(options, columns)

    def partitions(self) -> list[InputPartition]:
        """One range of offsets a task.  On the driver.  Raises ReadError, or OptionError for an option that
        does not fit the topics."""
        client = self._ranges.connect()
        if self._options.ignored:
            log.warning("options_without_meaning_here", options=", ".join(self._options.ignored))
        try:
            return [
                RangePartition((part,))
                for part in plan(client, self._options, reads_data=bool(self._columns))
            ]
        finally:
            client.close()
            keep_memory_in_daemon()  # what planning has imported, too

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The task's records as Arrow batches, by offset.  In a task.  Raises ReadError when no node serves
        them, KafkaError for a batch that cannot be decoded."""
        return self._ranges.read(partition)
