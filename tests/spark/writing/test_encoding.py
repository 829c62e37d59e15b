"""Rows are encoded as `encode_batch` encodes their records, by the compiled kernel and without it; the kernel
touches no byte beside its buffers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.client.producing.partitioner import murmur2
from tidegate.spark.arrow_schema import ARROW_HEADERS_TYPE
from tidegate.spark.decoding import kernel_decoder
from tidegate.spark.writing.encoding import NO_KEY, Encoder, key_hashes
from tidegate.spark.writing.rows import Layout, Rows, rows_of
from tidegate.tests.spark.kernel_builds import SOURCE, run_hostile
from tidegate.wire.compression import Compression
from tidegate.wire.records import EncodedRecords, NewRecord, encode_batch, encode_records

NOW_MS = 1_800_000_000_000
SIZES = (0, 1, 62, 63, 64, 8191, 8192)  # where a length takes a byte more

texts = st.none() | st.binary(max_size=9) | st.sampled_from([b"x" * size for size in SIZES])
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=4)), max_size=3)
timestamps = st.sampled_from([0, 1, 63, 64, NOW_MS, (1 << 63) // 1000 - 1]) | st.integers(0, 1 << 40)
records = st.lists(
    st.builds(NewRecord, texts, texts, headers.map(tuple), timestamps), min_size=1, max_size=12
)


@pytest.fixture(scope="module", autouse=True)
def kernel(built_kernel: ModuleType) -> Iterator[ModuleType]:
    before, kernel_decoder.kernel = kernel_decoder.kernel, built_kernel
    yield built_kernel
    kernel_decoder.kernel = before


def rows_from(given: list[NewRecord], cut: int, *, text: bool = False) -> Rows:
    """Of all but the first `cut` records, as a slice of their columns."""
    columns = {
        "key": pa.array([record.key for record in given], pa.large_binary() if text else pa.binary()),
        "value": pa.array([record.value for record in given], pa.binary()),
        "headers": pa.array(
            [
                [{"key": name, "value": value} for name, value in record.headers] if record.headers else None
                for record in given
            ],
            ARROW_HEADERS_TYPE,
        ),
        "timestamp": pa.array([record.timestamp_ms * 1000 for record in given], pa.timestamp("us", tz="UTC")),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns)).slice(cut)
    (rows,) = rows_of(batch, Layout(tuple(columns), "t"), NOW_MS)
    return rows


def without_kernel(rows: Rows, chosen: list[np.ndarray]) -> EncodedRecords:
    before, kernel_decoder.kernel = kernel_decoder.kernel, None
    try:
        return encoded(rows, chosen)
    finally:
        kernel_decoder.kernel = before


def encoded(rows: Rows, chosen: list[np.ndarray]) -> EncodedRecords:
    """The chosen rows, in pieces."""
    found, encoder = EncodedRecords(), Encoder(rows)
    for piece in chosen:
        if len(piece):
            encoder.encode_into(found, piece)
    return found


@given(records, st.data())
def test_a_batch_is_the_same_with_and_without_the_kernel(given: list[NewRecord], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(given) - 1))
    rows = rows_from(given, cut, text=data.draw(st.booleans()))
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=12))
    middle = data.draw(st.integers(0, len(order)))
    chosen = [np.array(order[:middle], np.int64), np.array(order[middle:], np.int64)]
    wanted = [given[cut + row] for row in order]
    for found in (encoded(rows, chosen), without_kernel(rows, chosen)):
        assert encode_batch(found) == encode_batch(wanted)
        assert list(found) == wanted
        assert list(found[1:]) == wanted[1:]
        assert found[0] == wanted[0]


@given(st.lists(texts, max_size=12), st.integers(0, 12))
def test_keys_have_the_hashes_of_every_kafka_client(keys: list[bytes | None], cut: int) -> None:
    column = pa.array(keys, pa.binary()).slice(cut)
    wanted = [NO_KEY if key is None else murmur2(key) & 0x7FFFFFFF for key in keys[cut:]]
    with_kernel = key_hashes(column).tolist()
    before, kernel_decoder.kernel = kernel_decoder.kernel, None
    try:
        assert with_kernel == key_hashes(column).tolist() == wanted
    finally:
        kernel_decoder.kernel = before


def test_many_records_and_every_codec() -> None:
    given = [NewRecord(b"%d" % row, b"v" * (row % 300), (), NOW_MS + row) for row in range(3000)]
    found = encoded(rows_from(given, 0), [np.arange(1000), np.arange(1000, 3000)])
    for compression in Compression:
        assert encode_batch(found, compression=compression) == encode_batch(given, compression=compression)


def test_a_row_that_is_not_there_raises(kernel: ModuleType) -> None:
    column = (None, np.array([0, 1], np.int32), b"x", 0)
    for row in (-1, 1, 1 << 62):
        with pytest.raises(ValueError, match="a row lies outside"):
            kernel.encode(np.array([row]), 0, 0, np.zeros(1, np.int64), None, column, None)
    with pytest.raises(ValueError, match="a row lies outside"):
        kernel.hashes(column, 2)
    for at in (-1, 1 << 62):
        with pytest.raises(ValueError, match="begins outside"):
            kernel.hashes((*column[:3], at), 1)


def test_a_header_without_a_key_is_no_record(kernel: ModuleType) -> None:
    column = (None, np.array([0, 1], np.int32), b"x", 0)
    for key, is_right in ((column, True), ((b"\0", *column[1:]), False)):
        headers = (None, np.array([0, 1], np.int32), 0, key, column)
        arguments = np.zeros(1, np.int64), 0, 0, np.zeros(1, np.int64), None, column, headers
        if is_right:
            assert (
                kernel.encode(*arguments)
                == encode_records([NewRecord(None, b"x", (("x", b"x"),), 0)], 0, 0)[0]
            )
        else:
            with pytest.raises(ValueError, match="a row lies outside"):
                kernel.encode(*arguments)


HOSTILE = "writing.hostile_columns"


def test_hostile_columns_lead_to_no_byte_beside_the_buffers(tmp_path: Path) -> None:
    done = run_hostile(HOSTILE, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    encoded, refused = map(int, done.stdout.split())
    assert encoded > 1000
    assert refused > 2000


@pytest.mark.parametrize(
    ("safeguard", "without"),
    [
        ("    if (at + index + 1 >= offsets->len / (int64_t)sizeof(int32_t))\n        return 0;\n", ""),
        ("return *begin >= 0 && *begin <= *end && *end <= size;", "return *begin <= *end && *end <= size;"),
        (" && *end <= size;", ";"),
        ("    if ((at + index) / 8 >= valid->len)\n        return -1;\n", ""),
        ("        if (row < 0 || row >= timestamps)\n            return -1;\n", ""),
    ],
    ids=[
        "offsets of the row",
        "before the data",
        "behind the data",
        "validity of the row",
        "timestamp of the row",
    ],
)
def test_without_a_safeguard_the_sanitizer_ends_the_process(
    safeguard: str, without: str, tmp_path: Path
) -> None:
    source = SOURCE.read_text()
    assert source.count(safeguard) == 1
    done = run_hostile(HOSTILE, tmp_path, source.replace(safeguard, without))
    assert done.returncode != 0
    assert "Sanitizer" in done.stderr or "runtime error" in done.stderr
