"""Old segments go, by time and by size, and nothing that is not decided and replicated."""

from __future__ import annotations

from dataclasses import replace

from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.cleaning.retention import apply_retention
from tidegate.storage.log.log import Log
from tidegate.storage.topic_config import CleanupPolicy

from .workload import FOLDER, NOW_MS, SMALL, append, append_marker, batch, marker, open_log, stored

HOUR_MS = 3_600_000


def filled(batches: int = 24, **config: object) -> Log:
    """Batches of 2 records, one an hour, the last one now; 4 or so a segment."""
    log = open_log(LyingDisk(), config=replace(SMALL, retention_ms=-1, **config))  # type: ignore[arg-type]
    for number in range(batches):
        append(log, batch(2, size=200, timestamp_ms=NOW_MS - (batches - 1 - number) * HOUR_MS))
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    return log


def retain(log: Log, now_ms: int = NOW_MS + 1) -> list[int]:
    return list(apply_retention(log, now_ms))


def configured(log: Log, **config: object) -> None:
    log.update_config(replace(log.config, **config))  # type: ignore[arg-type]


def test_a_segment_goes_when_its_youngest_record_is_too_old() -> None:
    log = filled()
    second = log.segments[2].base_offset
    youngest = log.segments[1].load_max_timestamp()
    configured(log, retention_ms=NOW_MS - youngest)
    retain(log, NOW_MS)
    assert log.log_start_offset < second  # exactly at the limit it stays
    retain(log, NOW_MS + 1)
    assert log.log_start_offset == second == log.segments[0].base_offset
    assert stored(log)[0].header.base_offset == second
    assert retain(log) == []


def test_a_young_segment_protects_older_ones_behind_it() -> None:
    log = filled()
    append(log, batch(2, size=1500, timestamp_ms=NOW_MS - 100 * HOUR_MS))
    append(log, batch(2, size=1500, timestamp_ms=NOW_MS - 100 * HOUR_MS))
    log.set_high_watermark(log.log_end_offset)
    configured(log, retention_ms=50 * HOUR_MS)
    assert retain(log) == []


def test_the_oldest_go_while_at_least_the_limit_is_left() -> None:
    log = filled()
    sizes = [each.size_bytes for each in log.segments]
    third = log.segments[2].base_offset
    configured(log, retention_bytes=sum(sizes[2:]) - 1)
    retain(log)
    assert log.log_start_offset == third
    assert log.size_bytes == sum(sizes[2:])
    configured(log, retention_bytes=sum(sizes[2:]) + 1)
    assert retain(log) == []


def test_nothing_goes_at_or_above_the_high_watermark() -> None:
    log = open_log(LyingDisk(), config=replace(SMALL, retention_ms=1, retention_bytes=0))
    for _ in range(24):
        append(log, batch(2, size=200, timestamp_ms=NOW_MS - HOUR_MS))
    middle = log.segments[2].base_offset + 1
    log.set_high_watermark(middle)
    retain(log)
    assert log.log_start_offset == log.segments[0].base_offset < middle


def test_nothing_goes_of_a_transaction_that_is_open() -> None:
    log = open_log(LyingDisk(), config=replace(SMALL, retention_ms=1))
    append(log, batch(2, size=200, timestamp_ms=NOW_MS - HOUR_MS))
    first = append(
        log, batch(1, pid=7, epoch=0, sequence=0, transactional=True, timestamp_ms=NOW_MS - HOUR_MS)
    ).first_offset
    for _ in range(24):
        append(log, batch(2, size=200, timestamp_ms=NOW_MS - HOUR_MS))
    log.set_high_watermark(log.log_end_offset)
    retain(log)
    assert log.log_start_offset <= first
    append_marker(log, marker(7, 1, commit=True))
    log.set_high_watermark(log.log_end_offset)
    retain(log, NOW_MS + 2)
    assert log.log_start_offset == log.log_end_offset


def test_a_log_without_writes_becomes_empty() -> None:
    log = filled()
    configured(log, retention_ms=HOUR_MS)
    end = log.log_end_offset
    retain(log, NOW_MS + 2 * HOUR_MS)
    assert (log.log_start_offset, log.size_bytes, len(log.segments)) == (end, 0, 1)
    assert append(log, batch()).first_offset == end


def test_compacted_topics_keep_everything_unless_they_are_both() -> None:
    compacted = frozenset({CleanupPolicy.COMPACT})
    log = filled(cleanup_policy=compacted)
    configured(log, retention_ms=1, retention_bytes=0)
    assert retain(log, NOW_MS + HOUR_MS) == []
    configured(log, cleanup_policy=compacted | {CleanupPolicy.DELETE})
    assert retain(log, NOW_MS + HOUR_MS)
    assert log.size_bytes == 0


def test_the_new_start_survives_a_restart_without_a_checkpoint() -> None:
    disk = LyingDisk()
    log = open_log(disk, config=replace(SMALL, retention_ms=HOUR_MS))
    for number in range(24):
        append(
            log, batch(2, size=200, timestamp_ms=NOW_MS + number * HOUR_MS), now_ms=NOW_MS + number * HOUR_MS
        )
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    steps = retain(log, NOW_MS + 23 * HOUR_MS)
    assert len(steps) > 3  # a segment a step
    disk.kill()
    again = open_log(disk, folder=FOLDER, recovery_point=log.recovery_point)
    assert again.log_start_offset == log.log_start_offset == steps[-1]
