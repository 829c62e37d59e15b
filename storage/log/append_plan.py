"""The plan of an append, made before anything changes: checks, offsets, the producers' next state.  Pure.

The leader's plan decides: it may reject a batch, or find it to be a duplicate.  The follower's plan accepts
the leader's batches and only checks that the batches continue this log.  Neither touches the log: the plan is
written first and published after (`Log._write`), so an append that fails leaves no trace (docs/semantics.md
I8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader, decode_marker, iterate_headers, validate_batch
from ..producers.producer_state import (
    AppendOrigin,
    PreparedAppend,
    ProducerState,
    VerificationGuard,
)
from ..segment.count_index import TRANSACTIONAL_OR_CONTROL
from ..segment.offset_index import OFFSET_SPAN_MAX
from ..topic_config import LogConfig, TimestampType
from .admission import NO_APPEND_TIME, CheckedBatches, check_batches, stamp_batches

_new = tuple.__new__
_CLIENT = AppendOrigin.CLIENT  # looked up at every append, see `admission`
_LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME


class AppendInfo(NamedTuple):
    """The result of an append.  `append_time_ms` is -1 unless the broker stamps records; a duplicate has the
    offsets of the original."""

    first_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool
    log_start_offset: int
    next_offset: int


class PlacedBatch(NamedTuple):
    """A checked batch with its offset in the log, greatest timestamp and leader epoch."""

    header: BatchHeader
    base_offset: int
    max_timestamp_ms: int
    leader_epoch: int


@dataclass(slots=True)
class AppendPlan:
    """`placed` batches, the `buffers` that hold them, the log's end after them, and the producers' state to
    publish."""

    placed: list[PlacedBatch]
    buffers: list[memoryview | bytearray]
    next_offset: int
    prepared: PreparedAppend | None
    is_plain: bool
    """Every offset has a data record outside of any transaction, so the count index needs no note
    (`count_index`)."""
    append_time_ms: int = NO_APPEND_TIME

    @property
    def size_bytes(self) -> int:
        buffers = self.buffers
        return len(buffers[0]) if len(buffers) == 1 else sum(len(buffer) for buffer in buffers)


def plan_leader_append(
    view: memoryview,
    config: LogConfig,
    producers: ProducerState,
    base_offset: int,
    *,
    leader_epoch: int,
    origin: AppendOrigin,
    now_ms: int,
    guard: VerificationGuard | None,
    transaction_version: int,
    log_start_offset: int,
    checked: CheckedBatches | None = None,
) -> AppendPlan | AppendInfo:
    """The plan, or the result of the original append when this one is a duplicate.  Raises KafkaError; see
    `Log.append_leader`."""
    append_time_ms = now_ms if config.timestamp_type is _LOG_APPEND_TIME else NO_APPEND_TIME
    if checked is None or (checked.config is not config and checked.config != config):
        checked = check_batches(view, origin, config, now_ms)
    batches = checked.batches
    if origin is _CLIENT and batches[0][1].producer_id >= 0:
        duplicate = _find_duplicate(batches, config, producers, log_start_offset)
        if duplicate is not None:
            return duplicate
    offset = base_offset
    prepared: PreparedAppend | None = None
    placed: list[PlacedBatch] = []
    for position, header in batches:
        if append_time_ms >= 0:
            header = header._replace(max_timestamp=append_time_ms)
        if header.producer_id >= 0:
            if prepared is None:
                prepared = producers.prepare(origin, guard, transaction_version)
            prepared.check_batch(header, offset, decode_marker(view, position) if header.is_control else None)
        placed.append(_new(PlacedBatch, (header, offset, header.max_timestamp, leader_epoch)))
        offset += header.last_offset_delta + 1
    buffers = stamp_batches(view, batches, base_offset, leader_epoch, append_time_ms)
    is_plain = origin is _CLIENT and (prepared is None or not prepared.verified)
    return AppendPlan(placed, buffers, offset, prepared, is_plain, append_time_ms)


def _find_duplicate(
    batches: list[tuple[int, BatchHeader]], config: LogConfig, producers: ProducerState, log_start_offset: int
) -> AppendInfo | None:
    """The original of a repeated append; several batches are a duplicate when each of them is one (rule
    I2)."""
    first = producers.find_duplicate(batches[0][1])
    if first is None:
        return None
    last = first
    for _position, header in batches[1:]:
        following = producers.find_duplicate(header)
        if following is None:
            return None
        last = following
    time_ms = last.timestamp_ms if config.timestamp_type is _LOG_APPEND_TIME else NO_APPEND_TIME
    return AppendInfo(
        first.first_offset, last.last_offset, time_ms, True, log_start_offset, last.last_offset + 1
    )


def plan_follower_append(
    view: memoryview, config: LogConfig, producers: ProducerState, log_end_offset: int, log_name: str
) -> AppendPlan | None:
    """A plan for the whole batches that the leader sent, as many as fit into one segment; None when there is
    none.  Raises CORRUPT_MESSAGE, also for a gap or an overlap."""
    end, offset = 0, log_end_offset
    prepared: PreparedAppend | None = None
    placed: list[PlacedBatch] = []
    is_plain = True
    for position, _ in iterate_headers(view):
        header = validate_batch(view, position)
        base = header.base_offset
        if base != offset and not (base > offset and config.may_have_offset_gaps):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{log_name}: a batch at offset {base} cannot follow on offset {offset - 1}",
            )
        if placed and header.next_offset - placed[0].base_offset > OFFSET_SPAN_MAX:
            break  # of a compacted topic: the rest begins a segment of its own, with the next fetch
        if header.producer_id >= 0:
            if prepared is None:
                prepared = producers.prepare(AppendOrigin.REPLICATION)
            prepared.check_batch(header, base, decode_marker(view, position) if header.is_control else None)
        if (
            base != offset
            or header.attributes & TRANSACTIONAL_OR_CONTROL
            or header.record_count <= header.last_offset_delta
        ):
            is_plain = False
        placed.append(PlacedBatch(header, base, header.max_timestamp, header.partition_leader_epoch))
        offset, end = header.next_offset, position + header.size_bytes
    return AppendPlan(placed, [view[:end]], offset, prepared, is_plain) if placed else None
