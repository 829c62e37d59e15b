"""Reads of a megabyte and more that must not hold up the loop: the place is found on the loop, the bytes are
read in a thread.

The order that makes this safe:

1. on the loop, `begin_bulk_read` looks the place up in the index, below an offset that is settled (high
   watermark or last stable offset): bytes there never change as long as the log is not truncated, keeps its
   start, and is not closed;
2. `BulkRead.run`, in any thread, reads them.  It touches nothing of the log but the open file, and reports
   no failure to the log: a read that lost a race against a truncation says nothing about the disk;
3. back on the loop, the caller makes sure that nothing of this kind happened meanwhile (same leader epoch,
   log start not above the offset) before it believes what was read, or why it failed.

What `BulkRead.locate` finds is read only while it is sent, and is believed after that.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ...runtime.connections.file_sending import FilePart
from ...runtime.disk import File
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import HEADER_BYTES, BatchHeader, parse_header
from ..segment.transaction_index import AbortedTransaction
from .log import Log

LOCATED_MAX: Final = 1024
SMALL_BATCH_BYTES: Final = 16 << 10
"""Headers of smaller batches are read many at once."""
WINDOW_BYTES: Final = 32 << 10


class BulkRead(NamedTuple):
    """Where the batches of a read lie.  `covers_to` is the first offset behind the bytes."""

    file: File
    start: int
    length: int
    offset: int
    upper_offset: int
    covers_to: int

    def run(self) -> tuple[bytes, int]:
        """Whole batches from the one that holds `offset`, each beginning below `upper_offset`; and the offset
        to go on from.

        Any thread.  No bytes where the range holds no batch.  Raises OSError, and CORRUPT_MESSAGE for bytes
        that are no batch.
        """
        data = self.file.read_at(self.start, self.length)
        if len(data) < self.length:
            raise self._too_short(len(data))
        begin, end, next_offset = self._walk(lambda position: parse_header(data, position), self.length)
        return data[begin:end], next_offset

    def locate(self) -> tuple[FilePart, int]:
        """As `run`, but the batches are not read: only their headers are, and at most LOCATED_MAX of those
        that are wanted."""
        window, window_at = b"", 0
        window_bytes = HEADER_BYTES

        def header_at(position: int) -> BatchHeader:
            nonlocal window, window_at, window_bytes
            if not window_at <= position <= window_at + len(window) - HEADER_BYTES:
                window_at = position
                window = self.file.read_at(self.start + position, min(window_bytes, self.length - position))
                if len(window) < HEADER_BYTES:
                    raise self._too_short(position + len(window))
            header = parse_header(window, position - window_at)
            window_bytes = WINDOW_BYTES if header.size_bytes < SMALL_BATCH_BYTES else HEADER_BYTES
            return header

        begin, end, next_offset = self._walk(header_at, LOCATED_MAX)
        return FilePart(self.file, self.start + begin, end - begin), next_offset

    def _walk(self, header_at: Callable[[int], BatchHeader], batches_max: int) -> tuple[int, int, int]:
        """Where the wanted batches begin and end, from `start`, and the offset to go on from."""
        begin = end = wanted = 0
        next_offset = self.offset
        while end < self.length:
            if wanted == batches_max:
                return begin, end, next_offset
            is_cut = self.length - end < HEADER_BYTES
            header = None if is_cut else header_at(end)
            if (
                header is None
                or header.magic != 2
                or not (HEADER_BYTES <= header.size_bytes <= self.length - end)
            ):
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"no whole batch at byte {self.start + end} of {self.file.path.name}",
                )
            if header.base_offset >= self.upper_offset:
                return begin, end, max(self.upper_offset, next_offset)
            end += header.size_bytes
            if header.next_offset <= self.offset:
                begin = end
            else:
                wanted += 1
                next_offset = header.next_offset
        return begin, end, max(next_offset, self.covers_to)

    def _too_short(self, found: int) -> OSError:
        return OSError(
            5, f"{found} of {self.length} bytes at {self.start} could be read", str(self.file.path)
        )


def begin_bulk_read(log: Log, offset: int, max_bytes: int, upper_offset: int) -> BulkRead:
    """Finds about `max_bytes` from `offset` on, in one segment; more when the batch that holds `offset` is
    larger.

    `upper_offset` must not be above the high watermark.  Raises OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
    """
    if log.is_offline:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name} is offline")
    if not log.log_start_offset <= offset < min(upper_offset, log.log_end_offset):
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {log.name} is outside [{log.log_start_offset}, "
            f"{min(upper_offset, log.log_end_offset)})",
        )
    return _place_of(log, offset, max_bytes, upper_offset)


class AbortedOfRange:
    """The aborted transactions of [start, end), which a reader that gets the range piece by piece is told
    once.

    The cleaner removes an ABORT marker when nothing of its transaction is left: a reader that waits for the
    end of a transaction of its list would then take all later records of the producer for aborted, too.  And
    the files may be exchanged for a copy with records that the cleaner had removed: they are in no list.  So
    the list is looked at again before each piece, where such a thing has happened.  Used on the loop."""

    __slots__ = ("_changes", "_end", "_last_offsets", "_log", "transactions")

    def __init__(self, log: Log, start: int, end: int) -> None:
        self._log = log
        self._end = end
        self.transactions: tuple[AbortedTransaction, ...] = tuple(log.aborted_transactions(start, end))
        self._last_offsets = _last_offsets(self.transactions)
        self._changes = _changes(log)

    def note_told(self) -> None:
        """The reader has the list, and a stream may live long: only what is compared is kept of it."""
        self.transactions = ()

    def is_right_from(self, offset: int) -> bool:
        """Whether the list is that of the batches that a read from `offset` on finds now.

        False also where a transaction that began in the range was aborted since: a range at a cut may have
        some."""
        changes = _changes(self._log)
        if changes != self._changes:
            now = _last_offsets(self._log.aborted_transactions(offset, self._end))
            if now != self._last_offsets[bisect_left(self._last_offsets, offset) :]:
                return False
            self._changes = changes
        return True


def _last_offsets(transactions: Iterable[AbortedTransaction]) -> array[int]:
    return array("q", sorted(each.last_offset for each in transactions))


def _changes(log: Log) -> tuple[int, int]:
    return log.truncations, log.segments.switches


def begin_copy(log: Log, offset: int, max_bytes: int) -> BulkRead:
    """Like `begin_bulk_read`, for a copy of the log: also below the log start, and up to the log's end.
    There must be batches from `offset` on."""
    return _place_of(log, offset, max_bytes, log.log_end_offset)


def bytes_from(log: Log, offset: int) -> int:
    """The bytes of batches from the batch with `offset`, or the next one, to the log's end.  Raises OSError,
    InvalidBatch."""
    first, *others = log.segments.starting_at(offset)
    rest = sum(segment.size_bytes for segment in others)
    if offset <= first.base_offset:
        return rest + first.size_bytes
    return rest if offset >= first.next_offset else rest + first.size_bytes - first.position_of(offset)


def _place_of(log: Log, offset: int, max_bytes: int, upper_offset: int) -> BulkRead:
    following = [segment for segment in log.segments.starting_at(offset) if segment.size_bytes]
    if offset >= following[0].next_offset:
        following.pop(0)  # a gap between two segments
    segment = following[0]
    # The reading thread walks to `upper_offset`; both ends of this stretch are entries of the index.
    stretch = segment.index.stretch(
        offset, max_bytes, segment.next_offset, segment.next_offset, segment.size_bytes
    )
    assert stretch is not None
    _first, _begins_at, start, end, covers_to, _walk_from = stretch
    return BulkRead(segment.file, start, end - start, offset, upper_offset, covers_to)
