"""Bytes that are gone or cannot be read are damage of one log; failed writes, and read errors in many logs,
are the folder's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.mounts import Mounts
from tidegate.runtime.disk import ReadFailed, RealDisk
from tidegate.storage.directory.creation import PARTITION_METADATA
from tidegate.storage.directory.log_directory import DAMAGED, LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log import health
from tidegate.storage.log.health import UNREADABLE_LOGS_MAX, UNREADABLE_WITHIN_S
from tidegate.storage.log.log import CorruptLog, Log, LogConfig
from tidegate.storage.log.lookup import max_timestamp, offset_for_timestamp
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import NOW_MS, append, batch, stored

DATA, ID = Path("/data"), UUID(int=7)
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)
LOGS = 6


class Folder:
    """An open data folder on a disk that can fail, with a clock that stands still."""

    def __init__(self, disk: LyingDisk | None = None) -> None:
        self.disk = disk or LyingDisk()
        self.now_s = 1000.0
        self.offline: list[OSError] = []
        self.damaged: list[tuple[str, CorruptLog]] = []
        self.directory = LogDirectory(
            self.disk, DATA, "c", 1, options=FolderOptions(now_s=lambda: self.now_s)
        )
        self.report = self.directory.open_all(now_ms=NOW_MS)
        self.directory.on_offline = lambda _directory, error: self.offline.append(error)
        self.directory.on_corrupt = lambda log, error: self.damaged.append((log.name, error))
        self.logs = [self._made(partition) for partition in range(LOGS)]

    def _made(self, partition: int) -> Log:
        if ("t", partition) in self.directory.damaged:
            self.directory.set_aside("t", partition)
        log = self.directory.create("t", ID, partition, SMALL, now_ms=NOW_MS)
        for _ in range(12 if not log.log_end_offset else 0):
            append(log, batch(2, size=200))
        log.flush_now()
        return log

    def lose(self, *partitions: int) -> None:
        """The second segments of these can not be read any more."""
        self.disk.unreadable = frozenset(
            self.logs[partition].segments[1].path("log") for partition in partitions
        )

    def read(self, partition: int) -> None:
        with pytest.raises(KafkaError) as refused:
            stored(self.logs[partition])
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def cut(folder: Folder, log: Log) -> None:
    path = log.segments[1].path("log")
    folder.disk.open(path).truncate(folder.disk.size(path) - 100)


def empty(folder: Folder, log: Log) -> None:
    folder.disk.open(log.segments[1].path("log")).truncate(0)


def unreadable(folder: Folder, log: Log) -> None:
    folder.disk.unreadable = frozenset({log.segments[1].path("log")})


def gone(folder: Folder, log: Log) -> None:
    path = log.segments[1].path("log")
    folder.directory.files.forget(path)
    folder.disk.remove(path)


@pytest.mark.parametrize("harm", [cut, empty, unreadable, gone])
def test_missing_bytes_of_one_log_take_only_that_log_offline(harm: Callable[[Folder, Log], None]) -> None:
    folder = Folder()
    log, path = folder.logs[2], folder.logs[2].segments[1].path("log")
    harm(folder, log)
    folder.read(2)
    assert log.is_offline
    assert not folder.offline
    assert not folder.directory.is_offline
    ((name, damage),) = folder.damaged
    assert name == "t-2"
    assert damage.path == path
    assert str(path) in str(damage)
    assert folder.directory.damaged == {("t", 2): ID}
    assert folder.disk.exists(DATA / "t-2" / DAMAGED)
    for other in folder.logs[:2] + folder.logs[3:]:
        append(other, batch(1))
        other.flush_now()
        assert stored(other)
    folder.disk.unreadable = frozenset()
    folder.directory.set_aside("t", 2)
    assert folder.directory.create("t", ID, 2, SMALL, now_ms=NOW_MS).log_end_offset == 0


LOOK_UPS: dict[str, Callable[[Log], object]] = {
    "by timestamp": lambda log: offset_for_timestamp(log, NOW_MS + 1, log.log_end_offset),
    "the greatest timestamp": lambda log: max_timestamp(log),
    "where to cut": lambda log: log.truncate_to(log.segments[1].base_offset + 3),
}


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS)
def test_a_look_up_that_meets_a_read_error_takes_only_its_log_offline(
    look_up: Callable[[Log], object],
) -> None:
    folder = Folder()
    log = folder.logs[0]
    folder.disk.unreadable = frozenset(segment.path("log") for segment in log.segments)
    with pytest.raises(KafkaError):
        look_up(log)
    assert log.is_offline
    assert not folder.directory.is_offline
    assert folder.damaged


def test_ablation_treating_a_lost_file_as_a_disk_error_stops_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        health.Health, "fail_read", lambda self, what, error, _offset=-1: self.fail(what, error)
    )
    folder = Folder()
    gone(folder, folder.logs[2])
    folder.read(2)
    assert folder.directory.is_offline


def test_read_errors_in_several_logs_in_short_order_are_a_disk_that_dies() -> None:
    folder = Folder()
    folder.lose(*range(LOGS))
    for partition in range(UNREADABLE_LOGS_MAX - 1):
        folder.read(partition)
        folder.read(partition)
        assert not folder.directory.is_offline
        folder.now_s += UNREADABLE_WITHIN_S / UNREADABLE_LOGS_MAX
    folder.read(UNREADABLE_LOGS_MAX - 1)
    assert folder.directory.is_offline
    assert len(folder.offline) == 1
    assert isinstance(folder.offline[0], ReadFailed)
    assert all(log.is_offline for log in folder.logs)


def test_read_errors_far_between_are_not() -> None:
    folder = Folder()
    folder.lose(*range(LOGS))
    for partition in range(LOGS):
        folder.read(partition)
        folder.now_s += UNREADABLE_WITHIN_S / (UNREADABLE_LOGS_MAX - 1)
    assert not folder.directory.is_offline
    assert len(folder.damaged) == LOGS


def test_short_files_of_many_logs_are_not_errors_of_the_disk() -> None:
    folder = Folder()
    for partition in range(LOGS):
        cut(folder, folder.logs[partition])
        folder.read(partition)
    assert not folder.directory.is_offline
    assert len(folder.damaged) == LOGS


def test_a_write_that_fails_takes_the_folder_offline_at_once() -> None:
    folder = Folder()
    append(folder.logs[0], batch(1))
    folder.disk.fail_sync = True
    with pytest.raises(KafkaError):
        folder.logs[0].flush_now()
    assert folder.directory.is_offline


def test_a_damage_that_the_disk_does_not_let_us_note_is_one_of_the_folder() -> None:
    folder = Folder()
    folder.lose(0)
    folder.disk.fail_sync = True
    folder.read(0)
    assert folder.directory.is_offline


def test_a_full_disk_is_not_one_and_the_log_goes_offline_alone() -> None:
    folder = Folder()
    folder.lose(0)
    folder.disk.capacity = folder.disk.used_bytes()
    folder.read(0)
    assert folder.logs[0].is_offline
    assert not folder.directory.is_offline


def test_a_log_folder_that_was_moved_away_is_damage_and_is_created_again() -> None:
    folder = Folder()
    folder.disk.rename(DATA / "t-3", DATA / "elsewhere")
    folder.directory.files.forget(folder.logs[3].segments[1].path("log"))
    folder.read(3)
    assert folder.logs[3].is_offline
    assert not folder.directory.is_offline
    folder.directory.set_aside("t", 3)
    assert folder.directory.create("t", ID, 3, SMALL, now_ms=NOW_MS).log_end_offset == 0


def test_too_many_open_files_refuse_a_read_and_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder()
    log = folder.logs[0]
    folder.directory.files.forget(log.segments[1].path("log"))
    with monkeypatch.context() as patch:
        patch.setattr(
            folder.disk,
            "open",
            lambda *_args, **_options: _raise(OSError(errno.EMFILE, "too many open files")),
        )
        folder.read(0)
    assert not log.is_offline
    assert stored(log)


def _raise(error: OSError) -> None:
    raise error


# ---- at the start ------------------------------------------------------------------------------------------


def stopped() -> LyingDisk:
    folder = Folder()
    folder.directory.close(clean=False)
    folder.disk.kill()
    return folder.disk


@pytest.mark.parametrize("name", [f"{0:020d}.log", PARTITION_METADATA, "log-config"])
def test_a_read_error_at_the_start_keeps_only_that_log_offline(name: str) -> None:
    disk = stopped()
    disk.unreadable = frozenset({DATA / "t-1" / name})
    directory = LogDirectory(disk, DATA, "c", 1)
    report = directory.open_all(now_ms=NOW_MS)
    assert list(report.failed) == [("t", 1)] == list(directory.damaged)
    assert name in str(report.failed["t", 1])
    assert report.opened == LOGS - 1
    directory.set_aside("t", 1)
    assert directory.create("t", ID, 1, SMALL, now_ms=NOW_MS).log_end_offset == 0


@pytest.mark.parametrize("name", [f"{0:020d}.log", PARTITION_METADATA])
def test_read_errors_in_several_logs_at_the_start_fail_the_folder(name: str) -> None:
    disk = stopped()
    disk.unreadable = frozenset(DATA / f"t-{partition}" / name for partition in range(UNREADABLE_LOGS_MAX))
    with pytest.raises(ReadFailed):
        LogDirectory(disk, DATA, "c", 1).open_all(now_ms=NOW_MS)
    unreadable, disk = disk.unreadable, stopped()
    disk.unreadable = unreadable
    folders = DataFolders(
        Mounts({DATA: disk, Path("/b"): LyingDisk()}), [DATA, Path("/b/data")], "c", 1, iter("xy").__next__
    )
    folders.open_all(now_ms=NOW_MS)
    assert folders.offline_folders == [DATA]
    assert not folders.is_offline


# ---- the disk port -----------------------------------------------------------------------------------------


def test_the_real_disk_tells_a_read_error_from_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    path.write_bytes(b"abc")
    file = disk.open(path)
    broken: dict[str, int] = {}

    def failing(name: str) -> Callable[..., object]:
        right = getattr(os, name)
        return lambda *args, **options: (
            _raise(OSError(broken[name], "no")) if name in broken else right(*args, **options)
        )

    for name in ("pread", "pwrite", "stat", "listdir", "open", "fdatasync"):
        monkeypatch.setattr(os, name, failing(name))
    reads: dict[str, Callable[[], object]] = {
        "pread": lambda: file.read_at(0, 3), "stat": lambda: disk.size(path),
        "listdir": lambda: disk.list_names(tmp_path),
        "open": lambda: disk.open(path),
    }  # fmt: skip
    for name, read in reads.items():
        broken.clear()
        broken[name] = errno.EIO
        with pytest.raises(ReadFailed) as failed:
            read()
        assert failed.value.errno == errno.EIO
        assert failed.value.filename in (str(path), str(tmp_path))
        broken[name] = errno.EMFILE
        with pytest.raises(OSError, match="no") as other:
            read()
        assert not isinstance(other.value, ReadFailed)
    broken = {"pwrite": errno.EIO, "fdatasync": errno.EIO}
    for write in (lambda: file.write_at(0, b"x"), file.sync_data):
        with pytest.raises(OSError, match="no") as other:
            write()
        assert not isinstance(other.value, ReadFailed)
