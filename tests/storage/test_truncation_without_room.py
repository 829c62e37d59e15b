"""A cut that meets a full disk is refused, and nothing is cut; when there is room it is done.  A crash
changes nothing there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.storage.log_history import StorageHistory
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.log.health import Health
from tidegate.storage.log.log import Log, LogConfig
from tidegate.wire.errors import ErrorCode, KafkaError

from .test_histories import first_broken
from .workload import NOW_MS, append, batch, stored

DATA, TOPIC = Path("/data"), UUID(int=7)
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300)
CUTS: dict[str, Callable[[Log], None]] = {
    "into the active segment": lambda log: log.truncate_to(57),
    "into an older segment": lambda log: log.truncate_to(7),
    "to nothing": lambda log: log.truncate_to(0),
    "begun anew behind": lambda log: log.truncate_fully_and_start_at(500),
    "begun anew within": lambda log: log.truncate_fully_and_start_at(20),
}


def opened(disk: LyingDisk) -> LogDirectory:
    directory = LogDirectory(disk, DATA, "c", 1)
    report = directory.open_all(now_ms=NOW_MS)
    assert not report.failed, report.failed
    return directory


def written(disk: LyingDisk) -> tuple[LogDirectory, Log]:
    directory = opened(disk)
    log = directory.create("t", TOPIC, 0, CONFIG, now_ms=NOW_MS)
    for at in range(30):
        append(log, batch(2, pid=7, epoch=0, sequence=2 * at, size=60), leader_epoch=at // 7)
    log.flush_now()
    directory.write_checkpoints()
    log.set_high_watermark(40)
    return directory, log


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_truncation_is_refused_or_done_with_any_amount_of_room(cut: Callable[[Log], None]) -> None:
    refused = 0
    for room in range(0, 180, 7):
        for crash in (False, True):
            disk = LyingDisk()
            directory, log = written(disk)
            before, epochs = stored(log), [log.epoch_at(offset) for offset in range(60)]
            disk.capacity = disk.used_bytes() + room
            try:
                cut(log)
            except KafkaError as error:
                refused += 1
                assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
                assert "truncation" in error.message
                assert not log.is_offline
                assert not directory.is_offline
                assert stored(log) == before
                assert [log.epoch_at(offset) for offset in range(60)] == epochs
                assert log.log_end_offset == log.flushed_end_offset == 60
                assert log.high_watermark == 40
                disk.capacity = None
                if crash:
                    disk.crash(Random(room))
                    log = opened(disk).logs["t", 0]
                    assert stored(log) == before
                cut(log)
            wanted_disk = LyingDisk()
            _, wanted = written(wanted_disk)
            cut(wanted)
            assert stored(log) == stored(wanted)
            assert log.log_end_offset == wanted.log_end_offset
            assert (log.log_start_offset, log.latest_epoch) == (wanted.log_start_offset, wanted.latest_epoch)
            assert [view.last_sequence for view in log.producers.views()] == [
                view.last_sequence for view in wanted.producers.views()
            ]
            disk.capacity = None
            disk.crash(Random(room))
            again = opened(disk).logs["t", 0]
            assert stored(again) == stored(wanted)
            assert again.log_end_offset == wanted.log_end_offset
    assert refused >= 10


def test_an_empty_log_begins_anew_without_room_or_is_refused() -> None:
    disk = LyingDisk()
    log = opened(disk).create("t", TOPIC, 0, CONFIG, now_ms=NOW_MS)
    disk.capacity = disk.used_bytes()
    with pytest.raises(KafkaError, match="truncation"):
        log.truncate_fully_and_start_at(9)
    assert not log.is_offline
    assert log.log_end_offset == 0
    disk.capacity = None
    log.truncate_fully_and_start_at(9)
    append(log, batch(1))
    assert log.log_start_offset == 9
    assert log.log_end_offset == 10


def test_after_a_refused_truncation_records_are_appended_and_kept() -> None:
    disk = LyingDisk()
    _directory, log = written(disk)
    disk.capacity = disk.used_bytes()
    with pytest.raises(KafkaError):
        log.truncate_to(57)
    disk.capacity = None
    append(log, batch(2, size=60), leader_epoch=9)
    log.flush_now()
    wanted = stored(log)
    disk.crash(Random(5))
    assert stored(opened(disk).logs["t", 0]) == wanted


def test_ablation_a_truncation_without_room_that_stops_the_log_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Health, "room_needed", Health.disk_at_work)
    broken = first_broken(StorageHistory)
    assert broken is not None
    assert "took the log offline" in str(broken)
