"""Columns whose offsets, validity and rows fit neither each other nor their buffers, for a kernel that is
built with AddressSanitizer.

    python -m tidegate.tests.spark.writing.hostile_columns KERNEL COUNT

Prints how many cases were encoded and how many were refused.  Every buffer has exactly its size.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from pathlib import Path

from tidegate.tests.spark.hostile_records import Exact
from tidegate.tests.spark.kernel_builds import load_kernel

Buffer = ctypes.Array[ctypes.c_char]
Column = tuple[Buffer | None, Buffer, Buffer, int]

EDGES = (-(1 << 31), -1, 0, 1, 2, 3, 8, (1 << 31) - 1)


class Columns:
    """Of one case; keeps their memory."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: list[Exact] = []

    def buffer(self, data: bytes) -> Buffer:
        held = Exact(len(data))
        ctypes.memmove(held.address, data, len(data))
        self._held.append(held)
        return held.buffer

    def offsets(self, count: int, end: int) -> Buffer:
        """Mostly ascending to `end`; some lie anywhere."""
        rng = self._rng
        found = sorted(rng.randint(0, end) for _ in range(count + 1))
        if rng.random() < 0.3:
            found[rng.randrange(len(found))] = rng.choice(EDGES)
        if rng.random() < 0.2:
            found.pop()
        return self.buffer(struct.pack(f"<{len(found)}i", *found))

    def valid(self, count: int) -> Buffer | None:
        if self._rng.random() < 0.5:
            return None
        short = self._rng.random() < 0.2
        return self.buffer(self._rng.randbytes(max(0, (count + 7) // 8 - short)))

    def column(self, count: int) -> Column:
        rng = self._rng
        data = rng.randbytes(rng.randrange(12))
        at = rng.choice((0, 0, 0, 1, 9))
        return self.valid(count + at), self.offsets(count + at, len(data)), self.buffer(data), at

    def headers(self, count: int) -> tuple[Buffer | None, Buffer, int, Column, Column]:
        entries = self._rng.randrange(6)
        lists = self.valid(count), self.offsets(count, entries), 0
        return *lists, self.column(entries), self.column(entries)

    def numbers(self, numbers: list[int]) -> Buffer:
        return self.buffer(struct.pack(f"<{len(numbers)}q", *numbers))


def run(library: Path, count: int) -> tuple[int, int]:
    """How many cases the kernel encoded, and how many it refused."""
    kernel, rng, encoded, refused = load_kernel(library), random.Random(7), 0, 0
    for _ in range(count):
        columns, length = Columns(rng), rng.randint(1, 20)
        rows = [rng.randrange(length) for _ in range(rng.randrange(5))]
        if rng.random() < 0.2:
            rows.append(rng.choice((-(1 << 63), -1, length, length + 9, (1 << 63) - 1)))
        key = columns.column(length) if rng.random() < 0.8 else None
        timestamps = columns.numbers([rng.randrange(1 << 63) for _ in range(length)])
        headers = columns.headers(length) if rng.random() < 0.5 else None
        try:
            made = kernel.encode(
                columns.numbers(rows), rng.randrange(1 << 31), rng.randrange(1 << 62), timestamps, key,
                columns.column(length), headers,
            )  # fmt: skip
            if key is not None:
                kernel.hashes(key, length)
        except ValueError:
            refused += 1
        else:
            assert len(made) >= len(rows)
            encoded += 1
    return encoded, refused


if __name__ == "__main__":
    print(*run(Path(sys.argv[1]), int(sys.argv[2])))
