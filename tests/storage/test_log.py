"""What a log promises to leaders, followers and readers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from crc32c import crc32c
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.storage.log.lookup import OffsetRange, max_timestamp, offset_for_timestamp, split_range
from tidegate.storage.topic_config import TimestampType
from tidegate.wire import record_check
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, decode_batch, encode_batch, parse_header, validate_batch

from .workload import FOLDER, NOW_MS, SMALL, append, append_marker, batch, marker, open_log, stored


@pytest.fixture
def log() -> Log:
    return open_log(LyingDisk())


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


# ---- appending ---------------------------------------------------------------------------------------------


def test_offsets_and_leader_epoch_are_stamped_outside_the_checksum(log: Log) -> None:
    for count in (1, 3):
        info = append(log, batch(count), leader_epoch=4)
    assert (info.first_offset, info.last_offset, info.next_offset, info.duplicate, info.append_time_ms) == (
        1,
        3,
        4,
        False,
        -1,
    )
    last = stored(log)[-1]
    assert (last.header.base_offset, last.header.partition_leader_epoch) == (1, 4)
    validate_batch(memoryview(last.data))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [10, 40_000])
def test_any_buffer_can_be_appended_and_a_read_only_one_stays_as_it_was(
    log: Log, kind: type, size: int
) -> None:
    data = batch(1, size=size)
    append(log, batch())
    append(log, kind(data), leader_epoch=2)
    assert data == batch(1, size=size)
    assert (stored(log)[-1].data[:8], stored(log)[-1].data[17:]) == (b"\0" * 7 + b"\1", data[17:])


def test_several_batches_are_appended_together(log: Log) -> None:
    info = append(log, batch(2) + batch(3) + batch(1))
    assert (info.first_offset, info.last_offset) == (0, 5)
    assert [each.header.base_offset for each in stored(log)] == [0, 2, 5]


def test_one_bad_batch_refuses_the_whole_append(log: Log) -> None:
    bad = bytearray(batch())
    bad[-1] ^= 1
    with refused(ErrorCode.CORRUPT_MESSAGE):
        append(log, batch(2) + bytes(bad))
    assert log.log_end_offset == 0
    assert log.size_bytes == 0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch() + b"\0", ErrorCode.CORRUPT_MESSAGE),
        (batch(1, size=2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (marker(7, 0, commit=True), ErrorCode.INVALID_RECORD),
        (batch(timestamp_ms=NOW_MS + 4_000_000), ErrorCode.INVALID_TIMESTAMP),
        (batch(pid=7, epoch=0), ErrorCode.INVALID_RECORD),
    ],
    ids=["empty", "short", "trailing", "large", "marker", "future", "no sequence"],
)
def test_bad_batches_of_clients_are_refused(log: Log, data: bytes, error: ErrorCode) -> None:
    with refused(error):
        append(log, data)
    assert log.log_end_offset == 0


def test_of_a_batch_from_another_time_the_records_at_fault_are_named(log: Log) -> None:
    """KIP-467.  Too many to be named, or unreadable ones: then the whole batch is at fault."""
    late, count = NOW_MS + 4_000_000, record_check.NAMED_MAX
    unreadable = encode_batch([NewRecord(None, b"v", (), late)], compression=Compression.GZIP)
    broken = bytearray(unreadable[:-8] + bytes(8))
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    for data, named in (
        (encode_batch([NewRecord(None, b"v", (), at) for at in (NOW_MS, late, 5, late)]), [1, 3]),
        (encode_batch([NewRecord(None, b"v", (), late)] * (count + 1)), []),
        (bytes(broken), []),
    ):
        with pytest.raises(KafkaError) as refusal:
            append(log, data)
        assert (refusal.value.code, list(refusal.value.records)) == (ErrorCode.INVALID_TIMESTAMP, named)


def test_an_append_of_an_older_leader_epoch_is_fenced(log: Log) -> None:
    append(log, batch(), leader_epoch=3)
    with refused(ErrorCode.FENCED_LEADER_EPOCH):
        append(log, batch(), leader_epoch=2)


def test_log_append_time_stamps_the_batch_and_its_checksum() -> None:
    log = open_log(LyingDisk(), config=LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    data = batch(2, pid=7, epoch=0, sequence=0, timestamp_ms=5)
    info = append(log, data, now_ms=NOW_MS + 9)
    again = append(log, data, now_ms=NOW_MS + 50)
    assert info.append_time_ms == again.append_time_ms == NOW_MS + 9
    assert again.duplicate
    (only,) = stored(log)
    validate_batch(memoryview(only.data))
    assert {record.timestamp_ms for record in decode_batch(only.data)} == {NOW_MS + 9}


def test_a_duplicate_returns_the_original_offsets_and_appends_nothing(log: Log) -> None:
    first = batch(3, pid=7, epoch=0, sequence=0)
    info = append(log, first)
    append(log, batch(2, pid=7, epoch=0, sequence=3))
    again = append(log, first)
    assert again.duplicate
    assert (again.first_offset, again.last_offset, again.next_offset) == (0, 2, 3)
    assert info[:2] == again[:2]
    assert log.log_end_offset == 5


def test_segments_roll_by_size_and_by_time() -> None:
    log = open_log(LyingDisk(), config=LogConfig(segment_bytes=1000, segment_ms=1000))
    for timestamp in (0, 500, 1000, 1001, 1002):
        append(log, batch(timestamp_ms=NOW_MS + timestamp))
    assert len(log.segments) == 2
    append(log, batch(size=3000))  # larger than a segment: gets one of its own
    append(log, batch())
    assert len(log.segments) == 4
    assert len(stored(log)) == 7


# ---- followers ---------------------------------------------------------------------------------------------


def test_a_follower_keeps_the_leaders_bytes() -> None:
    leader, follower = open_log(LyingDisk()), open_log(LyingDisk())
    for epoch in range(3):
        append(leader, batch(2, size=500), leader_epoch=epoch)
        append(leader, batch(1, pid=7, epoch=epoch, sequence=0), leader_epoch=epoch)
    append(leader, batch(1, pid=8, epoch=0, sequence=0, transactional=True), leader_epoch=2)
    append_marker(leader, marker(8, 1, commit=False), leader_epoch=2)
    while follower.log_end_offset < leader.log_end_offset:
        follower.append_follower(
            leader.read(follower.log_end_offset, 900, upper_offset=leader.log_end_offset).data
        )
    assert [each.data for each in stored(follower)] == [each.data for each in stored(leader)]
    assert follower.producers.as_comparable() == leader.producers.as_comparable()
    assert follower._epochs.entries() == leader._epochs.entries() == [(0, 0), (1, 3), (2, 6)]
    assert follower.aborted_transactions(0, 99) == leader.aborted_transactions(0, 99) != []


@pytest.mark.parametrize("offset", [0, 1, 3, 4])
def test_a_follower_refuses_gaps_and_overlaps(log: Log, offset: int) -> None:
    log.append_follower(batch(2, base_offset=0, leader_epoch=0))
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.append_follower(batch(1, base_offset=offset, leader_epoch=0))
    assert log.log_end_offset == 2


def test_a_follower_leaves_out_a_partial_batch_and_refuses_a_damaged_one(log: Log) -> None:
    first, second = batch(2, leader_epoch=0), batch(2, base_offset=2, leader_epoch=0)
    info = log.append_follower(first + second[:-5])
    assert info.next_offset == log.log_end_offset == 2
    assert log.append_follower(second[:30]).next_offset == 2
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.append_follower(second[:-1] + b"?")


# ---- reading -----------------------------------------------------------------------------------------------


def test_a_read_is_one_access_and_at_least_one_batch() -> None:
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig(index_interval_bytes=500))
    for size in (10, 3000, 10, 10, 400, 20_000, 10):
        append(log, batch(2, size=size))
    for offset in range(log.log_end_offset):
        for max_bytes in (0, 100, 1000, 10**6):
            disk.reads = 0
            result = log.read(offset, max_bytes, upper_offset=log.log_end_offset)
            assert disk.reads == 1
            assert result.first_offset == offset // 2 * 2
            first = parse_header(result.data).size_bytes
            assert len(result.data) <= max(max_bytes, first)


def test_reads_stop_below_the_upper_offset_and_refuse_offsets_outside(log: Log) -> None:
    for _ in range(5):
        append(log, batch(2))
    assert log.read(4, 10**6, upper_offset=4) == (b"", 4, 4)
    assert log.read(0, 10**6, upper_offset=4).next_offset == 4
    assert log.read(2, 10**6, upper_offset=5).next_offset == 4, (
        "a batch that reaches above the bound is not shown"
    )
    assert log.read(10, 10**6, upper_offset=10).data == b""
    assert log.read(0, 10, upper_offset=10, at_least_one_batch=False).data == b""
    for offset in (-1, 11):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read(offset, 100, upper_offset=10)


def test_aborted_transactions_are_found_across_segments(log: Log) -> None:
    append(log, batch(1, size=900, pid=7, epoch=0, sequence=0, transactional=True))
    append(log, batch(1, size=900, pid=8, epoch=0, sequence=0, transactional=True))
    for _ in range(4):
        append(log, batch(1, size=900))
    append_marker(log, marker(7, 1, commit=False))  # offset 6
    append_marker(log, marker(8, 1, commit=True))
    assert len(log.segments) >= 3
    assert log.aborted_transactions(0, 1) == [(7, 0, 6)] == log.aborted_transactions(5, 8)
    assert log.aborted_transactions(7, 8) == []


def test_the_last_stable_offset_waits_for_markers_to_be_replicated(log: Log) -> None:
    append(log, batch(2))
    append(log, batch(1, pid=7, epoch=0, sequence=0, transactional=True))
    append(log, batch(1))
    log.set_high_watermark(4)
    assert (log.last_stable_offset, log.producers.has_open_transaction(7)) == (2, True)
    append_marker(log, marker(7, 1, commit=True))
    assert (log.last_stable_offset, log.producers.has_open_transaction(7)) == (2, False)
    log.set_high_watermark(5)
    assert log.last_stable_offset == 5


def test_offsets_are_found_by_timestamp_also_when_they_come_out_of_order(log: Log) -> None:
    timestamps = [10, 50, 20, 90, 30, 90, 100, 5]
    for timestamp in timestamps:
        append(log, batch(2, size=300, timestamp_ms=NOW_MS + timestamp))
    every = [(NOW_MS + t + i, 2 * at + i) for at, t in enumerate(timestamps) for i in range(2)]
    for asked in range(110):
        expected = next(((t, o) for t, o in every if t >= NOW_MS + asked), None)
        found = offset_for_timestamp(log, NOW_MS + asked, log.log_end_offset)
        assert (found and found[:2]) == expected
    assert offset_for_timestamp(log, NOW_MS + 90, 6) is None
    greatest = max_timestamp(log)
    assert greatest is not None
    assert greatest[:2] == (NOW_MS + 101, 13)
    bounded = max_timestamp(log, upper_offset=13)
    assert bounded is not None
    assert bounded[:2] == (NOW_MS + 100, 12)


def test_ranges_cover_everything_once_at_batch_boundaries(log: Log) -> None:
    for size in (10, 500, 10, 10, 1500, 300, 10, 700, 10):
        append(log, batch(3, size=size))
    boundaries = {each.header.base_offset for each in stored(log)} | {2, 26, log.log_end_offset}

    def split(start: int, end: int, target: int) -> list[OffsetRange]:
        return [piece for pieces in split_range(log, start, end, target) for piece in pieces]

    for target in (1, 400, 2000, 10**9):
        pieces = split(2, 26, target)
        assert (pieces[0].start, pieces[-1].end) == (2, 26)
        assert all(left.end == right.start for left, right in itertools.pairwise(pieces))
        assert {offset for piece in pieces for offset in piece[:2]} <= boundaries
    assert split(5, 5, 100) == []
    assert len(split(0, 27, 10**9)) == 1


# ---- cutting -----------------------------------------------------------------------------------------------


def test_truncation_forgets_producers_epochs_and_aborts(log: Log) -> None:
    append(log, batch(2, pid=7, epoch=0, sequence=0), leader_epoch=0)
    append(log, batch(1, pid=8, epoch=0, sequence=0, transactional=True), leader_epoch=1)
    before = (log.producers.as_comparable(), log._epochs.entries(), log.size_bytes)
    append(log, batch(2, size=1500, pid=7, epoch=0, sequence=2), leader_epoch=2)
    append_marker(log, marker(8, 1, commit=False), leader_epoch=2)
    log.set_high_watermark(6)
    log.truncate_to(4)  # inside the batch at 3
    assert (log.producers.as_comparable(), log._epochs.entries(), log.size_bytes) == before
    assert (log.log_end_offset, log.high_watermark, log.aborted_transactions(0, 9)) == (3, 3, [])
    assert log.epoch_end(2) == (-1, -1)
    assert log.epoch_end(1) == (1, 3)
    append(log, batch(1, pid=7, epoch=0, sequence=2), leader_epoch=3)
    assert log.log_end_offset == 4


def test_a_log_can_be_restarted_elsewhere_and_is_empty(log: Log) -> None:
    for _ in range(20):
        append(log, batch(2, size=200), leader_epoch=1)
    log.flush_now()
    log.truncate_fully_and_start_at(1000)
    assert set(log.describe().values()) == {1000}
    assert log.latest_epoch == -1
    assert len(log.segments) == 1
    log.append_follower(batch(2, base_offset=1000, leader_epoch=5))
    assert stored(log)[0].header.base_offset == 1000


def test_the_log_start_moves_up_and_whole_segments_go() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    for _ in range(20):
        append(log, batch(2, size=200, pid=7, epoch=0, sequence=log.log_end_offset), leader_epoch=1)
    log.flush_now()
    log.set_high_watermark(30)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.advance_log_start(31)
    segments, size = len(log.segments), log.size_bytes
    log.advance_log_start(25)
    assert len(log.segments) < segments
    assert log.size_bytes < size
    assert log.log_start_offset == 25
    assert len(log.producers) == 1, "producers stay (docs/semantics.md I10)"
    assert stored(log)[0].header.base_offset == 24
    assert log.epoch_at(25) == 1
    assert log.epoch_at(24) == -1
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(24, 100, upper_offset=30)
    left = stored(log)
    disk.kill()
    again = open_log(disk, recovery_point=log.recovery_point, log_start_offset=25)
    assert again.log_start_offset == 25
    assert stored(again) == left


# ---- disk trouble ------------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_append_until_there_is_room() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(1, size=100))
    before = (log.describe(), disk.size(FOLDER / f"{0:020d}.log"))
    disk.capacity = before[1] + 100
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(log, batch(1, size=300))
    assert (log.describe(), disk.size(FOLDER / f"{0:020d}.log")) == before
    assert len(stored(log)) == 1
    assert not log.is_offline
    disk.capacity = None
    append(log, batch(1, size=300))
    assert [each.header.base_offset for each in stored(log)] == [0, 1]


def test_a_failed_write_that_cannot_be_undone_takes_the_log_offline() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    disk.capacity, disk.fail_truncate = 10, True
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(log, batch())
    disk.capacity, disk.fail_truncate = None, False
    assert log.is_offline
    for forbidden in (
        lambda: append(log, batch()),
        lambda: log.read(0, 1, upper_offset=0),
        log.begin_flush,
        lambda: log.truncate_to(0),
    ):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            forbidden()


def test_a_failed_sync_is_final() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch())
    disk.fail_sync = True
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.flush_now()
    disk.fail_sync = False
    assert log.is_offline
    assert log.flushed_end_offset == 0
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.flush_now()


def test_an_abort_whose_index_entry_does_not_fit_is_not_written_at_all() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(1, pid=7, epoch=0, sequence=0, transactional=True))
    disk.capacity = log.size_bytes + len(marker(7, 1, commit=False)) + 10
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append_marker(log, marker(7, 1, commit=False))
    assert log.producers.has_open_transaction(7)
    assert log.log_end_offset == 1
    assert log.aborted_transactions(0, 9) == []
    disk.capacity = None
    append_marker(log, marker(7, 1, commit=False))
    assert log.aborted_transactions(0, 9) == [(7, 0, 1)]
    assert len(stored(log)) == 2


# ---- flushing ----------------------------------------------------------------------------------------------


def test_a_flush_covers_what_was_there_when_it_began() -> None:
    log = open_log(LyingDisk())
    append(log, batch(2))
    ticket = log.begin_flush()
    append(log, batch(3))
    assert log.flushed_end_offset == 0
    assert log.has_unflushed_records
    ticket.run()
    assert log.flushed_end_offset == 0, "the flushed end moves on the loop's thread only"
    log.finish_flush(ticket)
    assert log.flushed_end_offset == 2
    assert log.has_unflushed_records


@pytest.mark.parametrize("ran", [False, True])
def test_a_flush_that_a_truncation_overtook_claims_nothing(ran: bool) -> None:
    log = open_log(LyingDisk())
    append(log, batch(4))
    ticket = log.begin_flush()
    if ran:
        ticket.run()
    log.truncate_to(0)
    append(log, batch(4, size=30))
    ticket.run()
    log.finish_flush(ticket)
    assert log.flushed_end_offset == 0
    log.flush_now()
    assert log.flushed_end_offset == 4


def test_the_recovery_point_waits_for_derived_files_that_do_not_fit() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(1, size=1500))
    append(log, batch(1, size=1500))
    disk.capacity = disk.used_bytes() + 5
    log.flush_now()
    assert log.flushed_end_offset == 2
    assert log.recovery_point == 0
    disk.capacity = None
    log.flush_now()
    assert log.recovery_point == 2


def test_a_log_on_the_real_disk_survives_a_restart(tmp_path: Path) -> None:
    disk = RealDisk()
    log = open_log(disk, folder=tmp_path / "flights-0", config=SMALL)
    for _ in range(30):
        append(log, batch(2, size=100, pid=7, epoch=0, sequence=log.log_end_offset))
    state, batches = log.producers.as_comparable(), stored(log)
    log.close(clean=True)
    again = open_log(disk, folder=tmp_path / "flights-0", clean=True, recovery_point=60)
    assert not again.recovered
    assert again.producers.as_comparable() == state
    assert stored(again) == batches
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.append_leader(batch(), leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
    again.close(clean=False)
