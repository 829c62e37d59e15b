"""A log start that was promised stands beside the log: it outlives a crash and a damaged checkpoint, and
hides nothing else."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.directory.folder_notes import PARTITION_CHECKPOINT
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.log.log_start import LOG_START, LogStart

from .workload import NOW_MS, append, batch, stored

DATA, ID = Path("/data"), UUID(int=7)
FILE = DATA / "t-0" / LOG_START
CHECKPOINT = DATA / PARTITION_CHECKPOINT
CONFIG = LogConfig()


def opened(disk: LyingDisk) -> tuple[LogDirectory, Log]:
    directory = LogDirectory(disk, DATA, "c", 1)
    report = directory.open_all(now_ms=NOW_MS)
    assert not report.failed
    return directory, directory.create("t", ID, 0, CONFIG, now_ms=NOW_MS)


def with_records(disk: LyingDisk, count: int = 10) -> tuple[LogDirectory, Log]:
    """Batches of one record, flushed, committed, in one segment."""
    directory, log = opened(disk)
    for _ in range(count):
        append(log, batch(1))
    log.flush_now()
    log.set_high_watermark(count)
    directory.sync_notes()
    return directory, log


def delete_below(log: Log, offset: int) -> None:
    log.advance_log_start(offset)
    log.local.start_note.want(offset)
    log.local.start_note.write()


def after_power_cut(disk: LyingDisk, directory: LogDirectory) -> Log:
    directory.close(clean=False)
    disk.crash(Random(1))
    return opened(disk)[1]


def offsets(log: Log) -> list[int]:
    return [each.header.base_offset for each in stored(log)]


def test_an_acknowledged_log_start_within_a_segment_survives_a_power_cut() -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    delete_below(log, 7)
    assert log.noted_start_offset == 7
    assert offsets(after_power_cut(disk, directory)) == [7, 8, 9]


def test_ablation_without_the_note_deleted_records_return() -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    log.advance_log_start(7)
    assert log.noted_start_offset == 0, "and no leader gets it before"
    assert offsets(after_power_cut(disk, directory)) == list(range(10))


@pytest.mark.parametrize("older", [False, True], ids=["noted", "of an older version"])
@pytest.mark.parametrize("content", [b"", b"junk"])
def test_a_damaged_checkpoint_brings_no_deleted_record_back_and_loses_none(
    older: bool, content: bytes
) -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    delete_below(log, 7)
    directory.close(clean=True, broker_epoch=1)
    if older:  # it had no such file: the first start with this version makes it
        disk.remove(FILE)
        opened(disk)[0].close(clean=True, broker_epoch=1)
    disk.put(CHECKPOINT, content)
    assert offsets(opened(disk)[1]) == [7, 8, 9]
    disk.remove(FILE)
    disk.put(CHECKPOINT, content)
    disk.kill()
    assert offsets(opened(disk)[1]) == list(range(10)), "the ablation"


@pytest.mark.parametrize("content", [b"", b"junk", b"1\n1\n9\ncrc32c 00000000\n"])
def test_a_damaged_note_leaves_it_to_the_checkpoint(content: bytes) -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    delete_below(log, 7)
    directory.write_checkpoints()
    directory.close(clean=False)
    disk.put(FILE, content)
    assert offsets(opened(disk)[1]) == [7, 8, 9]


def rewritten(disk: LyingDisk) -> list[int]:
    """Records below 7 are deleted, all from 4 on are cut, others come in their place; what a restart shows of
    them."""
    directory, log = with_records(disk)
    delete_below(log, 7)
    log.truncate_to(4)
    for _ in range(3):
        append(log, batch(1))
    log.flush_now()
    return offsets(after_power_cut(disk, directory))


def test_a_cut_below_the_start_hides_nothing_that_is_appended_later() -> None:
    assert rewritten(LyingDisk()) == [4, 5, 6]


def test_ablation_a_note_that_stays_above_a_truncation_hides_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogStart, "lower", lambda _self, _offset: None)
    assert rewritten(LyingDisk()) != [4, 5, 6]


def test_a_full_disk_keeps_no_note_above_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    delete_below(log, 7)
    write = disk.write_atomic

    def write_atomic(path: Path, data: bytes) -> None:
        if path.name == LOG_START:
            raise OSError(28, "no room", str(path))
        write(path, data)

    monkeypatch.setattr(disk, "write_atomic", write_atomic)
    log.truncate_to(4)
    assert not disk.exists(FILE)
    assert log.noted_start_offset == 4
    append(log, batch(1))
    log.flush_now()
    assert offsets(after_power_cut(disk, directory)) == [4]


def test_a_log_that_begins_anew_forgets_the_old_start() -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    delete_below(log, 7)
    log.truncate_fully_and_start_at(3)
    assert log.noted_start_offset == 3
    append(log, batch(1))
    log.flush_now()
    assert offsets(after_power_cut(disk, directory)) == [3]


def test_a_log_start_above_the_end_hides_no_later_append() -> None:
    """With flush.policy=os committed records may go."""
    disk = LyingDisk()
    directory, log = with_records(disk, 5)
    for _ in range(5):
        append(log, batch(1))
    log.set_high_watermark(10)
    delete_below(log, 9)
    log = after_power_cut(disk, directory)
    end = log.log_end_offset
    assert end < 9
    assert log.log_start_offset == end == log.noted_start_offset
    append(log, batch(1))
    log.flush_now()
    directory.close(clean=False)
    disk.crash(Random(1))
    assert offsets(opened(disk)[1]) == [end]


def test_a_waiting_write_notes_no_start_of_a_truncated_or_closed_log() -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    log.advance_log_start(7)
    log.local.start_note.want(7)
    log.truncate_to(4)
    log.local.start_note.write()
    assert not disk.exists(FILE)
    log.local.start_note.want(4)
    log.local.start_note.close()
    log.local.start_note.write()
    directory.delete("t", 0)
    log.local.start_note.write()
    assert not disk.exists(DATA / "t-0")


def test_a_truncation_waits_for_a_write_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk()
    directory, log = with_records(disk)
    log.advance_log_start(7)
    log.local.start_note.want(7)
    began, may_end = threading.Event(), threading.Event()
    write = disk.write_atomic

    def slowly(path: Path, data: bytes) -> None:
        if threading.current_thread() is thread:
            began.set()
            assert may_end.wait(20)
        write(path, data)

    monkeypatch.setattr(disk, "write_atomic", slowly)
    thread = threading.Thread(target=log.local.start_note.write)
    thread.start()
    assert began.wait(20)
    threading.Timer(0.05, may_end.set).start()
    log.truncate_to(4)
    thread.join(20)
    append(log, batch(1))
    log.flush_now()
    assert offsets(after_power_cut(disk, directory)) == [4]
