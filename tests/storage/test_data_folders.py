"""Several data folders: where logs go, what one that fails takes down, and what is refused at the start."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.directory.log_directory import DAMAGED, DirectoryRefused
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.folders.folder_ids import DATA_FOLDERS
from tidegate.storage.log.log import LogConfig
from tidegate.wire.errors import KafkaError

from .workload import NOW_MS, append, batch

A, B, C = Path("/disk-a/data"), Path("/disk-b/data"), Path("/disk-c/data")
ID = UUID(int=1)


def fresh(start: int = 0) -> Callable[[], str]:
    numbers = count(start)
    return lambda: f"id-{next(numbers)}"


def opened(disk: LyingDisk, *paths: Path, ids: int = 0) -> DataFolders:
    folders = DataFolders(disk, paths, "c", 1, fresh(ids))
    folders.open_all(now_ms=NOW_MS)
    return folders


def restarted(disk: LyingDisk, folders: DataFolders, *paths: Path, ids: int = 100) -> DataFolders:
    folders.close(clean=True, broker_epoch=3)
    disk.kill()
    return opened(disk, *paths, ids=ids)


def where(folders: DataFolders, partition: int) -> Path:
    folder = folders.folder_of("t", partition)
    assert folder is not None
    return folder.path


def test_a_new_log_goes_to_the_folder_with_the_fewest_and_stays_there() -> None:
    disk = LyingDisk()
    folders = opened(disk, A, B, C)
    for partition in range(6):
        folders.create("t", ID, partition, LogConfig(), now_ms=NOW_MS)
    assert [where(folders, partition) for partition in range(6)] == [A, B, C, A, B, C]
    folders.delete("t", 1)
    folders.create("t", ID, 6, LogConfig(), now_ms=NOW_MS)
    assert where(folders, 6) == B
    for log in folders.logs.values():
        append(log, batch(1))
    again = restarted(disk, folders, C, B, A)
    assert again.previous_broker_epoch == 3
    assert set(again.logs) == set(folders.logs)
    assert where(again, 0) == A
    assert again.create("t", ID, 0, LogConfig()).log_end_offset == 1


def test_a_folder_that_fails_takes_only_its_own_logs_down() -> None:
    disk = LyingDisk()
    folders = opened(disk, A, B)
    logs = [folders.create("t", ID, partition, LogConfig(), now_ms=NOW_MS) for partition in range(4)]
    offline: list[Path] = []
    folders.on_offline = lambda folder, _error: offline.append(folder.path)
    logs[1].go_offline(OSError(5, "the disk is gone"))
    assert [log.is_offline for log in logs] == [False, True, False, True]
    assert offline == [B]
    assert folders.offline_folders == [B]
    assert not folders.is_offline
    append(logs[0], batch(1))
    folders.create("t", ID, 4, LogConfig(), now_ms=NOW_MS)
    assert where(folders, 4) == A
    with pytest.raises(KafkaError, match="offline"):  # it is not made anew, empty, in the folder that works
        folders.create("t", ID, 1, LogConfig(), now_ms=NOW_MS)
    folders.write_checkpoints()
    with pytest.raises((KafkaError, OSError)):
        folders.close(clean=True, broker_epoch=9)
    disk.kill()
    again = opened(disk, A, B)
    assert again.previous_broker_epoch is None
    assert len(again.logs) == 5


def test_ablation_a_folder_that_is_not_remembered_gets_an_empty_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk()
    folders = opened(disk, A, B)
    append(folders.create("t", ID, 0, LogConfig(), now_ms=NOW_MS), batch(1))
    folders.folders[0].go_offline(OSError(5, "the disk is gone"))
    monkeypatch.setattr(DataFolders, "folder_of", lambda _self, _topic, _partition: None)
    # committed data would seem lost
    assert folders.create("t", ID, 0, LogConfig(), now_ms=NOW_MS).log_end_offset == 0
    with pytest.raises((KafkaError, OSError)):
        folders.close(clean=True)
    disk.kill()
    with pytest.raises(DirectoryRefused, match="t-0"):
        opened(disk, A, B)


def test_a_log_in_two_folders_is_refused_naming_both() -> None:
    disk = LyingDisk()
    folders = opened(disk, A, B)
    folders.create("t", ID, 0, LogConfig(), now_ms=NOW_MS)
    folders.close(clean=True)
    disk.make_directory(B / "t-0")
    for path in [path for path in disk.files() if path.parent == A / "t-0"]:
        disk.write_atomic(B / "t-0" / path.name, disk.read(path))
    with pytest.raises(DirectoryRefused, match=f"t-0 is in {A} and in {B}"):
        opened(disk, A, B)
    with pytest.raises(DirectoryRefused, match="named twice"):
        opened(disk, A, A)


def test_the_identity_stays_while_no_folder_is_missing() -> None:
    disk = LyingDisk()
    folders = opened(disk, A)
    assert folders.directory_id == "id-0"
    folders = restarted(disk, folders, A, B)
    assert folders.directory_id == "id-0"
    folders = restarted(disk, folders, B, A)
    assert folders.directory_id == "id-0"
    disk.crash(Random(1))
    assert opened(disk, B, C, A).directory_id == "id-0"


def test_a_folder_that_is_missing_makes_the_node_another_one() -> None:
    disk = LyingDisk()
    folders = restarted(disk, opened(disk, A, B), A)
    assert folders.directory_id.startswith("id-10")
    known = folders.directory_id
    assert restarted(disk, folders, A, ids=200).directory_id == known  # from now on it belongs no more


def test_an_emptied_disk_in_place_of_another_makes_the_node_another_one() -> None:
    disk = LyingDisk()
    folders = opened(disk, A, B)
    folders.close(clean=True)
    disk.remove_tree(B)
    assert opened(disk, A, B, ids=50).directory_id not in ("id-0", "id-1")


def test_a_damaged_list_of_folders_is_refused() -> None:
    disk = LyingDisk()
    opened(disk, A, B).close(clean=True)
    disk.write_atomic(A / DATA_FOLDERS, b"?")
    with pytest.raises(DirectoryRefused, match="damaged"):
        opened(disk, A, B)


def test_a_damaged_log_is_set_aside_in_its_own_folder() -> None:
    disk = LyingDisk()
    folders = opened(disk, A, B)
    folders.create("t", ID, 0, LogConfig(), now_ms=NOW_MS)
    folders.create("t", ID, 1, LogConfig(), now_ms=NOW_MS)
    folders.close(clean=True, broker_epoch=1)
    disk.write_atomic(B / "t-1" / DAMAGED, b"bytes are not what they were")
    again = opened(disk, A, B)
    assert again.damaged == {("t", 1): ID}
    with pytest.raises(KafkaError, match="not usable"):
        again.create("t", ID, 1, LogConfig())
    again.set_aside("t", 1)
    assert "0-damaged" in disk.list_names(B)
    again.create("t", ID, 1, LogConfig())
