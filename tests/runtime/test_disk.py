"""The disk port: all bytes or an error, the old file or the new one, and locks that go with their process."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tidegate.runtime import disk as module
from tidegate.runtime.disk import FileIdentity, RealDisk


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def test_positioned_writes_and_reads(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "a", create=True)
    file.write_at(0, b"hello world")
    file.write_at(6, memoryview(bytearray(b"there")))
    file.write_vector_at(11, [b"!", memoryview(b"?"), bytearray(b".")])
    assert file.size() == 14
    assert file.read_at(0, 100) == b"hello there!?."
    assert file.read_at(6, 5) == b"there"
    assert file.read_at(14, 5) == b""
    file.truncate(5)
    assert file.read_at(0, 100) == b"hello"
    file.sync_data()
    file.close()
    file.close()
    assert disk.read(tmp_path / "a") == b"hello"


def test_a_secret_is_its_owners_whatever_an_earlier_try_left(disk: RealDisk, tmp_path: Path) -> None:
    left = tmp_path / "key.tmp"
    left.write_bytes(b"")
    left.chmod(0o644)
    disk.write_secret(tmp_path / "key", b"secret")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_short_write_is_a_full_disk(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(tmp_path / "a", create=True)
    monkeypatch.setattr(module.os, "pwrite", lambda fd, data, position: len(data) - 1)  # type: ignore[attr-defined]
    monkeypatch.setattr(module.os, "pwritev", lambda fd, data, position: 1)  # type: ignore[attr-defined]
    for write in (lambda: file.write_at(0, b"12345"), lambda: file.write_vector_at(0, [b"12", b"345"])):
        with pytest.raises(OSError, match="of 5 bytes could be written") as caught:
            write()
        assert caught.value.errno == errno.ENOSPC


def test_a_read_that_stops_early_goes_on(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(tmp_path / "a", create=True)
    file.write_at(0, b"0123456789")
    pread = os.pread
    monkeypatch.setattr(module.os, "pread", lambda fd, length, position: pread(fd, min(3, length), position))  # type: ignore[attr-defined]
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(5, 100) == b"56789"


def test_an_absent_file_is_not_made_by_the_way(disk: RealDisk, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "absent")
    disk.open(tmp_path / "made", create=True).close()
    read_only = disk.open(tmp_path / "made", read_only=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_only.write_at(0, b"x")


def test_an_atomic_write_syncs_the_file_then_renames_then_syncs_the_folder(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        steps.append("sync folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync file")
        fsync(fd)

    def noted_rename(source: Path, target: Path) -> None:
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr(module.os, "fsync", noted_fsync)  # type: ignore[attr-defined]
    monkeypatch.setattr(module.os, "rename", noted_rename)  # type: ignore[attr-defined]
    disk.write_atomic(tmp_path / "state", b"new")
    assert steps == ["sync file", "rename", "sync folder"]
    assert disk.read(tmp_path / "state") == b"new"


def test_an_atomic_write_that_fails_leaves_the_old_content(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write_atomic(tmp_path / "state", b"old")
    monkeypatch.setattr(module.os, "write", lambda fd, data: len(data) - 1)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match=r"only \d+ of 11 bytes could be written"):
        disk.write_atomic(tmp_path / "state", b"new content")
    monkeypatch.undo()
    assert disk.read(tmp_path / "state") == b"old"
    assert disk.list_names(tmp_path) == ["state"], "and takes no room"
    disk.write_atomic(tmp_path / "state", b"")
    assert disk.read(tmp_path / "state") == b""


def test_a_new_folder_is_durable_down_from_its_first_new_parent(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(RealDisk, "sync_directory", lambda self, directory: synced.append(directory))
    disk.make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    disk.make_directory(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3


def test_names_sizes_and_removal(disk: RealDisk, tmp_path: Path) -> None:
    disk.make_directory(tmp_path / "d")
    disk.write_atomic(tmp_path / "d" / "b", b"12")
    disk.write_atomic(tmp_path / "d" / "a", b"1")
    assert disk.list_names(tmp_path / "d") == ["a", "b"]
    assert disk.size(tmp_path / "d" / "b") == 2
    disk.rename(tmp_path / "d" / "a", tmp_path / "d" / "c")
    disk.remove(tmp_path / "d" / "b")
    disk.sync_directory(tmp_path / "d")
    assert disk.list_names(tmp_path / "d") == ["c"]
    assert not disk.exists(tmp_path / "d" / "a")
    disk.remove_tree(tmp_path / "d")
    assert not disk.exists(tmp_path / "d")
    assert disk.free_bytes(tmp_path) > 0


def test_a_lock_is_exclusive_until_it_is_released(disk: RealDisk, tmp_path: Path) -> None:
    lock = disk.lock(tmp_path / "lock")
    with pytest.raises(OSError, match="Resource temporarily unavailable") as caught:
        disk.lock(tmp_path / "lock")
    assert caught.value.errno in (errno.EWOULDBLOCK, errno.EACCES)
    lock.release()
    lock.release()
    disk.lock(tmp_path / "lock").release()


def test_the_same_file_is_opened_by_any_name_and_no_other_by_its_name(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(tmp_path / "a", create=True)
    file.write_at(0, b"a")
    os.link(tmp_path / "a", tmp_path / "b")
    assert disk.open_same(tmp_path / "b", file.identity()).read_at(0, 10) == b"a"
    disk.write_atomic(tmp_path / "a", b"other")
    with pytest.raises(FileNotFoundError, match="another file"):
        disk.open_same(tmp_path / "a", file.identity())
    with pytest.raises(FileNotFoundError):
        disk.open_same(tmp_path / "c", file.identity())
    folder = os.stat(tmp_path)
    with pytest.raises(FileNotFoundError, match="another file"):
        disk.open_same(tmp_path, FileIdentity(folder.st_dev, folder.st_ino))
