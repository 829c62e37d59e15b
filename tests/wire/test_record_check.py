"""A batch that a leader took can be read: whatever is wrong with its records is found before, in every
codec."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.wire import record_check
from tidegate.wire.compression import Compression, compress
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.primitives import zigzag
from tidegate.wire.record_check import check_records
from tidegate.wire.records import NewRecord, decode_batch, encode_batch, parse_header, validate_batch


def with_payload(payload: bytes, count: int, codec: int = 0, last_delta: int | None = None) -> bytes:
    """A batch with a right header and a right CRC around any payload."""
    head = bytearray(encode_batch([NewRecord(None, b"", (), 1)])[:61])
    struct.pack_into(">i", head, 8, 49 + len(payload))
    struct.pack_into(">hi", head, 21, codec, count - 1 if last_delta is None else last_delta)
    struct.pack_into(">i", head, 57, count)
    batch = head + payload
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def check(batch: bytes, *, every_record: bool = False) -> None:
    view = memoryview(bytearray(b"before" + batch))
    check_records(view, 6, validate_batch(view, 6, from_client=True), every_record=every_record)


def refused(batch: bytes, *, every_record: bool = False) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        check(batch, every_record=every_record)
    return error.value


def records(sizes: list[int], key: bytes | None = b"k") -> list[NewRecord]:
    return [
        NewRecord(key, b"v" * size, (("h", b"1"), ("n", None)) if size % 7 == 1 else (), i)
        for i, size in enumerate(sizes)
    ]


size_lists = st.lists(
    st.sampled_from([0, 1, 40, 50, 56, 57, 100, 101, 8100, 8200, 20_000]), min_size=1, max_size=12
).flatmap(lambda chosen: st.lists(st.sampled_from(chosen), min_size=1, max_size=300))


@given(sizes=size_lists, codec=st.sampled_from(Compression))
@settings(max_examples=60, deadline=None)
def test_what_a_client_encodes_is_taken(sizes: list[int], codec: Compression) -> None:
    batch = encode_batch(records(sizes), compression=codec)
    check(batch)
    check(batch, every_record=True)


@given(sizes=size_lists, data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_length_is_refused_wherever_readers_refuse_it(
    sizes: list[int], data: st.DataObject
) -> None:
    """Whatever byte is changed: if the lengths do not lead to the end any more, the batch is refused like a
    reader would."""
    batch = bytearray(encode_batch(records(sizes)))
    at = data.draw(st.integers(61, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    try:
        read = decode_batch(bytes(batch))
    except KafkaError:
        assert refused(bytes(batch), every_record=True).code is ErrorCode.INVALID_RECORD
    else:
        if [record.offset for record in read] == list(range(len(sizes))):
            check(bytes(batch))  # no reader stumbles: it is taken
        else:
            assert refused(bytes(batch), every_record=True).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("size", [0, 10, 57, 100, 3000, 9000])
@pytest.mark.parametrize("count", [2, 15, 16, 17, 64, 65, 400])
def test_one_record_too_many_or_too_few_is_found_in_runs_and_out_of_them(size: int, count: int) -> None:
    good = encode_batch(records([size] * count))
    check(good)
    for claimed in (count - 1, count + 1):
        assert refused(with_payload(good[61:], claimed)).code is ErrorCode.INVALID_RECORD
    for payload in (good[61:-1], good[61:] + b"\0", good[61:] + good[61:]):
        assert refused(with_payload(payload, count)).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "wrong", [b"\x00", b"\x01", b"\x0a", b"\x80\x00", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
)
@pytest.mark.parametrize("position", [0, 1, 20, 99])
@pytest.mark.parametrize("size", [20, 100])
def test_lengths_that_no_record_has_are_refused(wrong: bytes, position: int, size: int) -> None:
    parts = [encode_batch(records([size]))[61:]] * 100
    parts[position] = wrong + parts[position][1:]
    assert refused(with_payload(b"".join(parts), 100)).code is ErrorCode.INVALID_RECORD


def test_a_length_of_three_bytes_is_never_followed_as_one_of_two() -> None:
    """Everything about this run is right, if only the first two bytes of its lengths counted."""
    # 8192 + 84 bytes; without the third, 84
    false = [b"\xa8\x81\x01\0" + zigzag(delta) + bytes(81) for delta in range(1, 41)]
    ends = [encode_batch(records([30] * 42))[61:][at * 38 :][:38] for at in (0, 41)]
    assert "ends within" in refused(with_payload(ends[0] + b"".join(false) + ends[1], 42)).message
    true = [b"\xa8\x01\0\0" + zigzag(delta) + bytes(81) for delta in range(1, 41)]
    check(with_payload(ends[0] + b"".join(true) + ends[1], 42))


def test_the_name_of_a_header_that_is_no_utf8_is_accepted() -> None:
    """As at a Kafka, and by our readers, which replace it."""
    batch = with_payload(b"\x12\0\0\0\1\1\2\2\xff\0", 1)
    check(batch)
    (record,) = decode_batch(batch)
    assert list(record.headers) == [("\N{REPLACEMENT CHARACTER}", b"")]


GOOD = encode_batch(records([30, 30, 30]))[61:]
LONG_VARINT = b"\xff" * 10 + b"\x01"


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (with_payload(random.Random(1).randbytes(40), 1), "record"),
        (with_payload(encode_batch(records([30]))[61:] * 3, 3), "another offset delta than 1"),
        (with_payload(b"\x0e\0\0\2\1\1\0\0", 1), "offset delta 1 where 0"),
        (with_payload(b"\x0e\0\0\0\x0c\1\0\0", 1), "key of a record ends after"),
        (with_payload(b"\x0e\0\0\0\1\x0a\0\0", 1), "value of a record ends after"),
        (with_payload(b"\x0e\0\0\0\1\1\0\0", 1), "its length says"),
        (with_payload(b"\x0e\0\0\0\1\1\6\0", 1), "3 record headers in 1 bytes"),
        (with_payload(b"\x12\0\0\0\1\1\2\6\0\0", 1), "name of a record header has 3 bytes"),
        (with_payload(b"\x12\0\0\0\1\1\2\2h\x08", 1), "value of a record header ends after"),
        (with_payload(b"\x0c\0" + LONG_VARINT, 1), ""),
        (with_payload(cramjam.gzip.compress(random.Random(2).randbytes(400)).read(), 3, 1), ""),
        (with_payload(random.Random(3).randbytes(40), 3, 1), "gzip"),
        (with_payload(compress(Compression.ZSTD, GOOD), 50, 4), "claims 50 records"),
        (with_payload(compress(Compression.LZ4, GOOD[:-4]), 3, 3), "3"),
        (with_payload(random.Random(4).randbytes(40), 3, 2), "snappy"),
    ],
)  # fmt: skip
def test_undecodable_records_are_refused_and_the_reason_is_said(batch: bytes, said: str) -> None:
    error = refused(batch)
    if said == "":
        assert error.code is ErrorCode.INVALID_RECORD
        return
    assert error.code is ErrorCode.INVALID_RECORD, error
    assert said in error.message, error


def test_a_bomb_is_refused_before_it_unfolds() -> None:
    bomb = memoryview(with_payload(compress(Compression.ZSTD, bytes(16 << 20)), 1000, 4))
    with pytest.raises(KafkaError) as error:
        check_records(bomb, 0, parse_header(bomb), 1 << 20)
    assert error.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert refused(with_payload(b"\0" * 70_000, 10_000, 4)).code is ErrorCode.INVALID_RECORD
    many = with_payload(compress(Compression.ZSTD, GOOD), record_check.RECORDS_MAX + 1, 4)
    assert refused(many).code is ErrorCode.MESSAGE_TOO_LARGE


def test_for_compacted_topics_every_record_is_read_and_needs_a_key() -> None:
    batch = encode_batch([NewRecord(b"k", b"v"), NewRecord(None, b"v"), NewRecord(b"k", b"v")])
    check(batch)
    error = refused(batch, every_record=True)
    assert error.code is ErrorCode.INVALID_RECORD
    assert "without a key" in error.message
    assert list(error.records) == [1], "the other partitions get no error of their own"
    keyless = encode_batch([NewRecord(None, b"v")] * (record_check.NAMED_MAX + 1))
    assert not refused(keyless, every_record=True).records, "an answer has its bounds"
    middle = bytearray(encode_batch([NewRecord(b"k", b"v" * 9)] * 3))
    middle[61 + 1 + 15 + 1 + 4 - 1] = 0x7E  # the second record's key length
    struct.pack_into(">I", middle, 17, crc32c(bytes(middle[21:])))
    assert refused(bytes(middle), every_record=True).code is ErrorCode.INVALID_RECORD


def test_few_records_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = {"_follow_run": 0, "_follow_gathered": 0, "_walk": 0}
    for name in followed:
        follow = getattr(record_check, name)

        def counted(
            *arguments: Any, name: str = name, follow: Callable[..., tuple[int, int]] = follow
        ) -> tuple[int, int]:
            done, at = follow(*arguments)
            followed[name] += done
            return done, at

        monkeypatch.setattr(record_check, name, counted)
    check(encode_batch([NewRecord(None, b"v" * 100, (), 1)] * 10_000))
    assert followed["_follow_run"] > 9900
    assert followed["_walk"] == 0
    followed.update(dict.fromkeys(followed, 0))
    rng = random.Random(5)
    check(encode_batch(records([rng.randrange(200) for _ in range(10_000)])))
    assert followed["_follow_gathered"] > 9900
    assert followed["_walk"] < 100


def deltas(*wanted: int, size: int = 20, timestamp: bytes = b"\0") -> bytes:
    """Records of one size that say these offset deltas."""
    bodies = [
        b"\0" + timestamp + zigzag(delta) + b"\1" + zigzag(size) + bytes(size) + b"\0" for delta in wanted
    ]
    return b"".join(zigzag(len(body)) + body for body in bodies)


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("count", [3, 20, 64, 65, 66, 1000, 8192, 8193, 20_000])
@pytest.mark.parametrize("size", [20, 56, 100, 600])
def test_an_offset_delta_out_of_order_is_refused_wherever_it_is(count: int, size: int, codec: int) -> None:
    """Two records at one offset: no position that is committed there means what it says."""
    payload = deltas(*range(count), size=size)
    packed = compress(Compression(codec), payload)
    check(with_payload(packed, count, codec))
    for wrong in {1, count // 2, count - 2}:
        for instead in (wrong - 1, wrong + 1, -1, 0 if wrong > 1 else 2):
            repeated = deltas(*range(wrong), instead, *range(wrong + 1, count), size=size)
            error = refused(with_payload(compress(Compression(codec), repeated), count, codec))
            assert error.code is ErrorCode.INVALID_RECORD
            assert "offset delta" in error.message


def test_a_million_records_with_repeated_deltas_are_refused() -> None:
    count = record_check.RECORDS_MAX
    payload = deltas(0, size=0) + deltas(1, size=0) * (count - 2) + deltas(count - 1, size=0)
    error = refused(with_payload(compress(Compression.ZSTD, payload), count, 4))
    assert error.code is ErrorCode.INVALID_RECORD
    assert "offset delta" in error.message
    check(with_payload(compress(Compression.ZSTD, deltas(*range(count), size=0)), count, 4))


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_changed_deltas_and_timestamps_are_judged_as_a_reader_sees_them(data: st.DataObject) -> None:
    """Whatever sizes records and timestamps have: taken if and only if a reader finds offsets one after the
    other."""
    count = data.draw(st.sampled_from([2, 5, 40, 70, 200, 300]))
    sizes = data.draw(st.lists(st.sampled_from([0, 10, 50, 55, 60, 100, 300, 9000]), min_size=1, max_size=5))
    times = data.draw(st.lists(st.sampled_from([0, 1, 63, 64, 9000, 10**6, 10**12]), min_size=1, max_size=5))
    made = [
        NewRecord(None, bytes(sizes[at * at % len(sizes)]), (), times[at % len(times)]) for at in range(count)
    ]
    batch = bytearray(encode_batch(made))
    check(bytes(batch))
    at = data.draw(st.integers(61, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    try:
        read = decode_batch(bytes(batch))
    except KafkaError:
        return
    if [record.offset for record in read] == list(range(count)):
        check(bytes(batch))
    else:
        assert refused(bytes(batch)).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("large", [300_000, 600_000])
def test_records_larger_than_a_window_are_followed_too(large: int) -> None:
    sizes = [10, large, 10, 20, large, *[30] * 50, 10]
    batch = encode_batch(records(sizes))
    check(batch)
    assert refused(with_payload(batch[61:-1], len(sizes))).code is ErrorCode.INVALID_RECORD
    assert refused(with_payload(batch[61:], len(sizes) + 1)).code is ErrorCode.INVALID_RECORD


def test_the_header_of_a_checked_batch_is_not_changed() -> None:
    batch = bytearray(encode_batch(records([5] * 40)))
    before = bytes(batch)
    check_records(memoryview(batch), 0, parse_header(batch))
    assert bytes(batch) == before


@pytest.mark.parametrize(
    ("batch_bytes", "max_message_bytes", "most"),
    [
        (100, 1_048_588, 16 << 20),  # however small
        (100, 10 << 20, 40 << 20),
        (20_000, 1_048_588, 1100 * 20_000),
        (1_000_000, 1_048_588, 64 << 20),
        (100, 100 << 20, 100 << 20),  # what may come uncompressed may come compressed
        (100, 1 << 30, 128 << 20),  # but no more than a reader takes
    ],
)
def test_what_a_batch_may_unfold_to(batch_bytes: int, max_message_bytes: int, most: int) -> None:
    assert record_check.unfolded_bytes_max(batch_bytes, max_message_bytes) == most


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize(
    ("value_bytes", "count"),
    [(100, 20_000), (1_000, 15_000), (10_000, 1_600), (1_000_000, 1), (1_000_000, 16)],
)
def test_what_a_producer_of_zeros_sends_is_taken(codec: Compression, value_bytes: int, count: int) -> None:
    batch = encode_batch([NewRecord(None, bytes(value_bytes), (), 1)] * count, compression=codec)
    most = record_check.unfolded_bytes_max(len(batch), 1_048_588)
    check_records(memoryview(batch), 0, parse_header(batch), most)


def test_beyond_that_only_what_zstd_does_to_nothing_but_zeros_is_refused() -> None:
    for codec, refused_at_50_mib in (
        (Compression.GZIP, False),
        (Compression.LZ4, False),
        (Compression.ZSTD, True),
    ):
        batch = encode_batch([NewRecord(None, bytes(50 << 20), (), 1)], compression=codec)
        most = record_check.unfolded_bytes_max(len(batch), 1_048_588)
        assert (most < 50 << 20) == refused_at_50_mib
