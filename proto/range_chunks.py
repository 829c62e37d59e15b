"""RangeChunk, whose records are most of it, without the copies that protobuf makes of them.

To build, serialize, parse and read such a message copies its records four times.  Here they stand beside the
other fields: written once, and read as a view of what came in.  The bytes are those of any protobuf library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import data_pb2

READ_RANGE: Final = f"/{data_pb2.DESCRIPTOR.services_by_name['Data'].full_name}/ReadRange"
"""The method that answers with such chunks: a channel calls it with `parse` as its deserializer."""
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10
_RECORDS: Final = data_pb2.RangeChunk.RECORDS_FIELD_NUMBER << 3 | _BYTES


@dataclass(slots=True)
class RecordsChunk:
    """A RangeChunk: `fields` is without its records.  Who has sent it drops them: gRPC holds a message of a
    stream until it gets the next one."""

    fields: data_pb2.RangeChunk
    records: bytes | memoryview = b""


class MalformedChunk(ValueError):
    """Bytes that are no RangeChunk."""


def serialize(chunk: RecordsChunk) -> bytes:
    """As RangeChunk.SerializeToString."""
    return b"".join(parts(chunk))


def parts(chunk: RecordsChunk) -> tuple[bytes | memoryview, ...]:
    """What `serialize` puts together."""
    if not chunk.records:
        return (chunk.fields.SerializeToString(),)
    return head(chunk.fields, len(chunk.records)), chunk.records


def head(fields: data_pb2.RangeChunk, records_bytes: int) -> bytes:
    """What stands before the records, which are the rest of the message."""
    return fields.SerializeToString() + _varint(_RECORDS) + _varint(records_bytes)


def parse(message: bytes | memoryview) -> RecordsChunk:
    """As RangeChunk.FromString; the records are a view of `message`.  Raises MalformedChunk, DecodeError."""
    view = memoryview(message)
    records = view[:0]
    others: list[memoryview] = []
    position, end = 0, len(message)
    while position < end:
        begin = position
        tag, position = _read_varint(message, position)
        position, length = _read_length(message, position, tag & 7)
        if length > end - position:
            raise MalformedChunk(
                f"a field of {length} bytes at byte {begin}, where {end - position} are left"
            )
        position += length
        if tag == _RECORDS:  # of several the last counts, as in protobuf
            records = view[position - length : position]
        else:
            others.append(view[begin:position])
    return RecordsChunk(data_pb2.RangeChunk.FromString(b"".join(others)), records)


def _read_length(message: bytes | memoryview, position: int, wire_type: int) -> tuple[int, int]:
    """Where the bytes of a field stand, and how many there are."""
    if wire_type == _BYTES:
        length, position = _read_varint(message, position)
        return position, length
    if wire_type == _VARINT:
        return _read_varint(message, position)[1], 0
    if wire_type in (_FIXED_64, _FIXED_32):
        return position, 8 if wire_type == _FIXED_64 else 4
    raise MalformedChunk(f"a field of wire type {wire_type} before byte {position}")


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def _read_varint(message: bytes | memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        if position == len(message):
            raise MalformedChunk("the message ends within a number")
        octet = message[position]
        position += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, position
    raise MalformedChunk(f"a number of more than {_VARINT_BYTES_MAX} bytes before byte {position}")
