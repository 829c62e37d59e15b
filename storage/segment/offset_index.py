"""The sparse offset index of one segment: which batch begins at which byte.  Pure; the file's format is
Kafka's `.index`.

An entry (offset relative to the segment's base, position), two big-endian 32-bit numbers, names the *first*
offset of a batch and the byte where this batch begins.  So every entry is a batch boundary, and bytes between
two entries are whole batches.  The gap between neighbours is at most `index.interval.bytes`, or exactly one
batch: readers use that to read once and to end at a boundary.

The index is derived data: when it is missing, or does not match the segment checksums, it is rebuilt from the
batch headers.

Why arrays in memory and a plain file, and no mapping of the file as in Kafka.  `python bench/storage index`
measures both:

* an entry costs 0.1 us instead of 0.25, a look-up 0.7 us instead of 5: Kafka's byte order, which the files
  keep, makes every step of the search unpack (in the machine's own order a mapping is as fast as the arrays,
  but no faster);
* 10,000 mapped indexes hold 10,000 mappings and files open, and the same 80 MB in the page cache that the
  arrays take from the heap, where they are bounded (`open_files`);
* an error of the disk, or a full disk, under a mapping is SIGBUS: the node dies where it should refuse one
  write or one log.  And the simulated disk cannot inject faults into a mapping.

The price is the first use of a complete segment's index, which is read as a whole and compared with its
checksums: 0.2 ms for 16 Ki entries, 2.3 ms for 256 Ki (1 GiB in small batches).  A mapping has 0.06 ms, and
would have to check every entry at each use.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right

OFFSET_SPAN_MAX = 2**31 - 1
"""How far an offset may lie above its segment's base: anything farther is damage."""
_ENTRY_BYTES = 8
# entries among which the end of a stretch is looked for first: a binary search pays for every step
_NEAR = 32


class OffsetIndex:
    """Parallel arrays of relative offsets and positions, 8 bytes an entry in memory as on disk."""

    __slots__ = ("_go_on_at", "_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._go_on_at = 0  # the entry where the last stretch ended: a sequential reader needs it next
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def memory_bytes(self) -> int:
        return _ENTRY_BYTES * len(self._offsets)

    def append(self, offset: int, position: int) -> None:
        self._offsets.append(offset - self.base_offset)
        self._positions.append(position)

    def entry(self, index: int) -> tuple[int, int]:
        """(offset, position) of an entry; negative indexes count from the end."""
        return self.base_offset + self._offsets[index], self._positions[index]

    def floor(self, offset: int) -> int:
        """Index of the last entry whose offset is not above `offset`; -1 when there is none."""
        return bisect_right(self._offsets, max(0, offset - self.base_offset)) - 1

    def ceiling(self, offset: int) -> int:
        """Index of the first entry whose offset is at or above `offset`; the length when there is none."""
        return bisect_left(self._offsets, max(0, offset - self.base_offset))

    def floor_position(self, position: int) -> int:
        """Index of the last entry whose position is not above `position`; -1 when there is none."""
        return bisect_right(self._positions, position) - 1

    def ceiling_position(self, position: int) -> int:
        """Index of the first entry whose position is at or above `position`; the length when there is
        none."""
        return bisect_left(self._positions, position)

    def stretch(
        self, offset: int, max_bytes: int, upper_offset: int, end_offset: int, end: int
    ) -> tuple[int, int, int, int, int, int] | None:
        """Which bytes hold the batches from the one with `offset` on, below `upper_offset`; None when there
        are none.

        (first entry, its offset and byte, byte and offset of the end, byte of the stretch from which to walk
        over headers, or -1). `end_offset` and `end` are the segment's.  Both ends are batch boundaries;
        `max_bytes` is exceeded only as far as it must be so that one whole batch is inside.  To walk is
        needed when `upper_offset` lies between two entries.
        """
        offsets, positions, base = self._offsets, self._positions, self.base_offset
        entries = last = len(offsets)
        # the segment may begin with an offset gap
        if offset >= end_offset or not entries or upper_offset <= base + offsets[0]:
            return None
        first = self._go_on_at
        if first >= entries or offsets[first] != offset - base:
            first = bisect_right(offsets, offset - base) - 1
            if first < 0:
                first = 0
        start = positions[first]
        next_offset, walk_from = end_offset, -1
        if first + 1 < entries:
            # The first batch may begin anywhere before the next entry: read at least so far.
            wanted_end, following = start + max_bytes, positions[first + 1]
            if wanted_end < following:
                last = first + 1
            elif wanted_end < end:
                near = first + _NEAR
                last = bisect_right(positions, wanted_end, first + 1, near if near < entries else entries) - 1
                if last == near - 1:
                    last = bisect_right(positions, wanted_end, near) - 1
            if last < entries:
                next_offset, end = base + offsets[last], positions[last]
        if upper_offset < next_offset:
            above = bisect_left(offsets, upper_offset - base, first + 1, last)
            if above < entries:
                last, next_offset, end = above, base + offsets[above], positions[above]
            if next_offset != upper_offset:
                walk_from = positions[above - 1] - start
        self._go_on_at = last
        return first, base + offsets[first], start, end, next_offset, walk_from

    def truncate(self, position: int) -> None:
        """Drops entries at or above `position`."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:]
        del self._positions[keep:]

    def encode(self) -> bytes:
        both = array("I", bytes(_ENTRY_BYTES * len(self._offsets)))
        both[0::2] = self._offsets
        both[1::2] = self._positions
        if sys.byteorder == "little":
            both.byteswap()
        return both.tobytes()

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> OffsetIndex:
        """Reads an index file that the segment checksums match.  Raises ValueError for a part of an entry."""
        if len(data) % _ENTRY_BYTES:
            raise ValueError(f"its size, {len(data)}, is not a multiple of {_ENTRY_BYTES}")
        both = array("I")
        both.frombytes(data)
        if sys.byteorder == "little":
            both.byteswap()
        index = cls(base_offset)
        index._offsets = both[0::2]
        index._positions = both[1::2]
        return index
