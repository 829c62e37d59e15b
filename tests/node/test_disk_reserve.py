"""The space kept back for the metadata: given up once when the disk is full, made again when there is
room."""

from __future__ import annotations

import errno
from pathlib import Path
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.mounts import Mounts
from tidegate.node.upkeep.disk_reserve import (
    FULL_BELOW_BYTES,
    RESERVE_FILE,
    DiskReserve,
    DiskReserves,
    ReservingDisk,
    full_folders,
    is_out_of_room,
)
from tidegate.runtime.disk import RealDisk, RealFile
from tidegate.storage.directory.folder_notes import PARTITION_CHECKPOINT
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.wire.errors import KafkaError
from tidegate.wire.records import NewRecord, encode_batch

RESERVE_BYTES = 4096


class SmallFile(RealFile):
    """Writes only where the disk has room."""

    disk: SmallDisk

    def write_at(self, position: int, data: bytes) -> None:  # type: ignore[override]
        self.disk.take(len(data))
        super().write_at(position, data)

    def truncate(self, size: int) -> None:
        self.disk.room += self.size() - size
        super().truncate(size)


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


def made(
    tmp_path: Path, room: int, reserve_bytes: int = RESERVE_BYTES
) -> tuple[SmallDisk, DiskReserve, ReservingDisk]:
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


def test_the_reserve_of_the_last_run_is_used_again(tmp_path: Path) -> None:
    disk, _, _ = made(tmp_path, 10_000)
    room = disk.room
    again = DiskReserve(disk, tmp_path, RESERVE_BYTES)
    again.restore()
    assert again.held
    assert disk.room == room


def test_a_node_started_on_a_full_disk_knows_that_its_reserve_is_gone(tmp_path: Path) -> None:
    disk, _reserve, guarded = made(tmp_path, 10_000)
    disk.room = 0
    guarded.write_atomic(tmp_path / "vote", b"vote")
    again = DiskReserve(disk, tmp_path, RESERVE_BYTES)
    again.restore()
    assert (again.held, again.given_up) == (False, True)
    disk.room = 2 * RESERVE_BYTES
    again.restore()
    assert (again.held, again.given_up) == (True, False)


def test_folders_on_a_full_disk_are_named_and_others_are_not(tmp_path: Path) -> None:
    class Disk(RealDisk):
        def free_bytes(self, directory: Path) -> int:
            return {"full": FULL_BELOW_BYTES - 1, "roomy": FULL_BELOW_BYTES}[directory.name]

    none = DiskReserves(RealDisk(), [tmp_path / "full", tmp_path / "roomy", tmp_path / "gone"], 0)
    (reported,) = full_folders(Disk(), [tmp_path / "full", tmp_path / "roomy"], none)
    assert reported.startswith(f"the disk of {tmp_path / 'full'} is full (1048575 bytes free)")
    assert "No such file" in full_folders(RealDisk(), [tmp_path / "gone"], none)[0]


A, B = Path("/a/data"), Path("/b/data")


def two_folders() -> tuple[Mounts, DiskReserves, DataFolders, list[Log]]:
    """A log in each of two folders, on disks of their own, with more in it than its last checkpoint knows to
    be cut."""
    disks = Mounts({Path("/a"): LyingDisk(), Path("/b"): LyingDisk()})
    folders = DataFolders(disks, (A, B), "c", 1, iter(["one", "two"]).__next__)
    folders.open_all(now_ms=0)
    reserves = DiskReserves(disks, (A, B), RESERVE_BYTES)
    reserves.restore((A, B))
    folders.make_room = reserves.make_room
    logs = [folders.create("t", UUID(int=1), partition, LogConfig()) for partition in (0, 1)]
    for log in logs:
        for _ in range(3):
            data = encode_batch([NewRecord(b"k", b"v", (), 1)])
            log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=1)
        log.flush_now()
    folders.write_checkpoints()
    return disks, reserves, folders, logs


@pytest.mark.parametrize("folder", [0, 1])
def test_every_folder_has_a_reserve_by_which_a_log_is_cut_on_a_full_disk(folder: int) -> None:
    disks, reserves, _folders, logs = two_folders()
    path, other = (A, B) if folder == 0 else (B, A)
    disk = disks.at(path)
    disk.capacity = disk.used_bytes()
    logs[folder].truncate_to(1)
    assert logs[folder].log_end_offset == 1
    assert not logs[folder].is_offline
    assert reserves.given_up
    assert reserves.given_up_at(path)
    assert not reserves.given_up_at(other)
    assert not disk.size(path / RESERVE_FILE)
    assert disks.size(other / RESERVE_FILE)
    (reported,) = full_folders(disks, (A, B), reserves)
    assert str(path) in reported
    assert "is full" in reported
    reserves.restore((A, B))
    assert reserves.given_up, "not before there is room"
    disk.capacity = None
    reserves.restore((A, B))
    assert not reserves.given_up
    assert disk.exists(path / RESERVE_FILE)


def test_clients_are_refused_where_the_reserve_was_given_up_and_only_there() -> None:
    disks, reserves, folders, logs = two_folders()
    assert not any(is_out_of_room(folders, reserves, "t", partition) for partition in (0, 1))
    disk = disks.at(B)
    disk.capacity = disk.used_bytes()
    logs[1].truncate_to(1)
    assert [is_out_of_room(folders, reserves, "t", partition) for partition in (0, 1, 2)] == [
        False,
        True,
        False,
    ]


def test_a_deletion_on_a_full_disk_takes_its_row_of_the_checkpoint_with_it() -> None:
    disks, _reserves, folders, _logs = two_folders()
    disk = disks.at(B)
    disk.capacity = disk.used_bytes()
    folders.delete("t", 1)
    assert b"t 1" not in disk.read(B / PARTITION_CHECKPOINT)


def test_ablation_without_its_own_reserve_a_folder_cannot_truncate() -> None:
    disks, reserves, _folders, logs = two_folders()
    reserves._all[B].release()
    disk = disks.at(B)
    disk.capacity = disk.used_bytes()
    with pytest.raises(KafkaError, match="truncation"):
        logs[1].truncate_to(1)
    assert not logs[1].is_offline


def test_a_cut_on_a_disk_with_room_gives_nothing_up() -> None:
    _disks, reserves, _folders, logs = two_folders()
    logs[0].truncate_to(1)
    assert not reserves.given_up
