"""Damaged logs that were set aside are kept for a while, and not for ever."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.checkpoint import decode_checkpoint
from tidegate.storage.directory.log_directory import DAMAGED, LogDirectory
from tidegate.storage.directory.set_aside import (
    SET_ASIDE,
    SET_ASIDE_SHAPES,
    DamagedRetention,
    remove_old_damaged,
)
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.log import LogConfig

from .workload import NOW_MS, append, batch

DATA, ID = Path("/data"), UUID(int=7)
DAY_MS = 86_400_000


def kept(disk: LyingDisk) -> list[str]:
    return [name for name in disk.list_names(DATA) if name.endswith("-damaged")]


def with_three(disk: LyingDisk) -> list[int]:
    """Three logs, set aside a day after one another; returns their sizes."""
    directory = LogDirectory(disk, DATA, "c", 1)
    directory.open_all(now_ms=NOW_MS)
    for partition in range(3):
        append(
            directory.create("t", ID, partition, LogConfig(), now_ms=NOW_MS),
            batch(1, size=1000 * (partition + 1)),
        )
    directory.close(clean=True, broker_epoch=1)
    for partition in range(3):
        disk.write_atomic(DATA / f"t-{partition}" / DAMAGED, b"it is")
    directory = LogDirectory(disk, DATA, "c", 1)
    directory.open_all(now_ms=NOW_MS)
    for partition in range(3):
        directory.set_aside("t", partition, now_ms=NOW_MS + partition * DAY_MS)
    return [
        sum(disk.size(DATA / name / each) for each in disk.list_names(DATA / name)) for name in kept(disk)
    ]


def swept(
    disk: LyingDisk, days: float, *, retention_days: float = -1, retention_bytes: int = -1
) -> list[str]:
    retention_ms = -1 if retention_days < 0 else int(retention_days * DAY_MS)
    remove_old_damaged(
        disk, DATA, NOW_MS + int(days * DAY_MS), DamagedRetention(retention_ms, retention_bytes)
    )
    return kept(disk)


def test_it_is_noted_when_a_log_was_set_aside_and_which_one_it_was() -> None:
    disk = LyingDisk()
    with_three(disk)
    assert decode_checkpoint(disk.read(DATA / "1-damaged" / SET_ASIDE), SET_ASIDE_SHAPES) == [
        [str(NOW_MS + DAY_MS), "t", "1"]
    ]


def test_the_old_ones_go_and_the_others_stay() -> None:
    disk = LyingDisk()
    with_three(disk)
    assert swept(disk, 500) == ["0-damaged", "1-damaged", "2-damaged"], "without a bound, for ever"
    assert swept(disk, 8.5, retention_days=7) == ["2-damaged"]
    assert swept(disk, 9.5, retention_days=7) == []


def test_the_oldest_go_when_all_are_too_much_and_the_newest_stays() -> None:
    disk = LyingDisk()
    sizes = with_three(disk)
    assert swept(disk, 3, retention_bytes=sum(sizes)) == ["0-damaged", "1-damaged", "2-damaged"]
    assert swept(disk, 3, retention_bytes=sum(sizes) - 1) == ["1-damaged", "2-damaged"]
    assert swept(disk, 3, retention_bytes=0) == ["2-damaged"]
    assert swept(disk, 3, retention_bytes=0) == ["2-damaged"]


@pytest.mark.parametrize("content", [None, b"junk"])
def test_one_of_which_it_is_not_known_counts_from_when_it_was_first_seen(content: bytes | None) -> None:
    disk = LyingDisk()
    with_three(disk)
    for name in kept(disk):
        disk.remove(DATA / name / SET_ASIDE)
        if content is not None:
            disk.put(DATA / name / SET_ASIDE, content)
    disk.capacity = disk.used_bytes()  # a full disk: it cannot be noted yet
    assert len(swept(disk, 100, retention_days=7)) == 3
    assert swept(disk, 100, retention_bytes=0) == ["2-damaged"], "and yet room is made"
    disk.capacity = None
    assert swept(disk, 200, retention_days=7) == ["2-damaged"]
    assert swept(disk, 206, retention_days=7) == ["2-damaged"]
    assert swept(disk, 208, retention_days=7) == []


def test_a_damaged_log_that_is_not_set_aside_is_never_removed() -> None:
    disk = LyingDisk()
    with_three(disk)
    disk.make_directory(DATA / "x-damaged")
    disk.make_directory(DATA / "t-5")
    disk.write_atomic(DATA / "t-5" / DAMAGED, b"it is")
    assert swept(disk, 500, retention_days=0, retention_bytes=0) == ["x-damaged"]
    assert disk.exists(DATA / "t-5" / DAMAGED)


def test_every_data_folder_is_looked_at_also_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, other = LyingDisk(), Path("/other")
    with_three(disk)
    disk.kill()
    folders = DataFolders(disk, (other, DATA), "c", 1, iter(["one", "two"]).__next__)
    folders.open_all(now_ms=NOW_MS)
    listed = disk.list_names

    def list_names(path: Path) -> list[str]:
        if path == other:
            raise OSError(5, "no")
        return listed(path)

    monkeypatch.setattr(disk, "list_names", list_names)
    folders.remove_old_damaged(NOW_MS + 100 * DAY_MS, DamagedRetention(DAY_MS, -1))
    monkeypatch.undo()
    assert kept(disk) == []
