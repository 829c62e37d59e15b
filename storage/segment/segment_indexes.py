"""The offset index and the time index of one segment, as a pair: they come from the same files, and the same
walk over the batches rebuilds both.

The pair is in one of three states:

    absent    not in memory; the files have it, or the batches give it
    loaded    in memory as in the files; `OpenFiles` may drop it from any thread
    kept      in memory, and newer than the files: the segment takes batches

Both have an entry for about every `interval_bytes` of batches, at the same batch; the first batch of a
segment always has one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...runtime import logs
from .checksums import SegmentChecksums
from .offset_index import OffsetIndex
from .segment_files import SegmentFiles
from .time_index import TimeIndex

log = logs.get(__name__)

IndexPair = tuple[OffsetIndex, TimeIndex]


class SegmentIndexes:
    """See the module's text."""

    __slots__ = ("_files", "_times", "interval_bytes", "is_kept", "last_position", "offsets")

    def __init__(self, files: SegmentFiles, interval_bytes: int) -> None:
        self._files = files
        self.interval_bytes = interval_bytes
        self.is_kept = False
        self.last_position = 0
        """Where the batch of the last entry begins."""
        self.offsets: OffsetIndex | None = None
        """None: absent."""
        self._times: TimeIndex | None = None

    @property
    def pair(self) -> IndexPair | None:
        """Both, held by the caller while it uses them: another thread may drop them here."""
        offsets, times = self.offsets, self._times
        return None if offsets is None or times is None else (offsets, times)

    @property
    def memory_bytes(self) -> int:
        """Size of the larger index file, as far as loaded."""
        offsets, times = self.offsets, self._times
        if offsets is None or times is None:
            return 0
        return max(offsets.memory_bytes, times.memory_bytes)

    def clear(self) -> IndexPair:
        """Empty indexes, kept."""
        base = self._files.base_offset
        pair = OffsetIndex(base), TimeIndex(base)
        self.keep(pair)
        return pair

    def keep(self, pair: IndexPair) -> None:
        """From now on these are newer than those on the disk."""
        self.is_kept = True
        self._files.open_files.index_gone(self)
        self.offsets, self._times = pair
        self.last_position = pair[0].entry(-1)[1] if len(pair[0]) else 0

    def load(self, log_bytes: int) -> IndexPair | None:
        """Reads both files; None when the segment checksums do not match them, or not `log_bytes` of
        batches.  Raises OSError."""
        files, checksums = self._files, self._files.checksums
        try:
            data, times = files.disk.read(files.path("index")), files.disk.read(files.path("timeindex"))
        except FileNotFoundError:
            return None
        if checksums is None or checksums.log_bytes != log_bytes or not checksums.vouches_for(data, times):
            return None
        base = files.base_offset
        pair = OffsetIndex.decode(data, base), TimeIndex.decode(times, base)
        self.offsets, self._times = pair
        self.is_kept = False
        self.last_position = pair[0].entry(-1)[1] if len(pair[0]) else 0
        self._report_used(pair)
        return pair

    def decode_below(self, checksums: SegmentChecksums) -> IndexPair:
        """The indexes in the files, for the recovery of a segment whose end is not trusted.  Raises OSError,
        ValueError."""
        files = self._files
        data, times = files.disk.read(files.path("index")), files.disk.read(files.path("timeindex"))
        if not checksums.index_bytes or not checksums.vouches_for(data, times):
            raise ValueError("the seal vouches for other files")
        return OffsetIndex.decode(data, files.base_offset), TimeIndex.decode(times, files.base_offset)

    def add(self, base_offset: int, position: int, max_timestamp_ms: int, offset_of_max: int) -> None:
        """An entry for the batch at `position`; the indexes are kept."""
        assert self.offsets is not None
        assert self._times is not None
        self.offsets.append(base_offset, position)
        self._times.append(max_timestamp_ms, offset_of_max)
        self.last_position = position

    def are_durable(self) -> None:
        """The files are written: memory need not hold the indexes."""
        pair = self.pair
        if pair is not None:
            self.is_kept = False
            self._report_used(pair)

    def _report_used(self, pair: IndexPair) -> None:
        self._files.open_files.index_used(self, pair[0].memory_bytes + pair[1].memory_bytes)

    def drop(self) -> None:
        """Frees the memory of indexes that can be read again.  Any thread: a user of an index holds it."""
        if not self.is_kept:
            self.offsets = self._times = None

    def close(self) -> None:
        self._files.open_files.index_gone(self)

    def violations(self, size_bytes: int, next_offset: int) -> Iterator[str]:
        """What does not hold of indexes in memory, of a segment of this size that ends at `next_offset`."""
        pair = self.pair
        if pair is None:
            return
        (offsets, times), base = pair, self._files.base_offset
        if not len(offsets):
            if size_bytes:
                yield f"its offset index has no entry for {size_bytes} bytes"
            return
        (first_offset, first), (last_offset, last) = offsets.entry(0), offsets.entry(-1)
        if first or not base <= first_offset <= last_offset:
            yield f"its offset index begins with offset {first_offset} at byte {first}"
        if not (last < size_bytes and last_offset < next_offset):
            yield f"its offset index ends with offset {last_offset} at byte {last}"
        if self.is_kept and self.last_position != last:
            yield f"its last index entry is at byte {last}, not at {self.last_position}"
        if len(times) and not base <= times.last[1] < next_offset:
            yield f"its time index ends with offset {times.last[1]}"
