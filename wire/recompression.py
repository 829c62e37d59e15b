"""A batch in another codec: the broker's recompression where `compression.type` is not `producer`, as in
Kafka's LogValidator.

The records' bytes do not change.  Of the header only the codec, the length and the checksum change: offsets,
times, producer, sequence and the transaction's bits stay as they are, and one batch stays one batch.
May be called in any thread.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from .compression import Compression, compress, decompress
from .records import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CODEC_MASK = 0x07
_LENGTH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21


def recompressed(
    view: ReadableBuffer,
    position: int,
    header: BatchHeader,
    codec: Compression,
    level: int | None,
    unfolded_bytes_max: int,
) -> bytearray:
    """The batch at `position`, its records in `codec`; `level` None: the codec's own.

    Raises CORRUPT_MESSAGE when its records cannot be unfolded, MESSAGE_TOO_LARGE when they exceed
    `unfolded_bytes_max`."""
    data = memoryview(view).cast("B")[position : position + header.size_bytes]
    records = decompress(header.compression, data[HEADER_BYTES:], unfolded_bytes_max)
    payload = compress(codec, records, level)
    batch = bytearray(HEADER_BYTES + len(payload))
    batch[:HEADER_BYTES] = data[:HEADER_BYTES]
    batch[HEADER_BYTES:] = payload
    _LENGTH.pack_into(batch, _LENGTH_AT, len(batch) - LOG_OVERHEAD_BYTES)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, (header.attributes & ~_CODEC_MASK) | codec)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))
    return batch
