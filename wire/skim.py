"""Walks a message by its schema and checks every length in it, without building anything.

Why: kio's decoder (Rust) reserves an array's memory by the length that the message *claims*.  Nine bytes that
claim 2^31-1 elements make the allocation fail, and a failed allocation there ends the process.  So every
message is walked here first: each string, array and tagged field must lie within the payload, null only where
the schema allows it, nothing may be left over. Afterwards kio cannot be asked for more than a small multiple
of the payload's size.

The elements of all arrays are counted on the way, and a request that holds more than `ENTRIES_MAX` of them is
refused before the walk reaches them: a message of modest size could otherwise occupy its handler, and with it
the loop, for many seconds.

Raises KafkaError(INVALID_REQUEST) and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import Any

from .primitives import (
    TAGS_MAX,
    EntryBudget,
    RequestTooLarge,
    read_length,
    read_tags,
    read_varint,
    write_varint,
)
from .primitives import invalid as _invalid
from .schema import FieldShape, Shape, shape_of

Skim = Callable[[bytes, int, EntryBudget], int]
"""(payload, position, entries left) -> position after it; IndexError or struct.error at the payload's end."""

_FIXED = {
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float64": 8, "bool": 1,
    "error_code": 2, "uuid": 16, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8,
}  # fmt: skip
_unpack_int16 = Struct(">h").unpack_from
_unpack_int32 = Struct(">i").unpack_from


def _check(position: int, data: bytes, what: str) -> int:
    if position > len(data):
        raise _invalid(f"{what} ends {position - len(data)} bytes after the message")
    return position


def _compact_length(data: bytes, position: int, name: str, nullable: bool) -> tuple[int, int]:
    """(length or -1 for null, position) of a compact string, bytes or array."""
    length = data[position]
    position += 1
    if length > 0x7F:
        length, position = read_varint(data, position - 1)
    if length == 0 and not nullable:
        raise _invalid(f"{name} is null")
    return length - 1, position


def _bytes_skim(field: FieldShape, flexible: bool, nullable: bool) -> Skim:
    name = field.name
    if flexible:

        def skim_compact(data: bytes, position: int, entries: EntryBudget) -> int:
            length, position = _compact_length(data, position, name, nullable)
            return position if length < 0 else _check(position + length, data, name)

        return skim_compact
    unpack, size = (_unpack_int16, 2) if field.kind == "string" else (_unpack_int32, 4)

    def skim_classic(data: bytes, position: int, entries: EntryBudget) -> int:
        length: int = unpack(data, position)[0]
        if length < 0 and (length < -1 or not nullable):
            raise _invalid(f"{name} has the length {length}")
        return position + size if length < 0 else _check(position + size + length, data, name)

    return skim_classic


def _array_skim(field: FieldShape, flexible: bool, skim_item: Skim | int) -> Skim:
    name, nullable = field.name, field.nullable

    def skim(data: bytes, position: int, entries: EntryBudget) -> int:
        if flexible:
            count, position = _compact_length(data, position, name, nullable)
        else:
            count = _unpack_int32(data, position)[0]
            position += 4
            if count < 0 and (count < -1 or not nullable):
                raise _invalid(f"{name} has {count} elements")
        if count <= 0:
            return position
        if isinstance(skim_item, int):
            end = _check(position + count * skim_item, data, name)
            entries.take(count)
            return end
        if count > len(data) - position:  # no element is smaller than a byte
            raise _invalid(f"{name} claims {count} elements in {len(data) - position} bytes")
        entries.take(count)
        for _ in range(count):
            position = skim_item(data, position, entries)
        return position

    return skim


def _field_skim(field: FieldShape, flexible: bool) -> Skim | int:
    """A function, or the size of a field that always has the same."""
    item: Skim | int
    if field.entity is not None:
        item = shape_skim(field.entity)
        if field.nullable and not field.is_array and field.tag < 0:
            item = _nullable_entity(item)
    elif field.kind in _FIXED:
        item = _FIXED[field.kind]
    else:
        item = _bytes_skim(field, flexible, field.nullable and not field.is_array and field.tag < 0)
    return _array_skim(field, flexible, item) if field.is_array else item


def _nullable_entity(skim_entity: Skim) -> Skim:
    def skim(data: bytes, position: int, entries: EntryBudget) -> int:
        marker = data[position]
        if marker == 0xFF:
            return position + 1
        if marker != 1:
            raise _invalid(f"the null marker of a structure is {marker}")
        return skim_entity(data, position + 1, entries)

    return skim


@cache
def shape_skim(shape: Shape) -> Skim:
    """The walk over one structure, fields of fixed size taken together."""
    steps: list[Skim | int] = []
    for field in shape.plain:
        step = _field_skim(field, shape.flexible)
        if isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)
    tags = {field.tag: _field_skim(field, shape.flexible) for field in shape.tagged}
    flexible = shape.flexible

    def skim(data: bytes, position: int, entries: EntryBudget) -> int:
        for step in steps:
            if isinstance(step, int):
                position += step
            else:
                position = step(data, position, entries)
        if flexible:
            if data[position] == 0:
                return position + 1
            return _skim_tags(data, position, tags, entries)
        return _check(position, data, shape.name)

    return skim


def _skim_tags(data: bytes, position: int, tags: dict[int, Skim | int], entries: EntryBudget) -> int:
    count, position = read_varint(data, position)
    if count > TAGS_MAX:
        raise RequestTooLarge(f"{count} tagged fields in one place: at most {TAGS_MAX} are taken")
    previous = -1
    for _ in range(count):
        tag, position = read_varint(data, position)
        if tag <= previous:
            raise _invalid(f"tag {tag} comes after tag {previous}")
        previous = tag
        size, position = read_varint(data, position)
        end = _check(position + size, data, f"tag {tag}")
        known = tags.get(tag)
        if known is not None:
            inside = position + known if isinstance(known, int) else known(data, position, entries)
            if inside != end:
                raise _invalid(f"tag {tag} has {size} bytes and its content {inside - position}")
        position = end
    return position


def without_unknown_tags(entity_type: Any, data: bytes, position: int = 0) -> bytes:
    """The message, already checked, without the tagged fields that its version does not know.

    They are a newer peer's and to be ignored (KIP-482), but kio stops at them.  Rare, hence simple and slow.
    """
    out = bytearray()
    _copy_known(shape_of(entity_type), data, position, out)
    return bytes(out)


def _copy_known(shape: Shape, data: bytes, position: int, out: bytearray) -> int:
    for field in shape.plain:
        position = _copy_field(field, shape.flexible, data, position, out)
    if not shape.flexible:
        return position
    known = {field.tag: field for field in shape.tagged}
    kept: list[tuple[int, bytearray]] = []
    for tag, start, end in read_tags(data, position):
        if tag in known:
            body = bytearray()
            _copy_field(known[tag], True, data, start, body)
            kept.append((tag, body))
        position = end
    write_varint(out, len(kept))
    for tag, body in kept:
        write_varint(out, tag)
        write_varint(out, len(body))
        out += body
    return position


def _copy_field(field: FieldShape, flexible: bool, data: bytes, position: int, out: bytearray) -> int:
    start = position
    if field.entity is None:
        step = _field_skim(field, flexible)
        position = position + step if isinstance(step, int) else step(data, position, EntryBudget(len(data)))
        out += data[start:position]
        return position
    count = 1
    if field.is_array:
        count, position = read_length(data, position, flexible)
    elif field.nullable and field.tag < 0:
        count, position = (0 if data[position] == 0xFF else 1), position + 1
    out += data[start:position]
    for _ in range(count):
        position = _copy_known(field.entity, data, position, out)
    return position


def check_message(
    entity_type: Any,
    data: bytes,
    position: int = 0,
    entries_max: int | None = None,
    *,
    to_the_end: bool = True,
) -> None:
    """Checks the message of kio's class `entity_type` that starts at `position`, and, with `to_the_end`, ends
    with `data`.

    Raises RequestTooLarge when its arrays have more than `entries_max` elements; None bounds them by the
    message's size alone.
    """
    try:
        entries = EntryBudget(len(data) if entries_max is None else entries_max)
        end = shape_skim(shape_of(entity_type))(data, position, entries)
    except (IndexError, struct_error):
        raise _invalid(f"{entity_type.__name__} is cut off") from None
    if to_the_end and end != len(data):
        raise _invalid(f"{len(data) - end} bytes follow the {entity_type.__name__} in its frame")
