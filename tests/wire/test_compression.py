"""Codecs: what other implementations write is read, what we write is read by them, and nothing unfolds
without bound."""

from __future__ import annotations

import gzip
import os
import resource
import struct

import cramjam
import kafka.codec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.wire.compression import Compression, compress, decompress
from tidegate.wire.errors import ErrorCode, KafkaError

PACKED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
TEXT = b"N123AA,LGA,ORD,2013-01-01T05:00:00Z;" * 5000 + os.urandom(1000)


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize(
    "data",
    [b"", b"x", TEXT, os.urandom(100_000), bytes(3_000_000)],
    ids=["empty", "one", "text", "noise", "zeros"],
)
def test_what_is_compressed_comes_back(codec: Compression, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data
    assert bytes(decompress(codec, memoryview(bytearray(compress(codec, data))))) == data


def test_the_python_client_reads_our_snappy_and_gzip_and_lz4() -> None:
    assert kafka.codec.gzip_decode(compress(Compression.GZIP, TEXT)) == TEXT
    if kafka.codec.has_snappy():
        assert kafka.codec.snappy_decode(compress(Compression.SNAPPY, TEXT)) == TEXT
    if kafka.codec.has_lz4():
        assert kafka.codec.lz4_decode(compress(Compression.LZ4, TEXT)) == TEXT


def test_snappy_without_xerials_framing_is_read() -> None:
    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)))) == TEXT


def test_lz4_frames_have_independent_64_kib_blocks_and_no_checksum() -> None:
    frame = compress(Compression.LZ4, TEXT)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    flags, block = frame[4], frame[5]
    assert flags & 0xE0 == 0x60, "version 1, independent blocks"
    assert flags & 0x04 == 0, "no content checksum"
    assert block >> 4 == 4, "blocks of 64 KiB"


@pytest.mark.parametrize("codec", PACKED)
def test_data_that_unfolds_beyond_the_bound_is_refused(codec: Compression) -> None:
    with pytest.raises(KafkaError) as caught:
        decompress(codec, compress(codec, bytes(5_000_000)), max_bytes=1_000_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert len(decompress(codec, compress(codec, bytes(5_000_000)), max_bytes=5_000_000)) == 5_000_000


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_costs_no_more_memory_than_the_bound(codec: Compression) -> None:
    bomb = compress(codec, bytes(400 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KafkaError):
        decompress(codec, bomb, max_bytes=4 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "KiB"


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Compression.SNAPPY, b"\xff\xff\xff\xff\x0f"),  # a raw block that claims 4 GiB
        (Compression.SNAPPY, b"\xff\xff\xff\x3f"),  # 128 MiB in four bytes
        (Compression.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 2**31 - 1)),
        (Compression.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, -1)),
        (Compression.SNAPPY, b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"\x00\x00"),
        # a false size at the end
        (Compression.GZIP, gzip.compress(b"x", mtime=0)[:-4] + b"\xff\xff\xff\x7f"),
        (Compression.ZSTD, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8),  # a false size in the header
        (Compression.LZ4, b"\x04\x22\x4d\x18\x68\x40" + b"\xff" * 9),
    ],
)
def test_claimed_sizes_are_not_believed(codec: Compression, data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KafkaError):
        decompress(codec, data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10, "KiB"


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.data())
def test_damaged_data_gives_an_error_or_data_but_no_other_exception(
    codec: Compression, data: st.DataObject
) -> None:
    packed = bytearray(compress(codec, TEXT[:2000]))
    for _ in range(data.draw(st.integers(0, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packed)))
    try:
        decompress(codec, bytes(packed[:cut]), max_bytes=100_000)
    except KafkaError as error:
        assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
