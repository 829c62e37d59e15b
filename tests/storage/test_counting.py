"""Counts of committed records come from indexes, are exact, and read no data (docs/semantics.md X6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.storage.log_history import StorageHistory
from tidegate.runtime.disk import RealDisk, RealFile
from tidegate.storage.cleaning.cleaner import clean_now
from tidegate.storage.log import counting
from tidegate.storage.log.counting import AtCut, CountInvalidated, begin_count, count_now, count_stop
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.segment import count_file, count_index
from tidegate.storage.segment.count_index import CountIndex, CountIndexInvalid
from tidegate.storage.segment.segment import Segment
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import (
    Compression,
    ControlType,
    NewRecord,
    decode_batch,
    encode_batch,
    encode_marker,
)

from .cleaning_history import run_seed
from .test_histories import Compacted, first_broken
from .workload import FOLDER, NOW_MS, Model, append, append_marker, batch, marker, open_log, stored


def readable(log: Log) -> list[int]:
    """Offsets of what a read_committed consumer of the whole log gets, by decoding everything."""
    batches = stored(log)
    ended = Model(batches).ended
    found: list[int] = []
    for header, data in batches:
        void = header.is_transactional and any(
            pid == header.producer_id and first <= header.base_offset < at
            for pid, first, at, aborted in ended
            if aborted
        )
        if not header.is_control and not void:
            found += [record.offset for record in decode_batch(data)]
    return found


def check_everywhere(log: Log) -> None:
    low, high = log.log_start_offset, log.last_stable_offset
    offsets = readable(log)
    for start in range(low, high + 1):
        for end in {start, min(start + 1, high), min(start + 7, high), (start + high) // 2, high}:
            wanted = bisect_left(offsets, end) - bisect_left(offsets, start)
            assert count_now(log, start, end) == wanted, f"[{start}, {end})"


def fill(log: Log, *, rounds: int = 6) -> None:
    """Plain batches and interleaved transactions, every third aborted, over several segments."""
    for at in range(rounds):
        for pid in (1, 2):
            append(log, batch(2, pid=pid, epoch=at, sequence=0, transactional=True))
        append(log, batch(3))
        for pid in (2, 1):
            append(log, batch(1, pid=pid, epoch=at, sequence=2, transactional=True))
            append_marker(log, marker(pid, at + 1, commit=(at + pid) % 3 > 0))
    log.set_high_watermark(log.log_end_offset)


# ---- exact counts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_bytes", [1, 400, 1 << 20])
def test_markers_and_aborted_records_do_not_count_wherever_the_range_ends(
    run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_index, "RUN_BYTES", run_bytes)
    log = open_log(LyingDisk(), config=LogConfig(segment_bytes=1500, index_interval_bytes=10))
    fill(log)
    assert len(log.segments) > 2
    check_everywhere(log)


def readable_at_cut(log: Log, end: int, at_cut: AtCut) -> list[int]:
    """Offsets below `end` of what a reader of the whole log at a cut gets, by decoding everything."""
    committed = set(readable(log))
    return [
        record.offset
        for header, data in stored(log)
        if not header.is_control and at_cut.counts(header)
        for record in decode_batch(data)
        if record.offset < end and record.offset in committed
    ]


@pytest.mark.parametrize("only", [False, True])
def test_a_count_at_a_cut_leaves_out_what_was_decided_since(only: bool) -> None:
    """Also where the index knows the transaction no more, since its COMMIT marker is in the same segment."""
    log = open_log(LyingDisk(), config=LogConfig(segment_bytes=1500, index_interval_bytes=10))
    fill(log)
    assert len(log.segments) > 2
    firsts = [
        (header.producer_id, header.base_offset)
        for header, _ in stored(log)
        if header.is_transactional and not header.is_control
    ]
    high = log.last_stable_offset
    for left_out in ({1: firsts[0][1]}, dict(firsts[:1]), dict(firsts[6:8]), {1: 20, 2: 31}, {2: high - 3}):
        at_cut = AtCut(left_out, only)
        for end in (high, high - 4):
            offsets = readable_at_cut(log, end, at_cut)
            for start in range(0, end, 3):
                wanted = len(offsets) - bisect_left(offsets, start)
                assert count_now(log, start, end, at_cut=at_cut) == wanted, f"[{start}, {end})"
                found, position = 0, start
                while position < end:
                    stop = count_stop(log, position, end, at_cut)
                    found, position = found + count_now(log, position, stop, at_cut=at_cut), stop
                assert found == wanted, f"[{start}, {end}) in pieces"


def test_a_count_at_a_cut_goes_to_the_high_watermark() -> None:
    log = open_log(LyingDisk())
    append(log, batch(3))
    append(log, batch(2, pid=1, epoch=0, sequence=0, transactional=True))
    append(log, batch(4))
    log.set_high_watermark(9)
    assert count_now(log, 0, 9, at_cut=AtCut({1: 3})) == 7
    assert count_now(log, 0, 9, at_cut=AtCut({})) == 9
    assert count_now(log, 0, 9, at_cut=AtCut({1: 3}, only=True)) == 2
    with pytest.raises(KafkaError):
        begin_count(log, 0, 10, at_cut=AtCut({}))


def test_an_open_transaction_ends_what_can_be_counted() -> None:
    log = open_log(LyingDisk())
    append(log, batch(3))
    append(log, batch(2, pid=1, epoch=0, sequence=0, transactional=True))
    append(log, batch(4))
    log.set_high_watermark(9)
    assert count_now(log, 0, 3) == 3
    with pytest.raises(KafkaError) as refused:
        begin_count(log, 0, 4)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert count_now(log, 0, 9, committed=False) == 9


@pytest.mark.parametrize(("start", "end"), [(0, 5), (5, 4), (4, 100), (-1, 4)])
def test_a_range_that_is_not_there_is_refused(start: int, end: int) -> None:
    log = open_log(LyingDisk())
    fill(log)
    log.advance_log_start(3)
    with pytest.raises(KafkaError) as refused:
        begin_count(log, start, end)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    check_everywhere(log)


def test_an_abort_counts_for_segments_that_were_complete_long_before() -> None:
    log = open_log(LyingDisk(), config=LogConfig(segment_bytes=400, index_interval_bytes=10))
    for sequence in range(10):
        append(log, batch(1, pid=1, epoch=0, sequence=sequence, transactional=True))
        append(log, batch(1))
    log.flush_now()
    assert len(log.segments) > 3
    append_marker(log, marker(1, 1, commit=False))
    log.set_high_watermark(log.log_end_offset)
    assert count_now(log, 0, log.log_end_offset) == 10
    check_everywhere(log)


@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_a_follower_counts_transactions_of_one_fetch_apart(
    run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_index, "RUN_BYTES", run_bytes)
    leader, follower = open_log(LyingDisk()), open_log(LyingDisk())
    for epoch, commit in enumerate((False, True, False, False, True)):
        append(leader, batch(2, pid=1, epoch=epoch, sequence=0, transactional=True))
        append(leader, batch(1 + epoch, pid=1, epoch=epoch, sequence=2, transactional=True))
        append_marker(leader, marker(1, epoch + 1, commit=commit))
    append(leader, batch(3, pid=1, epoch=5, sequence=0, transactional=True))
    follower.append_follower(leader.read(0, 10_000, upper_offset=leader.log_end_offset).data)
    append_marker(leader, marker(1, 6, commit=False))
    follower.append_follower(
        leader.read(follower.log_end_offset, 10_000, upper_offset=leader.log_end_offset).data
    )
    for log in (leader, follower):
        log.set_high_watermark(log.log_end_offset)
        assert count_now(log, 0, log.log_end_offset) == 2 + 2 + 2 + 5
        check_everywhere(log)


COMPACTED = LogConfig(
    segment_bytes=1200, index_interval_bytes=10, cleanup_policy=frozenset({CleanupPolicy.COMPACT})
)


def keyed(
    numbers: list[int], *, compression: Compression = Compression.NONE, pid: int = -1, at: int = 0
) -> bytes:
    records = [NewRecord(b"k%d" % number, b"v" * 30, (), NOW_MS) for number in numbers]
    if pid < 0:
        return encode_batch(records, compression=compression)
    return encode_batch(
        records,
        compression=compression,
        producer_id=pid,
        producer_epoch=at,
        base_sequence=0,
        transactional=True,
    )


def compacted(disk: LyingDisk) -> Log:
    log = open_log(disk, config=COMPACTED)
    for at in range(14):
        append(log, keyed([at % 3, 10 + at, at % 5], compression=list(Compression)[at % 5]))
        append(log, keyed([at % 4, 40 + at], pid=9, at=at))
        append_marker(log, encode_marker_of(9, at + 1, aborted=at % 2 == 1))
    log.roll()
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    return log


def encode_marker_of(pid: int, epoch: int, *, aborted: bool) -> bytes:
    return encode_marker(ControlType.ABORT if aborted else ControlType.COMMIT, pid, epoch, 0, NOW_MS)


def test_what_compaction_has_removed_does_not_count_also_inside_of_batches() -> None:
    disk = LyingDisk()
    log = compacted(disk)
    before = count_now(log, 0, log.log_end_offset)
    assert clean_now(log, disk, NOW_MS) is not None
    after = count_now(log, 0, log.log_end_offset)
    assert after == sum(len(decode_batch(data)) for header, data in stored(log) if not header.is_control), (
        "aborted data is gone, so all that is left counts"
    )
    assert 0 < after < before
    check_everywhere(log)


def test_a_count_of_a_log_that_is_cleaned_meanwhile_is_made_again() -> None:
    disk = LyingDisk()
    log = compacted(disk)
    counting = begin_count(log, 0, log.log_end_offset)
    assert clean_now(log, disk, NOW_MS) is not None
    counting.run()
    with pytest.raises(CountInvalidated):
        counting.finish()
    check_everywhere(log)


def test_a_count_of_a_log_that_is_truncated_meanwhile_is_made_again() -> None:
    log = open_log(LyingDisk())
    fill(log)
    counting = begin_count(log, 0, log.log_end_offset - 1)
    log.truncate_to(log.log_end_offset - 1)
    with suppress(KafkaError):  # a walk that met the cut: not the disk's fault
        counting.run()
    with pytest.raises(CountInvalidated):
        counting.require_unchanged()


def test_a_count_in_pieces_is_the_whole_count() -> None:
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=300, index_interval_bytes=10))
    fill(log, rounds=12)
    log.close(clean=True)
    log = open_log(
        disk,
        config=log.config,
        clean=True,
        recovery_point=log.log_end_offset,
        high_watermark=log.log_end_offset,
    )
    assert len(log.segments) > 2 * counting.UNKNOWN_SEGMENTS_MAX
    start, end, found, pieces = 0, log.last_stable_offset, 0, 0
    while start < end:
        stop = count_stop(log, start, end)
        found, start, pieces = found + count_now(log, start, stop), stop, pieces + 1
    assert pieces > 2
    assert found == count_now(log, 0, end) == len(readable(log))
    assert count_stop(log, 0, end) == end, "what a piece has learnt stays known"


# ---- over several processes --------------------------------------------------------------------------------


def names(disk: LyingDisk) -> list[str]:
    return [name for name in disk.list_names(FOLDER) if name.endswith(".countindex")]


def reopened(disk: LyingDisk, log: Log, *, clean: bool) -> Log:
    end, watermark = log.log_end_offset, log.high_watermark
    log.close(clean=clean)
    disk.kill()
    point = end if clean else log.recovery_point
    return open_log(disk, config=log.config, clean=clean, recovery_point=point, high_watermark=watermark)


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_of_an_older_version_is_counted_and_keeps_what_it_learns(
    clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LyingDisk()
    log = open_log(disk)
    fill(log)
    log.flush_now()
    log.close(clean=clean)
    end, point = log.log_end_offset, log.recovery_point
    for name in names(disk):
        disk.remove(FOLDER / name)
    walked: list[int] = []
    build = counting.build_counts  # type: ignore[attr-defined]
    monkeypatch.setattr(
        counting, "build_counts", lambda file, base, *rest: walked.append(base) or build(file, base, *rest)
    )
    log = open_log(disk, clean=clean, recovery_point=end if clean else point, high_watermark=end)
    assert walked == [], "nothing is walked over before the first count"
    append(log, batch(3))  # the active segment goes on with a beginning that was never counted
    log.set_high_watermark(log.log_end_offset)
    check_everywhere(log)
    walks = len(walked)
    assert walks >= len(log.segments) - 1, "each segment is walked over once"
    assert len(set(walked)) == walks, "each segment is walked over once"
    append(log, batch(1, size=1500))
    append(log, batch(1, size=1500))
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    log = reopened(disk, log, clean=True)
    check_everywhere(log)
    assert len(walked) == walks, "what was learnt is on the disk"


@pytest.mark.parametrize("how", ["missing", "empty", "damaged", "flipped"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_count_index_that_is_not_right_is_built_again(how: str, clean: bool) -> None:
    disk = LyingDisk()
    log = open_log(disk)
    fill(log)
    log = reopened(disk, log, clean=clean)
    log.flush_now()
    log.close(clean=False)
    for at, name in enumerate(names(disk)):
        data = disk.read(FOLDER / name)
        if how == "missing" or not data:
            disk.remove(FOLDER / name)
        elif how == "flipped":
            where = Random(at).randrange(len(data))
            disk.write_atomic(FOLDER / name, data[:where] + bytes([data[where] ^ 4]) + data[where + 1 :])
        else:
            disk.write_atomic(FOLDER / name, b"" if how == "empty" else b"\xff" * 67)
    disk.kill()
    log = open_log(disk, recovery_point=log.recovery_point, high_watermark=log.log_end_offset)
    check_everywhere(log)


def test_after_a_clean_stop_counts_continue_from_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=3000, index_interval_bytes=10))
    fill(log)
    monkeypatch.setattr(counting, "build_counts", lambda *_: pytest.fail("headers were walked over"))
    log = reopened(disk, log, clean=True)
    append(log, batch(2))
    log.set_high_watermark(log.log_end_offset)
    counts = log.segments.active.counts
    assert counts is not None
    assert counts.is_whole
    check_everywhere(log)
    log = reopened(disk, log, clean=True)
    check_everywhere(log)


def test_a_truncation_takes_back_a_commit_that_was_counted() -> None:
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig(index_interval_bytes=10))
    append(log, batch(4))
    append(log, batch(2, pid=1, epoch=0, sequence=0, transactional=True))
    end = log.log_end_offset
    append_marker(log, marker(1, 1, commit=True))
    append(log, batch(1))
    log.truncate_to(end)
    append_marker(log, marker(1, 1, commit=False))
    append(log, batch(1))
    log.set_high_watermark(log.log_end_offset)
    assert count_now(log, 0, log.log_end_offset) == 5
    check_everywhere(log)


def test_a_truncation_takes_the_file_of_a_clean_close_back_too() -> None:
    """An abort takes the place of a commit: the size is the same, and so is the batch that the file names."""
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(4))
    append(log, batch(2, pid=1, epoch=0, sequence=0, transactional=True))
    append_marker(log, marker(1, 1, commit=True))
    size = log.size_bytes
    log = reopened(disk, log, clean=True)
    log.truncate_to(6)
    append_marker(log, marker(1, 1, commit=False))
    assert log.size_bytes == size
    log.set_high_watermark(log.log_end_offset)
    assert count_now(log, 0, log.log_end_offset) == 4
    log = reopened(disk, log, clean=True)
    assert count_now(log, 0, log.log_end_offset) == 4


def test_a_file_of_an_earlier_life_is_not_believed() -> None:
    """The size is the same, the batches are others: an older version, which does not know the file, may have
    cleaned the log."""
    logs = []
    for aborted in (True, False):
        disk = LyingDisk()
        log = open_log(disk)
        append(log, batch(2, pid=1, epoch=0, sequence=0, transactional=True))
        append_marker(log, marker(1, 1, commit=not aborted))
        append(log, batch(3))
        log = reopened(disk, log, clean=True)
        logs.append((disk, log))
    (one, _), (other, log) = logs
    name = names(one)[0]
    other.write_atomic(FOLDER / name, one.read(FOLDER / name)[:-1] + b"\x00")
    log.set_high_watermark(log.log_end_offset)
    assert count_now(log, 0, log.log_end_offset) == 5


def test_a_damaged_size_in_a_count_index_causes_no_huge_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{0:020d}.countindex"
    path.write_bytes(count_index.HEAD.pack(0, 1, 0, 100, 1, 0xFFFFFFFF, 1, 0, 0, 0))
    with reads(monkeypatch) as found, pytest.raises(CountIndexInvalid):
        count_file.load_total(RealDisk(), path, RealDisk().open(path), 0, 100)
    assert sum(found.values()) == count_index.HEAD.size


# ---- no data is read ---------------------------------------------------------------------------------------


@contextmanager
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Bytes that the disk port is asked for, by the kind of file."""
    found: dict[str, int] = {}
    read_at, read = RealFile.read_at, RealDisk.read

    def note(path: Path, data: bytes) -> bytes:
        found[path.suffix] = found.get(path.suffix, 0) + len(data)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(RealFile, "read_at", lambda self, *where: note(self.path, read_at(self, *where)))
        patch.setattr(RealDisk, "read", lambda self, path: note(path, read(self, path)))
        yield found


def large(folder: Path) -> Log:
    log = open_log(RealDisk(), folder=folder, config=LogConfig(segment_bytes=4 << 20))
    data = [batch(100, size=size) for size in (90, 300, 600)]
    for at in range(600):
        append(log, data[at % 3])
        if at % 10 == 0:
            append(log, batch(50, pid=1, epoch=at // 10, sequence=0, transactional=True))
            append_marker(log, marker(1, at // 10 + 1, commit=at % 20 == 0))
    log.set_high_watermark(log.log_end_offset)
    return log


def test_counting_a_whole_log_reads_none_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = large(tmp_path / "flights-0")
    assert log.size_bytes > 20e6
    assert len(log.segments) > 4
    end = log.last_stable_offset
    with reads(monkeypatch) as live:
        assert count_now(log, 0, end) == 600 * 100 + 30 * 50
    assert live == {}, "of what this process has appended, all totals are in memory"
    log.close(clean=True)
    log = open_log(
        RealDisk(),
        folder=tmp_path / "flights-0",
        config=log.config,
        clean=True,
        recovery_point=end,
        high_watermark=end,
    )
    with reads(monkeypatch) as first:
        assert count_now(log, 0, end) == 600 * 100 + 30 * 50
    assert first[".log"] < 100 * len(log.segments), (
        "one header of each segment, to see that the file is its own"
    )
    assert sum(first.values()) < 0.001 * log.size_bytes
    with reads(monkeypatch) as again:
        count_now(log, 0, end)
    assert set(again) <= {".log", ".countindex"}, "only the active segment is looked at again"
    assert sum(again.values()) < 5000, "only the active segment is looked at again"
    log.close(clean=False)


def test_the_ends_of_a_range_cost_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = large(tmp_path / "flights-0")
    end = log.last_stable_offset
    for start, stop in ((12_345, 12_346), (777, end - 333), (end // 3, end // 2)):
        with reads(monkeypatch) as found:
            counted = count_now(log, start, stop)
        assert counted > 0
        # At each end, the headers of 16 index intervals of batches (10 to 60 KB each), and of a transaction's
        # run.
        assert found.get(".log", 0) <= 2 * 60 * count_file.HEADER_READ_BYTES < 0.005 * log.size_bytes
    log.close(clean=False)


# ---- ablations ---------------------------------------------------------------------------------------------
# The histories check counts against a model that decodes everything
# (`chaos/sim/storage/count_checks.py`).


def test_the_lives_of_cleaned_logs_are_counted_right() -> None:
    for seed in range(4):
        check_everywhere(run_seed(seed).log)


@pytest.mark.parametrize("run_bytes", [1, 150])
def test_histories_hold_for_every_length_of_a_run(run_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_index, "RUN_BYTES", run_bytes)
    for seed in range(300):
        StorageHistory(seed, length=40).run()


def test_ablation_aborted_records_that_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_aborted", lambda *_: [])
    assert first_broken(StorageHistory) is not None


def test_ablation_counts_that_a_truncation_leaves_behind_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    truncate = Segment.truncate_to_position

    def forgetful(self: Segment, position: int, next_offset: int) -> None:
        counts = self.counts
        truncate(self, position, next_offset)
        self.counts = counts

    monkeypatch.setattr(Segment, "truncate_to_position", forgetful)
    assert first_broken(StorageHistory) is not None


@pytest.mark.parametrize("is_checked", [True, False])
def test_counts_newer_than_the_snapshot_are_not_used_for_those_below_it(
    monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    """A crash between the files of one flush: the count index is there, and its snapshot is not.  Ablation:
    unchecked."""
    monkeypatch.setattr("tidegate.storage.durability.flush.RESUME_BYTES", 1)
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig(index_interval_bytes=300))
    append(log, batch(4, pid=1, epoch=0, sequence=0))
    log.flush_now()
    snapshot = FOLDER / f"{4:020d}.snapshot"
    content = disk.read(snapshot)
    append(log, batch(5, pid=1, epoch=0, sequence=4))
    log.flush_now()
    disk.kill()
    disk.remove(FOLDER / f"{9:020d}.snapshot")
    disk.write_atomic(snapshot, content)
    if not is_checked:
        monkeypatch.setattr(count_file, "_check", lambda *_: None)
    again = open_log(disk, config=LogConfig(index_interval_bytes=300), recovery_point=4)
    again.set_high_watermark(9)
    assert (count_now(again, 0, 9) == 9) == is_checked


def test_ablation_appends_without_count_notes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "note_special_batch", Segment.note_batch)
    assert first_broken(StorageHistory) is not None


def test_ablation_transactions_over_an_end_of_the_range_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    below = CountIndex.below
    monkeypatch.setattr(CountIndex, "below", lambda self, *about: below(self, *about)._replace(void={}))
    assert first_broken(StorageHistory) is not None


def test_ablation_runs_without_open_transactions_at_segment_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = CountIndex.total
    monkeypatch.setattr(
        CountIndex, "total", lambda self, end: total(self, end)._replace(runs=tuple(self._runs))
    )
    assert first_broken(StorageHistory) is not None


def test_ablation_offset_gaps_that_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        counting,
        "_records_below",
        lambda _file, _at, header, offset: min(offset, header.next_offset) - header.base_offset,
    )
    assert first_broken(Compacted) is not None


def test_ablation_one_run_for_two_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = CountIndex.take

    def endless(self, header, *where):  # type: ignore[no-untyped-def]
        run = self._open.get(header.producer_id, [0] * 4)
        end = run[3]
        take(self, header, *where)
        run[3] = end

    monkeypatch.setattr(CountIndex, "take", endless)
    with pytest.raises(AssertionError):
        test_a_follower_counts_transactions_of_one_fetch_apart(1 << 20, monkeypatch)
