"""Several lying disks as one Disk port: each has its own folder, its own faults and its own fate in a power
cut."""

from __future__ import annotations

from pathlib import Path
from random import Random

from .disk import LyingDisk, LyingFile, LyingLock


class Mounts:
    """The disk of a path is the one whose folder it is below.  Implements the Disk port."""

    def __init__(self, disks: dict[Path, LyingDisk]) -> None:
        self.disks = disks

    def at(self, path: Path) -> LyingDisk:
        for place in (path, *path.parents):
            if place in self.disks:
                return self.disks[place]
        raise AssertionError(f"{path} is on no disk")

    def kill(self) -> None:
        for disk in self.disks.values():
            disk.kill()

    def crash(self, random: Random) -> None:
        for disk in self.disks.values():
            disk.crash(random)

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> LyingFile:
        return self.at(path).open(path, create=create, read_only=read_only)

    def exists(self, path: Path) -> bool:
        return self.at(path).exists(path)

    def size(self, path: Path) -> int:
        return self.at(path).size(path)

    def list_names(self, directory: Path) -> list[str]:
        return self.at(directory).list_names(directory)

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        self.at(directory).make_directory(directory, durable=durable)

    def read(self, path: Path) -> bytes:
        return self.at(path).read(path)

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.at(path).write_atomic(path, data)

    def rename(self, source: Path, target: Path) -> None:
        assert self.at(source) is self.at(target), "a rename does not cross disks"
        self.at(source).rename(source, target)

    def remove(self, path: Path) -> None:
        self.at(path).remove(path)

    def remove_tree(self, directory: Path) -> None:
        self.at(directory).remove_tree(directory)

    def sync_directory(self, directory: Path) -> None:
        self.at(directory).sync_directory(directory)

    def free_bytes(self, directory: Path) -> int:
        return self.at(directory).free_bytes(directory)

    def total_bytes(self, directory: Path) -> int:
        return self.at(directory).total_bytes(directory)

    def lock(self, path: Path) -> LyingLock:
        return self.at(path).lock(path)
