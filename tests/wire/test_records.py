"""Record batches: byte-compatible with two other implementations, and robust against every damaged batch."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from kafka.record.memory_records import MemoryRecordsBuilder as KafkaPythonBuilder
from tidegate.wire import records as module
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import (
    HEADER_BYTES,
    RECORDS_MAX,
    BatchHeader,
    ControlType,
    EncodedRecords,
    NewRecord,
    Record,
    assign_in_place,
    decode_batch,
    decode_marker,
    encode_batch,
    encode_marker,
    encode_records,
    iterate_headers,
    next_sequence,
    parse_header,
    set_log_append_time,
    validate_batch,
)

_bytes = st.none() | st.binary(max_size=300)
_headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3).map(
    tuple
)
_new_records = st.lists(
    st.builds(NewRecord, _bytes, _bytes, _headers, st.integers(0, 2**45)), min_size=1, max_size=8
)
_codecs = st.sampled_from(list(Compression))


def three_records() -> list[NewRecord]:
    return [
        NewRecord(b"k%d" % i, b"v" * 40, (("h", b"1"), ("n", None)) if i else (), 1_700_000_000_000 + i)
        for i in range(3)
    ]


def refused(
    batch: bytes | bytearray, *, from_client: bool = False, max_bytes: int | None = None
) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate_batch(memoryview(batch), 0, max_bytes, from_client=from_client)
    assert caught.value.message
    return caught.value.code


def patched(batch: bytes, position: int, format_: str, value: int, *, fix_crc: bool = True) -> bytearray:
    changed = bytearray(batch)
    struct.pack_into(format_, changed, position, value)
    if fix_crc:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return changed


# ---- encoding ----------------------------------------------------------------------------------------------


@given(records=_new_records, codec=_codecs, base_offset=st.integers(0, 2**40))
def test_records_come_back_as_they_were_written(
    records: list[NewRecord], codec: Compression, base_offset: int
) -> None:
    batch = encode_batch(records, base_offset=base_offset, compression=codec, leader_epoch=5)
    header = validate_batch(memoryview(batch), from_client=True)
    assert header == parse_header(batch)
    assert header.size_bytes == len(batch)
    assert header.compression is codec
    assert decode_batch(batch) == [
        Record(base_offset + i, r.timestamp_ms, r.key, r.value, tuple(r.headers))
        for i, r in enumerate(records)
    ]


@pytest.mark.parametrize(
    ("reader", "codec"),
    [
        *((AiokafkaRecords, codec) for codec in Compression),
        # it has no libraries for the others
        *((KafkaPythonRecords, codec) for codec in (Compression.NONE, Compression.GZIP)),
    ],
)
def test_other_clients_read_our_batches(reader: Callable[[bytes], object], codec: Compression) -> None:
    new = [
        NewRecord(
            b"key-%d" % i if i % 3 else None,
            b"v" * (i * 50) if i % 5 else None,
            (("h", b"x"),),
            10_000 + i * 70,
        )
        for i in range(200)
    ]
    records = reader(encode_batch(new, base_offset=77, compression=codec))
    batch = records.next_batch()  # type: ignore[attr-defined]
    assert batch.validate_crc()
    got = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert got == [(77 + i, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for i, r in enumerate(new)]


@pytest.mark.parametrize("codec", list(Compression))
def test_we_read_batches_of_another_client(codec: Compression) -> None:
    builder = AiokafkaBuilder(2, int(codec), 0, -1, -1, -1, 1 << 20)
    for i in range(200):
        builder.append(i, 10_000 + i, b"k%d" % i if i % 3 else None, b"v" * i, [("a", b"b")])
    batch = bytes(builder.build())
    assert validate_batch(memoryview(batch), from_client=True).record_count == 200
    assert decode_batch(batch)[7] == Record(7, 10_007, b"k7", b"v" * 7, (("a", b"b"),))


def test_a_batch_of_ours_equals_the_other_clients_byte_for_byte() -> None:
    builder = KafkaPythonBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    new = [NewRecord(b"k%d" % i, b"v" * i * 30, (("head", b"x"),), 10_000 + i * 99) for i in range(100)]
    for record in new:
        builder.append(
            timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=list(record.headers)
        )
    builder.close()
    theirs = bytearray(builder.buffer())
    assign_in_place(theirs, 0, 0, -1)
    assert bytes(theirs) == encode_batch(new)


def test_a_batch_needs_a_record() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


def in_one_piece(new: list[NewRecord]) -> EncodedRecords:
    """The header "%name%" has a name that is no UTF-8."""
    made, base_ms = EncodedRecords(), new[0].timestamp_ms
    payload, latest_ms = encode_records(new, 0, base_ms)
    made.append(payload.replace(b"%name%", b"n\xff\xfeam\xff"), len(new), base_ms, latest_ms)
    return made


@given(new=_new_records, cut=st.integers(0, 8))
def test_a_slice_of_encoded_records_has_their_bytes(new: list[NewRecord], cut: int) -> None:
    """Also those of a header's name that is no UTF-8: sent again in halves, it is the record that it was."""
    new = [each._replace(headers=(("%name%", b"1"), *each.headers)) for each in new]
    encoded = EncodedRecords()
    for number, each in enumerate(new):
        piece, latest_ms = encode_records([each], number, new[0].timestamp_ms)
        piece = piece.replace(b"%name%", b"n\xff\xfeam\xff")
        encoded.append(piece, 1, new[0].timestamp_ms, latest_ms)
    for part, wanted in ((encoded[:cut], new[:cut]), (encoded[cut:], new[cut:])):
        assert len(part) == len(wanted)
        if wanted:
            assert encode_batch(part) == encode_batch(in_one_piece(wanted))


@pytest.mark.parametrize("codec", list(Compression))
def test_a_header_name_that_is_no_utf8_has_replacement_characters(codec: Compression) -> None:
    """The records behind it are read, too."""
    new = [NewRecord(b"k", b"v", (("%name%", b"x"),), 5), NewRecord(b"k", b"w", (), 5)]
    first, second = decode_batch(encode_batch(in_one_piece(new), compression=codec))
    assert first.headers == (("n\ufffd\ufffdam\ufffd", b"x"),)
    assert second.value == b"w"


def test_timestamps_before_the_first_and_far_apart_survive() -> None:
    moments = [5_000_000_000_000, 0, -1, 4_999_999_999_999, 9_000_000_000_000]
    batch = encode_batch([NewRecord(None, b"", (), moment) for moment in moments])
    assert [record.timestamp_ms for record in decode_batch(batch)] == moments
    assert parse_header(batch).max_timestamp == max(moments)


# ---- header ------------------------------------------------------------------------------------------------


def test_sequences_wrap_to_zero_after_the_largest_int32() -> None:
    header = parse_header(
        encode_batch(three_records(), producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    )
    assert header.last_sequence == 0
    assert next_sequence(header.last_sequence) == 1
    assert next_sequence(2**31 - 1) == 0
    assert parse_header(encode_batch(three_records())).last_sequence == -1


def test_attributes_are_distinguished() -> None:
    plain = parse_header(encode_batch(three_records()))
    assert not (plain.is_transactional)
    assert not (plain.is_control)
    assert not (plain.has_producer_id)
    assert not (plain.is_log_append_time)
    batch = encode_batch(
        three_records(), producer_id=9, producer_epoch=2, base_sequence=0, transactional=True
    )
    header = parse_header(batch)
    assert header.is_transactional
    assert header.has_producer_id
    assert not header.is_control
    assert (header.last_offset, header.next_offset) == (2, 3)


def test_assigning_offset_and_epoch_leaves_the_checksum_valid() -> None:
    batch = bytearray(encode_batch(three_records()))
    view = memoryview(b"123" + batch)
    writable = memoryview(bytearray(view))
    assign_in_place(writable, 3, 12_345_678_901, 42)
    header = validate_batch(writable, 3)
    assert (header.base_offset, header.partition_leader_epoch) == (12_345_678_901, 42)
    assert [record.offset for record in decode_batch(writable, 3)] == [12_345_678_901 + i for i in range(3)]


@pytest.mark.parametrize("codec", list(Compression))
def test_log_append_time_replaces_every_records_timestamp(codec: Compression) -> None:
    batch = memoryview(bytearray(encode_batch(three_records(), compression=codec)))
    set_log_append_time(batch, 0, 999)
    assert validate_batch(batch).is_log_append_time
    assert [record.timestamp_ms for record in decode_batch(batch)] == [999] * 3
    assert [r.timestamp for r in AiokafkaRecords(bytes(batch)).next_batch()] == [999] * 3


def test_iteration_yields_whole_batches_and_stops_at_a_partial_tail() -> None:
    one, two = encode_batch(three_records()), encode_batch(three_records()[:1], base_offset=3)
    data = one + two + one[:-1]
    assert [(at, header.base_offset) for at, header in iterate_headers(data)] == [(0, 0), (len(one), 3)]
    assert list(iterate_headers(b"")) == []
    assert list(iterate_headers(one[:60])) == []


@pytest.mark.parametrize("length", [0, -1, 48, -(2**31)])
def test_iteration_over_a_senseless_length_ends_with_an_error(length: int) -> None:
    data = patched(encode_batch(three_records()), 8, ">i", length)
    with pytest.raises(KafkaError) as caught:
        list(iterate_headers(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


# ---- validation --------------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_refused() -> None:
    batch = encode_batch(three_records())
    assert refused(patched(batch, len(batch) - 2, ">B", 7, fix_crc=False)) is ErrorCode.CORRUPT_MESSAGE


def test_the_checksum_test_notices_a_missing_check(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode_batch(three_records())
    damaged = patched(batch, len(batch) - 2, ">B", 7, fix_crc=False)
    monkeypatch.setattr(module, "crc32c", lambda _: parse_header(damaged).crc)
    validate_batch(memoryview(damaged))


@pytest.mark.parametrize(
    ("position", "format_", "value", "code"),
    [
        (16, ">b", 1, ErrorCode.INVALID_RECORD),
        (16, ">b", 3, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", 10_000, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", 2**31 - 1, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", 20, ErrorCode.CORRUPT_MESSAGE),
        (8, ">i", -12, ErrorCode.CORRUPT_MESSAGE),
        (21, ">h", 5, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (21, ">h", 7, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (57, ">i", -1, ErrorCode.INVALID_RECORD),
        (57, ">i", 4, ErrorCode.INVALID_RECORD),
        (23, ">i", -5, ErrorCode.INVALID_RECORD),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(
    position: int, format_: str, value: int, code: ErrorCode
) -> None:
    assert refused(patched(encode_batch(three_records()), position, format_, value)) is code


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_a_batch_may_not_claim_more_records_than_could_be_in_it(codec: Compression) -> None:
    batch = patched(encode_batch(three_records(), compression=codec), 23, ">i", 2**31 - 2)
    batch = patched(bytes(batch), 57, ">i", 2**31 - 1)
    assert refused(batch) is ErrorCode.INVALID_RECORD
    batch = patched(bytes(batch), 57, ">i", RECORDS_MAX if codec else 100)
    if codec:
        validate_batch(memoryview(batch))
    else:
        assert refused(batch) is ErrorCode.INVALID_RECORD


def test_a_batch_above_the_bound_is_too_large() -> None:
    batch = encode_batch(three_records())
    assert refused(batch, max_bytes=len(batch) - 1) is ErrorCode.MESSAGE_TOO_LARGE
    validate_batch(memoryview(batch), 0, len(batch))


@pytest.mark.parametrize("size", [0, 1, 12, 60])
def test_bytes_that_are_too_few_for_a_header_are_refused(size: int) -> None:
    assert refused(encode_batch(three_records())[:size]) is ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(KafkaError):
        parse_header(encode_batch(three_records())[:size])


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (encode_marker(ControlType.COMMIT, 1, 0, 0, 5), "control"),
        (bytes(patched(encode_batch(three_records()), 57, ">i", 2)), "gaps"),
        (bytes(patched(encode_batch(three_records()), 57, ">i", 0)), "no record"),
        (encode_batch(three_records(), producer_id=5, producer_epoch=0, base_sequence=-1), "sequence"),
        (encode_batch(three_records(), producer_id=5, producer_epoch=-1, base_sequence=0), "epoch"),
        (encode_batch(three_records(), transactional=True), "transactional"),
    ],
)
def test_what_only_brokers_may_write_is_refused_only_from_clients(batch: bytes, why: str) -> None:
    assert refused(batch, from_client=True) is ErrorCode.INVALID_RECORD, why
    validate_batch(memoryview(batch))


# ---- damage ------------------------------------------------------------------------------------------------


def try_everything(data: bytes) -> None:
    """Every reader answers with a value or a KafkaError."""
    view = memoryview(data)
    for read in (
        parse_header,
        validate_batch,
        decode_batch,
        decode_marker,
        lambda v: list(iterate_headers(v)),
    ):
        try:
            read(view)
        except KafkaError as error:
            assert error.code in (
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_RECORD,
                ErrorCode.MESSAGE_TOO_LARGE,
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            )


@settings(max_examples=300)
@given(records=_new_records, codec=_codecs, data=st.data())
def test_a_damaged_batch_gives_an_error_or_records_but_no_other_exception(
    records: list[NewRecord], codec: Compression, data: st.DataObject
) -> None:
    batch = bytearray(
        encode_batch(records, compression=codec, producer_id=3, producer_epoch=0, base_sequence=0)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["byte", "cut", "grow", "int"]))
        at = data.draw(st.integers(0, max(0, len(batch) - 1)))
        if kind == "byte" and batch:
            batch[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del batch[at:]
        elif kind == "grow":
            batch[at:at] = data.draw(st.binary(max_size=12))
        elif len(batch) >= at + 4:
            struct.pack_into(">i", batch, at, data.draw(st.sampled_from([-1, 0, 2**31 - 1, -(2**31)])))
    try_everything(bytes(batch))


@settings(max_examples=300)
@given(records=_new_records, data=st.data())
def test_damage_below_a_valid_checksum_gives_an_error_or_records(
    records: list[NewRecord], data: st.DataObject
) -> None:
    batch = bytearray(encode_batch(records))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 2])
        )
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    validate_batch(memoryview(batch))
    try_everything(bytes(batch))


@given(st.binary(max_size=200))
def test_garbage_gives_an_error(data: bytes) -> None:
    try_everything(data)


def test_a_record_whose_inside_leads_beyond_its_length_is_refused() -> None:
    whole = bytearray(encode_batch([NewRecord(b"a", b"bbbb", (), 0), NewRecord(b"a", b"bbbb", (), 0)]))
    whole[HEADER_BYTES + 6] += 2  # the first record's value reaches into the second record
    with pytest.raises(KafkaError) as caught:
        decode_batch(whole)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD, Compression.LZ4, Compression.SNAPPY])
def test_a_compressed_batch_that_claims_millions_of_records_costs_nothing(codec: Compression) -> None:
    batch = patched(encode_batch(three_records(), compression=codec), 57, ">i", RECORDS_MAX)
    batch = patched(bytes(batch), 23, ">i", RECORDS_MAX - 1)
    validate_batch(memoryview(batch))
    began = time.monotonic()
    with pytest.raises(KafkaError):
        decode_batch(batch)
    assert time.monotonic() - began < 1


def test_decompression_in_a_batch_is_bounded() -> None:
    batch = encode_batch([NewRecord(None, bytes(1_000_000), (), 0)], compression=Compression.ZSTD)
    with pytest.raises(KafkaError) as caught:
        decode_batch(batch, max_bytes=100_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


# ---- markers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control_type", list(ControlType))
def test_a_marker_is_a_transactional_control_batch_of_one_offset(control_type: ControlType) -> None:
    batch = bytearray(encode_marker(control_type, 4000, 7, 12, 1_700_000_000_000))
    assign_in_place(batch, 0, 100, 3)
    header = validate_batch(memoryview(batch))
    assert header.is_control
    assert header.is_transactional
    assert header.record_count == 1
    assert header.base_sequence == -1
    assert (header.last_offset, header.producer_id, header.producer_epoch) == (100, 4000, 7)
    marker = decode_marker(batch)
    assert marker == (control_type, 12, 4000, 7, 100, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("control_type", "key"), [(ControlType.ABORT, b"\0\0\0\0"), (ControlType.COMMIT, b"\0\0\0\1")]
)
def test_aiokafka_reads_a_marker_as_we_mean_it(control_type: ControlType, key: bytes) -> None:
    batch = AiokafkaRecords(encode_marker(control_type, 4000, 7, 12, 5)).next_batch()
    assert batch.is_control_batch
    assert batch.is_transactional
    assert next(iter(batch)).key == key


def test_a_control_record_of_an_unknown_type_is_ignored() -> None:
    record = NewRecord(struct.pack(">hh", 0, 7), b"whatever", (), 0)
    assert decode_marker(encode_batch([record], control=True, transactional=True)) is None


def test_an_emptied_control_batch_is_no_marker() -> None:
    batch = bytearray(encode_marker(ControlType.COMMIT, 1, 1, 1, 1)[:HEADER_BYTES])
    struct.pack_into(">i", batch, 8, HEADER_BYTES - 12)
    struct.pack_into(">i", batch, 57, 0)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    assert validate_batch(memoryview(batch)).record_count == 0
    assert decode_marker(batch) is None


@pytest.mark.parametrize(
    "record",
    [NewRecord(None, b"x", (), 0), NewRecord(b"\0\0", b"x", (), 0), NewRecord(b"\0\0\0\1", b"\0", (), 0)],
)
def test_a_marker_without_type_or_epoch_is_refused(record: NewRecord) -> None:
    with pytest.raises(KafkaError) as caught:
        decode_marker(encode_batch([record], control=True))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_data_batch_is_no_marker() -> None:
    with pytest.raises(KafkaError):
        decode_marker(encode_batch(three_records()))


def test_the_header_struct_has_the_documented_layout() -> None:
    values = BatchHeader(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    assert parse_header(struct.pack(">qiibIhiqqqhii", *values)) == values
