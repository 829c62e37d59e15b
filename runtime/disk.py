"""The Disk port: the few file operations that the log and the metadata quorum need, with honest failure.

Promises of `RealDisk`:

* a write either wrote every byte or raised: on a nearly full disk the kernel writes short *without* an error,
  so the returned count is checked and turned into ENOSPC;
* `write_atomic` leaves either the old content or the new one, also after a power cut: temporary file, fsync,
  rename, fsync of the folder, in this order;
* a read that the disk cannot answer is `ReadFailed`, and no error of a write is: bytes may be lost where all
  else works;
* a failed fsync is reported once and must be treated as final by the caller: the kernel may have dropped the
  dirty pages, so a later fsync that succeeds proves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from . import faults

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that end when files are deleted; every other error of a write means that the disk cannot be
trusted."""
SECRET_MODE: Final = 0o600
_UNREADABLE = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})


class ReadFailed(OSError):
    """The disk cannot read back one file or folder, which `filename` names."""


class FileIdentity(NamedTuple):
    """By which all processes of one kernel know a file, whatever it is called (`kernel_id.py`)."""

    device: int
    inode: int


class File(Protocol):
    """An open file with positioned reads and writes; `write_*` write all bytes or raise OSError."""

    path: Path

    def read_at(self, position: int, length: int) -> bytes: ...
    def send_at(self, descriptor: int, position: int, length: int) -> int: ...
    def write_at(self, position: int, data: Buffer) -> None: ...
    def write_vector_at(self, position: int, buffers: Sequence[Buffer]) -> None: ...
    def size(self) -> int: ...
    def identity(self) -> FileIdentity: ...
    def truncate(self, size: int) -> None: ...
    def sync_data(self) -> None: ...
    def forget_cached(self) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A file system, as far as Tidegate uses one."""

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> File: ...
    def exists(self, path: Path) -> bool: ...
    def size(self, path: Path) -> int: ...
    def list_names(self, directory: Path) -> list[str]: ...
    def make_directory(self, directory: Path, *, durable: bool = True) -> None: ...
    def read(self, path: Path) -> bytes: ...
    def write_atomic(self, path: Path, data: bytes) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, directory: Path) -> None: ...
    def sync_directory(self, directory: Path) -> None: ...
    def free_bytes(self, directory: Path) -> int: ...
    def total_bytes(self, directory: Path) -> int: ...
    def lock(self, path: Path) -> FileLock: ...


class FileLock(Protocol):
    """An exclusive lock on a file, held by this process until `release()` or its end."""

    def release(self) -> None: ...


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @property
    def descriptor(self) -> int:
        """For `kernel_sync` alone."""
        return self._fd

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; shorter only at the end of the file."""
        try:
            data = os.pread(self._fd, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]  # a signal or a very large read may stop early although more bytes exist
            done = len(data)
            while done < length:
                more = os.pread(self._fd, length - done, position + done)
                if not more:
                    break
                parts.append(more)
                done += len(more)
            return b"".join(parts)
        except OSError as error:
            raise _failure_of_read(error, self.path) from error

    def read_into(self, position: int, room: memoryview) -> int:
        """How many bytes from `position` are in `room` now; 0 only at the end of the file."""
        try:
            return os.preadv(self._fd, [room], position)
        except OSError as error:
            raise _failure_of_read(error, self.path) from error

    def send_at(self, descriptor: int, position: int, length: int) -> int:
        """Sends bytes from `position` to a non-blocking socket, without a copy of them; how many it took.
        Raises BlockingIOError for a full one, ConnectionError for one that is lost."""
        try:
            return os.sendfile(descriptor, self._fd, position, length)
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            raise _failure_of_read(error, self.path) from error

    def write_at(self, position: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        _require_all(os.pwrite(self._fd, view, position), len(view), self.path)

    def write_vector_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        total = sum(memoryview(buffer).nbytes for buffer in buffers)
        _require_all(os.pwritev(self._fd, list(buffers), position), total, self.path)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def identity(self) -> FileIdentity:
        return _identity(os.fstat(self._fd))

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync_data(self) -> None:
        faults.point("disk.sync", path=self.path)
        os.fdatasync(self._fd)

    def forget_cached(self) -> None:
        """Later reads show what the disk has, and writes that have not reached it yet.  After a failed sync,
        in an earlier process perhaps, the page cache may show bytes as clean that the disk has never
        taken."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    # a caller that shares the file with other threads drops its reference instead of closing the file under
    # their reads
    __del__ = close


def _identity(found: os.stat_result) -> FileIdentity:
    return FileIdentity(found.st_dev, found.st_ino)


def _failure_of_read(error: OSError, path: Path) -> OSError:
    if error.errno not in _UNREADABLE:
        return error
    return ReadFailed(error.errno, f"{error.strerror or 'input/output error'} in a read", str(path))


def _require_all(written: int, wanted: int, path: Path) -> None:
    if written != wanted:
        raise OSError(
            errno.ENOSPC, f"only {written} of {wanted} bytes could be written (is the disk full?)", str(path)
        )


class RealFileLock:
    """A lock by flock(2): it goes with the process, so a killed node leaves no stale lock behind."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The operating system's file system."""

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> RealFile:
        """Opens `path`; with `create`, makes it when absent (the caller then syncs the folder)."""
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        if create:
            return RealFile(path, os.open(path, flags | os.O_CREAT, 0o644))
        try:
            return RealFile(path, os.open(path, flags))
        except OSError as error:
            raise _failure_of_read(error, path) from error

    def open_same(self, path: Path, identity: FileIdentity) -> RealFile:
        """To read a regular file that another process has named; FileNotFoundError when another one has its
        name."""
        found = os.stat(path)  # to open a pipe would let another process go on, and without O_NONBLOCK wait
        if stat.S_ISREG(found.st_mode) and _identity(found) == identity:
            file = RealFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
            if file.identity() == identity:
                return file
            file.close()
        raise FileNotFoundError(errno.ENOENT, "another file has this name", str(path))

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def size(self, path: Path) -> int:
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise _failure_of_read(error, path) from error

    def list_names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except OSError as error:
            raise _failure_of_read(error, directory) from error

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        """Makes the folder and its parents, durably: every new entry's parent folder is synced.  Without
        `durable`, the caller syncs the last one's parent: once, for many folders."""
        if os.path.isdir(directory):
            return
        self.make_directory(directory.parent)
        os.makedirs(directory, exist_ok=True)
        if durable:
            self.sync_directory(directory.parent)

    def read(self, path: Path) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise _failure_of_read(error, path) from error

    def write_atomic(self, path: Path, data: bytes) -> None:
        self._write_atomic(path, data, 0o644)

    def write_secret(self, path: Path, data: bytes) -> None:
        """As `write_atomic`; only the owner may read the file."""
        self._write_atomic(path, data, SECRET_MODE)

    def _write_atomic(self, path: Path, data: bytes, mode: int) -> None:
        temporary = path.with_name(path.name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            if mode == SECRET_MODE:
                os.fchmod(fd, mode)  # a file that was there has its own
            _require_all(os.write(fd, data) if data else 0, len(data), temporary)
            faults.point("disk.sync", path=path)
            os.fsync(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # on a full disk its room is needed
            raise
        finally:
            os.close(fd)
        os.rename(temporary, path)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_tree(self, directory: Path) -> None:
        shutil.rmtree(directory)

    def sync_directory(self, directory: Path) -> None:
        faults.point("disk.sync", path=directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: Path) -> int:
        stats = os.statvfs(directory)
        return stats.f_bavail * stats.f_frsize

    def total_bytes(self, directory: Path) -> int:
        """Of the folder's volume, with the blocks that are reserved for the superuser."""
        stats = os.statvfs(directory)
        return stats.f_blocks * stats.f_frsize

    def lock(self, path: Path) -> RealFileLock:
        """Takes the lock or raises OSError (EWOULDBLOCK) at once when another process holds it."""
        return RealFileLock(path)
