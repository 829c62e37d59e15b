"""Columns become records: by tables."""

from __future__ import annotations

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
from tidegate.spark.schema import ARROW_HEADERS_TYPE, COLUMNS, HEADERS_TYPE, SchemaError, spark_schema
from tidegate.spark.writing.rows import ROWS_MAX, SLICE_BYTES, Layout, Row, RowError, layout_of, rows_of
from tidegate.wire.records import NewRecord

NOW_MS = 1_800_000_000_000


def rows(option: str | None = "t", /, **columns: pa.Array) -> list[Row]:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    return [row for some in rows_of(batch, Layout(tuple(columns), option), NOW_MS) for row in some]


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


def test_few_rows_are_objects_at_one_time() -> None:
    large = pa.RecordBatch.from_arrays([pa.array([bytes(SLICE_BYTES // 4)] * 20)], ["value"])
    small = pa.RecordBatch.from_arrays([pa.array([b"v"] * (2 * ROWS_MAX + 1))], ["value"])
    layout = Layout(("value",), "t")
    assert {len(some) for some in rows_of(large, layout, 0)} <= {1, 2, 3, 4}
    assert [len(some) for some in rows_of(small, layout, 0)] == [ROWS_MAX, ROWS_MAX, 1]


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
    columns = {name: pa.array([None], kind) for name, (_, kind) in COLUMNS.items()}
    columns["value"], columns["offset"] = pa.array([b"v"]), pa.array([7])
    batch = pa.RecordBatch.from_arrays([columns[name] for name in layout.columns], list(layout.columns))
    assert list(rows_of(batch, layout, NOW_MS)) == [[Row("t", None, NewRecord(None, b"v", (), NOW_MS))]]
