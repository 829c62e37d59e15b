"""Fields of the records in internal topics: Kafka's message encoding, both the classic and the flexible
(KIP-482) form.

A `FieldReader` raises `RecordFormatError` for whatever does not fit, so that a damaged record can never pass
as a short one. Unknown tagged fields are skipped: a later release may add some (KIP-915).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack
from typing import Final
from uuid import UUID

from ..wire.errors import ErrorCode, KafkaError

CLASSIC_STRING_MAX: Final = 32_767

_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")


class RecordFormatError(Exception):
    """A record of an internal topic is not what its version says."""


class FieldWriter:
    """Appends fields; `flexible` chooses compact lengths and tagged fields."""

    __slots__ = ("flexible", "parts")

    def __init__(self, *, flexible: bool = False) -> None:
        self.flexible = flexible
        self.parts = bytearray()

    def int8(self, value: int) -> None:
        self.parts += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self.parts += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self.parts += _INT32.pack(value)

    def int32s(self, values: Sequence[int]) -> None:
        """An array of them."""
        self.array(len(values))
        self.parts += pack(f">{len(values)}i", *values)

    def int64(self, value: int) -> None:
        self.parts += _INT64.pack(value)

    def uuid(self, value: UUID) -> None:
        self.parts += value.bytes

    def unsigned_varint(self, value: int) -> None:
        while value > 0x7F:
            self.parts.append(value & 0x7F | 0x80)
            value >>= 7
        self.parts.append(value)

    def array(self, count: int) -> None:
        """The length that stands before an array's elements."""
        if self.flexible:
            self.unsigned_varint(count + 1)
        else:
            self.int32(count)

    def string(self, value: str | None) -> None:
        """Raises KafkaError INVALID_REQUEST for a longer one than the classic form can hold: names that
        clients chose may be."""
        data = None if value is None else value.encode()
        if data is not None and not self.flexible and len(data) > CLASSIC_STRING_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"a name of {len(data)} bytes cannot be stored, {CLASSIC_STRING_MAX} can",
            )
        if self.flexible:
            self.unsigned_varint(0 if data is None else len(data) + 1)
        else:
            self.int16(-1 if data is None else len(data))
        self.parts += data or b""

    def data(self, value: bytes) -> None:
        self.array(len(value))
        self.parts += value

    def tags(self, fields: dict[int, bytes]) -> None:
        """The tagged fields, in order of their tags.  Raises ValueError for any in the classic form, which
        would lose them."""
        if not self.flexible:
            if fields:
                raise ValueError(f"the classic form has no tagged fields: {sorted(fields)}")
            return
        self.unsigned_varint(len(fields))
        for tag in sorted(fields):
            self.unsigned_varint(tag)
            self.unsigned_varint(len(fields[tag]))
            self.parts += fields[tag]

    def finish(self) -> bytes:
        return bytes(self.parts)


class FieldReader:
    """Takes fields off the front of `data`."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._position = 0
        self.flexible = flexible

    def _take(self, size: int) -> bytes:
        start, end = self._position, self._position + size
        if size < 0 or end > len(self._data):
            raise RecordFormatError(
                f"a field of {size} bytes at {start} does not fit into {len(self._data)} bytes"
            )
        self._position = end
        return self._data[start:end]

    def _number(self, struct: Struct) -> int:
        value: int = struct.unpack(self._take(struct.size))[0]
        return value

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def unsigned_varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise RecordFormatError(f"a varint before {self._position} is longer than 5 bytes")

    def array(self) -> int:
        """The number of elements; -1 for a null array.  Bounded by the bytes that are left."""
        count = self.unsigned_varint() - 1 if self.flexible else self.int32()
        if count > len(self._data) - self._position or count < -1:
            raise RecordFormatError(f"an array of {count} elements does not fit into {len(self._data)} bytes")
        return count

    def optional_string(self) -> str | None:
        length = self.unsigned_varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise RecordFormatError(f"a string at {self._position - length} is not UTF-8") from error

    def string(self) -> str:
        value = self.optional_string()
        if value is None:
            raise RecordFormatError(f"a string before {self._position} is null")
        return value

    def data(self) -> bytes:
        return self._take(max(0, self.array()))

    def tags(self) -> dict[int, bytes]:
        """The tagged fields, uninterpreted; empty in the classic form."""
        if not self.flexible:
            return {}
        fields: dict[int, bytes] = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            fields[tag] = self._take(self.unsigned_varint())
        return fields

    def finish(self) -> None:
        """Raises unless everything was read."""
        if self._position != len(self._data):
            raise RecordFormatError(f"{len(self._data) - self._position} bytes are left over")
