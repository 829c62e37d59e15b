"""Questions about a log that are answered from its segments and indexes: by timestamp, and by size.

Only `ListOffsets` and administrators ask them, so a batch may be decoded here: the broker must name the exact record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..wire.records import decode_batch
from .batch_scan import scan_batches
from .segment import Segment
from .time_index import NO_TIMESTAMP


class TimestampOffset(NamedTuple):
    """A record found by its timestamp.  `leader_epoch` is the one that wrote it."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class OffsetRange(NamedTuple):
    """[start, end) at batch boundaries (except the ends that were asked for) with its estimated size."""

    start: int
    end: int
    estimated_bytes: int


def offset_for_timestamp(
    segments: Sequence[Segment], timestamp_ms: int, start_offset: int, upper_offset: int
) -> TimestampOffset | None:
    """The first record in [start_offset, upper_offset) whose timestamp is not below `timestamp_ms`, in order of offsets."""
    for segment in segments:
        if segment.next_offset <= start_offset or segment.load_max_timestamp() < timestamp_ms:
            continue
        if segment.base_offset >= upper_offset:
            return None
        found = _first_record(segment, timestamp_ms, start_offset, upper_offset)
        if found is not None:
            return found
    return None


def _first_record(segment: Segment, timestamp_ms: int, start_offset: int, upper_offset: int) -> TimestampOffset | None:
    start = segment.first_position_from(timestamp_ms, start_offset)
    for position, header, _view in scan_batches(segment.file, start, segment.size_bytes):
        if header.base_offset >= upper_offset:
            return None
        if header.max_timestamp < timestamp_ms or header.is_control:
            continue
        for record in decode_batch(segment.file.read_at(position, header.size_bytes)):
            if record.timestamp_ms >= timestamp_ms and start_offset <= record.offset < upper_offset:
                return TimestampOffset(record.timestamp_ms, record.offset, header.partition_leader_epoch)
    return None


def max_timestamp(segments: Sequence[Segment], start_offset: int, upper_offset: int) -> TimestampOffset | None:
    """The record with the greatest timestamp in the range, the first one when several share it (KIP-734)."""
    best: TimestampOffset | None = None
    for segment in segments:
        if segment.next_offset <= start_offset or segment.base_offset >= upper_offset:
            continue
        greatest = segment.load_max_timestamp()
        if greatest == NO_TIMESTAMP or (best is not None and greatest <= best.timestamp_ms):
            continue
        found = _greatest_in(segment, start_offset, upper_offset, best.timestamp_ms if best else NO_TIMESTAMP)
        best = found or best
    return best


def _greatest_in(segment: Segment, start_offset: int, upper_offset: int, above: int) -> TimestampOffset | None:
    """The first record of the range with the greatest timestamp, when that is greater than `above`."""
    if start_offset <= segment.base_offset and upper_offset >= segment.next_offset:
        best = _scan_for_greatest(segment, segment.offset_of_max_timestamp, upper_offset, above, segment.max_timestamp_ms)
        if best is not None and best.timestamp_ms == segment.max_timestamp_ms:
            return best
        # The greatest timestamp is a marker's, or that of a batch that compaction has emptied: any record may be next to it.
    return _scan_for_greatest(segment, start_offset, upper_offset, above, None)


def _scan_for_greatest(
    segment: Segment, start_offset: int, upper_offset: int, above: int, enough: int | None
) -> TimestampOffset | None:
    best: TimestampOffset | None = None
    for position, header, _view in scan_batches(segment.file, segment.position_of(start_offset), segment.size_bytes):
        if header.base_offset >= upper_offset:
            break
        if header.is_control or header.max_timestamp <= (best.timestamp_ms if best else above):
            continue
        for record in decode_batch(segment.file.read_at(position, header.size_bytes)):
            inside = start_offset <= record.offset < upper_offset
            if inside and record.timestamp_ms > (best.timestamp_ms if best else above):
                best = TimestampOffset(record.timestamp_ms, record.offset, header.partition_leader_epoch)
        if best is not None and best.timestamp_ms == enough:
            break
    return best


def split_range(segments: Sequence[Segment], start: int, end: int, target_bytes: int) -> list[OffsetRange]:
    """[start, end) in pieces of about `target_bytes`, cut at batch boundaries that the index knows; no data is read.

    A piece may be larger than the target by one index interval or one batch.  Empty for an empty range.
    """
    pieces: list[OffsetRange] = []
    piece_start, piece_bytes = start, 0
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= end or not segment.size_bytes:
            continue
        index = segment.index
        low = max(0, index.floor(start))
        high = index.ceiling(end)
        for at in range(low, max(high, low + 1)):
            offset, position = index.entry(at)
            if piece_bytes >= target_bytes and offset > piece_start:
                pieces.append(OffsetRange(piece_start, offset, piece_bytes))
                piece_start, piece_bytes = offset, 0
            following = index.entry(at + 1)[1] if at + 1 < len(index) else segment.size_bytes
            piece_bytes += following - position
    if piece_start < end:
        pieces.append(OffsetRange(piece_start, end, piece_bytes))
    return pieces
