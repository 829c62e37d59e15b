"""The records of a batch as the cleaner sees them, and the batch that is left when some of them go.  Pure.

A record that stays is copied byte for byte: its offset and timestamp are deltas to the batch's base, and the
batch keeps its base offset, its last offset, its producer and its sequences, whatever goes (docs/semantics.md
C8).  Only where a delete horizon is set do timestamps have to be written anew, because the horizon takes the
place of the base timestamp (KIP-534):

    attributes, bit 6     the base timestamp is a delete horizon: from then on tombstones, or this marker,
                          may go
    base timestamp        the horizon; deltas of the records' timestamps count from it, so every reader sees
                          them as before

A batch without records (a producer's last one, or the end of what was cleaned) is a header with the same
offsets, codec none.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from ...wire.compression import compress, decompress
from ...wire.errors import ErrorCode, KafkaError
from ...wire.primitives import read_zigzag, zigzag
from ...wire.records import DELETE_HORIZON, HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader

_COMPRESSION_MASK = 0x07
_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_AT, _ATTRIBUTES_AT = 17, 21


class StoredRecord(NamedTuple):
    """One record: bytes [start, end) of the batch's decompressed records, length in front included."""

    offset: int
    key: bytes | None
    has_value: bool
    timestamp_delta: int
    start: int
    end: int
    body: int
    """Where attributes and timestamp begin."""
    after_timestamp: int


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """The time from which on the batch's tombstones, or its marker, may go; None when none was set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def records_bytes(view: memoryview, header: BatchHeader) -> bytes:
    """The batch's records, decompressed.  `view` begins with the batch.  Raises KafkaError."""
    payload = view[HEADER_BYTES : header.size_bytes]
    return bytes(
        decompress(header.compression, payload) if header.attributes & _COMPRESSION_MASK else payload
    )


def scan_records(data: bytes, header: BatchHeader) -> list[StoredRecord]:
    """The records in `data` (of `records_bytes`), without their values and headers.  Raises
    CORRUPT_MESSAGE."""
    records: list[StoredRecord] = []
    append, new = records.append, tuple.__new__
    base_offset, size = header.base_offset, len(data)
    at = 0
    try:
        for _ in range(header.record_count):
            start = at
            length, at = read_zigzag(data, at)
            body, end = at, at + length
            if length < 6 or end > size:
                raise _corrupt(header, f"a record of {length} bytes where {size - at} are left")
            byte = data[at + 1]
            if byte < 0x80:
                timestamp, at = (byte >> 1) ^ -(byte & 1), at + 2
            else:
                timestamp, at = read_zigzag(data, at + 1)
            after_timestamp = at
            byte = data[at]
            if byte < 0x80:
                delta, at = byte >> 1, at + 1
            else:
                delta, at = read_zigzag(data, at)
            byte = data[at]
            if byte < 0x80:
                length, at = (byte >> 1) ^ -(byte & 1), at + 1
            else:
                length, at = read_zigzag(data, at)
            key: bytes | None = None
            if length >= 0:
                key = data[at : at + length]
                at += length
            if at >= end:
                raise _corrupt(header, f"a key ends at byte {at}, its record at {end}")
            has_value = not data[at] & 1  # zigzag: odd is negative, and the only negative length is null
            append(
                new(
                    StoredRecord,
                    (base_offset + delta, key, has_value, timestamp, start, end, body, after_timestamp),
                )
            )
            at = end
    except IndexError:
        raise _corrupt(header, "its last record is cut off") from None
    except ValueError as error:
        raise _corrupt(header, str(error)) from None
    if at != size:
        raise _corrupt(header, f"{size - at} bytes follow its last record")
    return records


def rewritten(
    header: BatchHeader, data: bytes, kept: Sequence[StoredRecord], horizon_ms: int | None = None
) -> bytes:
    """The batch with only the records `kept` of `data`, which are all there were or fewer; with a delete
    horizon when given.

    Its codec stays, unless it is empty.  A horizon can make it a little larger than `max.message.bytes`;
    followers take it.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if not kept:
        # The greatest timestamp stays: a replay learns from it when the producer was last heard.
        return _encode(header, attributes & ~_COMPRESSION_MASK, base_timestamp, header.max_timestamp, 0, b"")
    if horizon_ms is None:
        payload = (
            data
            if len(kept) == header.record_count
            else b"".join([data[each.start : each.end] for each in kept])
        )
    else:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon_ms
        shift = header.base_timestamp - horizon_ms
        payload = b"".join([_with_timestamp(data, each, each.timestamp_delta + shift) for each in kept])
    greatest = header.max_timestamp
    if not header.is_log_append_time:
        greatest = header.base_timestamp + max(each.timestamp_delta for each in kept)
    if attributes & _COMPRESSION_MASK:
        payload = compress(header.compression, payload)
    return _encode(header, attributes, base_timestamp, greatest, len(kept), payload)


def _encode(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, payload: bytes
) -> bytes:
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    head = bytearray(
        _HEADER.pack(
            header.base_offset, length, header.partition_leader_epoch, header.magic, 0, attributes,
            header.last_offset_delta,
            base_timestamp, max_timestamp, header.producer_id, header.producer_epoch, header.base_sequence,
            count,
        )
    )  # fmt: skip
    _CRC.pack_into(head, _CRC_AT, crc32c(payload, crc32c(bytes(head[_ATTRIBUTES_AT:]))))
    return bytes(head) + payload


def _with_timestamp(data: bytes, record: StoredRecord, timestamp_delta: int) -> bytes:
    body = (
        data[record.body : record.body + 1]
        + zigzag(timestamp_delta)
        + data[record.after_timestamp : record.end]
    )
    return zigzag(len(body)) + body


def _corrupt(header: BatchHeader, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset}: {reason}")
