"""Messages from plain dictionaries: an encoder per message and version, put together from its `Shape` once.

    response(ApiKey.HEARTBEAT, 4, {"error_code": ErrorCode.NONE, "throttle_time_ms": 0})

* Fields that this version does not have are dropped; a name that *no* version has is a mistake of the caller:
  ValueError.
* Fields that are missing, or None where null is not allowed, take the schema's default, or else zero, empty,
  null.
* Durations and timestamps are integer milliseconds (a `timedelta` or `datetime` is taken too); kio names them
  without a unit (`throttle_time`), and `throttle_time_ms` is accepted as well.
* Lists may be any iterable of dictionaries (or values), or `EncodedItems`; text is str, bytes may be any
  buffer.

The bytes equal those of kio's own writer (tests hold that for every message and version); kio's is not used,
as it would need a frozen dataclass to be made for every structure first, which costs more than writing it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from struct import error as struct_error
from typing import Any

from .primitives import write_varint
from .schema import ABSENT, FieldShape, Shape, shape_of, unknown_names

Write = Callable[[bytearray, Any], None]
Unknown = Callable[[Iterable[str]], set[str]]
"""Which of these names no version of the message has."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_UUID_ZERO = bytes(16)


def _number(format_: str) -> Write:
    pack = Struct(format_).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: Any) -> None:
    out += _UUID_ZERO if value is None else value.bytes


def _milliseconds(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return -1 if value is None else value


def _duration(format_: str) -> Write:
    pack = Struct(format_).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value if type(value) is int else _milliseconds(value))

    return write


def _write_compact_text(out: bytearray, value: Any) -> None:
    if value is None:
        out.append(0)
        return
    data = value.encode()
    size = len(data) + 1
    if size < 128:
        out.append(size)
    else:
        write_varint(out, size)
    out += data


def _write_classic_text(out: bytearray, value: Any) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    data = value.encode()
    out += _INT16.pack(len(data))
    out += data


def _write_compact_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out.append(0)
        return
    write_varint(out, len(value) + 1)
    out += value


def _write_classic_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
        return
    out += _INT32.pack(len(value))
    out += value


_NUMBERS = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint8": ">B", "uint16": ">H", "uint32": ">I",
    "uint64": ">Q",
    "float64": ">d", "error_code": ">h",
}  # fmt: skip
_DURATIONS = {"timedelta_i32": ">i", "timedelta_i64": ">q", "datetime_i64": ">q"}


def _single_writer(field: FieldShape, flexible: bool, unknown: Unknown) -> Write:
    """Writes one value of the field (of an array: one element)."""
    kind = field.kind
    if field.entity is not None:
        write_entity = entity_encoder(field.entity, unknown)
        if not field.nullable or field.is_array or field.tag >= 0:
            return write_entity
        return _nullable_entity(write_entity)
    if kind in _NUMBERS:
        return _number(_NUMBERS[kind])
    if kind in _DURATIONS:
        return _duration(_DURATIONS[kind])
    match kind:
        case "bool":
            return _write_bool
        case "uuid":
            return _write_uuid
        case "string":
            return _write_compact_text if flexible else _write_classic_text
        case "bytes" | "records":
            return _write_compact_bytes if flexible else _write_classic_bytes
        case _:
            raise TypeError(f"field {field.name} has the unknown type {kind}")


def _nullable_entity(write_entity: Write) -> Write:
    def write(out: bytearray, value: Any) -> None:
        """KIP-893: a structure that may be null has a byte before it, -1 or 1."""
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write_entity(out, value)

    return write


@dataclass(frozen=True, slots=True)
class EncodedItems:
    """The values that may be given for an array: its elements, encoded one after the other by
    `item_encoder`."""

    items: Sequence[bytes]


def _array_writer(write_item: Write, flexible: bool) -> Write:
    def write(out: bytearray, value: Iterable[Any] | EncodedItems | None) -> None:
        if value is None:
            out += b"\x00" if flexible else b"\xff\xff\xff\xff"
            return
        if type(value) is EncodedItems:
            items: Any = value.items
        else:
            items = value if isinstance(value, (list, tuple)) else list(value)  # type: ignore[arg-type]
        if flexible:
            write_varint(out, len(items) + 1)
        else:
            out += _INT32.pack(len(items))
        if type(value) is EncodedItems:
            out += b"".join(items)
            return
        for item in items:
            write_item(out, item)

    return write


def _field_writer(field: FieldShape, flexible: bool, unknown: Unknown) -> Write:
    write = _single_writer(field, flexible, unknown)
    return _array_writer(write, flexible) if field.is_array else write


def _zero(field: FieldShape) -> Any:
    """The value of a missing field without a default of its own."""
    if field.is_array:
        return None if field.nullable else ()
    if field.entity is not None:
        return None if field.nullable else {}
    if field.nullable:
        return None
    return {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}.get(field.kind, 0)


def _is_default(field: FieldShape, value: Any) -> bool:
    """Whether a tagged field may be left out."""
    if field.is_array:
        return value is not None and not value if field.default in (ABSENT, ()) else value == field.default
    if field.entity is not None:
        inside = (*field.entity.plain, *field.entity.tagged)
        return all(
            given is None or given == (_zero(inner) if inner.default is ABSENT else inner.default)
            for inner in inside
            for given in [value.get(inner.name, value.get(f"{inner.name}_ms"))]
        )
    default = _zero(field) if field.default is ABSENT else field.default
    if field.kind in _DURATIONS:
        return bool(_milliseconds(value) == _milliseconds(default))
    return bool(value == default)


def entity_encoder(shape: Shape, unknown: Unknown) -> Write:
    """A function that appends a dictionary in the form of `shape`."""
    flexible = shape.flexible
    plain = [_compile(field, flexible, unknown) for field in shape.plain]
    tagged = [(*_compile(field, flexible, unknown), field) for field in shape.tagged]
    expected = {name for name, *_ in plain} | {name for name, *_ in tagged}
    expected |= {f"{field.name}_ms" for field in (*shape.plain, *shape.tagged) if field.kind in _DURATIONS}
    other_versions: set[str] = set()

    def write(out: bytearray, fields: Mapping[str, Any]) -> None:
        get = fields.get
        for name, alias, write_field, nullable, default in plain:
            value = get(name, ABSENT)
            if value is ABSENT and alias:
                value = get(alias, ABSENT)
            if value is ABSENT or (value is None and not nullable):
                out += default
                continue
            try:
                write_field(out, value)
            except (struct_error, TypeError, AttributeError) as error:
                raise ValueError(f"{shape.name}.{name}: {value!r:.200} cannot be encoded: {error}") from error
        if flexible:
            _write_tags(out, fields, tagged)
        if not expected.issuperset(fields) and not other_versions.issuperset(
            rest := fields.keys() - expected
        ):
            if slips := unknown(rest):
                raise ValueError(f"{shape.name} has no field {', '.join(sorted(slips))} in any version")
            other_versions.update(rest)

    return write


def _write_tags(out: bytearray, fields: Mapping[str, Any], tagged: list[Any]) -> None:
    present: list[tuple[int, bytearray]] = []
    for name, alias, write_field, nullable, _, field in tagged:
        value = fields.get(name, ABSENT)
        if value is ABSENT and alias:
            value = fields.get(alias, ABSENT)
        if value is ABSENT or (value is None and not nullable) or _is_default(field, value):
            continue
        body = bytearray()
        write_field(body, value)
        present.append((field.tag, body))
    write_varint(out, len(present))
    for tag, body in present:
        write_varint(out, tag)
        write_varint(out, len(body))
        out += body


def _compile(field: FieldShape, flexible: bool, unknown: Unknown) -> tuple[str, str, Write, bool, bytes]:
    """(name, other name or "", writer, takes None, the encoded default)."""
    write = _field_writer(field, flexible, unknown)
    default = bytearray()
    if field.tag < 0:
        write(default, _zero(field) if field.default is ABSENT else field.default)
    takes_none = field.nullable or field.kind in ("uuid", "datetime_i64")
    return (
        field.name,
        f"{field.name}_ms" if field.kind in _DURATIONS else "",
        write,
        takes_none,
        bytes(default),
    )


def message_encoder(entity_type: Any, api_key: int, is_request: bool) -> Callable[[Mapping[str, Any]], bytes]:
    """A function from a dictionary to the message's bytes."""
    write = entity_encoder(shape_of(entity_type), partial(unknown_names, api_key, is_request))

    def encode(fields: Mapping[str, Any]) -> bytes:
        out = bytearray()
        write(out, fields)
        return bytes(out)

    return encode


def item_encoder(
    entity_type: Any, array: str, api_key: int, is_request: bool
) -> Callable[[Mapping[str, Any]], bytes]:
    """A function from a dictionary to the bytes of one element of the message's array of that name: see
    `EncodedItems`."""
    field = next(field for field in shape_of(entity_type).plain if field.name == array)
    assert field.is_array
    assert field.entity is not None
    write = entity_encoder(field.entity, partial(unknown_names, api_key, is_request))

    def encode(fields: Mapping[str, Any]) -> bytes:
        out = bytearray()
        write(out, fields)
        return bytes(out)

    return encode
