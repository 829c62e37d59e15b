"""What is noted of a log's ends never leads what a restart finds: gaps, removals that wait, histories that
are gone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.epoch_cache import EPOCH_CHECKPOINT
from tidegate.storage.log.hooks import DETACHED
from tidegate.storage.log.log import CorruptLog, Log, LogConfig
from tidegate.storage.segment.transaction_index_file import TransactionIndexFile
from tidegate.storage.topic_config import CleanupPolicy

from .workload import FOLDER, SMALL, append, append_marker, batch, marker, open_log, stored

COMPACTED = LogConfig(index_interval_bytes=300, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def refused_after_a_power_cut(*, forgetful: bool) -> int:
    """Of 40: retention takes segments that were never flushed, their removal waits, the rest is flushed, the
    power goes."""
    refused = 0
    for seed in range(40):
        disk = LyingDisk()
        log = open_log(disk)
        # taken over, and never run
        log.local.attach(replace(DETACHED, in_background=lambda _work, _done: True))
        for _ in range(12):
            append(log, batch(2, size=300))
        log.set_high_watermark(log.log_end_offset)
        log.roll()
        log.advance_log_start(log.segments[2].base_offset)
        if forgetful:
            log.local.durability.waits.removed_unflushed.clear()
        log.flush_now()
        flushed = log.flushed_end_offset
        disk.crash(Random(seed))
        try:
            assert open_log(disk, recovery_point=1, flushed_end=flushed).log_end_offset >= flushed
        except CorruptLog:
            refused += 1
    return refused


def test_a_flush_vouches_for_segments_on_their_way_off_the_disk_too() -> None:
    assert not refused_after_a_power_cut(forgetful=False)


def test_ablation_a_flush_that_forgets_them_makes_logs_that_do_not_open() -> None:
    assert refused_after_a_power_cut(forgetful=True)


@pytest.mark.parametrize("more", [0, 1])
def test_a_roll_behind_a_hole_notes_no_end_that_a_restart_does_not_find(more: int) -> None:
    """A compacted log is cut into a gap, and rolls before a flush; then its flushed end is noted, and the
    process dies."""
    disk = LyingDisk()
    log = open_log(disk, config=COMPACTED)
    for base in (0, 6, 12):
        log.append_follower(batch(2, base_offset=base))
    log.flush_now()
    log.truncate_to(12)
    for at in range(more):
        log.append_follower(batch(1, base_offset=12 + at))
    log.roll() if log.segments.active.size_bytes else None
    noted: list[int] = []
    log.local.attach(replace(DETACHED, flushed=noted.append))
    log.report_flushed()
    disk.kill()
    again = open_log(disk, config=COMPACTED, recovery_point=log.recovery_point, flushed_end=noted[-1])
    assert again.log_end_offset >= noted[-1]
    assert len(stored(again)) == 2 + more


def test_a_log_that_begins_anew_has_no_offset_gap_at_its_end() -> None:
    """It was cut into a gap, and begins anew at that very end: no last batch ends below it any more."""
    log = open_log(LyingDisk(), config=COMPACTED)
    for base in (0, 6, 12):
        log.append_follower(batch(2, base_offset=base))
    log.flush_now()
    log.truncate_to(12)
    assert (log.recovery_point, log.log_end_offset) == (8, 12)
    log.truncate_fully_and_start_at(12)
    assert (log.log_start_offset, log.recovery_point, log.flushed_end_offset) == (12, 12, 12)


def test_after_a_clean_stop_the_log_start_is_not_above_the_end() -> None:
    """It stood in a gap that was cut: what is appended there must be readable."""
    disk = LyingDisk()
    log = open_log(disk, config=COMPACTED)
    for base in (0, 5, 10):
        log.append_follower(batch(2, base_offset=base))
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(9)
    log.truncate_to(9)
    log.close(clean=True)
    disk.kill()
    again = open_log(
        disk, config=COMPACTED, clean=True, recovery_point=7, log_start_offset=9, high_watermark=9
    )
    assert again.log_start_offset <= again.log_end_offset == 7
    append(again, batch(1), leader_epoch=3)
    assert again.read(again.log_start_offset, 1000, upper_offset=8).first_offset == 7


def with_epochs() -> tuple[LyingDisk, Log]:
    disk = LyingDisk()
    log = open_log(disk)
    for turn in range(9):
        append(log, batch(2, size=300), leader_epoch=turn // 3)
        append(log, batch(1, pid=5, epoch=turn, sequence=0, transactional=True), leader_epoch=turn // 3)
        append_marker(log, marker(5, turn + 1, commit=False), leader_epoch=turn // 3)
    log.flush_now()
    return disk, log


@pytest.mark.parametrize("clean", [True, False])
def test_a_history_of_epochs_that_is_gone_is_built_again(clean: bool) -> None:
    """Followers would get ends that never existed, and keep records that they must truncate
    (docs/semantics.md E3)."""
    disk, log = with_epochs()
    ends, end, latest = [log.epoch_end(epoch) for epoch in range(4)], log.log_end_offset, log.latest_epoch
    if clean:
        log.close(clean=True)
    disk.kill()
    disk.remove(FOLDER / EPOCH_CHECKPOINT)
    again = open_log(disk, clean=clean, recovery_point=end)
    assert [again.epoch_end(epoch) for epoch in range(4)] == ends
    assert again.latest_epoch == latest == 2


def test_a_log_without_its_segment_is_refused_if_snapshots_know_producers() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(2, pid=1, epoch=0, sequence=0))
    log.flush_now()
    log.set_high_watermark(2)
    log.roll()
    log.flush_now()
    log.advance_log_start(2)
    disk.kill()
    disk.remove(log.segments.active.path("log"))
    with pytest.raises(CorruptLog, match="snapshots"):
        open_log(disk, config=SMALL, recovery_point=2, log_start_offset=2)


def test_an_entry_written_while_a_flush_begins_is_synced_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flush's thread takes the flag down between the entry's first step and its write."""
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(1, pid=7, epoch=0, sequence=0, transactional=True))
    segment = log.segments.active
    to_write = segment.aborted._file_to_write

    def overtaken():  # type: ignore[no-untyped-def]
        file = to_write()
        segment.aborted.is_dirty = False  # a flush that began before the entry was written
        return file

    monkeypatch.setattr(TransactionIndexFile, "_file_to_write", lambda _self: overtaken())
    append_marker(log, marker(7, 1, commit=False))
    log.flush_now()
    right = log.aborted_transactions(0, log.log_end_offset)
    assert right
    disk.crash(Random(4))
    again = open_log(disk, recovery_point=log.recovery_point)
    assert again.aborted_transactions(0, again.log_end_offset) == right
