"""Segments change as a whole: a replacement that a crash interrupts leaves all old ones or the new one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk, PowerCut
from tidegate.storage.log.log import CorruptLog, Log, LogConfig
from tidegate.storage.recovery import recovery
from tidegate.storage.segment.segment import Segment
from tidegate.storage.segment.swap import swap_path
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.errors import KafkaError
from tidegate.wire.records import iterate_headers

from .workload import FOLDER, append, batch, open_log, stored

COMPACTED = LogConfig(
    segment_bytes=2000, index_interval_bytes=300, cleanup_policy=frozenset({CleanupPolicy.COMPACT})
)


def filled(disk: LyingDisk) -> Log:
    log = open_log(disk, config=COMPACTED)
    for _ in range(24):
        append(log, batch(2, size=200))
    assert len(log.segments) >= 4
    log.flush_now()
    return log


def clean(log: Log, disk: LyingDisk, old: list[Segment]) -> Segment:
    """Every other batch of `old`, as a cleaner might leave them."""
    new = log.segments.create_cleaned(old[0].base_offset, COMPACTED.index_interval_bytes)
    for segment in old:
        data = memoryview(segment.file.read_at(0, segment.size_bytes))
        for number, (position, header) in enumerate(iterate_headers(data)):
            if number % 2 == 0:
                new.append_batches(data[position : position + header.size_bytes])
    new.sync_cleaned(old[-1].next_offset)
    return new


def offsets(log: Log) -> list[int]:
    return [each.header.base_offset for each in stored(log)]


def reopened(disk: LyingDisk, end: int) -> Log:
    return open_log(disk, config=COMPACTED, recovery_point=end)


def test_a_replacement_keeps_offsets_and_survives_a_restart() -> None:
    disk = LyingDisk()
    log = filled(disk)
    old = log.segments[1:3]
    before, end, size = offsets(log), log.log_end_offset, log.size_bytes
    new = clean(log, disk, old)
    doomed = log.local.replacements.replace_now(old, new)
    after = offsets(log)
    assert set(after) < set(before)
    assert log.log_end_offset == end
    assert log.size_bytes < size
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments)
    for offset in range(log.log_start_offset, end):  # also in the gaps, also with small reads
        result = log.read(offset, 1, upper_offset=end)
        assert result.first_offset == max(
            [o for o in after if o <= offset < o + 2], default=-1
        ) or result.first_offset == min(o for o in after if o >= offset)
    for path in doomed:
        disk.remove(path)
    disk.crash(Random(0))
    again = reopened(disk, end)
    assert offsets(again) == after
    assert again.log_end_offset == end
    assert not [name for name in disk.list_names(FOLDER) if name.endswith((".swap", ".cleaned", ".deleted"))]


def crash_everywhere(power: bool, check: Callable[[list[int], list[int], list[int], bool], None]) -> int:
    """Interrupts a replacement at every changing operation; `check(found, before, after, was done)`.  Number
    of crashes."""
    for cut in range(1000):
        disk = LyingDisk()
        log = filled(disk)
        before, end = offsets(log), log.log_end_offset
        old = log.segments[1:3]
        new = clean(log, disk, old)
        lost = {h.base_offset for s in old for h in headers(s)} - {h.base_offset for h in headers(new)}
        disk.cut_after = cut
        done = False
        try:
            for path in log.local.replacements.replace_now(old, new):
                disk.remove(path)
            done = True
        except PowerCut:
            pass
        if power:
            disk.crash(Random(cut))
        else:
            disk.kill()
        for _ in range(2):  # what recovery did must stand a crash, too
            found = offsets(reopened(disk, end))
            check(found, before, [offset for offset in before if offset not in lost], done)
            disk.crash(Random(cut + 1))
        if done:
            return cut
    raise AssertionError("the replacement never ended")


def headers(segment: Segment):  # type: ignore[no-untyped-def]
    return [header for _, header in iterate_headers(memoryview(segment.file.read_at(0, segment.size_bytes)))]


def all_or_nothing(found: list[int], before: list[int], after: list[int], done: bool) -> None:
    assert found in ([after] if done else [before, after])


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_in_a_replacement_leaves_the_old_segments_or_the_new_one(power: bool) -> None:
    assert crash_everywhere(power, all_or_nothing) > 8


def test_ablation_unfinished_decided_swaps_mix_old_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "finish_swaps", lambda _disk, _directory: None)
    with pytest.raises((AssertionError, CorruptLog)):
        crash_everywhere(False, all_or_nothing)


def test_ablation_without_syncing_the_new_segment_its_data_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "sync_cleaned", lambda _segment, _end: None)
    with pytest.raises((AssertionError, KafkaError)):
        crash_everywhere(True, all_or_nothing)


def test_a_replacement_of_segments_that_were_truncated_changes_nothing() -> None:
    disk = LyingDisk()
    log = filled(disk)
    old = log.segments[1:3]
    new = clean(log, disk, old)
    log.truncate_to(old[1].base_offset)
    before = offsets(log)
    with pytest.raises(ValueError, match="the active segment is never replaced"):
        log.local.replacements.replace_now(old, new)
    with pytest.raises(ValueError, match="active"):
        log.local.replacements.replace_now(log.segments[-2:], new)
    assert offsets(log) == before
    assert not log.is_offline


def test_a_replacement_waits_until_the_old_segments_are_durable() -> None:
    disk = LyingDisk()
    log = filled(disk)
    append(log, batch(2, size=1500))
    log.roll()
    old = log.segments[-3:-1]
    with pytest.raises(ValueError, match="durable"):
        log.local.replacements.replace_now(old, clean(log, disk, old))


def test_a_full_disk_refuses_the_replacement_and_leaves_no_decision_behind() -> None:
    disk = LyingDisk()
    log = filled(disk)
    old, before = log.segments[1:3], offsets(log)
    new = clean(log, disk, old)
    disk.capacity = 0
    with pytest.raises(KafkaError):
        log.local.replacements.replace_now(old, new)
    assert offsets(log) == before
    assert not log.is_offline
    assert not disk.exists(swap_path(FOLDER, old[0].base_offset))
    disk.capacity = None
    log.local.replacements.replace_now(old, new)
    assert offsets(log) != before


def test_a_decision_that_cannot_be_read_takes_the_log_out_of_use() -> None:
    disk = LyingDisk()
    log = filled(disk)
    end = log.log_end_offset
    log.close(clean=False)
    disk.write_atomic(swap_path(FOLDER, 0), b"who knows")
    with pytest.raises(CorruptLog, match="swap"):
        reopened(disk, end)
