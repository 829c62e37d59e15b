"""What a task does: reads its range from the partition's leader, and yields Arrow batches.

The same for a batch read and for a micro-batch of a stream.  On the driver, `connect` gives planning its
client.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ...security.client_security import ClientSecurity
from ..connecting.channels import Channels
from ..connecting.data_client import DataClient
from ..decoding.decode import Target, decode_batches
from ..decoding.decompression import Budget
from ..options import ReadOptions, client_security
from ..worker_logs import log_as_a_worker
from ..worker_memory import keep_memory
from .counting import count_range
from .fetch import RangeRequest, fetch_range
from .planning import PlannedRange

ROWS_MIN = 10_000  # for smaller Arrow batches, Spark's cost of a batch exceeds that of joining them here
BYTES_MIN = 1 << 19  # with so many, few rows are large rows: to copy them costs more than a batch
ROWS_MAX = 50_000
JOINED_BYTES_MAX = 16 << 20
EMPTY_ROWS_MAX = 1 << 20  # rows without columns need no memory

CHANNEL_SETS_MAX = 8
_worker_channels: OrderedDict[tuple[tuple[str, str], ...], tuple[ClientSecurity | None, Channels]] = (
    OrderedDict()
)
"""Spark's worker processes run task after task: their connections stay open in between, for each identity
that the tasks have."""


def _channels_of(
    properties: tuple[tuple[str, str], ...],
) -> tuple[ClientSecurity | None, Channels]:
    found = _worker_channels.pop(properties, None)
    if found is None:
        security = client_security(properties)
        found = security, Channels(security=security)
    _worker_channels[properties] = found
    if len(_worker_channels) > CHANNEL_SETS_MAX:
        _worker_channels.popitem(last=False)[1][1].close()
    return found


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task: planned ranges, one after the other."""

    value: tuple[PlannedRange, ...] | None


class RangeReader:
    """Reads ranges with the options of one `load()`; pickled to the tasks."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records as Arrow batches, by offset within each range.  In a task.  Raises ReadError when no
        node serves them, KafkaError for a batch that cannot be decoded."""
        keep_memory()
        if partition.value is None:  # Spark makes one empty partition out of none
            return
        client = self.connect()
        try:
            if self._columns:
                decoded = (batch for part in partition.value for batch in self._decoded(client, part))
                piece_cost_max = self._budget(partition.value[0]).piece_cost_max
                yield from join_small_batches(decoded, min(JOINED_BYTES_MAX, piece_cost_max))
            else:
                requests = [self._request(client, part) for part in partition.value]
                yield from empty_rows(sum(count_range(client, request) for request in requests))
        finally:
            client.close()

    def _budget(self, part: PlannedRange) -> Budget:
        return Budget.of_memory(
            self._options.task_memory_bytes, part.topic, with_headers="headers" in self._columns
        )

    def _decoded(self, client: DataClient, part: PlannedRange) -> Iterator[pa.RecordBatch]:
        budget = self._budget(part)
        target = Target(part.topic, part.partition, self._columns, part.start, part.end)
        for fetched in fetch_range(client, self._request(client, part)):
            yield from decode_batches(target, fetched.records, fetched.visible, budget)

    def _request(self, client: DataClient, part: PlannedRange) -> RangeRequest:
        if part.leader is not None:
            client.leaders.begin_with(part.topic, part.partition, part.leader)
        return RangeRequest(
            topic=part.topic,
            topic_id=part.topic_id,
            partition=part.partition,
            start=part.start,
            end=part.end,
            read_committed=self._options.read_committed,
            fail_on_data_loss=self._options.fail_on_data_loss,
            at_cut=part.at_cut,
        )

    def connect(self) -> DataClient:
        """A client for one call on the driver, or one task."""
        log_as_a_worker()
        security, channels = _channels_of(self._options.security)
        return DataClient(
            self._options.bootstrap,
            retry_timeout_ms=self._options.retry_timeout_ms,
            channels=channels,
            security=security,
            reads_local_files=self._options.read_local_files,
        )


def join_small_batches(
    batches: Iterable[pa.RecordBatch], bytes_max: int = JOINED_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least ROWS_MIN rows or BYTES_MIN bytes, at most ROWS_MAX rows and
    `bytes_max`."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        batch_bytes = batch.nbytes  # Arrow counts them anew each time
        if held and size + batch_bytes > bytes_max:
            yield from _emit(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch_bytes
        if rows >= ROWS_MIN or size >= min(bytes_max, BYTES_MIN):
            yield from _emit(held)
            held, rows, size = [], 0, 0
    yield from _emit(held)


def empty_rows(count: int) -> Iterator[pa.RecordBatch]:
    """Batches without columns, which have only a length."""
    for start in range(0, count, EMPTY_ROWS_MAX):
        rows = min(EMPTY_ROWS_MAX, count - start)
        yield pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def _emit(held: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not held:
        return
    joined: Any = held[0] if len(held) == 1 else pa.concat_batches(held)
    if joined.num_rows <= ROWS_MAX:
        yield joined
        return
    for start in range(0, joined.num_rows, ROWS_MAX):
        yield joined.slice(start, ROWS_MAX)
