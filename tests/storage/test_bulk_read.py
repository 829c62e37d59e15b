"""A bulk read gives whole batches, in order, over segment borders, whatever offset and size it is asked
for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log import bulk_read
from tidegate.storage.log.bulk_read import begin_bulk_read
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, decode_batch, encode_batch, iterate_headers

OFFSETS = 400


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """400 offsets in batches of 1 to 7 records, one of them far larger than the index interval, in several
    segments."""
    config = LogConfig.from_topic_config(
        {"segment.bytes": "9000", "index.interval.bytes": "500", "flush.policy": "os"}
    )
    opened = Log.open(
        RealDisk(),
        tmp_path_factory.mktemp("log"),
        topic="t",
        partition=0,
        config=config,
        clean=False,
        recovery_point=0,
    )
    number = 0
    while opened.log_end_offset < OFFSETS:
        size = 3_000 if number == 30 else 20 + number % 50
        count = min(1 + number % 7, OFFSETS - opened.log_end_offset)
        batch = encode_batch(
            [NewRecord(None, str(opened.log_end_offset + n).encode().ljust(size)) for n in range(count)]
        )
        opened.append_leader(bytearray(batch), leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=0)
        number += 1
    assert len(opened.segments) > 3
    return opened


def read_all(log: Log, start: int, upper: int, max_bytes: int) -> list[int]:
    offsets: list[int] = []
    position = start
    while position < upper:
        data, following = begin_bulk_read(log, position, max_bytes, upper).run()
        assert following > position
        for at, header in iterate_headers(data):
            assert header.next_offset > position
            assert header.base_offset < upper
            offsets += [record.offset for record in decode_batch(data, at)]
        position = following
    return offsets


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, OFFSETS - 1),
    st.integers(1, OFFSETS),
    st.sampled_from([1, 100, 499, 500, 501, 2_000, 8_999, 9_000, 1 << 20]),
)
def test_every_offset_of_the_range_comes_once(log: Log, start: int, length: int, max_bytes: int) -> None:
    upper = min(OFFSETS, start + length)
    found = read_all(log, start, upper, max_bytes)
    assert [offset for offset in found if start <= offset < upper] == list(range(start, upper))
    assert len(found) == len(set(found))
    assert found[0] > start - 7
    assert found[-1] < upper + 7


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, OFFSETS - 1),
    st.integers(1, OFFSETS),
    st.sampled_from([1, 100, 500, 2_000, 9_000, 1 << 20]),
    st.sampled_from([1, 3, 1024]),
)
def test_what_is_located_is_what_is_read(
    log: Log, start: int, length: int, max_bytes: int, located_max: int
) -> None:
    upper = min(OFFSETS, start + length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_read, "LOCATED_MAX", located_max)
        found, following = begin_bulk_read(log, start, max_bytes, upper).locate()
    data = found.file.read_at(found.start, found.length)
    assert following > start
    whole, whole_following = begin_bulk_read(log, start, max_bytes, upper).run()
    batches = list(iterate_headers(data))
    assert batches == list(iterate_headers(whole))[: len(batches)]
    if len(batches) < located_max:
        assert (data, following) == (whole, whole_following)
    else:
        assert following == batches[-1][1].next_offset or data == whole


@pytest.mark.parametrize(("size", "found_at"), [(-100, 0), (-12, 0), (48, 0), (10_000, 0), (129, 141)])
def test_a_length_that_none_has_is_no_batch(tmp_path: Path, size: int, found_at: int) -> None:
    """Also where it would make a batch of no bytes, or leave too few for another one."""
    log = Log.open(
        RealDisk(), tmp_path, topic="t", partition=0, config=LogConfig.from_topic_config({}), clean=False,
        recovery_point=0,
    )  # fmt: skip
    log.append_leader(
        bytearray(encode_batch([NewRecord(b"k", b"v" * 100)])), leader_epoch=0, origin=AppendOrigin.CLIENT,
        now_ms=0,
    )  # fmt: skip
    read = begin_bulk_read(log, 0, 1000, 1)
    with open(read.file.path, "r+b") as file:
        file.seek(8)
        file.write(size.to_bytes(4, "big", signed=True))
    for look in (read.run, read.locate):
        with pytest.raises(KafkaError, match=f"no whole batch at byte {found_at} "):
            look()
    log.close(clean=True)


@pytest.mark.parametrize(("offset", "upper"), [(-1, 10), (OFFSETS, OFFSETS + 5), (10, 10)])
def test_offsets_that_are_not_there_are_out_of_range(log: Log, offset: int, upper: int) -> None:
    with pytest.raises(KafkaError) as caught:
        begin_bulk_read(log, offset, 1000, upper)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_bulk_read_of_a_truncated_file_fails_and_keeps_the_log_in_use(tmp_path: Path) -> None:
    log = Log.open(
        RealDisk(),
        tmp_path,
        topic="t",
        partition=0,
        config=LogConfig.from_topic_config({}),
        clean=False,
        recovery_point=0,
    )
    for _ in range(3):
        log.append_leader(
            bytearray(encode_batch([NewRecord(b"k", b"v" * 100)])),
            leader_epoch=0,
            origin=AppendOrigin.CLIENT,
            now_ms=0,
        )
    read = begin_bulk_read(log, 0, 1000, 3)
    log.truncate_to(1)
    for look in (read.run, read.locate):
        with pytest.raises(OSError, match="could be read"):
            look()
    assert not log.is_offline
    log.close(clean=True)
    with pytest.raises(OSError, match="171 of 513 bytes at 0 could be read"):
        read.run()
