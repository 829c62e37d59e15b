"""What both decoders share: the parameters of a decode, and how its columns become an Arrow batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrow_schema import ARROW_HEADERS_TYPE, arrow_schema

CONSTANT_ROWS = 1 << 14
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
    constants: dict[str, str | int] = {"topic": target.topic, "partition": target.partition}
    arrays = [
        _constant_column(constants[name], rows) if name in constants else made[name]()
        for name in target.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(target.columns))


def _constant_column(value: str | int, rows: int) -> Any:
    return _kept_constant(value).slice(0, rows) if rows <= CONSTANT_ROWS else _repeated(value, rows)


@lru_cache(maxsize=2)  # the topic and the partition of a task
def _kept_constant(value: str | int) -> Any:
    return _repeated(value, CONSTANT_ROWS)


def _repeated(value: str | int, rows: int) -> Any:
    """From buffers: `pa.scalar` and `pa.array` import pandas, for half a second and 60 MB of each worker."""
    if isinstance(value, int):
        return pa.Array.from_buffers(
            pa.int32(), rows, [None, pa.py_buffer(np.full(rows, value, np.int32))], 0
        )
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)], 0)


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
