"""The sparse time index of one segment: up to which offset no record is younger than a timestamp.  Pure;
Kafka's `.timeindex`.

An entry (timestamp i64, offset relative to the base i32) says: `timestamp` is the greatest of the segment's
batches up to and including the one that begins at `offset`.  Timestamps may come out of order in the log; the
greatest so far never falls, so the entries are sorted, and every record before `offset` has a timestamp not
above the entry's.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left

_ENTRY_BYTES = 12
_HIGH = 1 if sys.byteorder == "little" else 0  # where the high half of a 64-bit number stands in memory
NO_TIMESTAMP = -1


class TimeIndex:
    """Parallel arrays: greatest timestamp so far, first offset (relative) of the batch that has it."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def memory_bytes(self) -> int:
        return _ENTRY_BYTES * len(self._timestamps)

    def append(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry unless its timestamp is not above the last one."""
        if timestamp_ms < 0 or (self._timestamps and timestamp_ms <= self._timestamps[-1]):
            return
        self._timestamps.append(timestamp_ms)
        self._offsets.append(offset - self.base_offset)

    @property
    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; (-1, base offset) when empty."""
        if not self._timestamps:
            return NO_TIMESTAMP, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def last_below(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The last entry of a smaller timestamp: every batch before its offset holds only records with
        smaller timestamps."""
        index = bisect_left(self._timestamps, timestamp_ms) - 1
        return None if index < 0 else (self._timestamps[index], self.base_offset + self._offsets[index])

    def truncate(self, end_offset: int) -> None:
        """Drops entries whose batch begins at or above `end_offset`."""
        relative = end_offset - self.base_offset
        while self._offsets and self._offsets[-1] >= relative:
            self._offsets.pop()
            self._timestamps.pop()

    def encode(self) -> bytes:
        words = array("I", bytes(_ENTRY_BYTES * len(self._offsets)))
        halves = array("I", self._timestamps.tobytes())
        words[0::3], words[1::3], words[2::3] = halves[_HIGH::2], halves[1 - _HIGH :: 2], self._offsets
        if sys.byteorder == "little":
            words.byteswap()
        return words.tobytes()

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> TimeIndex:
        """Reads an index file that the segment checksums match.  Raises ValueError for a part of an entry."""
        if len(data) % _ENTRY_BYTES:
            raise ValueError(f"its size, {len(data)}, is not a multiple of {_ENTRY_BYTES}")
        index = cls(base_offset)
        words = array("I", data)
        if sys.byteorder == "little":
            words.byteswap()
        halves = array("I", bytes(8 * (len(words) // 3)))
        halves[_HIGH::2], halves[1 - _HIGH :: 2] = words[0::3], words[1::3]
        index._timestamps.frombytes(halves.tobytes())
        index._offsets = words[2::3]
        return index
