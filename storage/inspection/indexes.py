"""Checks the index files of one segment against its batches, batch by batch; builds no index and needs little
memory.

In a segment that the next start scans, only entries below the trusted offset matter (`limit`): those above it
belong to an earlier life, or are not written yet, and will be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import Struct

from ...runtime.disk import Disk
from ...wire.records import BatchHeader
from ..segment.time_index import NO_TIMESTAMP
from .findings import Finding

Report = Callable[[Finding], None]
OFFSET_ENTRY = Struct(">II")
TIME_ENTRY = Struct(">qI")


class OffsetIndexCheck:
    """Every entry names the first offset of a batch and the byte where it begins."""

    def __init__(
        self, disk: Disk, path: Path, base_offset: int, segment_bytes: int, limit: int, report: Report
    ) -> None:
        self._path = path
        self._limit = limit
        self._report = report
        self._at = 0
        self._entries: list[tuple[int, int]] = []
        data = disk.read(path)
        wrong = _insane(data, segment_bytes)
        if wrong:
            report(Finding("offset-index-damaged", path, wrong, 0, base_offset))
        else:
            self._entries = [
                (base_offset + offset, position) for offset, position in OFFSET_ENTRY.iter_unpack(data)
            ]

    def boundaries(self) -> list[int]:
        """Positions where batches begin, if the index is right."""
        return [position for _offset, position in self._entries]

    def take(self, position: int, header: BatchHeader) -> None:
        if self._at == len(self._entries):
            return
        offset, indexed = self._entries[self._at]
        if offset >= self._limit:
            self._entries.clear()
            self._at = 0
        elif indexed < position:
            self._wrong(f"entry {self._at} points at byte {indexed}, where no batch begins", offset)
        elif indexed == position:
            if offset == header.base_offset:
                self._at += 1
                return
            self._wrong(
                f"entry {self._at} says that offset {offset} begins at byte {position}; it is "
                f"{header.base_offset}",
                offset,
            )

    def finish(self) -> None:
        """All batches were taken."""
        if self._at < len(self._entries) and self._entries[self._at][0] < self._limit:
            offset, indexed = self._entries[self._at]
            self._wrong(f"entry {self._at} points at byte {indexed}, where no batch begins", offset)

    def _wrong(self, detail: str, offset: int) -> None:
        self._report(Finding("offset-index-wrong", self._path, detail, self._at * OFFSET_ENTRY.size, offset))
        self._entries.clear()
        self._at = 0


def _insane(data: bytes, segment_bytes: int) -> str:
    """Why this cannot be the offset index of a segment of this size; empty when it can."""
    wrong = _does_not_rise(data, OFFSET_ENTRY)
    if wrong or not data:
        return wrong or ("it is empty and its segment is not" if segment_bytes else "")
    first, last = (
        OFFSET_ENTRY.unpack_from(data)[1],
        OFFSET_ENTRY.unpack_from(data, len(data) - OFFSET_ENTRY.size)[1],
    )
    if first:
        return f"its first entry points at byte {first}, not at the segment's first batch"
    if last >= segment_bytes:
        return f"its last entry points at byte {last}, beyond the segment's {segment_bytes} bytes"
    return ""


def _does_not_rise(data: bytes, entry: Struct) -> str:
    """Why this is no index: both numbers of each entry are above those of the one before it; empty when they
    are."""
    if len(data) % entry.size:
        return f"its size, {len(data)}, is not a multiple of {entry.size}"
    before = (-1, -1)
    for at, (first, second) in enumerate(entry.iter_unpack(data)):
        if first <= before[0] or second <= before[1]:
            return f"entry {at} does not rise above the one before it"
        before = first, second
    return ""


class TimeIndexCheck:
    """Every entry names the batch in which the greatest timestamp so far rose to the entry's; the last one,
    the segment's."""

    def __init__(self, disk: Disk, path: Path, base_offset: int, limit: int, report: Report) -> None:
        self._path = path
        self._base = base_offset
        self._limit = limit
        self._report = report
        self._at = 0
        self._newest, self._offset_of_newest = NO_TIMESTAMP, base_offset
        self._entries: list[tuple[int, int]] | None = None
        data = disk.read(path)
        wrong = _does_not_rise(data, TIME_ENTRY)
        if wrong:
            report(Finding("time-index-damaged", path, wrong, 0, base_offset))
        else:
            self._entries = [
                (timestamp, base_offset + offset) for timestamp, offset in TIME_ENTRY.iter_unpack(data)
            ]

    def take(self, position: int, header: BatchHeader) -> None:
        rose = header.max_timestamp > self._newest
        if rose:
            self._newest, self._offset_of_newest = header.max_timestamp, header.base_offset
        if self._entries is None or self._at == len(self._entries):
            return
        timestamp, offset = self._entries[self._at]
        if offset >= self._limit:
            self._entries = None
        elif offset < header.base_offset:
            self._wrong(f"entry {self._at} names offset {offset}, where no batch begins", offset)
        elif offset == header.base_offset:
            self._at += 1
            if not rose or timestamp != header.max_timestamp:
                self._wrong(
                    f"entry {self._at - 1} says that timestamps rise to {timestamp} at offset {offset}; "
                    f"the greatest so far is {self._newest}, first at offset {self._offset_of_newest}",
                    offset,
                )

    def finish(self, *, is_complete: bool) -> None:
        """All batches were taken.  `is_complete`: the segment was closed, so the last entry covers all of
        it."""
        entries = self._entries
        if entries is None:
            return
        if self._at < len(entries):
            if entries[self._at][1] < self._limit:
                self._wrong(
                    f"entry {self._at} names offset {entries[self._at][1]}, where no batch begins",
                    entries[self._at][1],
                )
            return
        last = entries[-1] if entries else (NO_TIMESTAMP, self._base)
        if is_complete and last[0] != self._newest:
            what = (
                f"it ends with timestamp {last[0]}; the greatest is {self._newest}, at offset "
                f"{self._offset_of_newest}"
            )
            self._wrong(what, self._offset_of_newest)

    def _wrong(self, detail: str, offset: int) -> None:
        self._report(Finding("time-index-wrong", self._path, detail, self._at * TIME_ENTRY.size, offset))
        self._entries = None
