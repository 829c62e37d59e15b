"""How many records a reader of [start, end) gets, from indexes: the data is not read.

    counting = begin_count(log, start, end)     on the loop: notes the segments of the range
    counting.run()                              any thread: small files, and at each end of the range some
                                                batch headers
    counting.finish()                           on the loop: the number, if the log did not change meanwhile

Counted are data records with offsets in [start, end): no markers, none of an aborted transaction (when
reading committed), none that compaction has removed.  A segment inside the range costs its total, which is
remembered; a segment with an end of the range costs a walk over the headers from the entry before that end
(`count_index`).  The batch at an end is decoded only when compaction left offset gaps in it, because its
header does not say where.

At a cut (docs/semantics.md X11) some transactions do not count whose markers may be in the log by now, so
that no count knows them any more.  From the first record of such a transaction on, all headers are walked
over.

A segment without counts (an older version wrote it, or a truncation or a crash made them doubtful) is walked
over once, header by header, in the thread.  Its new counts are kept and written with the next flush.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from ...runtime import logs
from ...runtime.disk import File
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader, decode_batch
from ..segment.batch_scan import InvalidBatch, scan_batches
from ..segment.count_file import (
    HEADER_READ_BYTES,
    build_counts,
    encoded_counts,
    load_counts,
    load_total,
    scan_headers,
)
from ..segment.count_index import CountBelow, CountIndex, CountIndexInvalid, IsVoid, Total
from ..segment.segment import Segment
from ..segment.transaction_index import AbortedRanges, TransactionIndexEntry
from .log import Log

UNKNOWN_SEGMENTS_MAX = 8
log = logs.get(__name__)


class CountInvalidated(Exception):
    """The log was truncated, or its segments replaced, during the count: the caller counts again."""


@dataclass(frozen=True, slots=True)
class AtCut:
    """What a count at a cut leaves out: the first offset of a transaction by producer id.  With `only`,
    nothing but the records of these transactions counts."""

    first_offsets: Mapping[int, int]
    only: bool = False

    def counts(self, header: BatchHeader) -> bool:
        first = self.first_offsets.get(header.producer_id)
        is_named = header.is_transactional and first is not None and header.last_offset >= first
        return is_named is self.only

    def walk_from(self, end: int) -> int:
        """The first offset of [0, end) from which on every header says whether its records count."""
        return min((end, *self.first_offsets.values()))


@dataclass(slots=True)
class _Part:
    """One segment's share: records with offsets in [low, high) in its first `size_bytes`, where no batch ends
    above `end_offset`.

    The first `unknown_bytes` have no counts in memory; `live` counts the rest.
    """

    segment: Segment
    low: int
    high: int
    end_offset: int
    size_bytes: int
    index_interval_bytes: int
    unknown_bytes: int = 0
    unknown_end: int = 0
    live: CountIndex | None = None
    file: File | None = None
    """For `live`, when the range ends in this segment: a replacement may rename the file meanwhile."""
    total: Total | None = None
    index: CountIndex | None = None
    """Counts of the unknown bytes, after the walk over them."""
    file_bytes: bytes = b""
    at_cut: AtCut | None = None
    """Walks over all headers from byte `walk_from`."""
    walk_from: int = 0

    @property
    def is_whole(self) -> bool:
        return self.low <= self.segment.base_offset and self.high >= self.end_offset

    # ---- in a thread ---------------------------------------------------------------------------------------

    def run(self, is_void: IsVoid) -> int:
        if self.at_cut is not None:
            return self._at_cut(self.at_cut, is_void)
        if self.total is not None:
            return self.total.committed(is_void)
        found = 0
        if self.live is not None:
            found = self._look_up(self.live, self.end_offset, self.size_bytes, is_void)
        return found + (self._unknown(is_void) if self.unknown_bytes else 0)

    @contextmanager
    def _opened(self) -> Iterator[File]:
        """A file of this part's own: a count may open those of very many segments, one after the other."""
        file = self.segment.files.disk.open(self.segment.path("log"), read_only=True)
        try:
            yield file
        finally:
            file.close()

    def _unknown(self, is_void: IsVoid) -> int:
        segment, size = self.segment, self.unknown_bytes
        path = segment.path("countindex")
        with self._opened() as file:
            try:
                if self.is_whole and self.live is None:
                    self.total = load_total(segment.files.disk, path, file, segment.base_offset, size)
                    return self.total.committed(is_void)
                index = load_counts(
                    segment.files.disk,
                    path,
                    file,
                    segment.base_offset,
                    size,
                    self.unknown_end,
                    self.index_interval_bytes,
                )
                found = self._look_up(index, self.unknown_end, size, is_void)
            except (FileNotFoundError, CountIndexInvalid, InvalidBatch) as error:
                log.info("counted_by_headers", path=segment.path("log"), size_bytes=size, reason=error)
                index = build_counts(
                    file, segment.base_offset, size, self.unknown_end, self.index_interval_bytes
                )
                self.file_bytes = encoded_counts(index, file, size, self.unknown_end)
                found = self._look_up(index, self.unknown_end, size, is_void)
        self.index, self.total = index, index.total(self.unknown_end)
        return found

    def _at_cut(self, at_cut: AtCut, is_void: IsVoid) -> int:
        assert self.file is not None
        found = 0
        for position, header, _view in scan_headers(self.file, self.walk_from, self.size_bytes):
            if header.base_offset >= self.high:
                break
            if header.is_control or header.last_offset < self.low or not at_cut.counts(header):
                continue
            if not (header.is_transactional and is_void(header.producer_id, header.base_offset)):
                found += _records_below(self.file, position, header, self.high)
                if header.base_offset < self.low:
                    found -= _records_below(self.file, position, header, self.low)
        return found

    def _look_up(self, index: CountIndex, end_offset: int, size_bytes: int, is_void: IsVoid) -> int:
        low, high = (index.below(offset, end_offset, is_void) for offset in (self.low, self.high))
        if low.position < 0 and high.position < 0:
            return high.known - low.known
        with nullcontext(self.file) if self.file is not None else self._opened() as file:
            return _walk(file, high, size_bytes) - _walk(file, low, size_bytes)


def _walk(file: File, below: CountBelow, end: int) -> int:
    """Completes what an index knows of the records below an offset by the headers in front of it.  Raises
    InvalidBatch."""
    found = below.known
    if below.position < 0:
        return found
    for position, header, _view in scan_batches(file, below.position, end, chunk_bytes=HEADER_READ_BYTES):
        if header.base_offset >= below.offset:
            break
        if header.is_control:
            continue
        if header.is_transactional and header.base_offset >= below.void.get(header.producer_id, below.offset):
            continue
        found += _records_below(file, position, header, below.offset)
    return found


def _records_below(file: File, position: int, header: BatchHeader, offset: int) -> int:
    if header.next_offset <= offset or not header.record_count:
        return header.record_count
    if header.record_count == header.last_offset_delta + 1:
        return offset - header.base_offset
    return sum(record.offset < offset for record in decode_batch(file.read_at(position, header.size_bytes)))


@dataclass(slots=True)
class Counting:
    """See the module's text.  Made by `begin_count` only."""

    log: Log
    start: int
    end: int
    parts: list[_Part]
    is_void: IsVoid
    truncations: int
    records: int = -1

    def run(self) -> None:
        """Any thread.  Raises OSError, CORRUPT_MESSAGE; the caller ignores both when `require_unchanged`
        raises CountInvalidated."""
        with _reporting_damage(self.log):
            self.records = sum(part.run(self.is_void) for part in self.parts)

    def require_unchanged(self) -> None:
        """On the loop, also after `run` has failed.  Raises CountInvalidated, and OFFSET_OUT_OF_RANGE when
        the start is gone."""
        _require_range(self.log, self.start, self.end, self.end)
        there = {id(segment) for segment in self.log.segments}
        if self.log.truncations != self.truncations or any(
            id(part.segment) not in there for part in self.parts
        ):
            raise CountInvalidated(f"{self.log.name} has changed while it was counted")

    def finish(self) -> int:
        """On the loop, after `run`: the number.  Raises as `require_unchanged`."""
        self.require_unchanged()
        active = self.log.segments.active
        for part in self.parts:
            segment, index = part.segment, part.index
            if part.live is not None:
                counts = segment.counts
                if index is not None and counts is not None and counts.start_position == part.unknown_bytes:
                    counts.prepend(index)
            elif segment is not active and segment.counts is None:
                segment.total = part.total
                if index is not None and part.file_bytes:
                    self.log.local.durability.add_counts(segment, index, part.file_bytes)
        return self.records


def count_stop(log: Log, start: int, end: int, at_cut: AtCut | None = None) -> int:
    """Where to end the next piece of a count of [start, end): a piece rebuilds the counts of few segments, or
    walks over one.  On the loop."""
    if at_cut is not None:
        walked = at_cut.walk_from(end)
        if start >= walked:
            ends = (segment.next_offset for segment in log.segments.starting_at(start))
            return min(end, next((at for at in ends if at > start), end))
        end = walked
    unknown = 0
    for segment in log.segments.starting_at(start):
        if segment.base_offset >= end:
            break
        unknown += segment.total is None and segment.size_bytes > 0
        if unknown == UNKNOWN_SEGMENTS_MAX:
            return min(end, segment.next_offset)
    return end


def begin_count(
    log: Log, start: int, end: int, *, committed: bool = True, at_cut: AtCut | None = None
) -> Counting:
    """On the loop.  `end` may not be above the last stable offset (not `committed`, or at a cut: the high
    watermark): what is above may still change.

    Raises OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE, OSError.
    """
    is_stable = committed and at_cut is None
    _require_range(log, start, end, log.last_stable_offset if is_stable else log.high_watermark)
    with _reporting_damage(log):
        is_void = AbortedRanges(_aborted(log, start, end) if committed else []).holds
    walked = at_cut if at_cut is not None and end > at_cut.walk_from(end) else None
    is_empty = start == end or (at_cut is not None and at_cut.only and walked is None)
    parts = [] if is_empty else [
        _begin_part(log, segment, start, end)
        if walked is None
        else _begin_walk(log, segment, start, end, walked)
        for segment in log.segments.starting_at(start)
        if segment.base_offset < end and segment.size_bytes
    ]  # fmt: skip
    return Counting(log, start, end, parts, is_void, log.truncations)


@contextmanager
def _reporting_damage(log: Log) -> Iterator[None]:
    try:
        yield
    except InvalidBatch as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{log.name} cannot be counted: {error}") from error


def _require_range(log: Log, start: int, end: int, bound: int) -> None:
    if log.is_offline:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline")
    if not log.log_start_offset <= start <= end <= bound:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"[{start}, {end}) of {log.name} is not in [{log.log_start_offset}, {bound})",
        )


def _aborted(log: Log, start: int, end: int) -> list[TransactionIndexEntry]:
    """The aborted transactions with records in the range."""
    found: list[TransactionIndexEntry] = []
    for segment in log.segments.starting_at(start):
        for entry in segment.aborted.entries:
            if entry.last_offset >= start and entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found


def _begin_part(log: Log, segment: Segment, start: int, end: int) -> _Part:
    part = _Part(
        segment, start, end, segment.next_offset, segment.size_bytes, log.config.index_interval_bytes
    )
    if segment.total is not None and part.is_whole:
        part.total = segment.total
        return part
    counts = segment.counts
    if counts is None and segment is log.segments.active:  # from now on the segment counts its appends
        counts = segment.counts = CountIndex(
            segment.base_offset, log.config.index_interval_bytes, segment.next_offset, segment.size_bytes
        )
    if counts is None:
        part.unknown_bytes, part.unknown_end = segment.size_bytes, segment.next_offset
        return part
    part.unknown_bytes, part.unknown_end = counts.start_position, counts.start_offset
    part.live, part.file = counts.copy(), None if part.is_whole else segment.file
    return part


def _begin_walk(log: Log, segment: Segment, start: int, end: int, at_cut: AtCut) -> _Part:
    at = segment.index.floor(start)
    return _Part(
        segment, start, end, segment.next_offset, segment.size_bytes, log.config.index_interval_bytes,
        file=segment.file, at_cut=at_cut, walk_from=0 if at < 0 else segment.index.entry(at)[1],
    )  # fmt: skip


def count_now(log: Log, start: int, end: int, *, committed: bool = True, at_cut: AtCut | None = None) -> int:
    """A count that waits on the loop's thread: for tools and tests."""
    counting = begin_count(log, start, end, committed=committed, at_cut=at_cut)
    counting.run()
    return counting.finish()
