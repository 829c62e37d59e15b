"""The vectorised decoder says exactly what `wire.records.decode_batch` says, whatever the producer sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from tidegate.spark import decode
from tidegate.spark.decode import Target, decode_batches
from tidegate.spark.schema import arrow_schema, spark_schema
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import (
    HEADER_BYTES,
    NewRecord,
    Record,
    decode_batch,
    encode_batch,
    iterate_headers,
    set_log_append_time,
)

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
FOREVER = 1 << 60

maybe_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=200)), max_size=4).map(tuple)
timestamps = st.integers(-1, 1 << 50)
records = st.builds(NewRecord, maybe_bytes, maybe_bytes, headers, timestamps)
batches = st.tuples(
    st.lists(records, min_size=1, max_size=70), st.sampled_from(list(Compression)), st.booleans(), st.integers(0, 5)
)


def make_chunk(wanted: list[tuple[list[NewRecord], Compression, bool, int]]) -> bytes:
    """Batches one after another, with gaps between them as compaction leaves them."""
    out, offset = [], 0
    for new, codec, append_time, gap in wanted:
        offset += gap
        batch = bytearray(encode_batch(new, base_offset=offset, compression=codec))
        if append_time:
            set_log_append_time(memoryview(batch), 0, 1_600_000_000_000)
        out.append(bytes(batch))
        offset += len(new)
    return b"".join(out)


def decode_all(chunk: bytes, start: int = 0, end: int = FOREVER, columns: tuple[str, ...] = COLUMNS) -> list[dict[str, Any]]:
    target = Target("flights", 3, columns, start, end)
    made = decode_batches(target, chunk, list(iterate_headers(chunk)))
    for batch in made:
        batch.validate(full=True)
        assert batch.schema == arrow_schema(columns)
    return [row for batch in made for row in batch.to_pylist()]


def row_of(record: Record, append_time: bool) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": "flights",
        "partition": 3,
        "offset": record.offset,
        "timestamp_us": record.timestamp_ms * 1000,
        "timestampType": int(append_time),
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
    }


def expected_rows(chunk: bytes) -> list[dict[str, Any]]:
    return [
        row_of(record, header.is_log_append_time)
        for position, header in iterate_headers(chunk)
        for record in decode_batch(chunk, position)
    ]


def actual_rows(chunk: bytes, start: int = 0, end: int = FOREVER) -> list[dict[str, Any]]:
    """Rows with the timestamp as a number: Python's datetime does not reach as far as Arrow's."""
    target = Target("flights", 3, COLUMNS, start, end)
    rows = []
    for batch in decode_batches(target, chunk, list(iterate_headers(chunk))):
        batch.validate(full=True)
        assert batch.schema == arrow_schema(COLUMNS)
        index = batch.schema.get_field_index("timestamp")
        micros = batch.column(index).cast(pa.int64()).to_pylist()
        for row, moment in zip(batch.drop_columns("timestamp").to_pylist(), micros, strict=True):
            rows.append(row | {"timestamp_us": moment})
    return rows


@settings(max_examples=150, deadline=None)
@given(st.lists(batches, min_size=1, max_size=5))
def test_rows_equal_those_of_the_record_by_record_decoder(wanted: list[Any]) -> None:
    chunk = make_chunk(wanted)
    assert actual_rows(chunk) == expected_rows(chunk)


@settings(max_examples=50, deadline=None)
@given(st.lists(batches, min_size=1, max_size=4), st.integers(0, 200), st.integers(0, 200))
def test_only_offsets_inside_the_range_are_decoded(wanted: list[Any], start: int, length: int) -> None:
    chunk = make_chunk(wanted)
    inside = [row for row in expected_rows(chunk) if start <= row["offset"] < start + length]
    assert actual_rows(chunk, start, start + length) == inside


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8190, 8192, 20_000, 2_200_000])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_record_lengths_of_one_to_four_bytes(size: int, codec: Compression) -> None:
    new = [NewRecord(b"k", b"v" * size), NewRecord(None, b""), NewRecord(b"", None), NewRecord(b"k2", b"w" * size)]
    chunk = encode_batch(new, base_offset=7, compression=codec) + encode_batch(new, base_offset=11)
    assert actual_rows(chunk) == expected_rows(chunk)


def test_more_than_one_group_is_made_of_batches_that_decompress_to_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "GROUP_BYTES_MAX", 1000)
    chunk = make_chunk([([NewRecord(b"k", b"v" * 600)] * 3, Compression.LZ4, False, 0)] * 4)
    assert len(decode_batches(Target("flights", 3, COLUMNS, 0, FOREVER), chunk, list(iterate_headers(chunk)))) == 4
    assert actual_rows(chunk) == expected_rows(chunk)


def test_a_projection_keeps_the_order_of_its_columns() -> None:
    chunk = encode_batch([NewRecord(b"k", b"v", (), 5)], base_offset=9)
    assert decode_all(chunk, columns=("offset", "value")) == [{"offset": 9, "value": b"v"}]
    assert list(decode_all(chunk, columns=("value", "offset"))[0]) == ["value", "offset"]


def test_the_arrow_schema_is_what_spark_demands() -> None:
    for include_headers in (False, True):
        schema = spark_schema(include_headers=include_headers)
        assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(tuple(schema.fieldNames())))


def test_a_header_name_that_is_not_text_is_shown_not_refused() -> None:
    good = encode_batch([NewRecord(b"k", b"v", (("name", b"x"),))])
    chunk = good.replace(b"name", b"n\xff\xfee")
    assert decode_all(chunk)[0]["headers"] == [{"key": "n\ufffd\ufffde", "value": b"x"}]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_nonsense_inside_a_batch_is_an_error_or_decodes_alike_but_never_leaves_the_batch(data: st.DataObject) -> None:
    """A valid CRC says nothing about the records: a producer can put anything there."""
    new = data.draw(st.lists(records, min_size=1, max_size=6))
    chunk = bytearray(encode_batch(new, base_offset=100))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, len(chunk) - 1))
        chunk[at] = data.draw(st.integers(0, 255))
    try:
        rows = actual_rows(bytes(chunk))
    except KafkaError as error:
        assert error.code == ErrorCode.INVALID_RECORD
        return
    except UnicodeDecodeError:  # of to_pylist in this test
        return
    try:
        reference = expected_rows(bytes(chunk))
    except KafkaError:
        return  # what the reference refuses and we show: text that is no text
    wanted = [row for row in reference if 0 <= row["offset"] < FOREVER]
    assert [{**row, "timestamp_us": 0} for row in rows] == [{**row, "timestamp_us": 0} for row in wanted]


@pytest.mark.parametrize(
    "damage",
    ["missing_record", "extra_record", "offset_beyond"],
    ids=["missing record", "extra record", "offset beyond the batch"],
)
def test_a_batch_that_contradicts_its_header_is_refused(damage: str) -> None:
    chunk = bytearray(encode_batch([NewRecord(b"k", b"v")] * 3, base_offset=5))
    match damage:
        case "missing_record":
            chunk[57:61] = (4).to_bytes(4, "big")
        case "extra_record":
            chunk[57:61] = (2).to_bytes(4, "big")
        case _:
            chunk[23:27] = (1).to_bytes(4, "big")
    with pytest.raises(KafkaError, match="flights-3, offsets 5 to") as caught:
        decode_all(bytes(chunk))
    assert caught.value.code == ErrorCode.INVALID_RECORD
