"""Decompresses stored batches piece by piece; the memory of one piece is bounded for any compression ratio.

A few kilobytes may decompress to gigabytes of records.  So a piece gets only as many batches of a chunk as
its `Budget` allows; the budget counts bytes and, since columns are made of records, a cost for each record.
A batch that alone exceeds the budget is split between its records: its decompression is a stream (gzip, lz4,
zstd; snappy block by block), of which the reader takes only what a piece needs.  A single record is never
split: one above `record_bytes_max` is an error that names the option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from ...wire.compression import Compression, decompress
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import HEADER_BYTES, BatchHeader
from .one_call import decompress_into

# of a batch's attributes; looked at here because making an enum costs more than a small batch
COMPRESSION_BITS: Final = 0x07
READ_BYTES: Final = 1 << 20
# of decoding and of the columns of one record, bytes; the name of the topic comes on top
RECORD_PRICE: Final = 256
# a task's memory, in pieces: a piece exists decompressed, joined, as columns, and on its way out
MEMORY_PER_PIECE: Final = 16
MEMORY_PER_RECORD: Final = 6
ARROW_BYTES_MAX: Final = (1 << 31) - 1  # of a column, whose offsets have 32 bits
BLOCK_BYTES_MIN: Final = 64 << 10  # the least budget: twice the block of an ordinary snappy stream
ROOM_KEPT_BYTES_MAX: Final = 32 << 20  # between two chunks: what the default memory of a task makes
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_STREAMED: Final = {Compression.GZIP: "gzip", Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}


class Malformed(ValueError):
    """A record that contradicts itself or its batch."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of a piece (`bytes + records * record_price`), and of a single record."""

    piece_cost_max: int
    record_bytes_max: int
    record_price: int
    option: str = "maxMemoryPerTask"

    @classmethod
    def of_memory(cls, memory_bytes: int, topic: str, *, with_headers: bool = False) -> Budget:
        """The budget for the memory of a task.  Headers are small and many: each of their bytes needs several
        in columns."""
        piece = memory_bytes // MEMORY_PER_PIECE // (4 if with_headers else 1)
        record = memory_bytes // MEMORY_PER_RECORD
        return cls(min(piece, ARROW_BYTES_MAX // 2), min(record, ARROW_BYTES_MAX), RECORD_PRICE + len(topic))


class Section(NamedTuple):
    """The records of one batch, or `header.record_count` of them, inside the buffer that is decoded."""

    header: BatchHeader
    start: int
    end: int


Piece = tuple[bytes | memoryview, list[Section]]


def decompress_pieces(
    chunk: bytes | memoryview, batches: Sequence[tuple[int, BatchHeader]], budget: Budget
) -> Iterator[Piece]:
    """The records of the `batches` (position in `chunk`, header), in order; raises KafkaError and
    Malformed."""
    if any(header.attributes & COMPRESSION_BITS for _, header in batches):
        return _compressed_pieces(chunk, batches, budget)
    return _plain_pieces(chunk, batches, budget)


def _plain_pieces(
    chunk: bytes | memoryview, batches: Sequence[tuple[int, BatchHeader]], budget: Budget
) -> Iterator[Piece]:
    """The pieces of an uncompressed chunk; only a batch that is too large for one piece is copied."""
    sections: list[Section] = []
    cost = 0
    for position, header in batches:
        start, end = position + HEADER_BYTES, position + header.size_bytes
        price = end - start + header.record_count * budget.record_price
        if sections and cost + price > budget.piece_cost_max:
            yield chunk, sections
            sections, cost = [], 0
        if price > budget.piece_cost_max:
            yield from _taken_apart(header, _reader_of(memoryview(chunk)[start:end]), budget)
            continue
        sections.append(Section(header, start, end))
        cost += price
    if sections:
        yield chunk, sections


class Room:
    """Where the batches of a piece are decompressed, one behind the other: `used` bytes are taken.

    To fault new pages in for each batch would cost as much as to decompress."""

    __slots__ = ("_view", "size_bytes", "used")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used = 0
        self._view = memoryview(pa.allocate_buffer(size_bytes)).cast("B")

    def room(self, size: int) -> memoryview:
        """The next bytes; nothing is taken yet."""
        return self._view[self.used : self.used + size]

    def piece(self) -> memoryview:
        return self._view[: self.used].toreadonly()


_free_rooms: list[Room] = []
"""At most one, of at most ROOM_KEPT_BYTES_MAX, for the worker's next chunk.  A piece in it is valid until its
reader asks for the next."""


def _compressed_pieces(
    chunk: bytes | memoryview, batches: Sequence[tuple[int, BatchHeader]], budget: Budget
) -> Iterator[Piece]:
    # of a piece, and of the batch that is found not to fit into it
    size_bytes = 2 * budget.piece_cost_max
    room = _free_rooms.pop() if _free_rooms else None
    if room is None or room.size_bytes != size_bytes:
        room = Room(size_bytes)
    try:
        yield from _pieces_in(room, memoryview(chunk), batches, budget)
    finally:
        if not _free_rooms and size_bytes <= ROOM_KEPT_BYTES_MAX:
            _free_rooms.append(room)


def _pieces_in(
    room: Room, chunk: memoryview, batches: Sequence[tuple[int, BatchHeader]], budget: Budget
) -> Iterator[Piece]:
    sections: list[Section] = []
    cost = room.used = 0
    for position, header in batches:
        stored = chunk[position + HEADER_BYTES : position + header.size_bytes]
        plain: memoryview | None = stored
        is_in_place = False
        if header.attributes & COMPRESSION_BITS:
            plain, is_in_place = _decompressed(header, stored, budget, room), True
        price = header.record_count * budget.record_price + (
            len(plain) if plain is not None else budget.piece_cost_max
        )
        if sections and cost + price > budget.piece_cost_max:
            yield room.piece(), sections
            sections, is_in_place = [], False
            cost = room.used = 0
        if plain is None:
            yield from _taken_apart(header, _stream(header.compression, stored, budget), budget)
        elif price > budget.piece_cost_max:
            yield from _taken_apart(header, _reader_of(plain), budget)
        else:
            if not is_in_place:
                room.room(len(plain))[:] = plain
            sections.append(Section(header, room.used, room.used + len(plain)))
            room.used += len(plain)
            cost += price
    if sections:
        yield room.piece(), sections


def _decompressed(header: BatchHeader, stored: memoryview, budget: Budget, room: Room) -> memoryview | None:
    """The whole decompressed batch, or None when it is larger than a piece."""
    most = budget.piece_cost_max
    written = decompress_into(header.attributes & COMPRESSION_BITS, stored, target := room.room(most))
    if written is not None:
        return target[:written]
    try:
        return decompress(header.compression, stored, most, room, size_first=most)
    except KafkaError as problem:
        if problem.code != ErrorCode.MESSAGE_TOO_LARGE:
            raise
        return None


def _taken_apart(header: BatchHeader, read: Callable[[int], bytes], budget: Budget) -> Iterator[Piece]:
    """Splits one batch between its records; `read(n)` returns some of the next n bytes, and none at the
    end."""
    held = bytearray()
    left = header.record_count
    wanted = budget.piece_cost_max
    while left:
        while len(held) < wanted and (more := read(min(READ_BYTES, wanted - len(held)))):
            held += more
        count, end, following = _whole_records(held, left, budget)
        if count:
            yield bytes(memoryview(held)[:end]), [Section(header._replace(record_count=count), 0, end)]
            del held[:end]
            left -= count
            wanted = budget.piece_cost_max
            continue
        if len(held) < wanted:
            raise Malformed(f"the batch at {header.base_offset} ends before its records do")
        if following > budget.record_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {following} bytes is in the batch at {header.base_offset}, and a task "
                "has room for one of "
                f"{budget.record_bytes_max}: set {budget.option} to at least {following * MEMORY_PER_RECORD}",
            )
        wanted = following
    if held or read(1):
        raise Malformed(f"the records of the batch at {header.base_offset} do not fill it")


def _whole_records(held: bytearray, count_max: int, budget: Budget) -> tuple[int, int, int]:
    """How many records at the beginning are whole and within the cost of a piece (at least one, if it is
    whole), where they end, and how many bytes the first one needs."""
    position = count = needed = cost = 0
    while count < count_max:
        length = shift = 0
        at = position
        while True:
            if at == len(held):
                return count, position, needed or budget.piece_cost_max
            octet = held[at]
            at += 1
            length |= (octet & 127) << shift
            if octet < 128:
                break
            shift += 7
            if shift > 28:
                raise Malformed("a record length has more than five bytes")
        if length & 1:
            raise Malformed("negative record length")
        end = at + (length >> 1)
        needed = needed or end
        cost += end - position + budget.record_price
        if end > len(held) or (count and cost > budget.piece_cost_max):
            break
        position, count = end, count + 1
    return count, position, needed


def _reader_of(view: memoryview) -> Callable[[int], bytes]:
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        data = bytes(view[position : position + size])
        position += len(data)
        return data

    return read


def _stream(codec: Compression, stored: memoryview, budget: Budget) -> Callable[[int], bytes]:
    """A streaming decompression: it decompresses only the bytes that are read."""
    if codec == Compression.SNAPPY:
        return _reader_of_blocks(_snappy_blocks(stored, budget))
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(stored)), _STREAMED[codec])

    def read(size: int) -> bytes:
        try:
            data: bytes = stream.read(size)
        except OSError as error:
            raise _corrupt(codec, error) from error
        return data

    return read


def _snappy_blocks(stored: memoryview, budget: Budget) -> Iterator[memoryview]:
    """xerial's blocks; data without its framing is one block."""
    if bytes(stored[:8]) != _XERIAL_MAGIC:
        yield _snappy_block(stored, budget)
        return
    position = _XERIAL_HEADER_BYTES
    while position < len(stored):
        length = int.from_bytes(stored[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < length <= len(stored) - position:
            raise _corrupt(
                Compression.SNAPPY, f"a block of {length} bytes where {len(stored) - position} are left"
            )
        yield _snappy_block(stored[position : position + length], budget)
        position += length


def _snappy_block(block: memoryview, budget: Budget) -> memoryview:
    try:
        return decompress(Compression.SNAPPY, block, max(budget.record_bytes_max, BLOCK_BYTES_MIN))
    except KafkaError as problem:
        if problem.code != ErrorCode.MESSAGE_TOO_LARGE:
            raise
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            "a block of snappy data cannot be decompressed in parts, and is larger than the "
            f"{budget.record_bytes_max} bytes for "
            f"which a task has room: raise {budget.option}",
        ) from problem


def _reader_of_blocks(blocks: Iterator[memoryview]) -> Callable[[int], bytes]:
    block, position = memoryview(b""), 0

    def read(size: int) -> bytes:
        nonlocal block, position
        while position == len(block):
            following = next(blocks, None)
            if following is None:
                return b""
            block, position = following, 0
        data = bytes(block[position : position + size])
        position += len(data)
        return data

    return read


def _corrupt(codec: Compression, reason: object) -> KafkaError:
    name = codec.name.lower()
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"the {name} data of the batch cannot be decompressed: {reason}"
    )
