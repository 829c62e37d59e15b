"""From the rows of a DataFrame to what a record can have, checked a column at a time: pure.  Numbers are read
from Arrow's buffers: pyarrow imports pandas to convert an array, half a second of each new worker.

The columns are those of Spark's Kafka sink: `value` (binary or string), and, where there are, `key`,
`headers`, `topic` (the option `topic` counts before it) and `partition`; also `timestamp`, which that sink
does not have.  The source's `offset` and `timestampType` may be there, so that a DataFrame that was read is
written as it is; no record can be given them.  A record without a partition goes where every Kafka client
sends it: by murmur2 of its key, or, without a key, to one partition after the other, a batch each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType, TimestampType

from ...client.producing.accumulator import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES
from ..arrow_schema import ARROW_HEADERS_TYPE
from ..schema import HEADERS_TYPE, SchemaError

Numbers = npt.NDArray[np.int64]

ROWS_MAX: Final = 10_000
"""Rows that are looked at together: a batch of Arrow, as Spark makes them by default.  Beside its bytes they
take some numbers for each row."""
MICROSECONDS: Final = 1_000
BY_PARTITIONER: Final = -1
ASCII_MAX: Final = 0x7F
SHOWN_BYTES: Final = 40
"""Of a name that is no text, in its error."""

_BYTES: Final = (BinaryType, StringType)
_TYPES: Final[Mapping[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": (_BYTES, "binary or string"),
    "value": (_BYTES, "binary or string"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
}

_HEADERS_OF_BYTES: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
_NOT_WRITTEN: Final = ("offset", "timestampType")


class RowError(ValueError):
    """A row that is no record; the message names the column and what to write."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that can be records.  `topics`: each with its rows, in their order; `partitions`: BY_PARTITIONER
    where the partitioner decides, None where it does for all; `sizes`: each one's share of a batch before
    compression, in bytes."""

    topics: tuple[tuple[str, Numbers], ...]
    partitions: Numbers | None
    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None
    timestamps_ms: Numbers
    sizes: Numbers

    def __len__(self) -> int:
        return len(self.sizes)


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


def rows_of(batch: pa.RecordBatch, layout: Layout, now_ms: int) -> Iterator[Rows]:
    """The rows in slices; raises RowError."""
    for start in range(0, batch.num_rows, ROWS_MAX):
        yield _rows(batch.slice(start, ROWS_MAX), layout, now_ms)


def _rows(batch: pa.RecordBatch, layout: Layout, now_ms: int) -> Rows:
    columns = {name: batch.column(index) for index, name in enumerate(layout.columns)}
    topics = columns.get("topic") if layout.topic is None else None
    if topics is not None and topics.type != pa.string():
        topics = topics.cast(pa.string())
    partitions, keys, headers = columns.get("partition"), columns.get("key"), columns.get("headers")
    keys, values = (None if keys is None else _binary(keys)), _binary(columns["value"])
    if headers is not None and headers.type != ARROW_HEADERS_TYPE:
        headers = headers.cast(ARROW_HEADERS_TYPE)
    timestamps_us = np.full(batch.num_rows, now_ms * MICROSECONDS)
    if "timestamp" in columns:
        given = columns["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        timestamps_us = _numbers(given, now_ms * MICROSECONDS)
    _check(topics, partitions, timestamps_us, headers)
    return Rows(
        ((layout.topic, np.arange(batch.num_rows)),) if layout.topic is not None else _by_topic(topics),
        None if partitions is None else _numbers(partitions, BY_PARTITIONER),
        keys,
        values,
        headers,
        timestamps_us // MICROSECONDS,
        RECORD_OVERHEAD_BYTES
        + _lengths(keys, batch.num_rows)
        + _lengths(values, batch.num_rows)
        + _headers_sizes(headers, batch.num_rows),
    )


def _check(
    topics: pa.Array | None, partitions: pa.Array | None, timestamps_us: Numbers, headers: pa.Array | None
) -> None:
    """Raises RowError for the first row that is no record."""
    problems: list[tuple[int, str]] = []
    if topics is not None and (row := _first(_lengths(topics, len(topics)) == 0)) >= 0:
        problems.append(
            (row, "column 'topic' is null or empty in a row: fill it, or give the option 'topic'")
        )
    if partitions is not None and (row := _first(_numbers(partitions, 0) < 0)) >= 0:
        given = partitions[row].as_py()
        problems.append((row, f"column 'partition' is {given}: 0 or more, or null for the partitioner"))
    if (row := _first(timestamps_us < 0)) >= 0:
        problems.append((row, "column 'timestamp' is before 1970: a record cannot have that"))
    if topics is not None and (bad := _first_no_text(topics)):
        problems.append(bad)
    if headers is not None and (bad := _first_no_header(headers)):
        problems.append(bad)
    if problems:
        raise RowError(min(problems, key=lambda problem: problem[0])[1])


def _first(holds: npt.NDArray[np.bool_]) -> int:
    found = np.flatnonzero(holds)
    return int(found[0]) if found.size else -1


def _first_no_text(topics: pa.Array) -> tuple[int, str] | None:
    if _is_utf8(topics):
        return None
    for row, name in enumerate(_binary(topics).to_pylist()):
        if name is not None and not _decodes(name):
            return row, f"column 'topic' is {name[:SHOWN_BYTES]!r} in a row, which is no UTF-8"
    return None


def _first_no_header(headers: pa.Array) -> tuple[int, str] | None:
    ends = _ends(headers)
    names = headers.values.flatten()[0].slice(ends[0], ends[-1] - ends[0])
    if not names.null_count and _is_utf8(names):
        return None
    for row, given in enumerate(headers.cast(_HEADERS_OF_BYTES).to_pylist()):
        for each in given or ():
            if each is None or each["key"] is None:
                return row, "column 'headers' has a header without a key: each needs one"
            if not _decodes(name := each["key"]):
                return row, f"column 'headers' has the key {name[:SHOWN_BYTES]!r}, which is no UTF-8"
    return None


def _is_utf8(texts: pa.Array) -> bool:
    """Spark's strings hold any bytes, for example of `cast(binary as string)`.  Most are ASCII: to look for a
    larger byte takes a tenth of what Arrow's own check takes."""
    first, last = _ends(texts)[[0, -1]]
    if first == last or np.frombuffer(texts.buffers()[2], np.uint8)[first:last].max() <= ASCII_MAX:
        return True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _decodes(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _numbers(column: pa.Array, instead_of_null: int) -> Numbers:
    width = np.int32 if column.type.bit_width == np.iinfo(np.int32).bits else np.int64
    numbers: Numbers = _slots(column, len(column), width).astype(np.int64)
    return _where_valid(column, numbers, instead_of_null)


def _lengths(column: pa.Array | None, rows: int) -> Numbers:
    if column is None:
        return np.zeros(rows, np.int64)
    return _where_valid(column, np.diff(_ends(column)), 0)


def _ends(column: pa.Array) -> Numbers:
    """Where each element of a binary column or of lists begins, and the last one ends."""
    if not len(column):  # its buffers may be missing
        return np.zeros(1, np.int64)
    ends: Numbers = _slots(column, len(column) + 1, np.int32).astype(np.int64)
    return ends


def _slots(column: pa.Array, count: int, width: type[np.int32 | np.int64]) -> npt.NDArray[Any]:
    return np.frombuffer(column.buffers()[1], width)[column.offset :][:count]


def _where_valid(column: pa.Array, numbers: Numbers, instead_of_null: int) -> Numbers:
    if not column.null_count:
        return numbers
    first, bit = divmod(column.offset, 8)
    octets = np.frombuffer(column.buffers()[0], np.uint8)[first:][: (bit + len(column) + 7) // 8]
    valid = np.unpackbits(octets, bitorder="little")[bit:][: len(column)]
    return np.where(valid, numbers, instead_of_null)


def _headers_sizes(headers: pa.Array | None, rows: int) -> Numbers:
    if headers is None:
        return np.zeros(rows, np.int64)
    names, contents = headers.values.flatten()
    entries = len(names)
    sizes = HEADER_OVERHEAD_BYTES + _lengths(names, entries) + _lengths(contents, entries)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    lists = ends[_ends(headers)]
    return _where_valid(headers, np.diff(lists), 0)


def _by_topic(topics: pa.Array) -> tuple[tuple[str, Numbers], ...]:
    found = topics.dictionary_encode()
    names = found.dictionary.to_pylist()
    return tuple((names[number], rows) for number, rows in grouped(_numbers(found.indices, 0)))


def grouped(numbers: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Each number, ascending, and where it stands."""
    if not numbers.size:
        return
    narrow: npt.NDArray[Any] = (
        numbers.astype(np.uint16) if numbers.max() <= np.iinfo(np.uint16).max else numbers
    )
    order = np.argsort(narrow, kind="stable")  # of 16 bits numpy sorts by radix
    ordered = numbers[order]
    starts = np.flatnonzero(np.diff(ordered)) + 1
    for part in np.split(order, starts):
        yield int(numbers[part[0]]), part
