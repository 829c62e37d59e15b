"""Both decoders, the kernel and numpy, say exactly what `wire.records.decode_batch` says, whatever the
producer sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from tidegate.spark.arrow_schema import arrow_schema
from tidegate.spark.decoding import decompression, kernel_decoder, numpy_decoder
from tidegate.spark.decoding.columns import CONSTANT_ROWS, to_batch
from tidegate.spark.decoding.decode import Target, decode_batches
from tidegate.spark.decoding.decompression import Budget, Malformed
from tidegate.spark.decoding.numpy_decoder import HEADER_TURNS_MAX
from tidegate.spark.schema import spark_schema
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.primitives import zigzag
from tidegate.wire.records import (
    HEADER_BYTES,
    NewRecord,
    Record,
    decode_batch,
    encode_batch,
    iterate_headers,
    set_log_append_time,
)

BASE_TIMESTAMP_AT = 27  # in a batch
OFFSET_DELTA_AT = 3  # in a record of less than 64 bytes: behind its length, attributes and time
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
FOREVER = 1 << 60


@pytest.fixture(scope="module", params=["kernel", "numpy"], autouse=True)
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kernel with the machine's libraries, numpy without them."""
    with pytest.MonkeyPatch.context() as patch:
        has_kernel = request.param == "kernel"
        kernel = request.getfixturevalue("built_kernel") if has_kernel else None
        patch.setattr(kernel_decoder, "kernel", kernel)
        if not has_kernel:
            patch.setattr(decompression, "decompress_into", lambda *_: None)
        yield


maybe_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=200)), max_size=4).map(tuple)
timestamps = st.integers(-1, 1 << 50)
records = st.builds(NewRecord, maybe_bytes, maybe_bytes, headers, timestamps)
batches = st.tuples(
    st.lists(records, min_size=1, max_size=70),
    st.sampled_from(list(Compression)),
    st.booleans(),
    st.integers(0, 5),
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


def decode_all(
    chunk: bytes, start: int = 0, end: int = FOREVER, columns: tuple[str, ...] = COLUMNS
) -> list[dict[str, Any]]:
    target = Target("flights", 3, columns, start, end)
    made = list(decode_batches(target, chunk, list(iterate_headers(chunk))))
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
    new = [
        NewRecord(b"k", b"v" * size),
        NewRecord(None, b""),
        NewRecord(b"", None),
        NewRecord(b"k2", b"w" * size),
    ]
    chunk = encode_batch(new, base_offset=7, compression=codec) + encode_batch(new, base_offset=11)
    assert actual_rows(chunk) == expected_rows(chunk)


TIGHT = Budget(piece_cost_max=2_000, record_bytes_max=5_000, record_price=1)


def many(count: int, size: int, codec: Compression, base: int = 0) -> bytes:
    new = [NewRecord(str(base + n).encode(), bytes([n % 7]) * size, (), 1_000 + n) for n in range(count)]
    return encode_batch(new, base_offset=base, compression=codec)


def tightly(chunk: bytes, budget: Budget = TIGHT, start: int = 0, end: int = FOREVER) -> list[pa.RecordBatch]:
    target = Target("flights", 3, ("key", "value", "offset"), start, end)
    return list(decode_batches(target, chunk, list(iterate_headers(chunk)), budget))


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_is_too_large_for_one_piece_is_taken_apart(codec: Compression) -> None:
    chunk = (
        many(3, 10, codec) + many(100, 300, codec, 3) + many(1, 4_900, codec, 103) + many(2, 10, codec, 104)
    )
    made = tightly(chunk)
    assert [row["offset"] for batch in made for row in batch.to_pylist()] == list(range(106))
    wanted = [
        {"key": row["key"], "value": row["value"], "offset": row["offset"]}
        for row in expected_rows_short(chunk)
    ]
    assert [row for batch in made for row in batch.to_pylist()] == wanted
    assert all(batch.nbytes < 2_500 or batch.num_rows == 1 for batch in made)
    inside = [row["offset"] for batch in tightly(chunk, start=50, end=60) for row in batch.to_pylist()]
    assert inside == list(range(50, 60))


def expected_rows_short(chunk: bytes) -> list[dict[str, Any]]:
    return [
        {"key": record.key, "value": record.value, "offset": record.offset}
        for position, _ in iterate_headers(chunk)
        for record in decode_batch(chunk, position)
    ]


@pytest.mark.parametrize("codec", list(Compression))
def test_a_record_too_large_for_the_memory_of_a_task_names_the_option(codec: Compression) -> None:
    with pytest.raises(KafkaError, match=r"flights-3: .*maxMemoryPerTask") as caught:
        tightly(many(2, 10, codec) + many(1, 50_000, codec, 2))
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_batches_are_made_when_they_are_asked_for() -> None:
    """A chunk that cannot be decoded to its end gives what stands before that."""
    chunk = many(30, 300, Compression.ZSTD) + many(1, 50_000, Compression.ZSTD, 30)
    made = decode_batches(
        Target("flights", 3, ("offset",), 0, FOREVER), chunk, list(iterate_headers(chunk)), TIGHT
    )
    assert next(made).column(0).to_pylist()[:3] == [0, 1, 2]


def test_reads_that_take_turns_do_not_share_the_room_for_their_pieces() -> None:
    chunks = [
        b"".join(many(20, 300, Compression.ZSTD, base + 20 * n) for n in range(10)) for base in (0, 1_000)
    ]
    target = Target("flights", 3, ("key", "value", "offset"), 0, FOREVER)
    budget = Budget(piece_cost_max=9_000, record_bytes_max=9_000, record_price=1)
    *readers, given_up = (
        decode_batches(target, chunk, list(iterate_headers(chunk)), budget) for chunk in (*chunks, chunks[0])
    )
    rows: list[list[dict[str, Any]]] = [[], []]
    next(given_up)
    del given_up  # what it held is free for the others
    for pair in zip(*readers, strict=True):
        for found, batch in zip(rows, pair, strict=True):
            found += batch.to_pylist()
    assert rows == [expected_rows_short(chunk) for chunk in chunks]


def test_many_small_records_are_as_dear_as_their_columns() -> None:
    """Seven bytes become some hundred: counted by bytes alone, a million of them would pass for little."""
    chunk = encode_batch([NewRecord(None, None)] * 1000, compression=Compression.GZIP)
    made = tightly(chunk, Budget(piece_cost_max=20_000, record_bytes_max=5_000, record_price=200))
    assert [batch.num_rows for batch in made] == [96] * 10 + [40]


def test_memory_of_a_task_does_not_follow_the_compression() -> None:
    """540 MB of zeros in 600 records: what Arrow holds at once stays a small part of it."""
    value = bytes(900_000)
    chunk = b"".join(
        encode_batch([NewRecord(None, value)] * 60, base_offset=60 * n, compression=Compression.ZSTD)
        for n in range(10)
    )
    assert len(chunk) < 100_000
    rows = size_max = 0
    budget = Budget.of_memory(64 << 20, "flights")
    for batch in decode_batches(
        Target("flights", 3, COLUMNS, 0, FOREVER), chunk, list(iterate_headers(chunk)), budget
    ):
        rows += batch.num_rows
        size_max = max(size_max, batch.nbytes)
    assert (rows, size_max < 5 << 20) == (600, True)


@pytest.mark.parametrize("with_headers", [False, True])
def test_a_piece_fits_into_arrows_columns_whatever_memory_there_is(with_headers: bool) -> None:
    """Their offsets have 32 bits."""
    for memory_bytes in (8 << 20, 256 << 20, 12 << 30, 1 << 40):
        budget = Budget.of_memory(memory_bytes, "flights", with_headers=with_headers)
        assert 0 < budget.piece_cost_max < budget.record_bytes_max < 1 << 31
        assert budget.record_bytes_max <= memory_bytes // 6


def test_headers_leave_a_piece_a_quarter_of_its_bytes() -> None:
    plain, with_headers = (
        Budget.of_memory(64 << 20, "flights", with_headers=given).piece_cost_max for given in (False, True)
    )
    assert with_headers == plain // 4


def test_offsets_ascend_from_piece_to_piece_too() -> None:
    """A batch of a hostile producer that is decoded record by record."""
    chunk = bytearray(encode_batch([NewRecord(None, b"v")] * 3))
    size = (len(chunk) - HEADER_BYTES) // 3
    chunk[HEADER_BYTES + 2 * size + OFFSET_DELTA_AT] = 2  # that of the second one
    alone = Budget(piece_cost_max=1, record_bytes_max=100, record_price=1)
    with pytest.raises(KafkaError, match="a record cannot be decoded") as refused:
        tightly(bytes(chunk), alone)
    assert refused.value.code == ErrorCode.INVALID_RECORD


@settings(max_examples=60, deadline=None)
@given(st.lists(batches, min_size=1, max_size=5), st.integers(50, 5000))
def test_pieces_of_any_size_give_the_same_rows(wanted: list[Any], cost: int) -> None:
    chunk = make_chunk(wanted)
    budget = Budget(piece_cost_max=cost, record_bytes_max=100_000, record_price=10)
    assert [row for batch in tightly(chunk, budget) for row in batch.to_pylist()] == expected_rows_short(
        chunk
    )


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("codec", list(Compression))
def test_a_large_batch_that_contradicts_its_header_is_refused(codec: Compression, change: int) -> None:
    chunk = bytearray(many(100, 300, codec))
    chunk[57:61] = (100 + change).to_bytes(4, "big")
    with pytest.raises(KafkaError, match="flights-3, offsets 0 to 99") as caught:
        tightly(bytes(chunk))
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY])
def test_a_large_batch_that_cannot_be_decompressed_is_corrupt(codec: Compression) -> None:
    whole = many(100, 300, codec)
    cut = bytearray(whole[: len(whole) - (len(whole) - HEADER_BYTES) // 3])
    cut[8:12] = (len(cut) - 12).to_bytes(4, "big")
    with pytest.raises(KafkaError) as caught:
        tightly(bytes(cut))
    assert caught.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("timestamp", [9_223_372_036_854_776, -9_223_372_036_854_776, (1 << 63) - 1])
def test_a_timestamp_beyond_those_of_spark_names_the_record(timestamp: int) -> None:
    chunk = encode_batch([NewRecord(b"k", b"v", (), 5), NewRecord(b"k", b"v", (), timestamp)], base_offset=70)
    with pytest.raises(
        KafkaError, match=f"flights-3: the record at offset 71 has the timestamp {timestamp} ms"
    ) as caught:
        decode_all(chunk)
    assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
    assert decode_all(chunk, columns=("offset",)) == [{"offset": 70}, {"offset": 71}]
    assert [row["offset"] for row in actual_rows(chunk, 0, 71)] == [70]  # around it


def test_a_projection_keeps_the_order_of_its_columns() -> None:
    chunk = encode_batch([NewRecord(b"k", b"v", (), 5)], base_offset=9)
    assert decode_all(chunk, columns=("offset", "value")) == [{"offset": 9, "value": b"v"}]
    assert list(decode_all(chunk, columns=("value", "offset"))[0]) == ["value", "offset"]


@pytest.mark.parametrize("rows", [1, CONSTANT_ROWS, CONSTANT_ROWS + 1, 2 * CONSTANT_ROWS])
def test_topic_and_partition_stand_in_each_of_few_and_of_many_rows(rows: int) -> None:
    batch = to_batch(Target("flüge", 3, ("partition", "topic"), 0, FOREVER), rows, {})
    batch.validate(full=True)
    assert batch.to_pydict() == {"partition": [3] * rows, "topic": ["flüge"] * rows}


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
def test_invalid_bytes_in_a_batch_raise_or_decode_within_the_batch(data: st.DataObject) -> None:
    """A valid CRC says nothing about the records: a producer can put anything there."""
    new = data.draw(st.lists(records, min_size=1, max_size=6))
    chunk = bytearray(encode_batch(new, base_offset=100))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, len(chunk) - 1))
        chunk[at] = data.draw(st.integers(0, 255))
    try:
        rows = actual_rows(bytes(chunk))
    except KafkaError as error:
        assert error.code in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)
        return
    except UnicodeDecodeError:  # of to_pylist in this test
        return
    try:
        reference = expected_rows(bytes(chunk))
    except KafkaError:
        return  # what the reference refuses and we show: text that is no text
    wanted = [row for row in reference if 0 <= row["offset"] < FOREVER]
    assert [{**row, "timestamp_us": 0} for row in rows] == [{**row, "timestamp_us": 0} for row in wanted]


# ---- many headers ------------------------------------------------------------------------------------------


def batch_of_headers(*counts: int, base: int = 0, codec: Compression = Compression.NONE) -> bytes:
    new = [
        NewRecord(b"k", b"v", [(f"h{n}", None if n % 7 == 3 else b"x" * (n % 90)) for n in range(count)])
        for count in counts
    ]
    return encode_batch(new, base_offset=base, compression=codec)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_records_with_many_headers_stand_beside_those_with_few(codec: Compression) -> None:
    chunk = batch_of_headers(0, 2, HEADER_TURNS_MAX + 1, 1, HEADER_TURNS_MAX, 2_500, 0, 3, codec=codec)
    chunk += batch_of_headers(3_000, base=8, codec=codec) + batch_of_headers(1, 0, base=9, codec=codec)
    assert actual_rows(chunk) == expected_rows(chunk)
    assert actual_rows(chunk, 5, 10) == expected_rows(chunk)[5:10]


@settings(max_examples=80, deadline=None)
@given(st.lists(batches, min_size=1, max_size=4), st.integers(0, 3))
def test_headers_are_the_same_however_many_of_them_are_walked(wanted: list[Any], turns: int) -> None:
    chunk = make_chunk(wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_decoder, "HEADER_TURNS_MAX", turns)
        assert actual_rows(chunk) == expected_rows(chunk)


def many_and(headers: int, last: bytes) -> bytes:
    """A record with so many empty headers, and one more."""
    body = b"".join((b"\0", *map(zigzag, (0, 0, -1, -1, headers + 1)), b"\0\0" * headers, last))
    chunk = bytearray(encode_batch([NewRecord(None, None)])[:HEADER_BYTES] + zigzag(len(body)) + body)
    chunk[8:12] = (len(chunk) - 12).to_bytes(4, "big")
    return bytes(chunk)


@pytest.mark.parametrize("headers", [0, HEADER_TURNS_MAX, 100_000])
@pytest.mark.parametrize(
    "last",
    [
        zigzag(-1) + zigzag(0),
        zigzag(0) + zigzag(-2),
        zigzag(0) + zigzag(5),
        zigzag(1 << 40) + zigzag(0),
        zigzag(0) + zigzag(0) + b"?",
        zigzag(0),
        b"\xff" * 12,
    ],
    ids=["null name", "negative", "beyond", "huge", "left", "cut off", "endless"],
)
def test_malformed_headers_are_refused_without_a_turn_for_each(
    headers: int, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside the kernel: it leaves to numpy what it refuses."""
    turns = 0
    varint = numpy_decoder._varint

    def counted(*place: Any) -> Any:
        nonlocal turns
        turns += 1
        return varint(*place)

    monkeypatch.setattr(numpy_decoder, "_varint", counted)
    with pytest.raises(KafkaError, match="flights-3, offsets 0 to 0: a record cannot be decoded") as caught:
        decode_all(many_and(headers, last))
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert 0 < turns <= 2 * HEADER_TURNS_MAX + 10


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_walk_over_headers_refuses_what_turns_refuse(data: st.DataObject) -> None:
    new = data.draw(st.lists(records.filter(lambda record: record.headers), min_size=1, max_size=4))
    chunk = bytearray(encode_batch(new, base_offset=100))
    for _ in range(data.draw(st.integers(1, 3))):
        chunk[data.draw(st.integers(HEADER_BYTES, len(chunk) - 1))] = data.draw(st.integers(0, 255))

    def outcome(turns: int) -> Any:
        target = Target("flights", 3, ("offset", "headers"), 0, FOREVER)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(numpy_decoder, "HEADER_TURNS_MAX", turns)
            patch.setattr(kernel_decoder, "kernel", None)
            try:
                return list(decode_batches(target, bytes(chunk), list(iterate_headers(chunk))))
            except KafkaError as refused:
                return refused.code

    assert outcome(data.draw(st.integers(0, 2))) == outcome(HEADER_TURNS_MAX)


@example(b"\x80" * 10 + b"\0")
@settings(max_examples=300)
@given(st.binary(max_size=11) | st.integers(0, 127).map(lambda last: b"\xff" * 9 + bytes([last])))
def test_one_varint_is_read_as_many_are(octets: bytes) -> None:
    def outcome(read: Callable[[], Iterable[Any]]) -> list[int] | type[Exception]:
        try:
            return [int(each) for each in read()]
        except (Malformed, IndexError) as problem:
            return type(problem)

    def of_many() -> list[Any]:
        found = numpy_decoder._varint(np.frombuffer(octets, np.uint8), np.zeros(1, np.int64))
        return [each.item() for each in found]

    assert outcome(lambda: numpy_decoder._varint_at(octets, 0)) == outcome(of_many)


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


# ---- malformed records -------------------------------------------------------------------------------------


def raw(*fields: int, rest: bytes = b"") -> bytes:
    """A record of these fields after its attributes: time, offset, length of the key, ..."""
    body = b"\0" + b"".join(map(zigzag, fields)) + rest
    return zigzag(len(body)) + body


def batch_of(*records: bytes) -> bytes:
    chunk = bytearray(encode_batch([NewRecord(None, None)] * len(records), base_offset=5)[:HEADER_BYTES])
    chunk += b"".join(records)
    chunk[8:12] = (len(chunk) - 12).to_bytes(4, "big")
    return bytes(chunk)


WHOLE = [raw(0, number, -1, -1, 0) for number in range(3)]
NEGATIVE = bytes([WHOLE[0][0] | 1]) + WHOLE[0][1:]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([NEGATIVE], "negative record length"),
        ([raw(0, 0, -2, -1, 0)], "negative length"),
        ([raw(0, 0, -1, -2, 0)], "negative length"),
        ([raw(0, 0, 1 << 40, -1, 0)], "length beyond the batch"),
        ([raw(0, 0, -1, 1 << 40, 0)], "length beyond the batch"),
        ([raw(0, 0, -1, 7, 0), WHOLE[1]], "key and value reach beyond the record"),
        ([raw(0, 0, 7, -1, 0), WHOLE[1]], "key and value reach beyond the record"),
        ([raw(0, 0, -1, 0), WHOLE[1]], "key and value reach beyond the record"),  # no number of headers
        ([raw(0, -1, -1, -1, 0)], "offsets do not ascend"),
        ([raw(0, -1, -1, -1, 0), *WHOLE[1:]], "offsets do not ascend"),
        ([raw(0, 1, -1, -1, 0)], "offsets do not ascend"),
        ([WHOLE[0], WHOLE[0], WHOLE[2]], "offsets do not ascend"),
        ([WHOLE[1], WHOLE[0], WHOLE[2]], "offsets do not ascend"),
        ([raw(0, 0, -1, -1, -1)], "number of headers"),
        ([raw(0, 0, -1, -1, 1 << 40)], "number of headers"),
        ([raw(0, 0, -1, -1, 50), raw(0, 1, -1, -1, 50)], "number of headers"),  # both together
        ([raw(0, number, -1, -1, 1 << 62) for number in range(4)], "number of headers"),  # 0 in 64 bits
        ([raw(0, 0, -1, -1, 1, -1, -1), raw(0, 1, -1, -1, 1, 0, -1)], "length of a header"),
        ([raw(0, 0, -1, -1, 1, 0, 5), WHOLE[1]], "headers reach beyond the record"),
        ([raw(0, 0, -1, -1, 0, rest=b"?")], "bytes are left after the last header"),
        ([raw(0, 0, rest=b"\x80" * 10 + b"\0" * 3)], "varint of more than ten bytes"),
        ([b"\x80" * 5 + b"\0" * 7], "more than five bytes"),
        ([b"\x80"], "a record length is cut off"),
        ([b"\x80" * 2], "a record length is cut off"),
        ([WHOLE[0], WHOLE[1][:-1]], "do not fill it"),
        ([WHOLE[0], WHOLE[1] + b"\0"], "do not fill it"),
        ([raw(0, 0, -1, 9000, 0, rest=bytes(9000)) + b"\0"], "do not fill it"),
        ([zigzag(9024) + raw(0, 0, -1, 9015, rest=bytes(9016))[3:]], "do not fill it"),  # a byte is missing
    ],
)
def test_a_record_that_is_none_is_refused_and_the_reason_is_said(records: list[bytes], reason: str) -> None:
    with pytest.raises(KafkaError, match=f"a record cannot be decoded: .*{reason}") as caught:
        decode_all(batch_of(*records))
    assert caught.value.code == ErrorCode.INVALID_RECORD


def test_a_record_with_the_least_in_it_is_decoded() -> None:
    assert [row["offset"] for row in decode_all(batch_of(*WHOLE))] == [5, 6, 7]


def test_a_time_of_appending_stands_for_any_time_of_creation() -> None:
    """Also for one that is beyond 64 bits."""
    beyond = bytearray(batch_of(raw(5, 0, -1, -1, 0)))
    beyond[BASE_TIMESTAMP_AT : BASE_TIMESTAMP_AT + 8] = ((1 << 63) - 1).to_bytes(8, "big")
    appended = bytearray(beyond)
    set_log_append_time(memoryview(appended), 0, 1_600_000_000_000)
    beyond[:8] = (6).to_bytes(8, "big")
    (row,) = actual_rows(bytes(appended))
    assert (row["timestamp_us"], row["timestampType"]) == (1_600_000_000_000_000, 1)
    with pytest.raises(KafkaError, match=f"record at offset 6 has the timestamp {(1 << 63) + 4} ms"):
        actual_rows(bytes(appended + beyond))


def test_records_of_less_than_8_kib_are_walked_by_the_short_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the loop for records of any length costs more")

    monkeypatch.setattr(numpy_decoder, "_walk_any_records", refuse)
    monkeypatch.setattr(kernel_decoder, "kernel", None)
    lengths = [*range(300), *range(300, 8_180, 61), 8_180]
    chunk = encode_batch([NewRecord(None, bytes(length)) for length in lengths])
    assert [len(row["value"]) for row in decode_all(chunk, columns=("value",))] == lengths
