"""The segments of one log, in order: the only place where the list changes, and where one offset finds its
segment.

Promises

* There is always at least one segment; the last one, `active`, is the only one that takes batches.
* Base offsets rise; every segment but the active one ends, for look-ups, where the next begins (a cleaned one
  may hold less).
* Removal works from the front (`drop_first`, `removal`), `truncate` from the back, each durably segment by
  segment: a crash leaves no gap between segments.
* A replacement is atomic: after a crash, the log has all old segments, or the new one in their place
  (`replacement`, and `segment.swap`, where the names on the disk are explained).

Called from the loop's thread.  A reader in another thread holds the open file: it stays readable when the
segment is replaced or removed during the read, and the reader checks afterwards whether the bytes still count
(`bulk_read`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, overload

from crc32c import crc32c

from ...wire.records import HEADER_BYTES, parse_header
from ..topic_config import LogConfig
from .batch_slices import NOTHING, ReadResult
from .offset_index import OFFSET_SPAN_MAX
from .open_files import OpenFiles
from .segment import Segment
from .segment_files import segment_path
from .transaction_index import AbortedTransaction, collect_aborted

_base_offset = attrgetter("base_offset")


class TruncationPoint(NamedTuple):
    """Where a truncation ends the log: the index of the last segment that stays, the byte in it, the log's
    new end, and the end of the last batch, which is lower when the truncation falls into an offset gap of a
    compacted log."""

    keep: int
    position: int
    end_offset: int
    data_end: int


class Segments(Sequence[Segment]):
    """See the module's text."""

    __slots__ = ("_directory", "_disk", "_files", "_list", "active", "size_bytes", "switches")

    def __init__(self, files: OpenFiles, directory: Path, segments: list[Segment]) -> None:
        assert segments
        self._disk = files.disk
        self._files = files
        self._directory = directory
        self._list = segments
        self.active = segments[-1]
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        """Of the batches; the log adds what it appends."""
        self.switches = 0
        """How often a cleaned segment has taken the place of others."""

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._list[index]

    # ---- look-ups ------------------------------------------------------------------------------------------

    def index_of(self, offset: int) -> int:
        """Index of the segment that would hold `offset`; the first one for what lies before it."""
        return max(0, bisect_right(self._list, offset, key=_base_offset) - 1)

    def starting_at(self, offset: int) -> list[Segment]:
        """The segment that would hold `offset`, and those after it."""
        return self._list[self.index_of(offset) :]

    def read(self, offset: int, max_bytes: int, upper_offset: int) -> ReadResult:
        """Whole batches from the first segment that has any in [offset, upper offset); NOTHING when none has.
        Raises OSError."""
        active = self.active
        if offset >= active.base_offset:  # most reads are at the end
            return active.read(offset, max_bytes, upper_offset)
        segments = self._list
        for at in range(self.index_of(offset), len(segments)):
            found = segments[at].read(offset, max_bytes, upper_offset)
            if found.first_offset >= 0:
                return found
        return NOTHING

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in [start_offset, upper_offset), by first offset
        (docs/semantics.md L6)."""
        found: list[AbortedTransaction] = []
        for at in range(self.index_of(start_offset), len(self._list)):
            if collect_aborted(self._list[at].aborted.entries, start_offset, upper_offset, found):
                break
        found.sort(key=lambda transaction: transaction.first_offset)
        return found

    # ---- rolling -------------------------------------------------------------------------------------------

    def must_roll(self, config: LogConfig, size: int, max_timestamp_ms: int, next_offset: int) -> bool:
        """Whether batches of `size` bytes that end before `next_offset` belong into a new segment."""
        active = self.active
        if next_offset - active.base_offset > OFFSET_SPAN_MAX:
            return True
        if not active.size_bytes:
            return False
        if active.size_bytes + size > config.segment_bytes:
            return True
        if active.indexes.memory_bytes >= config.segment_index_bytes:
            return True
        first_ms = active.first_timestamp_ms
        if first_ms is None:
            first_ms = active.first_timestamp()
        if first_ms is None:
            return False
        age_max_ms = config.segment_ms
        if config.segment_jitter_ms:
            age_max_ms -= self._jitter_ms(config)
        return max_timestamp_ms - first_ms > age_max_ms

    def _jitter_ms(self, config: LogConfig) -> int:
        """How much earlier than its maximum age this segment ends: different for each segment, and the same
        after a restart."""
        most = min(config.segment_jitter_ms, config.segment_ms)
        return crc32c(f"{self._directory.name}/{self.active.base_offset}".encode()) % (most + 1)

    def create_cleaned(self, base_offset: int, index_interval_bytes: int) -> Segment:
        """A new segment for `replace`, not in the list: fill it by `append_batches` and
        `append_transactions`."""
        return Segment.create_cleaned(self._files, self._directory, base_offset, index_interval_bytes)

    def roll(self, base_offset: int, index_interval_bytes: int) -> Segment:
        """A new, empty active segment; nothing is synced here.  Raises OSError with nothing changed."""
        new = Segment.create(self._files, self._directory, base_offset, index_interval_bytes)
        self._list.append(new)
        self.active = new
        return new

    # ---- cutting -------------------------------------------------------------------------------------------

    def find_truncation(self, offset: int) -> TruncationPoint:
        """Where to truncate so that no batch ends above `offset`.  Raises OSError, InvalidBatch."""
        keep = self.index_of(offset)
        target = self._list[keep]
        position = target.position_of(offset)
        end = offset
        if position < target.size_bytes:
            end = min(offset, parse_header(target.file.read_at(position, HEADER_BYTES)).base_offset)
        return TruncationPoint(keep, position, end, min(end, target.data_end_before(position)))

    def truncate(self, to: TruncationPoint) -> None:
        """Removes all batches behind the truncation point, durably.  Raises OSError: then the log must go
        offline."""
        target, gone = self._list[to.keep], self._list[to.keep + 1 :]
        target.prepare_truncation()
        self._remove(gone, last=target)
        del self._list[to.keep + 1 :]
        self.active = self._list[-1]
        self.active.truncate_to_position(to.position, to.end_offset)
        self._count()

    def _remove(self, gone: Sequence[Segment], last: Segment | None = None) -> None:
        """Removes segments from the back, durably one by one, so that a crash leaves the front of the list,
        and no checksums beyond it.

        All segment checksums go first, also those of `last`, the segment in front, which is to be truncated
        and names where the next one began: a file that they cover and that is missing would look like a loss.
        And the checksums of a segment prove that all before it was flushed, with the offset gaps that only
        the checksums of cleaned segments explain.
        """
        for segment in (*reversed(gone), *(() if last is None else (last,))):
            if segment.files.remove_checksums():
                self._disk.sync_directory(self._directory)
        for segment in reversed(gone):
            segment.remove()
            self._disk.sync_directory(self._directory)

    def prepare_restart(self, offset: int) -> None:
        """Makes the file for `restart_at`: the step that needs room and may fail without harm.  Raises
        OSError."""
        self._disk.open(self._prepared_path(offset), create=True).close()

    def _prepared_path(self, offset: int) -> Path:
        return segment_path(self._directory, offset, "log.tmp")

    def restart_at(self, offset: int, index_interval_bytes: int) -> None:
        """Removes everything, from the back; one empty segment begins at `offset`.  Raises OSError: the log
        must go offline."""
        self._remove(self._list)
        self._disk.rename(self._prepared_path(offset), segment_path(self._directory, offset, "log"))
        new = Segment.create(self._files, self._directory, offset, index_interval_bytes)
        new.sync()
        self._disk.sync_directory(self._directory)
        self._list[:] = [new]
        self.active = new
        self._count()

    def wholly_below(self, offset: int) -> list[Segment]:
        """The segments at the front that hold no batch at or above `offset`; never the active one."""
        count = 0
        while count + 1 < len(self._list) and self._list[count + 1].base_offset <= offset:
            count += 1
        return self._list[:count]

    def drop_first(self, count: int) -> None:
        """The first segments leave the list; `removal` removes them from the disk."""
        assert count < len(self._list)
        self.size_bytes -= sum(segment.size_bytes for segment in self._list[:count])
        del self._list[:count]

    # ---- replacing -----------------------------------------------------------------------------------------

    def switch(self, old: Sequence[Segment], new: Segment) -> None:
        """In memory, `new` (made by `create_cleaned`, durable) takes the place of `old`; on the disk,
        `replacement` does it.

        Raises OSError with nothing changed.
        """
        at = self.require_replaceable(old, new)
        new.stand_in(old[-1].next_offset)
        for segment in old:
            segment.close()
        self._list[at : at + len(old)] = [new]
        self.switches += 1
        self._count()

    def require_replaceable(self, old: Sequence[Segment], new: Segment) -> int:
        """The index at which `old` begin: neighbours in the list, not the active segment, and `new` begins
        where they do.  Raises ValueError when that does not hold, or no longer (truncated, removed)."""
        at = self._position_of(old)
        if new.base_offset != old[0].base_offset:
            raise ValueError(
                f"the new segment begins at {new.base_offset}, the old ones at {old[0].base_offset}"
            )
        return at

    def _position_of(self, old: Sequence[Segment]) -> int:
        at = self.index_of(old[0].base_offset) if old else 0
        there = self._list[at : at + len(old)]
        if not old or [id(segment) for segment in there] != [id(segment) for segment in old]:
            raise ValueError("the segments to replace are not neighbours in this log (any more)")
        if self.active is old[-1]:
            raise ValueError("the active segment is never replaced")
        return at

    def _count(self) -> None:
        self.size_bytes = sum(segment.size_bytes for segment in self._list)

    # ---- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        for segment in self._list:
            segment.close()
