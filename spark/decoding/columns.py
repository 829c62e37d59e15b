"""What both decoders share: the parameters of a decode, and how its columns become an Arrow batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ..schema import ARROW_HEADERS_TYPE, arrow_schema

CONSTANT_ROWS = 1 << 16
"""Of a constant column that is kept; a longer one is made for its batch."""


@dataclass(frozen=True, slots=True)
class Target:
    """The parameters of a decode: the constant columns, the projection, and the requested offsets, [start,
    end)."""

    topic: str
    partition: int
    columns: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of a piece, and its last offset, which may lie outside of the requested ones."""

    rows: pa.RecordBatch
    last_offset: int


def to_batch(target: Target, rows: int, made: Mapping[str, Callable[[], Any]]) -> pa.RecordBatch:
    """`made` makes the columns that differ from record to record."""
    constants = {"topic": pa.scalar(target.topic), "partition": pa.scalar(target.partition, pa.int32())}
    arrays = [
        _constant_column(constants[name], rows) if name in constants else made[name]()
        for name in target.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(target.columns))


def _constant_column(value: pa.Scalar, rows: int) -> Any:
    return _kept_constant(value).slice(0, rows) if rows <= CONSTANT_ROWS else pa.repeat(value, rows)


@lru_cache(maxsize=2)  # the topic and the partition of a task
def _kept_constant(value: pa.Scalar) -> Any:
    return pa.repeat(value, CONSTANT_ROWS)


@lru_cache(maxsize=8)
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    return arrow_schema(columns)


def headers_column(
    rows: int, valid: pa.Buffer | None, nulls: int, offsets: pa.Buffer, names: Any, values: Any
) -> Any:
    """The lists of each row's headers, from all binary names and values.  null when a record has none, as in
    Spark's Kafka connector."""
    entry = ARROW_HEADERS_TYPE.value_type
    entries = pa.StructArray.from_arrays([_text(names), values], fields=[entry.field(0), entry.field(1)])
    return pa.Array.from_buffers(ARROW_HEADERS_TYPE, rows, [valid, offsets], nulls, children=[entries])


def _text(names: Any) -> Any:
    """Header names as strings.  Kafka requires UTF-8; invalid bytes become replacement characters, not an
    error."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
