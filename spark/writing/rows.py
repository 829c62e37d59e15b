"""From the rows of a DataFrame to records and their partitions: pure.

The columns are those of Spark's Kafka sink: `value` (binary or string), and, where there are, `key`,
`headers`, `topic` (the option `topic` counts before it) and `partition`; also `timestamp`, which that sink
does not have.  The source's `offset` and `timestampType` may be there, so that a DataFrame that was read is
written as it is; no record can be given them.  A record without a partition goes where every Kafka client
sends it: by murmur2 of its key, or, without a key, to one partition after the other, a batch each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from ...wire.records import NewRecord
from ..schema import HEADERS_TYPE, SchemaError

ROWS_MAX: Final = 1_000
"""Rows that are Python objects at one time, and about how many bytes of Arrow they have at most."""
SLICE_BYTES: Final = 1 << 20
MICROSECONDS: Final = 1_000

_BYTES: Final = (BinaryType, StringType)
_TYPES: Final[Mapping[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": (_BYTES, "binary or string"),
    "value": (_BYTES, "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
}

_NOT_WRITTEN: Final = ("offset", "timestampType")


class RowError(ValueError):
    """A row that is no record; the message names the column and what to write."""


class Row(NamedTuple):
    """`partition` is None where the partitioner decides."""

    topic: str
    partition: int | None
    record: NewRecord


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns there are; `topic` is the option's."""

    columns: tuple[str, ...]
    topic: str | None


def layout_of(schema: StructType, topic: str | None) -> Layout:
    """Checks the columns of the DataFrame, on the driver; raises SchemaError."""
    for field in schema.fields:
        if field.name in _NOT_WRITTEN:
            continue
        if field.name == "headers":
            fits, wanted = _is_headers(field.dataType), HEADERS_TYPE.simpleString()
        elif field.name in _TYPES:
            types, wanted = _TYPES[field.name]
            fits = isinstance(field.dataType, types)
        else:
            raise SchemaError(
                f"the sink has no column {field.name!r}: its columns are {', '.join((*_TYPES, 'headers'))}; "
                f"select those, and put the others into 'value', for example with to_json"
            )
        if not fits:
            raise SchemaError(
                f"column {field.name!r} has type {field.dataType.simpleString()}, not {wanted}: cast it"
            )
    columns = tuple(schema.fieldNames())
    if len(set(columns)) < len(columns):
        raise SchemaError(f"two columns have the same name: {', '.join(columns)}")
    if "value" not in columns:
        raise SchemaError("the column 'value' is missing: it has the records' values, binary or string")
    if topic is None and "topic" not in columns:
        raise SchemaError("no topic: give the option 'topic', or the DataFrame a column 'topic'")
    return Layout(columns, topic)


def _is_headers(given: DataType) -> bool:
    return given.simpleString() == HEADERS_TYPE.simpleString()


def rows_of(batch: pa.RecordBatch, layout: Layout, now_ms: int) -> Iterator[list[Row]]:
    """The rows in slices that fit into memory; raises RowError."""
    size = max(1, min(ROWS_MAX, batch.num_rows * SLICE_BYTES // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, size):
        yield _rows(batch.slice(start, size), layout, now_ms)


def _rows(batch: pa.RecordBatch, layout: Layout, now_ms: int) -> list[Row]:
    nothing = [None] * batch.num_rows
    columns: dict[str, Sequence[Any]] = {
        name: _values(name, batch.column(index))
        for index, name in enumerate(layout.columns)
        if name not in _NOT_WRITTEN
    }
    topics = columns.get("topic", nothing) if layout.topic is None else [layout.topic] * batch.num_rows
    rows = []
    for topic, partition, key, value, headers, timestamp in zip(
        topics,
        columns.get("partition", nothing),
        columns.get("key", nothing),
        columns["value"],
        columns.get("headers", nothing),
        columns.get("timestamp", nothing),
        strict=True,
    ):
        if not topic:
            raise RowError("column 'topic' is null or empty in a row: fill it, or give the option 'topic'")
        if partition is not None and partition < 0:
            raise RowError(f"column 'partition' is {partition}: 0 or more, or null for the partitioner")
        if timestamp is not None and timestamp < 0:
            raise RowError("column 'timestamp' is before 1970: a record cannot have that")
        timestamp_ms = now_ms if timestamp is None else timestamp // MICROSECONDS
        rows.append(Row(topic, partition, NewRecord(key, value, _headers(headers or ()), timestamp_ms)))
    return rows


def _values(name: str, column: pa.Array) -> Sequence[Any]:
    if name in ("key", "value") and not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    elif name == "timestamp":
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    found: list[Any] = column.to_pylist()
    return found


def _headers(given: Iterable[Mapping[str, Any] | None]) -> tuple[tuple[str, bytes | None], ...]:
    headers = []
    for each in given:
        if each is None or each["key"] is None:
            raise RowError("column 'headers' has a header without a key: each needs one")
        headers.append((each["key"], each["value"]))
    return tuple(headers)
