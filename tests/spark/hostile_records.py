"""Gives the kernel records that a hostile producer could send, each in memory of exactly its size.

python -m tidegate.tests.spark.hostile_records KERNEL CASES

For a kernel that is built with AddressSanitizer, which ends the process at the first byte that is read or
written beside the records or beside a column.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tidegate.tests.spark.kernel_builds import load_kernel
from tidegate.wire.primitives import zigzag
from tidegate.wire.records import HEADER_BYTES, BatchHeader, NewRecord, encode_batch, parse_header

FOREVER = 1 << 60
LENGTHS = (-2, -1, 0, 1, 2, 5, 30, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, -(1 << 63))
Case = tuple[bytes, BatchHeader]

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


class Exact:
    """Memory of exactly `size` bytes: Python's own has a byte more, or lies in a pool."""

    def __init__(self, size: int) -> None:
        self.address = libc.malloc(size)
        self.buffer = (ctypes.c_char * size).from_address(self.address)

    def __del__(self) -> None:
        libc.free(self.address)


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        batch = encode_batch(_records(rng), base_offset=rng.choice((0, 5, (1 << 63) - 2)))
        header, records = parse_header(batch), bytearray(batch[HEADER_BYTES:])
        match rng.randrange(5):
            case 0:
                pass
            case 1:
                del records[rng.randrange(len(records)) :]
            case 2:
                for _ in range(rng.randint(1, 3)):
                    records[rng.randrange(len(records))] = rng.choice(
                        (0, 1, 127, 128, 255, rng.randrange(256))
                    )
            case 3:
                made_up = [_made_up(rng) for _ in range(rng.randint(1, 3))]
                records, header = bytearray(b"".join(made_up)), header._replace(record_count=len(made_up))
            case _:
                at = rng.randrange(len(records))
                records[at : at + 1] = zigzag(rng.choice(LENGTHS))
        if rng.random() < 0.3:
            header = header._replace(record_count=rng.choice((0, 1, 2, 7, -1, (1 << 31) - 1)))
        yield bytes(records), header


def _records(rng: random.Random) -> list[NewRecord]:
    def text() -> bytes | None:
        return rng.choice((None, b"", rng.randbytes(rng.randrange(200))))

    return [
        NewRecord(
            text(), text(), [("h" * rng.randrange(5), text())] * rng.randrange(4), rng.randrange(1 << 40)
        )
        for _ in range(rng.randint(1, 20))
    ]


def _made_up(rng: random.Random) -> bytes:
    """A record whose fields fit neither it nor each other, or end with it."""
    body = b"\0" + b"".join(zigzag(rng.choice(LENGTHS)) + rng.randbytes(rng.randrange(4)) for _ in range(8))
    if rng.random() < 0.5:
        body = body[: rng.randint(0, len(body))]
        return zigzag(len(body)) + body
    return zigzag(rng.choice((len(body), len(body) - 1, len(body) + 1, rng.choice(LENGTHS)))) + body


def run(library: Path, count: int) -> tuple[int, int]:
    """How many cases the kernel decoded, and how many it refused."""
    kernel, rng, decoded, refused = load_kernel(library), random.Random(7), 0, 0
    for records, header in cases(rng, count):
        held = Exact(len(records))
        ctypes.memmove(held.address, records, len(records))
        rooms: list[Exact] = []

        def allocate(size: int, rooms: list[Exact] = rooms) -> ctypes.Array[ctypes.c_char]:
            rooms.append(Exact(size))
            return rooms[-1].buffer

        sections = [(header, 0, len(records))]
        made = kernel.decode(
            held.buffer, sections, -1, rng.choice((0, 7)), FOREVER, rng.randrange(64), allocate
        )
        decoded, refused = (decoded, refused + 1) if made is None else (decoded + 1, refused)
    return decoded, refused


if __name__ == "__main__":
    print(*run(Path(sys.argv[1]), int(sys.argv[2])))
