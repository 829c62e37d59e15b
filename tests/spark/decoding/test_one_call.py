"""What the machine's own libraries decompress in one call is what `wire/compression.py` decompresses."""

from __future__ import annotations

import random
import threading
import weakref
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.spark.decoding import decompression, one_call
from tidegate.spark.decoding.decode import Target, decode_batches
from tidegate.spark.decoding.one_call import codecs, decompress_into
from tidegate.tests.machine import Need, lacks
from tidegate.wire.compression import Compression, compress
from tidegate.wire.records import NewRecord, encode_batch, iterate_headers

CODECS = (Compression.ZSTD, Compression.LZ4)
AROUND = 64  # bytes around a room, which a library must not touch

contents = st.builds(
    lambda part, times: part * times, st.binary(min_size=1, max_size=400), st.integers(1, 900)
)


@pytest.fixture(scope="module", params=CODECS)
def codec(request: pytest.FixtureRequest) -> Compression:
    chosen: Compression = request.param
    if chosen not in codecs():
        lacks(Need.CODEC_LIBRARIES, f"this machine has no library for {chosen.name}")
    return chosen


def original(codec: int, stored: bytes, room_bytes: int) -> bytes | None:
    held = bytearray(b"\xa5" * (room_bytes + 2 * AROUND))
    room = memoryview(held)[AROUND : AROUND + room_bytes]
    written = decompress_into(codec, memoryview(stored), room)
    assert held[:AROUND] == held[-AROUND:] == b"\xa5" * AROUND
    return None if written is None else bytes(room[:written])


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(contents, min_size=1, max_size=3), to_spare=st.integers(0, 1_000))
def test_one_or_several_frames_are_decompressed_whole(
    codec: Compression, parts: list[bytes], to_spare: int
) -> None:
    stored, content = b"".join(compress(codec, part) for part in parts), b"".join(parts)
    assert original(codec, stored, len(content) + to_spare) == content


@settings(max_examples=100, deadline=None)
@given(content=contents, data=st.data())
def test_what_is_cut_off_damaged_or_too_large_is_left_to_others(
    codec: Compression, content: bytes, data: st.DataObject
) -> None:
    stored = compress(codec, content)
    assert original(codec, stored, len(content) - 1) is None
    assert original(codec, stored[: data.draw(st.integers(0, len(stored) - 1))], len(content)) is None
    assert original(codec, stored + b"\x00", len(content)) is None
    damaged = bytearray(stored)
    damaged[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    original(codec, bytes(damaged), len(content))  # whatever it says, it stays within its room
    assert original(codec, stored, len(content)) == content  # no refusal has a consequence for the next


def test_random_bytes_are_refused_within_their_room(codec: Compression) -> None:
    rng = random.Random(5)
    head = compress(codec, bytes(1_000))[:7]
    for _ in range(3_000):
        original(codec, head[: rng.randrange(8)] + rng.randbytes(rng.randrange(300)), 2_000)
    assert original(codec, compress(codec, b"content"), 7) == b"content"


def test_a_wrong_checksum_is_refused() -> None:
    if Compression.LZ4 not in codecs():
        lacks(Need.CODEC_LIBRARIES, "this machine has no library for LZ4")
    compressor: Any = cramjam.lz4.Compressor(content_checksum=True)
    compressor.compress(b"content" * 100)
    stored = bytes(compressor.finish())
    assert original(Compression.LZ4, stored, 700) == b"content" * 100
    assert original(Compression.LZ4, stored[:-1] + bytes([stored[-1] ^ 1]), 700) is None


@pytest.mark.parametrize("other", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, 5, 7])
def test_the_other_codecs_are_left_to_others(other: int) -> None:
    assert original(other, b"content", 100) is None


def test_nothing_is_no_frame(codec: Compression) -> None:
    assert original(codec, b"", 100) is None


def test_each_thread_has_contexts_of_its_own_and_frees_them(codec: Compression) -> None:
    content = [bytes([number]) * 300_000 for number in range(4)]
    stored = [compress(codec, each) for each in content]
    begin, wrong, contexts = threading.Barrier(4), [], []

    def work(number: int) -> None:
        begin.wait()
        read = [original(codec, stored[number], 300_000) == content[number] for _ in range(50)]
        if not all(read):
            wrong.append(number)
        contexts.append(weakref.ref(one_call._of_thread.by_codec[codec]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [context() for context in contexts] == [None] * 4


@pytest.fixture
def no_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`missing`: this machine has none; `old`: one without the functions; `full`: no memory for a context."""

    class Old:
        def __getitem__(self, name: str) -> Any:
            raise MemoryError if request.param == "full" else AttributeError(name)

    monkeypatch.setattr(one_call, "_library", lambda _: None if request.param == "missing" else Old())
    monkeypatch.setattr(one_call, "_of_thread", one_call._OfThread())


def rows(chunk: bytes) -> int:
    target = Target("flights", 0, ("value",), 0, 1 << 60)
    return sum(batch.num_rows for batch in decode_batches(target, chunk, list(iterate_headers(chunk))))


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("no_library", ["missing", "old", "full"], indirect=True)
@pytest.mark.parametrize("chosen", CODECS)
def test_a_machine_without_a_library_reads_all_the_same(chosen: Compression) -> None:
    assert codecs() == frozenset()
    assert rows(encode_batch([NewRecord(b"k", b"v")] * 50, compression=chosen)) == 50


def test_a_read_uses_the_library(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompression, "decompress", lambda *_, **__: pytest.fail("a stream was taken"))
    assert rows(encode_batch([NewRecord(b"k", b"v")] * 50, compression=codec)) == 50
