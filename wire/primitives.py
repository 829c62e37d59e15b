"""The protocol's basic types for messages that are read and written by hand: varints, text, byte strings,
array lengths.

Readers take (data, position) and return (value, position after it); they raise KafkaError(INVALID_REQUEST)
for a length that does not fit into the data, and one of `READ_ERRORS` at the data's end: the parser of a
message turns those into INVALID_REQUEST, once per message instead of once per field.  Writers append to a
bytearray.  "Compact" is the form of flexible messages (KIP-482).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from uuid import UUID

from .errors import ErrorCode, KafkaError

Data = bytes | memoryview

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")


def invalid(message: str) -> KafkaError:
    """What every malformed message is answered with."""
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


class RequestTooLarge(KafkaError):
    """A request that is well formed and asks for more at once than any client does: INVALID_REQUEST."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


ENTRIES_MAX = 20_000
"""Elements of all arrays of one request together.  A node's loop works for 3 to 10 us on each of them and
does nothing else meanwhile; twelve megabytes can claim millions.  Clients name the partitions that they use
here: hundreds, rarely thousands."""
TAGS_MAX = 32
"""Tagged fields in one section; no message of Kafka has defined ten."""
REQUEST_BYTES_MAX = 8 << 20
"""Of a request other than Produce, which alone carries data.  The largest are assignments of very large
consumer groups."""


class EntryBudget:
    """The entries that a request may still have, counted down where its arrays are read: before anything is
    made of their elements."""

    __slots__ = ("entries_max", "left")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self.entries_max = self.left = entries_max

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise RequestTooLarge(
                f"the request has more than {self.entries_max} entries: ask for fewer at once"
            )


def check_request_size(size: int) -> None:
    """Raises RequestTooLarge for a request that is no Produce."""
    if size > REQUEST_BYTES_MAX:
        raise RequestTooLarge(
            f"the request has {size} bytes and at most {REQUEST_BYTES_MAX} are taken of its kind"
        )


READ_ERRORS = (IndexError, struct_error, UnicodeDecodeError)
"""What readers raise at the end of the data, and for text that is none: caught once per message, see
`unreadable`."""


def unreadable(what: str, error: Exception) -> KafkaError:
    """INVALID_REQUEST for one of `READ_ERRORS`."""
    if isinstance(error, UnicodeDecodeError):
        return invalid(f"the {what} holds text that is not UTF-8: {error}")
    return invalid(f"the {what} is cut off")


def read_varint(data: Data, position: int) -> tuple[int, int]:
    """An unsigned varint below 2^31."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                raise invalid(f"a length or tag of {value}")
            return value, position
        shift += 7
        if shift > 28:
            raise invalid("a varint of more than five bytes")


def write_varint(out: bytearray, value: int) -> None:
    """An unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def zigzag(value: int) -> bytes:
    """A signed varint of up to 64 bits, as records have them."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    write_varint(out, rest)
    return bytes(out)


def read_zigzag(data: Data, position: int) -> tuple[int, int]:
    """(value, position after it) of a signed varint.  IndexError at the end of the data, ValueError for more
    than ten bytes."""
    rest = shift = 0
    while True:
        byte = data[position]
        position += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")


def read_length(data: Data, position: int, flexible: bool) -> tuple[int, int]:
    """The length of an array or byte string, -1 for null; never more than there are bytes left."""
    if flexible:
        length, position = read_varint(data, position)
        length -= 1
    else:
        length = INT32.unpack_from(data, position)[0]
        position += 4
    if not -1 <= length <= len(data) - position:
        raise invalid(f"a length of {length} where {len(data) - position} bytes are left")
    return length, position


def read_count(data: Data, position: int, flexible: bool) -> tuple[int, int]:
    """The length of an array that may not be null."""
    count, position = read_length(data, position, flexible)
    if count < 0:
        raise invalid("an array is null")
    return count, position


def read_nullable_text(data: Data, position: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        length, position = read_varint(data, position)
        length -= 1
    else:
        length = INT16.unpack_from(data, position)[0]
        position += 2
    if length < 0:
        if length < -1:
            raise invalid(f"text with the length {length}")
        return None, position
    end = position + length
    if end > len(data):
        raise invalid(f"text of {length} bytes where {len(data) - position} are left")
    return str(data[position:end], "utf-8"), end


def read_text(data: Data, position: int, flexible: bool) -> tuple[str, int]:
    text, position = read_nullable_text(data, position, flexible)
    if text is None:
        raise invalid("a text is null")
    return text, position


def read_uuid(data: Data, position: int) -> tuple[UUID, int]:
    end = position + 16
    if end > len(data):
        raise invalid(f"a UUID of 16 bytes where {len(data) - position} are left")
    return UUID(bytes=bytes(data[position:end])), end


def skip_tags(data: Data, position: int) -> int:
    """The position after a section of tagged fields, all of them unknown and skipped."""
    if data[position] == 0:
        return position + 1
    *_, (_, end, _) = read_tags(data, position)
    return end


def read_tags(data: Data, position: int) -> Iterator[tuple[int, int, int]]:
    """(tag, start, end) of each tagged field; after the last one, and when there is none, (-1, position,
    position)."""
    count, position = read_varint(data, position)
    if count > TAGS_MAX:
        raise RequestTooLarge(f"{count} tagged fields in one place: at most {TAGS_MAX} are taken")
    previous = -1
    for _ in range(count):
        tag, position = read_varint(data, position)
        if tag <= previous:
            raise invalid(f"tag {tag} comes after tag {previous}")
        previous = tag
        size, position = read_varint(data, position)
        if position + size > len(data):
            raise invalid(f"tag {tag} claims {size} bytes where {len(data) - position} are left")
        yield tag, position, position + size
        position += size
    yield -1, position, position


def expect_end(data: Data, position: int, what: str) -> None:
    """Nothing may follow a message in its frame."""
    if position != len(data):
        raise invalid(f"{len(data) - position} bytes follow the {what}")


def write_length(out: bytearray, length: int, flexible: bool) -> None:
    """The length of an array or byte string; -1 for null."""
    if flexible:
        write_varint(out, length + 1)
    else:
        out += INT32.pack(length)


def write_text(out: bytearray, text: str | None, flexible: bool) -> None:
    """Text or null."""
    if text is None:
        out += b"\x00" if flexible else b"\xff\xff"
        return
    encoded = text.encode()
    if flexible:
        write_varint(out, len(encoded) + 1)
    else:
        out += INT16.pack(len(encoded))
    out += encoded


def write_topic(out: bytearray, topic: str | UUID, flexible: bool) -> None:
    """A topic's name, or its id in the versions that have ids (KIP-516)."""
    if isinstance(topic, UUID):
        out += topic.bytes
    else:
        write_text(out, topic, flexible)
