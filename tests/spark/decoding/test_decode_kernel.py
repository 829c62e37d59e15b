"""The compiled kernel decodes what numpy decodes, refuses what numpy refuses, and touches no byte beside its
buffers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.spark.decoding import decode, kernel_decoder, numpy_decoder
from tidegate.spark.decoding.columns import Target
from tidegate.spark.decoding.decompression import Budget, Malformed, Piece, Section, decompress_pieces
from tidegate.spark.schema import COLUMNS
from tidegate.tests.spark.decoding.test_decode import FOREVER, batches, make_chunk
from tidegate.tests.spark.kernel_builds import SOURCE, run_hostile
from tidegate.wire.compression import Compression
from tidegate.wire.errors import KafkaError
from tidegate.wire.primitives import zigzag
from tidegate.wire.records import (
    HEADER_BYTES,
    BatchHeader,
    NewRecord,
    encode_batch,
    iterate_headers,
    parse_header,
)

BUDGET = Budget(piece_cost_max=1 << 24, record_bytes_max=1 << 24, record_price=10)
EDGES = (
    -(1 << 63),
    -(1 << 31),
    -2,
    -1,
    0,
    1,
    2,
    63,
    64,
    300,
    (1 << 31) - 1,
    1 << 31,
    (1 << 62),
    (1 << 63) - 1,
)
projections = st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=8, unique=True).map(tuple)


@pytest.fixture(scope="module", autouse=True)
def kernel(built_kernel: ModuleType) -> Iterator[ModuleType]:
    before, kernel_decoder.kernel = kernel_decoder.kernel, built_kernel
    yield built_kernel
    kernel_decoder.kernel = before


def assert_same(target: Target, piece: Piece, floor: int = -1) -> bool:
    """Whether both decoded the piece; otherwise both refused it."""
    actual = kernel_decoder.decode_piece(target, piece, floor)
    try:
        wanted = numpy_decoder.decode_piece(target, piece, floor)
    except (IndexError, Malformed, KafkaError) as error:
        assert actual is None, f"numpy refuses: {error}"
        return False
    assert actual is not None
    actual.rows.validate(full=True)
    assert actual.rows.schema == wanted.rows.schema
    assert actual.rows.equals(wanted.rows)
    assert actual.last_offset == wanted.last_offset
    return True


def assert_same_chunk(target: Target, chunk: bytes, budget: Budget = BUDGET) -> None:
    floor = -1
    for piece in decompress_pieces(chunk, list(iterate_headers(chunk)), budget):
        assert assert_same(target, piece, floor)
        floor = piece[1][-1].header.last_offset


@settings(max_examples=200, deadline=None)
@given(st.lists(batches, min_size=1, max_size=5), projections, st.integers(0, 300), st.integers(0, 300))
def test_what_producers_send_is_decoded_as_numpy_does(
    wanted: list[Any], columns: tuple[str, ...], start: int, length: int
) -> None:
    chunk = make_chunk(wanted)
    assert_same_chunk(Target("flights", 3, columns, 0, FOREVER), chunk)
    assert_same_chunk(Target("flights", 3, columns, start, start + length), chunk)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_damaged_records_are_refused_or_decoded_as_numpy_does(data: st.DataObject) -> None:
    chunk = make_chunk([(*data.draw(batches)[:1], Compression.NONE, data.draw(st.booleans()), 0)])
    header, records = parse_header(chunk), bytearray(chunk[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(records) - 1))
        records[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from(EDGES).map(zigzag)
        )
        records = records or bytearray(b"\0")
    del records[len(records) - data.draw(st.just(0) | st.integers(0, len(records) - 1)) :]
    assert_same_damaged(data, header, bytes(records))


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_made_up_records_are_refused_or_decoded_as_numpy_does(data: st.DataObject) -> None:
    """Each field of a record from the edges of its range."""
    number = st.sampled_from(EDGES) | st.integers(-3, 3)
    records = b""
    for _ in range(data.draw(st.integers(1, 3))):
        body = b"\0" + b"".join(
            zigzag(data.draw(number)) + data.draw(st.binary(max_size=2))
            for _ in range(data.draw(st.integers(0, 9)))
        )
        records += zigzag(data.draw(st.just(len(body)) | number)) + body
    count = data.draw(st.integers(1, 4))
    header = parse_header(encode_batch([NewRecord(None, None)] * count))
    assert_same_damaged(data, header, records)


def assert_same_damaged(data: st.DataObject, header: BatchHeader, records: bytes) -> None:
    edge = st.sampled_from(EDGES)
    header = header._replace(
        base_offset=data.draw(st.just(header.base_offset) | st.integers(0, 9) | st.just((1 << 63) - 2)),
        last_offset_delta=data.draw(st.just(header.last_offset_delta) | st.integers(0, 5)),
        base_timestamp=data.draw(st.just(header.base_timestamp) | edge),
        max_timestamp=data.draw(st.just(header.max_timestamp) | edge),
        record_count=data.draw(st.just(header.record_count) | st.integers(1, 70)),
    )
    beside = data.draw(st.binary(max_size=70))  # the section is a part of the data
    section = Section(header, len(beside), len(beside) + len(records))
    target = Target("flights", 3, data.draw(projections), data.draw(st.integers(0, 3)), FOREVER)
    assert_same(target, (beside + records + beside, [section]), data.draw(st.integers(-1, 2)))


@pytest.mark.parametrize("timestamp", [*EDGES, ((1 << 63) - 1) // 1000, ((1 << 63) - 1) // 1000 + 1])
@pytest.mark.parametrize("base", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
def test_timestamps_reach_as_far_as_with_numpy(timestamp: int, base: int) -> None:
    body = b"\0" + zigzag(timestamp) + bytes(1) + zigzag(-1) * 2 + bytes(1)
    records = zigzag(len(body)) + body
    header = parse_header(encode_batch([NewRecord(None, None)]))._replace(base_timestamp=base)
    for columns in (("timestamp",), ("offset",)):
        target = Target("flights", 3, columns, 0, FOREVER)
        assert_same(target, (records, [Section(header, 0, len(records))]))


@pytest.mark.parametrize("length_bytes", range(1, 13))
def test_varints_may_be_as_long_as_with_numpy(length_bytes: int) -> None:
    """A producer may write a small number with more bytes than it needs."""
    long = b"\x80" * (length_bytes - 1) + b"\0"
    for fields in ((long, b"\0", b"\0"), (b"\0", long, b"\0"), (b"\0", b"\0", long)):
        body = b"\0" + b"".join(fields) + zigzag(-1) + b"\0"
        records = zigzag(len(body)) + body
        header = parse_header(encode_batch([NewRecord(None, None)]))
        target = Target("flights", 3, tuple(COLUMNS), 0, FOREVER)
        same = assert_same(target, (records, [Section(header, 0, len(records))]))
        assert same == (length_bytes <= 10)
    body = b"\0\0\0" + zigzag(-1) * 2 + b"\0"
    records = bytes([len(body) * 2 | 128]) + b"\x80" * (length_bytes - 2) + b"\0" if length_bytes > 1 else b""
    if records:
        piece = (records + body, [Section(header, 0, len(records + body))])
        assert assert_same(target, piece) == (length_bytes <= 5)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_an_error_is_the_same_with_and_without_the_kernel(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr(kernel_decoder, "kernel", None)
    assert decode.decoder_name() == ("kernel" if has_kernel else "numpy")
    chunk = bytearray(encode_batch([NewRecord(b"k", b"v")] * 3, base_offset=5))
    chunk[23:27] = (1).to_bytes(4, "big")
    with pytest.raises(KafkaError) as caught:
        list(
            decode.decode_batches(
                Target("t", 0, ("key",), 0, FOREVER), bytes(chunk), list(iterate_headers(chunk))
            )
        )
    assert caught.value.message == (
        "t-0, offsets 5 to 6: a record cannot be decoded: offsets do not ascend within their batch"
    )


def test_a_batch_beside_the_requested_offsets_is_not_decompressed() -> None:
    new = [NewRecord(b"k", b"v")] * 3
    chunk = b"".join(encode_batch(new, base_offset=base) for base in (0, 3, 6))
    headers = list(iterate_headers(chunk))
    broken = [(at, header._replace(attributes=7)) for at, header in headers]  # there is no codec 7
    made = list(
        decode.decode_batches(Target("t", 0, ("offset",), 3, 6), chunk, [broken[0], headers[1], broken[2]])
    )
    assert [row["offset"] for batch in made for row in batch.to_pylist()] == [3, 4, 5]


def test_a_claimed_number_of_records_costs_no_memory(kernel: ModuleType) -> None:
    chunk = encode_batch([NewRecord(b"k", b"v")])
    header = parse_header(chunk)._replace(record_count=(1 << 31) - 1)

    def allocate(size: int) -> pa.Buffer:
        raise AssertionError(size)

    sections = [Section(header, HEADER_BYTES, len(chunk))]
    assert kernel.decode(chunk, sections, -1, 0, FOREVER, 63, allocate) is None


def test_a_claimed_number_of_headers_costs_no_memory(kernel: ModuleType) -> None:
    body = b"\0\0\0" + zigzag(-1) * 2 + zigzag((1 << 31) - 1) + b"\0" * 9
    records = zigzag(len(body)) + body
    sizes: list[int] = []

    def allocate(size: int) -> pa.Buffer:
        sizes.append(size)
        return pa.allocate_buffer(size)

    sections = [Section(parse_header(encode_batch([NewRecord(None, None)])), 0, len(records))]
    assert (
        kernel.decode(records, sections, -1, 0, FOREVER, kernel_decoder.WANTED["headers"], allocate) is None
    )
    assert sizes == [1, 8]


def test_columns_are_no_larger_than_what_they_hold(kernel: ModuleType) -> None:
    chunk = encode_batch([NewRecord(b"key", bytes(1000), (("h", bytes(500)),))] * 100)
    sizes: list[int] = []

    def allocate(size: int) -> pa.Buffer:
        sizes.append(size)
        return pa.allocate_buffer(size)

    section = Section(parse_header(chunk), HEADER_BYTES, len(chunk))
    kernel.decode(chunk, [section], -1, 0, FOREVER, 63, allocate)
    assert sum(sizes) < 100 * (3 + 1000 + 1 + 500 + 50)
    sizes.clear()
    kernel.decode(chunk, [section], -1, 0, FOREVER, kernel_decoder.WANTED["offset"], allocate)
    assert sizes == [800]


def test_no_memory_stays_behind(kernel: ModuleType) -> None:
    chunk = encode_batch([NewRecord(b"key", b"value", (("h", b"x"),))] * 100)
    right = [Section(parse_header(chunk), HEADER_BYTES, len(chunk))]
    wrong = [Section(parse_header(chunk), HEADER_BYTES, len(chunk) - 1)]

    def often() -> None:
        for sections in (right, wrong) * 200:
            kernel.decode(chunk, sections, -1, 0, FOREVER, 63, bytearray)
        for broken in (lambda size: bytearray(0), lambda size: bytes(size), lambda size: 1 / 0):
            for _ in range(100):
                with pytest.raises((ValueError, BufferError, ZeroDivisionError)):
                    kernel.decode(chunk, right, -1, 0, FOREVER, 63, broken)

    often()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        often()
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "sections",
    [[((1, 2), 0, 1)], [(1, 2, 3)], [None], [("header",)]],
    ids=["a short header", "no header", "no section", "one field"],
)
def test_sections_that_are_none_raise(kernel: ModuleType, sections: list[Any]) -> None:
    with pytest.raises((TypeError, IndexError)):
        kernel.decode(b"12345678", sections, -1, 0, FOREVER, 63, bytearray)


@pytest.mark.parametrize("bounds", [(-1, 5), (5, 4), (0, 9), (8, 1 << 40), (0, 1 << 70)])
def test_sections_outside_of_the_data_raise(kernel: ModuleType, bounds: tuple[int, int]) -> None:
    header = parse_header(encode_batch([NewRecord(None, None)]))
    with pytest.raises((ValueError, OverflowError)):
        kernel.decode(b"12345678", [(header, *bounds)], -1, 0, FOREVER, 63, bytearray)
    with pytest.raises(ValueError, match="overlaps"):
        kernel.decode(bytes(99), [(header, 0, 50), (header, 49, 99)], -1, 0, FOREVER, 63, bytearray)


# ---- beside its buffers ----------------------------------------------------------------------------------


HOSTILE = "hostile_records"


def test_hostile_records_lead_to_no_byte_beside_the_buffers(tmp_path: Path) -> None:
    done = run_hostile(HOSTILE, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    decoded, refused = map(int, done.stdout.split())
    assert decoded > 1000
    assert refused > 2000


@pytest.mark.parametrize(
    ("safeguard", "without"),
    [
        (" || *length > end - *at", ""),
        ("        if (*at == end)\n            return 0;\n        uint8_t", "        uint8_t"),
        ("        if (*at == end)\n            return NULL;\n        uint8_t", "        uint8_t"),
        (" || (folded >> 1) > (uint64_t)(end - *at)", ""),
        ("(count + 1) * (int64_t)sizeof(int32_t)", "count * (int64_t)sizeof(int32_t)"),
    ],
    ids=[
        "length in the record", "varint in the record", "length before the end", "record in the section",
        "room for offsets",
    ],
)  # fmt: skip
def test_without_a_safeguard_the_sanitizer_ends_the_process(
    safeguard: str, without: str, tmp_path: Path
) -> None:
    source = SOURCE.read_text()
    assert source.count(safeguard) == 1
    done = run_hostile(HOSTILE, tmp_path, source.replace(safeguard, without))
    assert done.returncode != 0
    assert "Sanitizer" in done.stderr or "runtime error" in done.stderr
