"""Many logs are made at once, in a thread; none is in use before a crash would find it, and none is half
there after one."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk, PowerCut
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory import creation as creation_module
from tidegate.storage.directory.creation import Creation, FolderShare, NewLog
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.log import Log
from tidegate.wire.errors import KafkaError

from .workload import NOW_MS, SMALL, append, batch, stored

ID, OTHER_ID = UUID(int=1), UUID(int=2)
ROOT = Path("/data")


def wanted(count: int, *, topic_id: UUID = ID, first: int = 0) -> list[NewLog]:
    return [NewLog("flights", topic_id, first + partition, SMALL) for partition in range(count)]


def opened(disk: LyingDisk | RealDisk, path: Path = ROOT) -> LogDirectory:
    directory = LogDirectory(disk, path, "c", 1)
    directory.open_all(now_ms=NOW_MS)
    return directory


class CountingDisk(RealDisk):
    def __init__(self) -> None:
        self.synced: list[Path] = []

    def sync_directory(self, directory: Path) -> None:
        self.synced.append(directory)
        super().sync_directory(directory)


def test_a_batch_of_logs_is_made_with_one_sync_of_the_data_folder(tmp_path: Path) -> None:
    disk = CountingDisk()
    directory = opened(disk, tmp_path)
    disk.synced.clear()
    making = directory.begin_creation(wanted(40), now_ms=NOW_MS)
    making.run()
    results = making.finish()
    assert len(results) == 40
    assert all(isinstance(each, Log) for each in results.values())
    assert disk.synced.count(tmp_path) == 1
    assert len(disk.synced) == 41
    append(directory.logs["flights", 39], batch())
    directory.close(clean=True)
    again = opened(RealDisk(), tmp_path)
    assert len(again.logs) == 40
    assert set(again.topic_ids.values()) == {ID}
    assert again.logs["flights", 7].config == SMALL
    again.close(clean=True)


def test_new_logs_do_not_hold_their_files_open(tmp_path: Path) -> None:
    """Or some thousands of partitions would take all that a process may open."""
    directory = LogDirectory(RealDisk(), tmp_path, "c", 1, options=FolderOptions(files_max=10))
    directory.open_all(now_ms=NOW_MS)
    before = len(os.listdir("/proc/self/fd"))
    making = directory.begin_creation(wanted(100), now_ms=NOW_MS)
    making.run()
    making.finish()
    assert len(os.listdir("/proc/self/fd")) <= before + 10
    directory.close(clean=False)


def test_names_are_taken_while_logs_are_made() -> None:
    directory = opened(LyingDisk())
    making = directory.begin_creation(wanted(2), now_ms=NOW_MS)
    assert directory.log_count == 2
    assert not directory.logs
    second = directory.begin_creation(wanted(1), now_ms=NOW_MS)
    second.run()
    error = second.finish()["flights", 0]
    assert isinstance(error, KafkaError)
    assert "being made" in str(error)
    making.run()
    assert not directory.logs, "in use only when the loop takes it up"
    directory.write_checkpoints()
    assert isinstance(making.finish()["flights", 0], Log)
    assert len(directory.logs) == 2
    assert (
        directory.begin_creation(wanted(1), now_ms=NOW_MS).finish()["flights", 0]
        is directory.logs["flights", 0]
    )


def test_a_folder_that_goes_offline_meanwhile_gives_nothing_into_use() -> None:
    directory = opened(LyingDisk())
    making = directory.begin_creation(wanted(3), now_ms=NOW_MS)
    making.run()
    directory.go_offline(OSError(5, "the disk is gone"))
    assert all(isinstance(each, KafkaError) for each in making.finish().values())
    assert not directory.logs


def test_one_log_that_cannot_be_made_does_not_keep_the_others(tmp_path: Path) -> None:
    directory = opened(RealDisk(), tmp_path)
    (tmp_path / "flights-1").write_bytes(b"in the way")
    making = directory.begin_creation(wanted(3), now_ms=NOW_MS)
    making.run()
    results = making.finish()
    assert [isinstance(results["flights", partition], Log) for partition in range(3)] == [True, False, True]
    directory.close(clean=False)


def test_a_data_folder_that_cannot_be_synced_gives_no_log_into_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may or may not exist after a crash."""
    disk = LyingDisk()
    directory = opened(disk)
    making = directory.begin_creation(wanted(1), now_ms=NOW_MS)
    sync = LyingDisk.sync_directory

    def fails(self: LyingDisk, path: Path) -> None:
        if path == ROOT:
            raise OSError(5, "the sync fails", str(path))
        sync(self, path)

    monkeypatch.setattr(LyingDisk, "sync_directory", fails)
    making.run()
    assert isinstance(making.finish()["flights", 0], KafkaError)
    assert not directory.logs
    assert not disk.exists(ROOT / "flights-0")


def crash_while_making(cut: int) -> bool:
    """Makes three logs until the power goes, and opens the folder again; False when they were made before."""
    disk = LyingDisk()
    directory = opened(disk)
    append(directory.create("old", OTHER_ID, 0, SMALL, now_ms=NOW_MS), batch())
    directory.logs["old", 0].flush_now()
    disk.cut_after = cut
    done = False
    try:
        making = directory.begin_creation(wanted(3), now_ms=NOW_MS)
        making.run()
        for result in making.finish().values():
            assert isinstance(result, Log)
            append(result, batch(2))
            result.flush_now()
        done = True
    except PowerCut:
        pass
    flushed = {key: log.flushed_end_offset for key, log in directory.logs.items()}
    disk.crash(Random(cut))
    for _ in range(2):  # what opening did must stand a crash, too
        directory = LogDirectory(disk, ROOT, "c", 1)
        report = directory.open_all(now_ms=NOW_MS)
        assert not report.failed, "a crash left something that is neither a log nor nothing"
        for key, end in flushed.items():
            assert directory.logs[key].log_end_offset >= end, "flushed records are gone"
        disk.crash(Random(cut + 1))
    directory = opened(disk)
    for new in wanted(3):
        made = directory.create(new.topic, new.topic_id, new.partition, new.config, now_ms=NOW_MS)
        append(made, batch())
        assert stored(made)
    return not done


def test_a_crash_at_any_point_leaves_each_log_whole_or_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_module, "THREADS", 1)  # so that a history follows from its seed
    cut = 0
    while crash_while_making(cut):
        cut += 1
    assert cut > 40


def test_ablation_without_the_data_folders_sync_flushed_records_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(creation_module, "THREADS", 1)
    sync = LyingDisk.sync_directory
    run = Creation.run

    def careless(self: Creation) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                LyingDisk, "sync_directory", lambda disk, path: None if path == ROOT else sync(disk, path)
            )
            run(self)

    monkeypatch.setattr(Creation, "run", careless)
    with pytest.raises((AssertionError, KeyError)):
        cut = 0
        while crash_while_making(cut):
            cut += 1


def test_ablation_an_identity_named_before_its_content_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_module, "THREADS", 1)

    def careless(self: FolderShare, path: Path, data: bytes) -> None:
        self._disk.open(path, create=True).write_at(0, data)

    monkeypatch.setattr(FolderShare, "_write", careless)
    with pytest.raises(AssertionError, match="neither a log nor nothing"):
        cut = 0
        while crash_while_making(cut):
            cut += 1


def test_a_topic_of_the_same_name_that_was_deleted_makes_room() -> None:
    disk = LyingDisk()
    directory = opened(disk)
    append(directory.create("flights", ID, 0, SMALL, now_ms=NOW_MS), batch())
    making = directory.begin_creation(wanted(2, topic_id=OTHER_ID), now_ms=NOW_MS)
    making.run()
    results = making.finish()
    assert all(isinstance(each, Log) and not each.log_end_offset for each in results.values())
    assert set(directory.topic_ids.values()) == {OTHER_ID}


def test_new_logs_are_spread_over_the_data_folders(tmp_path: Path) -> None:
    ids = iter("abcdefgh")
    folders = DataFolders(RealDisk(), [tmp_path / "x", tmp_path / "y"], "c", 1, lambda: next(ids))
    folders.open_all(now_ms=NOW_MS)
    making = folders.begin_creation(wanted(10), now_ms=NOW_MS)
    making.run()
    assert len(making.finish()) == 10 == len(folders.logs)
    assert [len(folder.logs) for folder in folders.folders] == [5, 5]
    folders.folders[0].go_offline(OSError(5, "gone"))
    making = folders.begin_creation(wanted(4, first=10), now_ms=NOW_MS)
    making.run()
    assert all(isinstance(each, Log) for each in making.finish().values())
    assert [len(folder.logs) for folder in folders.folders] == [5, 9]
    folders.folders[1].go_offline(OSError(5, "gone"))
    making = folders.begin_creation(wanted(1, first=20), now_ms=NOW_MS)
    making.run()
    assert isinstance(making.finish()["flights", 20], KafkaError)
    folders.close(clean=False)
