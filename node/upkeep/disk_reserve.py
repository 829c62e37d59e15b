"""Disk space kept back for the cluster's metadata: a full disk stops writes of clients, but not the node.

The metadata quorum's files stand beside the partitions' data.  A quorum member that cannot write its journal
must stop (what it promised to its leader would not be on its disk), and a full disk would so end the node,
and with it the reading of what is there. Therefore a file of `metadata.reserve.bytes` is held.  When a write
of the quorum finds no space, the file is given up and the write is repeated.  From then on nothing is
appended to a partition there, whether it comes from a client, a leader or a coordinator: it would take what
was given up (`given_up`), and the next write of the quorum would end the node.  When there is space again,
`restore` makes the file anew.  The empty file that is left until then tells a node that is started meanwhile.

Every data folder has such a file (`DiskReserves`), those without the quorum for the notes of their logs:
before a log is cut, deleted or set aside, its recovery point is noted.  Clients are refused where the file
was given up, and only there.

Every operation that is repeated may be repeated: positioned writes and whole-file replacements.  A failed
*sync* is not one of them and stays final.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk, File, FileIdentity, FileLock
from ...storage.folders.data_folders import DataFolders

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

log = logs.get(__name__)

RESERVE_FILE: Final = "metadata-reserve"
FULL_BELOW_BYTES: Final = 1 << 20
"""With less free space a batch of usual size cannot be taken any more."""
T = TypeVar("T")


def full_folders(disk: Disk, folders: Sequence[Path], reserves: DiskReserves) -> list[str]:
    """One line for the operator for each data folder that cannot take records."""
    lines: list[str] = []
    for folder in folders:
        if reserves.given_up_at(folder):
            lines.append(
                f"the disk of {folder} is full (its reserve is given up): make room; records can be "
                "read, not written"
            )
            continue
        try:
            free = disk.free_bytes(folder)
        except OSError as error:
            lines.append(f"{folder}: {error}")
            continue
        if free < FULL_BELOW_BYTES:
            lines.append(
                f"the disk of {folder} is full ({free} bytes free): make room; records can be read, "
                "not written"
            )
    return lines


class DiskReserve:
    """The file.  `release` may be called from any thread, the rest from one."""

    def __init__(self, disk: Disk, folder: Path, reserve_bytes: int) -> None:
        self._disk = disk
        self._path = folder / RESERVE_FILE
        self._bytes = reserve_bytes
        self._lock = threading.Lock()
        self.held = False
        self.given_up = False

    def restore(self) -> None:
        """Makes the file when it is not there and twice its size is free.  A disk that is too full is no
        error."""
        if self.held or not self._bytes:
            return
        with self._lock:
            try:
                if self._disk.exists(self._path) and self._disk.size(self._path) >= self._bytes:
                    self.held = True
                elif self._disk.free_bytes(self._path.parent) >= 2 * self._bytes:
                    self._disk.write_atomic(self._path, bytes(self._bytes))
                    self.held, self.given_up = True, False
                    log.info("metadata_reserve_held", path=self._path, bytes=self._bytes)
                elif not self.given_up and self._disk.exists(self._path) and not self._disk.size(self._path):
                    self.given_up = True
                    log.error(
                        "disk_full",
                        path=self._path.parent,
                        consequence="the metadata lives on its reserve: make room",
                    )
            except OSError as error:
                log.warning("metadata_reserve_not_made", path=self._path, reason=error)

    def release(self) -> bool:
        """Gives the space up; False when there was nothing to give."""
        with self._lock:
            held, self.held = self.held, False
            if held:
                self.given_up = True
                file = self._disk.open(self._path)
                file.truncate(0)
                file.close()
                log.error(
                    "disk_full",
                    path=self._path.parent,
                    consequence="the metadata lives on its reserve: make room",
                )
            return held


class DiskReserves:
    """The reserves of all data folders; the first one is the metadata quorum's."""

    def __init__(self, disk: Disk, folders: Sequence[Path], reserve_bytes: int) -> None:
        self._disk = disk
        self._all = {folder: DiskReserve(disk, folder, reserve_bytes) for folder in folders}
        self.first = self._all[folders[0]]

    @property
    def given_up(self) -> bool:
        """Whether any is."""
        return any(reserve.given_up for reserve in self._all.values())

    def given_up_at(self, folder: Path) -> bool:
        return self._all[folder].given_up

    def space(self, folder: Path) -> tuple[int, int]:
        """Bytes of the volume that the folder is on, and those of them that can be written.  Any thread: a
        network's volume may take its time.  Raises OSError."""
        return self._disk.total_bytes(folder), self._disk.free_bytes(folder)

    def restore(self, folders: Iterable[Path]) -> None:
        """Of these folders, those that work."""
        for folder in folders:
            self._all[folder].restore()

    def make_room(self, folder: Path) -> None:
        """Something is about to be written there that should not fail: on a full disk, gives the reserve up.
        Raises OSError."""
        reserve = self._all[folder]
        if reserve.held and self._disk.free_bytes(folder) < FULL_BELOW_BYTES:
            reserve.release()


class ReservingDisk:
    """A `Disk` whose writes fall back on the reserve."""

    def __init__(self, disk: Disk, reserve: DiskReserve) -> None:
        self._disk = disk
        self._reserve = reserve

    def guarded(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except OSError as error:
            if error.errno not in OUT_OF_SPACE or not self._reserve.release():
                raise
        return write()

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> File:
        return _ReservingFile(
            self.guarded(lambda: self._disk.open(path, create=create, read_only=read_only)), self
        )

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.guarded(lambda: self._disk.write_atomic(path, data))

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        self.guarded(lambda: self._disk.make_directory(directory, durable=durable))

    def exists(self, path: Path) -> bool:
        return self._disk.exists(path)

    def size(self, path: Path) -> int:
        return self._disk.size(path)

    def list_names(self, directory: Path) -> list[str]:
        return self._disk.list_names(directory)

    def read(self, path: Path) -> bytes:
        return self._disk.read(path)

    def rename(self, source: Path, target: Path) -> None:
        self._disk.rename(source, target)

    def remove(self, path: Path) -> None:
        self._disk.remove(path)

    def remove_tree(self, directory: Path) -> None:
        self._disk.remove_tree(directory)

    def sync_directory(self, directory: Path) -> None:
        self._disk.sync_directory(directory)

    def free_bytes(self, directory: Path) -> int:
        return self._disk.free_bytes(directory)

    def total_bytes(self, directory: Path) -> int:
        return self._disk.total_bytes(directory)

    def lock(self, path: Path) -> FileLock:
        return self.guarded(lambda: self._disk.lock(path))


class _ReservingFile:
    """A `File` whose writes fall back on the reserve."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, file: File, disk: ReservingDisk) -> None:
        self.path = file.path
        self._file = file
        self._disk = disk

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def send_at(self, descriptor: int, position: int, length: int) -> int:
        return self._file.send_at(descriptor, position, length)

    def write_at(self, position: int, data: Buffer) -> None:
        self._disk.guarded(lambda: self._file.write_at(position, data))

    def write_vector_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._disk.guarded(lambda: self._file.write_vector_at(position, buffers))

    def size(self) -> int:
        return self._file.size()

    def identity(self) -> FileIdentity:
        return self._file.identity()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync_data(self) -> None:
        self._file.sync_data()

    def forget_cached(self) -> None:
        self._file.forget_cached()

    def close(self) -> None:
        self._file.close()


def is_out_of_room(directory: DataFolders, reserves: DiskReserves, topic: str, partition: int) -> bool:
    """The disk of this replica is full: what clients would write takes what the node itself needs."""
    folder = directory.folder_of(topic, partition) if reserves.given_up else None
    return folder is not None and reserves.given_up_at(folder.path)
