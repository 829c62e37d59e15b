"""Random messages of every kind and version, as kio entities and as the dictionaries that our encoder
takes."""

from __future__ import annotations

import datetime
import io
import random
import uuid
from dataclasses import fields, is_dataclass
from typing import Any

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer
from tidegate.wire.schema import FieldShape, Shape, request_class, response_class, shape_of

_RANGES = {
    "int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63, "timedelta_i32": 2**31,
}  # fmt: skip
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _value(field: FieldShape, entity_type: Any, rng: random.Random, depth: int) -> Any:
    """One value of the field; of an array, one element."""
    if field.entity is not None:
        return entity(_inner_type(entity_type, field.name), rng, depth + 1)
    match field.kind:
        case "string":
            return "".join(rng.choices("abcxyz-_.äß漢", k=rng.choice([0, 1, 7, 200])))
        case "bytes" | "records":
            return rng.randbytes(rng.choice([0, 1, 40, 300]))
        case "bool":
            return rng.random() < 0.5
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128) | 1)
        case "error_code":
            return rng.choice(list(KioErrorCode))
        case "uint16":
            return rng.randrange(2**16)
        case "float64":
            return rng.random() * 1e6
        case "timedelta_i32":
            return datetime.timedelta(milliseconds=rng.choice([0, 1, 30_000, rng.randrange(-(2**31), 2**31)]))
        case "timedelta_i64":
            return datetime.timedelta(milliseconds=rng.choice([0, 1, 30_000, rng.randrange(-(2**40), 2**40)]))
        case "datetime_i64":
            return _EPOCH + datetime.timedelta(milliseconds=rng.randrange(2**41))
        case number:
            half = _RANGES[number]
            return rng.choice([0, 1, -1, rng.randrange(-half, half), half - 1, -half])


def _inner_type(entity_type: Any, name: str) -> Any:
    annotation = next(field.type for field in fields(entity_type) if field.name == name)
    while not is_dataclass(annotation):
        annotation = next(part for part in annotation.__args__ if part not in (type(None), ...))  # type: ignore[union-attr]
    return annotation


def entity(entity_type: Any, rng: random.Random, depth: int = 0) -> Any:
    """A random instance of kio's class."""
    shape = shape_of(entity_type)
    values: dict[str, Any] = {}
    for field in (*shape.plain, *shape.tagged):
        if field.nullable and field.tag < 0 and rng.random() < 0.3:
            values[field.name] = None
        elif field.tag >= 0 and rng.random() < 0.4 and field.default is not None:
            continue  # the default, which is not written
        elif field.is_array:
            count = rng.randrange(3 if depth < 3 else 2)
            values[field.name] = tuple(_value(field, entity_type, rng, depth) for _ in range(count))
        else:
            values[field.name] = _value(field, entity_type, rng, depth)
    return entity_type(**values)


def as_fields(value: Any) -> Any:
    """The dictionary form: integers for durations, lists for tuples."""
    if is_dataclass(value):
        return {field.name: as_fields(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [as_fields(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return value


def kio_bytes(value: Any) -> bytes:
    with io.BytesIO() as out:
        entity_writer(type(value))(out, value)
        return out.getvalue()


def message_class(api_key: int, version: int, is_request: bool) -> Any:
    return request_class(api_key, version) if is_request else response_class(api_key, version)


__all__ = ["Shape", "as_fields", "entity", "kio_bytes", "message_class"]
