"""Questions about a log that are answered from its segments and indexes: by timestamp, and by size.

For a timestamp the broker must return the exact record, so it decodes a batch.  When that takes long, a
thread decodes it, and the look-up begins again, on the log as it is by then: the thread's result is a fact
about one batch.  `DecodedBatches` keeps it under the batch's checksum, and it counts only while the same
batch is in the log.

    decoded = DecodedBatches()
    try: answer = offset_for_timestamp(log, ..., decoded)
    except BatchNotDecoded as missing: decoded.add(missing, in a thread: missing.look())        and again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader, decode_batch
from ..segment.batch_scan import scan_batches
from ..segment.segment import Segment
from ..segment.segment_list import Segments
from ..segment.time_index import NO_TIMESTAMP
from .admission import CHEAP_COMPRESSED_BYTES, CHEAP_RECORDS_LOOKED_INTO, CHEAP_UNFOLDED_BYTES
from .log import Log

CHEAP_BATCH_BYTES = 1 << 20
PIECES_AT_ONCE = 256
"""So many pieces of a split range are some tenths of a millisecond."""
_COMPRESSION_MASK = 0x07


class TimestampOffset(NamedTuple):
    """A record found by its timestamp.  `leader_epoch` is the one that wrote it."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


class OffsetRange(NamedTuple):
    """[start, end) at batch boundaries (except the ends of the requested range) with its estimated size."""

    start: int
    end: int
    estimated_bytes: int


Found = tuple[int, int] | None
"""(timestamp, offset) of a record of a batch; None when the batch has no such record."""


class _Question(NamedTuple):
    """Asks for one record of one batch in [low, high): the first one not older than `timestamp_ms`; None: the
    first one with the greatest timestamp.  The checksum identifies the batch: it covers all but the base
    offset and the leader epoch."""

    base_offset: int
    crc: int
    size_bytes: int
    low: int
    high: int
    timestamp_ms: int | None

    def answer(self, data: bytes, max_bytes: int | None = None) -> Found:
        """Raises KafkaError; MESSAGE_TOO_LARGE when the records decompress to more than `max_bytes`."""
        records = decode_batch(data) if max_bytes is None else decode_batch(data, max_bytes=max_bytes)
        found: Found = None
        for record in records:
            if not self.low <= record.offset < self.high:
                continue
            if self.timestamp_ms is None:
                if found is None or record.timestamp_ms > found[0]:
                    found = record.timestamp_ms, record.offset
            elif record.timestamp_ms >= self.timestamp_ms:
                return record.timestamp_ms, record.offset
        return found


class BatchNotDecoded(Exception):
    """The look-up needs a batch whose decoding takes longer than the loop can spare: `look` decodes it, in
    any thread."""

    def __init__(self, question: _Question, data: bytes) -> None:
        super().__init__(f"the batch at offset {question.base_offset} is to be decoded")
        self.question = question
        self.data = data

    def look(self) -> Found:
        """Pure.  Raises KafkaError when the batch cannot be read."""
        return self.question.answer(self.data)


class DecodedBatches:
    """The results for batches that were decoded for one look-up."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[_Question, Found] = {}

    def add(self, missing: BatchNotDecoded, found: Found) -> None:
        self._found[missing.question] = found

    def find(self, question: _Question, header: BatchHeader, data: bytes) -> Found:
        """Raises BatchNotDecoded when the loop cannot spare the time."""
        if question in self._found:
            return self._found[question]
        compressed = header.attributes & _COMPRESSION_MASK
        size_max = CHEAP_COMPRESSED_BYTES if compressed else CHEAP_BATCH_BYTES
        if header.record_count <= CHEAP_RECORDS_LOOKED_INTO and len(data) <= size_max:
            try:
                return question.answer(data, CHEAP_UNFOLDED_BYTES)
            except KafkaError as error:
                if error.code is not ErrorCode.MESSAGE_TOO_LARGE:  # the bound of the loop may be the cause
                    raise
        raise BatchNotDecoded(question, data)


def offset_for_timestamp(
    log: Log, timestamp_ms: int, upper_offset: int, decoded: DecodedBatches | None = None
) -> TimestampOffset | None:
    """The first record below `upper_offset`, in order of offsets, whose timestamp is not below
    `timestamp_ms`.

    Without `decoded`, every batch is decoded at once; with it raises BatchNotDecoded.  Raises
    KAFKA_STORAGE_ERROR."""
    with log.local.health.reading("a look-up"):
        return _first_from(
            log.segments,
            timestamp_ms,
            (log.log_start_offset, min(upper_offset, log.log_end_offset)),
            decoded,
        )


def _first_from(
    segments: Sequence[Segment],
    timestamp_ms: int,
    bounds: tuple[int, int],
    decoded: DecodedBatches | None,
) -> TimestampOffset | None:
    start_offset, upper_offset = bounds
    for segment in segments:
        if segment.next_offset <= start_offset or segment.load_max_timestamp() < timestamp_ms:
            continue
        if segment.base_offset >= upper_offset:
            return None
        start = segment.first_position_from(timestamp_ms, start_offset)
        for position, header, _view in scan_batches(segment.file, start, segment.size_bytes):
            if header.base_offset >= upper_offset:
                return None
            if header.max_timestamp < timestamp_ms or header.is_control:
                continue
            found = _look(segment, position, header, bounds, timestamp_ms, decoded)
            if found is not None:
                return found
    return None


def _look(
    segment: Segment,
    position: int,
    header: BatchHeader,
    bounds: tuple[int, int],
    timestamp_ms: int | None,
    decoded: DecodedBatches | None,
) -> TimestampOffset | None:
    low, high = max(bounds[0], header.base_offset), min(bounds[1], header.next_offset)
    question = _Question(header.base_offset, header.crc, header.size_bytes, low, high, timestamp_ms)
    data = segment.file.read_at(position, header.size_bytes)
    found = question.answer(data) if decoded is None else decoded.find(question, header, data)
    return None if found is None else TimestampOffset(*found, header.partition_leader_epoch)


def max_timestamp(
    log: Log, upper_offset: int | None = None, decoded: DecodedBatches | None = None
) -> TimestampOffset | None:
    """The record with the greatest timestamp below `upper_offset` (None: the log's end), the first one when
    several share it (KIP-734).

    Without `decoded`, every batch is decoded at once; with it raises BatchNotDecoded.  Raises
    KAFKA_STORAGE_ERROR."""
    upper = log.log_end_offset if upper_offset is None else min(upper_offset, log.log_end_offset)
    with log.local.health.reading("a look-up"):
        return _greatest(log.segments, (log.log_start_offset, upper), decoded)


def _greatest(
    segments: Sequence[Segment], bounds: tuple[int, int], decoded: DecodedBatches | None
) -> TimestampOffset | None:
    best: TimestampOffset | None = None
    within = [each for each in segments if each.next_offset > bounds[0] and each.base_offset < bounds[1]]
    # mostly the first segment has the record
    for segment in sorted(within, key=lambda each: -each.load_max_timestamp()):
        claimed = segment.load_max_timestamp(), -segment.base_offset
        if claimed[0] != NO_TIMESTAMP and (best is None or claimed > (best.timestamp_ms, -best.offset)):
            best = _greatest_in(segment, bounds, best, decoded)
    return best


def _greatest_in(
    segment: Segment, bounds: tuple[int, int], best: TimestampOffset | None, decoded: DecodedBatches | None
) -> TimestampOffset | None:
    """`best`, or the first record of the range with a greater timestamp, if the segment has one."""
    low, upper = bounds
    if low <= segment.base_offset and upper >= segment.next_offset:
        peak = segment.position_of(segment.offset_of_max_timestamp)
        found = _greatest_of(segment, (peak, peak + 1), bounds, best, decoded)
        if found is not None and found.timestamp_ms == segment.max_timestamp_ms:
            return found
        # The greatest timestamp is a marker's, or that of a batch that compaction emptied: any record may
        # have the next one.
    start = segment.position_of(max(low, segment.base_offset))
    return _greatest_of(segment, (start, segment.size_bytes), bounds, best, decoded)


def _greatest_of(
    segment: Segment,
    stretch: tuple[int, int],
    bounds: tuple[int, int],
    best: TimestampOffset | None,
    decoded: DecodedBatches | None,
) -> TimestampOffset | None:
    """Like `_greatest_in`, for the batches that begin in [start, end) of the file.  Decodes the batches whose
    headers claim a greater timestamp than the best one found, the greatest claim first: mostly one."""
    there: list[tuple[int, BatchHeader]] = []
    for position, header, _view in scan_batches(segment.file, stretch[0], segment.size_bytes):
        if position >= stretch[1] or header.base_offset >= bounds[1]:
            break
        if not header.is_control and header.record_count and header.next_offset > bounds[0]:
            there.append((position, header))
    there.sort(key=lambda each: -each[1].max_timestamp)
    for position, header in there:
        if best is not None and (header.max_timestamp, -header.base_offset) < (
            best.timestamp_ms,
            -best.offset,
        ):
            continue
        found = _look(segment, position, header, bounds, None, decoded)
        if found is not None and _is_rather(found, best):
            best = found
    return best


def _is_rather(found: TimestampOffset, best: TimestampOffset | None) -> bool:
    if found.timestamp_ms == NO_TIMESTAMP:
        return False
    return best is None or (found.timestamp_ms, -found.offset) > (best.timestamp_ms, -best.offset)


def split_range(log: Log, start: int, end: int, target_bytes: int) -> Iterator[list[OffsetRange]]:
    """[start, end) in pieces of about `target_bytes`, split at batch boundaries that the index knows; no data
    is read.

    A piece may be larger than the target by one index interval or one batch.  No piece for an empty range.

    The pieces come at most PIECES_AT_ONCE together, and those of one segment together, mostly none: in
    between the caller may let others run.  It looks then whether the range is still in the log; the split
    goes on in the segments that there are by then.  A piece costs some binary searches, however many entries
    it spans.  Raises KAFKA_STORAGE_ERROR.
    """
    assert target_bytes > 0
    start, end = max(start, log.log_start_offset), min(end, log.log_end_offset)
    begun = OffsetRange(start, start, 0)  # the piece that is not complete, with what was counted so far
    while begun.start < end and begun.end < end:
        with log.local.health.reading("a look-up"):
            segment = _segment_from(log.segments, begun.end)
            if segment is None or segment.base_offset >= end:
                break  # truncated meanwhile; or a gap between segments is left of the range
            pieces, begun = _split(segment, begun, end, target_bytes)
        yield pieces
    if begun.start < end:
        yield [begun._replace(end=end)]


def _segment_from(segments: Segments, offset: int) -> Segment | None:
    """The segment that holds `offset`, or the first one after it."""
    at = segments.index_of(offset)
    if segments[at].next_offset <= offset:
        at += 1  # a gap between two segments
    return segments[at] if at < len(segments) else None


def _split(
    segment: Segment, begun: OffsetRange, end: int, target_bytes: int
) -> tuple[list[OffsetRange], OffsetRange]:
    """The pieces that end in this segment, PIECES_AT_ONCE at most, and the piece that begins behind them."""
    assert max(begun.end, segment.base_offset) < end
    assert begun.end < segment.next_offset
    piece_start, counted_to, piece_bytes = begun
    is_whole = counted_to <= segment.base_offset and segment.next_offset <= end
    if not segment.size_bytes or (is_whole and piece_bytes + segment.size_bytes <= target_bytes):
        # no entry is that far from the piece's start: the index need not be read
        return [], OffsetRange(piece_start, segment.next_offset, piece_bytes + segment.size_bytes)
    index = segment.index
    first = max(0, index.floor(counted_to))
    stop = max(index.ceiling(end), first + 1)
    position = index.entry(first)[1]
    pieces: list[OffsetRange] = []
    while len(pieces) < PIECES_AT_ONCE:
        at = max(first, index.ceiling_position(position + target_bytes - piece_bytes))
        if at < stop and index.entry(at)[0] <= piece_start:
            at = index.floor(piece_start) + 1  # a cleaned segment took the place of others meanwhile
        if at >= stop:
            behind = index.entry(stop)[1] if stop < len(index) else segment.size_bytes
            return pieces, OffsetRange(piece_start, segment.next_offset, piece_bytes + behind - position)
        offset, split_at = index.entry(at)
        # compaction may have left a gap at the range's end
        pieces.append(OffsetRange(piece_start, min(offset, end), piece_bytes + split_at - position))
        piece_start, piece_bytes, position, first = offset, 0, split_at, at
    return pieces, OffsetRange(piece_start, piece_start, 0)
