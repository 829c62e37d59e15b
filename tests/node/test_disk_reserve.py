"""The space kept back for the metadata: given up once when the disk is full, made again when there is room."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tidegate.node.disk_reserve import FULL_BELOW_BYTES, DiskReserve, ReservingDisk, full_folders
from tidegate.runtime.disk import RealDisk, RealFile

RESERVE_BYTES = 4096


class SmallFile(RealFile):
    """Writes only where the disk has room."""

    disk: SmallDisk

    def write_at(self, position: int, data: bytes) -> None:  # type: ignore[override]
        self.disk.take(len(data))
        super().write_at(position, data)


class SmallDisk(RealDisk):
    """A disk with `room` bytes left; what is removed comes back."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.code = errno.ENOSPC

    def take(self, size: int) -> None:
        if size > self.room:
            raise OSError(self.code, "no room")
        self.room -= size

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> RealFile:
        opened = super().open(path, create=create, read_only=read_only)
        file, opened._fd = SmallFile(path, opened._fd), -1
        file.disk = self
        return file

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.take(len(data))
        super().write_atomic(path, data)

    def remove(self, path: Path) -> None:
        self.room += self.size(path)
        super().remove(path)

    def free_bytes(self, directory: Path) -> int:
        return self.room


def made(tmp_path: Path, room: int, reserve_bytes: int = RESERVE_BYTES) -> tuple[SmallDisk, DiskReserve, ReservingDisk]:
    disk = SmallDisk(room)
    reserve = DiskReserve(disk, tmp_path, reserve_bytes)
    reserve.restore()
    return disk, reserve, ReservingDisk(disk, reserve)


def test_a_write_on_a_full_disk_takes_the_reserve(tmp_path: Path) -> None:
    disk, reserve, guarded = made(tmp_path, 10_000)
    file = guarded.open(tmp_path / "journal", create=True)
    disk.room = 0
    file.write_at(0, b"entry")
    assert file.read_at(0, 100) == b"entry"
    assert (reserve.held, reserve.given_up) == (False, True)
    guarded.write_atomic(tmp_path / "vote", b"vote")
    file.close()


def test_without_a_reserve_the_write_fails(tmp_path: Path) -> None:
    """Ablation."""
    disk, reserve, guarded = made(tmp_path, 10_000, reserve_bytes=0)
    file = guarded.open(tmp_path / "journal", create=True)
    disk.room = 0
    with pytest.raises(OSError, match="no room"):
        file.write_at(0, b"entry")
    assert not reserve.given_up  # there was none: clients are not refused for it
    file.close()


def test_when_the_reserve_is_used_up_the_write_fails(tmp_path: Path) -> None:
    disk, _, guarded = made(tmp_path, 10_000)
    disk.room = 0
    guarded.write_atomic(tmp_path / "large", bytes(RESERVE_BYTES))
    with pytest.raises(OSError, match="no room"):
        guarded.write_atomic(tmp_path / "more", b"x")


def test_any_other_error_leaves_the_reserve_alone(tmp_path: Path) -> None:
    disk, reserve, guarded = made(tmp_path, 10_000)
    disk.room, disk.code = 0, errno.EIO
    with pytest.raises(OSError, match="no room"):
        guarded.write_atomic(tmp_path / "vote", b"vote")
    assert reserve.held


def test_the_reserve_comes_back_when_there_is_room_for_more_than_it(tmp_path: Path) -> None:
    disk, reserve, guarded = made(tmp_path, 10_000)
    disk.room = 0
    guarded.write_atomic(tmp_path / "vote", b"vote")
    disk.room = 2 * RESERVE_BYTES - 1
    reserve.restore()
    assert (reserve.held, reserve.given_up) == (False, True)
    disk.room += 1
    reserve.restore()
    assert (reserve.held, reserve.given_up) == (True, False)
    assert disk.room == RESERVE_BYTES


def test_a_disk_that_never_had_room_for_it_is_no_reason_to_refuse_clients(tmp_path: Path) -> None:
    _, reserve, _ = made(tmp_path, RESERVE_BYTES)
    assert (reserve.held, reserve.given_up) == (False, False)


def test_the_reserve_of_the_last_run_is_taken_up(tmp_path: Path) -> None:
    disk, _, _ = made(tmp_path, 10_000)
    room = disk.room
    again = DiskReserve(disk, tmp_path, RESERVE_BYTES)
    again.restore()
    assert again.held and disk.room == room


def test_folders_on_a_full_disk_are_named_and_others_are_not(tmp_path: Path) -> None:
    class Disk(RealDisk):
        def free_bytes(self, directory: Path) -> int:
            return {"full": FULL_BELOW_BYTES - 1, "roomy": FULL_BELOW_BYTES}[directory.name]

    (told,) = full_folders(Disk(), [tmp_path / "full", tmp_path / "roomy"])
    assert told.startswith(f"the disk of {tmp_path / 'full'} is full (1048575 bytes free)")
    assert "No such file" in full_folders(RealDisk(), [tmp_path / "gone"])[0]
