"""The five codecs of a record batch, with a bound on what decompression may cost.

Compressed data comes from untrusted clients: a few kilobytes may decompress to gigabytes. `decompress` writes
into buffers whose total size never exceeds `max_bytes`, whatever the input claims, and raises CORRUPT_MESSAGE
for data that it cannot decompress.

It may be called in any thread.  The codecs release the interpreter's lock while they work. To keep every hold
of that lock short, large output goes to anonymous memory, of which only the written pages cost anything, and
not to a bytearray, which Python zeroes first while it holds the lock (1 ms a MiB).

The forms are those of Kafka's own producer:

* gzip: one gzip stream;
* snappy: xerial's framing (magic, two version words, then length-prefixed raw blocks); a raw block without
  framing, as some clients send, is accepted too;
* lz4: the frame format with independent blocks of 64 KiB and no content checksum;
* zstd: one frame without a content checksum.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Protocol

import cramjam

from .errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DECOMPRESSED_BYTES_MAX = 128 << 20
"""The default bound on the decompressed size of one batch."""


class Compression(IntEnum):
    """The codec in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = Struct(">8sii")  # magic, version, lowest compatible version
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")
_INT32_LITTLE = Struct("<I")
_FIRST_GUESS_BYTES_MIN = 16 * 1024
_SMALL_BYTES_MAX = 128 * 1024
"""Up to here a bytearray costs less than to map memory."""

SCRATCH_BYTES = 16 << 20

_DecompressInto = Callable[[memoryview, memoryview], int]
_Room = Callable[[int], memoryview]


def compress(codec: Compression, data: ReadableBuffer, level: int | None = None) -> bytes:
    """`data` in the form in which Kafka's producer would put it into a batch.  `level` None, or -1 of gzip:
    the codec's own."""
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=6 if level in (None, -1) else level))
        case Compression.SNAPPY:
            return _compress_xerial(memoryview(data).cast("B"))
        case Compression.LZ4:
            compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
            compressor.compress(data if isinstance(data, bytes) else bytes(data))
            return bytes(compressor.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))


class Room(Protocol):
    """Memory that is there already."""

    def room(self, size: int) -> memoryview:
        """So many bytes of it, or other memory where it has fewer."""


class Scratch(threading.local):
    """Room that a thread uses for one batch after the other.  To map memory, to fault its pages in and to
    unmap it costs more than to decompress zeros into it, and partly holds the interpreter's lock."""

    buffer: memoryview | None = None

    def room(self, size: int) -> memoryview:
        """Valid until the thread asks again."""
        if size > SCRATCH_BYTES:
            return _room_for(size)
        if self.buffer is None:
            self.buffer = memoryview(mmap.mmap(-1, SCRATCH_BYTES))
        return self.buffer[:size]


def decompress(
    codec: Compression,
    data: ReadableBuffer,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    scratch: Room | None = None,
    *,
    size_first: int = 0,
) -> memoryview:
    """The original bytes; CORRUPT_MESSAGE when `data` cannot be decompressed, MESSAGE_TOO_LARGE when they
    exceed `max_bytes`.

    With `scratch` they are valid until it is used again; `size_first` bytes of it cost no more than few."""
    room = _room_for if scratch is None else scratch.room
    view = memoryview(data).cast("B")
    match codec:
        case Compression.NONE:
            return view
        case Compression.SNAPPY:
            if view[:8] == _XERIAL_MAGIC:
                return _decompress_xerial(view, max_bytes, room)
            return _decompress_snappy_block(view, max_bytes, room)
        case Compression.GZIP:
            return _decompress_growing(
                "gzip",
                cramjam.gzip.decompress_into,
                view,
                max_bytes,
                size_first or _gzip_size_hint(view),
                room,
            )
        case Compression.LZ4:
            return _decompress_growing("lz4", cramjam.lz4.decompress_into, view, max_bytes, size_first, room)
        case Compression.ZSTD:
            return _decompress_growing(
                "zstd",
                cramjam.zstd.decompress_into,
                view,
                max_bytes,
                size_first or _zstd_size_hint(view),
                room,
            )
        case _:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {int(codec)} is not known"
            )


def _corrupt(codec: str, reason: object) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"the {codec} data of the batch cannot be decompressed: {reason}"
    )


def _too_large(codec: str, max_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the {codec} data of the batch unfolds to more than {max_bytes} bytes"
    )


def _gzip_size_hint(view: memoryview) -> int:
    """gzip ends with the original size modulo 2^32: a claim, worth a first guess."""
    if len(view) < 18:
        return 0
    claimed: int = _INT32_LITTLE.unpack_from(view, len(view) - 4)[0]
    return claimed


def _zstd_size_hint(view: memoryview) -> int:
    """The content size in the header of a zstd frame (RFC 8878, 3.1.1.1), or 0 where it is absent."""
    if len(view) < 6:
        return 0
    descriptor = view[4]
    field_bytes = (1 if descriptor & 0x20 else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if descriptor & 0x20 else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not field_bytes or len(view) < start + field_bytes:
        return 0
    return int.from_bytes(view[start : start + field_bytes], "little") + (256 if field_bytes == 2 else 0)


def _decompress_growing(
    codec: str, into: _DecompressInto, view: memoryview, max_bytes: int, hint: int, room: _Room
) -> memoryview:
    """Decompresses into a small buffer when that is likely to do, otherwise into mapped memory of the
    greatest size allowed."""
    size = min(max_bytes, max(hint, len(view) * 4, _FIRST_GUESS_BYTES_MIN))
    if size > _SMALL_BYTES_MAX:
        size = max_bytes
    while True:
        buffer = room(size)
        try:
            written = into(view, buffer)
        except cramjam.DecompressionError as error:
            if "failed to write whole buffer" not in str(error):
                raise _corrupt(codec, error) from error
        else:
            return buffer[:written].toreadonly()
        if size >= max_bytes:
            raise _too_large(codec, max_bytes)
        size = max_bytes


def _room_for(size: int) -> memoryview:
    return memoryview(bytearray(size) if size <= _SMALL_BYTES_MAX else mmap.mmap(-1, size))


def _snappy_block_size(block: memoryview, max_bytes: int) -> int:
    """The size a raw block claims, refused when it is above the bound or beyond what snappy's best ratio
    could hold."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error
    if size > max_bytes:
        raise _too_large("snappy", max_bytes)
    if size > len(block) * 64:
        raise _corrupt("snappy", f"a block of {len(block)} bytes claims to hold {size}")
    return size


def _decompress_snappy_block(block: memoryview, max_bytes: int, room: _Room) -> memoryview:
    buffer = room(_snappy_block_size(block, max_bytes))
    _snappy_block_into(block, buffer)
    return buffer.toreadonly()


def _snappy_block_into(block: memoryview, target: memoryview) -> None:
    try:
        written = cramjam.snappy.decompress_raw_into(block, target)
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error
    if written != len(target):
        raise _corrupt("snappy", f"a block holds {written} bytes and claims {len(target)}")


def _compress_xerial(view: memoryview) -> bytes:
    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_xerial(view: memoryview, max_bytes: int, room: _Room) -> memoryview:
    """Two passes: sizes first, so that one buffer of the right size takes all blocks."""
    blocks: list[tuple[memoryview, int]] = []
    position, total, end = _XERIAL_HEADER.size, 0, len(view)
    while position < end:
        if position + 4 > end:
            raise _corrupt("snappy", "a block's length is cut off")
        length: int = _INT32.unpack_from(view, position)[0]
        position += 4
        if not 0 < length <= end - position:
            raise _corrupt("snappy", f"a block of {length} bytes where {end - position} are left")
        block = view[position : position + length]
        size = _snappy_block_size(block, max_bytes - total)
        blocks.append((block, size))
        total += size
        position += length
    buffer = room(total)
    start = 0
    for block, size in blocks:
        _snappy_block_into(block, buffer[start : start + size])
        start += size
    return buffer.toreadonly()
