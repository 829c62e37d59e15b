"""Columns become records: by tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from tidegate.client.producing.accumulator import Accumulator
from tidegate.spark.arrow_schema import ARROW_HEADERS_TYPE, ARROW_TYPES
from tidegate.spark.schema import HEADERS_TYPE, SchemaError, spark_schema
from tidegate.spark.writing.encoding import Encoder
from tidegate.spark.writing.rows import (
    BY_PARTITIONER,
    ROWS_MAX,
    Layout,
    RowError,
    Rows,
    grouped,
    layout_of,
    rows_of,
)
from tidegate.wire.records import EncodedRecords, NewRecord

NOW_MS = 1_800_000_000_000


class Row(NamedTuple):
    topic: str
    partition: int | None
    record: NewRecord


def rows_in(rows: Rows) -> list[Row]:
    """As they are encoded, in their order."""
    found: dict[int, Row] = {}
    for topic, numbers in rows.topics:
        records = EncodedRecords()
        Encoder(rows).encode_into(records, numbers)
        for number, record in zip(numbers.tolist(), records, strict=True):
            assert rows.sizes[number] == Accumulator.size_of(record)
            partition = BY_PARTITIONER if rows.partitions is None else rows.partitions[number]
            found[number] = Row(topic, None if partition == BY_PARTITIONER else partition, record)
    assert sorted(found) == list(range(len(rows)))
    return [found[number] for number in sorted(found)]


def rows(option: str | None = "t", /, **columns: pa.Array) -> list[Row]:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    layout = Layout(tuple(columns), option)
    return [row for some in rows_of(batch, layout, NOW_MS) for row in rows_in(some)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_keys_and_values_may_be_text_or_bytes(kind: pa.DataType) -> None:
    column = pa.array([b"\xc3\xa9".decode() if "string" in str(kind) else b"\xc3\xa9", None], kind)
    found = rows(key=column, value=column)
    assert [(row.record.key, row.record.value) for row in found] == [(b"\xc3\xa9",) * 2, (None, None)]


def test_every_column_has_its_place_in_the_record() -> None:
    (row,) = rows(
        topic=pa.array(["x"]),
        value=pa.array([b"v"]),
        partition=pa.array([2], pa.int32()),
        timestamp=pa.array([1_700_000_000_123_999], pa.timestamp("us", tz="UTC")),
        headers=pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}]], ARROW_HEADERS_TYPE),
    )
    record = NewRecord(None, b"v", (("h", b"1"), ("h", None)), 1_700_000_000_123)
    assert row == Row("t", 2, record)  # the option counts before the column
    (row,) = rows(None, topic=pa.array(["x"]), value=pa.array([b"v"]))
    assert row == Row("x", None, NewRecord(None, b"v", (), NOW_MS))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"topic": pa.array([None], pa.string())}, "'topic' is null or empty"),
        ({"topic": pa.array([""])}, "'topic' is null or empty"),
        ({"topic": pa.array(["t"]), "partition": pa.array([-1], pa.int32())}, "'partition' is -1"),
        (
            {"topic": pa.array(["t"]), "timestamp": pa.array([-1], pa.timestamp("us", tz="UTC"))},
            "before 1970",
        ),
        (
            {
                "topic": pa.array(["t"]),
                "headers": pa.array([[{"key": None, "value": b"1"}]], ARROW_HEADERS_TYPE),
            },
            "a header without a key",
        ),
        ({"topic": pa.array(["t"]), "headers": pa.array([[None]], ARROW_HEADERS_TYPE)}, "without a key"),
    ],
)
def test_a_row_that_is_no_record_is_refused(columns: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(RowError, match=message):
        rows(None, value=pa.array([b"v"]), **columns)


def test_each_topic_has_its_rows_in_their_order() -> None:
    topics = ["b", "a", "b", "c", "a"]
    found = rows(None, topic=pa.array(topics), value=pa.array([b"%d" % row for row in range(5)]))
    assert [(row.topic, row.record.value) for row in found] == [
        (topic, b"%d" % row) for row, topic in enumerate(topics)
    ]


def test_topics_and_header_names_may_be_large_strings() -> None:
    """As with spark.sql.execution.arrow.useLargeVarTypes."""
    large = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    found = rows(
        None,
        topic=pa.array(["b", "a", "b"], pa.large_string()),
        value=pa.array([b"1", b"2", b"3"], pa.large_binary()),
        headers=pa.array([[{"key": "h", "value": b"x"}], None, []], large),
    )
    assert [(row.topic, row.record.value) for row in found] == [("b", b"1"), ("a", b"2"), ("b", b"3")]
    assert [row.record.headers for row in found] == [(("h", b"x"),), (), ()]
    for bad, message in ((None, "is null or empty"), (b"\xff", "no UTF-8")):
        with pytest.raises(RowError, match=f"'topic' .*{message}"):
            rows(None, topic=texts([bad]).cast(pa.large_string()), value=pa.array([b"v"]))


def test_the_first_row_that_is_no_record_is_the_one_that_is_named() -> None:
    partitions = pa.array([0, 0, -3, 0], pa.int32())
    for topics, message in (
        (["t", None, "t", "t"], "'topic' is null"),
        (["t", "t", "t", None], "'partition' is -3"),
    ):
        with pytest.raises(RowError, match=message):
            rows(None, value=pa.array([b"v"] * 4), partition=partitions, topic=pa.array(topics))


def texts(names: list[bytes | None]) -> pa.Array:
    """As Spark's `cast(binary as string)` makes them: of any bytes."""
    column = pa.array(names, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(names), column.buffers())


def with_headers(*names: bytes | None) -> pa.Array:
    """One in each row."""
    entries = pa.StructArray.from_arrays(
        [texts(list(names)), pa.array([b"1"] * len(names))], names=["key", "value"]
    )
    return pa.ListArray.from_arrays(pa.array(range(len(names) + 1), pa.int32()), entries).cast(
        ARROW_HEADERS_TYPE
    )


@pytest.mark.parametrize("bad", [b"\xff", b"a\xffb", b"\xc3", b"\xed\xa0\x80", b"x" * 100 + b"\xff"])
def test_a_name_that_is_no_utf8_is_refused_before_it_is_sent(bad: bytes) -> None:
    """The broker looks into the first and the last record of a batch in full; consumers read all."""
    value, good = pa.array([b"v"] * 3), "é".encode()
    with pytest.raises(RowError, match=r"column 'headers' has the key .* no UTF-8") as found:
        rows(value=value, headers=with_headers(good, bad, good))
    assert len(str(found.value)) < 250
    with pytest.raises(RowError, match=r"column 'topic' is .* no UTF-8"):
        rows(None, value=value, topic=texts([good, bad, good]))
    # two names that are none by themselves and text together
    with pytest.raises(RowError, match="column 'headers' has the key"):
        rows(value=value[:2], headers=with_headers(good[:1], good[1:]))


def test_the_first_header_that_is_none_is_named() -> None:
    value = pa.array([b"v"] * 3)
    with pytest.raises(RowError, match="without a key"):
        rows(value=value, headers=with_headers(b"h", None, b"\xff"))
    with pytest.raises(RowError, match="no UTF-8"):
        rows(value=value, headers=with_headers(b"h", b"\xff", None))
    with pytest.raises(RowError, match="'topic' is null"):
        rows(None, value=value, topic=texts([b"t", None, b"\xff"]))


@pytest.mark.parametrize("name", [b"h", "é".encode()])
def test_names_of_other_rows_do_not_count(name: bytes) -> None:
    columns = [pa.array([b"a", b"b", b"c"]), with_headers(b"\xff", name, b"\xff")]
    batch = pa.RecordBatch.from_arrays(columns, ["value", "headers"]).slice(1, 1)
    assert [len(some) for some in rows_of(batch, Layout(("value", "headers"), "t"), 0)] == [1]


def test_a_header_without_a_key_that_no_row_has_is_no_error() -> None:
    entries = pa.array(
        [{"key": "h", "value": b"1"}, {"key": None, "value": b"2"}], ARROW_HEADERS_TYPE.value_type
    )
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), entries, type=ARROW_HEADERS_TYPE, mask=pa.array([False, True])
    )
    found = rows(value=pa.array([b"a", b"b"]), headers=lists)
    assert [row.record.headers for row in found] == [(("h", b"1"),), ()]


def test_an_array_of_no_header_may_have_no_offsets() -> None:
    kinds, nothing = (pa.string(), pa.binary()), [None, None, pa.py_buffer(b"")]
    parts = [pa.Array.from_buffers(kind, 0, nothing) for kind in kinds]
    entries = pa.StructArray.from_arrays(parts, ["key", "value"])
    headers = pa.ListArray.from_buffers(
        ARROW_HEADERS_TYPE, 1, [None, pa.py_buffer(bytes(8))], children=[entries]
    )
    (row,) = rows(value=pa.array([b"v"]), headers=headers)
    assert row.record == NewRecord(None, b"v", (), NOW_MS)


def test_a_batch_is_looked_at_in_slices() -> None:
    small = pa.RecordBatch.from_arrays([pa.array([b"v"] * (2 * ROWS_MAX + 1))], ["value"])
    assert [len(some) for some in rows_of(small, Layout(("value",), "t"), 0)] == [ROWS_MAX, ROWS_MAX, 1]


@pytest.mark.parametrize("skipped", [1, 8, 13])
def test_a_null_in_a_slice_is_that_of_its_row(skipped: int) -> None:
    partitions = [None if row % 3 else row for row in range(20)]
    columns = [pa.array([b"v"] * 20), pa.array(partitions, pa.int32())]
    batch = pa.RecordBatch.from_arrays(columns, ["value", "partition"]).slice(skipped)
    (found,) = rows_of(batch, Layout(("value", "partition"), "t"), NOW_MS)
    assert [row.partition for row in rows_in(found)] == partitions[skipped:]


def test_rows_are_grouped_in_their_order() -> None:
    for numbers in ([], [0], [2, 0, 2, 1, 0], [70_000, 3, 70_000], [65_539, 3, 65_539]):
        found = {number: places.tolist() for number, places in grouped(np.array(numbers, np.int64))}
        assert list(found) == sorted(set(numbers))
        for number, places in found.items():
            assert places == [place for place, each in enumerate(numbers) if each == number]


def schema(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


VALUE = ("value", StringType())


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ([("key", StringType())], "t", "the column 'value' is missing"),
        ([VALUE], None, "no topic"),
        ([("value", IntegerType())], "t", "has type int, not binary or string: cast it"),
        ([VALUE, ("partition", LongType())], "t", "has type bigint, not int"),
        ([VALUE, ("timestamp", TimestampNTZType())], "t", "has type timestamp_ntz, not timestamp"),
        ([VALUE, ("headers", MapType(StringType(), BinaryType()))], "t", "not array<struct<key:string"),
        ([VALUE, ("vaule", LongType())], "t", "no column 'vaule'"),
        ([VALUE, ("value", BinaryType())], "t", "two columns have the same name"),
    ],
)
def test_a_schema_that_is_no_record_is_refused(
    columns: list[tuple[str, DataType]], topic: str | None, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        layout_of(schema(*columns), topic)


def test_the_columns_of_sparks_kafka_sink_and_a_timestamp() -> None:
    columns = {
        "key": BinaryType(), "value": StringType(), "topic": StringType(), "partition": IntegerType(),
        "timestamp": TimestampType(), "headers": HEADERS_TYPE,
    }  # fmt: skip
    assert layout_of(schema(*columns.items()), None).columns == tuple(columns)


def test_what_the_source_reads_is_written_as_it_is() -> None:
    layout = layout_of(spark_schema(include_headers=True), "t")
    columns = {name: pa.array([None], kind) for name, kind in ARROW_TYPES.items()}
    columns["value"], columns["offset"] = pa.array([b"v"]), pa.array([7])
    batch = pa.RecordBatch.from_arrays([columns[name] for name in layout.columns], list(layout.columns))
    (found,) = rows_of(batch, layout, NOW_MS)
    assert rows_in(found) == [Row("t", None, NewRecord(None, b"v", (), NOW_MS))]
