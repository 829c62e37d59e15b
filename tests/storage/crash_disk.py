"""A Disk in memory that keeps only its promises: what was not synced may be lost, torn or reordered when the power goes.

    disk = CrashDisk()
    ...                         the code under test uses it
    disk.crash(random.Random(seed))    the power goes; open files are dead; what is left is what a real disk might have kept

What survives: bytes synced by `sync_data`; names synced by `sync_directory`; `write_atomic` and `make_directory` as a whole (they
promise it).  Of the rest, each unsynced write survives wholly, up to some sector, or not at all, independently of the order they
were made in; each unsynced name (made or removed) likewise.  A process that is only killed loses nothing: `kill()`.

Faults: `capacity` bytes (then writes stop short with ENOSPC), `fail_sync` (EIO), `cut_after` (PowerCut at the n-th changing
operation).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The power went in the middle of an operation; no handler of errors may run on."""


class _Inode:
    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = content
        self.pending: list[tuple[int, bytes | None]] = []  # (position, data) of a write, (size, None) of a truncation

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()

    def survive(self, random: Random) -> _Inode:
        content = bytearray(self.durable)
        for position, data in self.pending:
            fate = random.random()
            if fate < 0.3:
                continue
            if data is None:
                _resize(content, position)
                continue
            if fate < 0.6:
                cut = random.randrange(len(data) + 1)
                data = data[: cut if random.random() < 0.5 else cut // SECTOR_BYTES * SECTOR_BYTES]
            _write(content, position, data)
        return _Inode(bytes(content))


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _write(content: bytearray, position: int, data: bytes) -> None:
    if data and position > len(content):
        _resize(content, position)
    content[position : position + len(data)] = data


class CrashFile:
    def __init__(self, disk: CrashDisk, path: Path, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._boot = disk.boot
        self._open = True

    def _check(self) -> None:
        assert self._boot == self._disk.boot, "a file of before the crash is used after it"
        if not self._open:
            raise OSError(errno.EBADF, "closed", str(self.path))

    def read_at(self, position: int, length: int) -> bytes:
        self._check()
        self._disk.reads += 1
        return bytes(self._inode.content[position : position + length])

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._check()
        content = bytes(data)
        room = self._disk.room()
        grows = max(0, position + len(content) - len(self._inode.content))
        kept = content if room is None or grows <= room else content[: max(0, len(content) - (grows - room))]
        self._inode.pending.append((position, kept))
        _write(self._inode.content, position, kept)
        self._disk.step()
        if len(kept) < len(content):
            raise OSError(errno.ENOSPC, f"only {len(kept)} of {len(content)} bytes", str(self.path))

    def write_vector_at(self, position: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        self.write_at(position, b"".join(bytes(buffer) for buffer in buffers))

    def size(self) -> int:
        self._check()
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        self._check()
        if self._disk.fail_truncate:
            raise OSError(errno.EIO, "the truncation fails", str(self.path))
        self._inode.pending.append((size, None))
        _resize(self._inode.content, size)
        self._disk.step()

    def sync_data(self) -> None:
        self._check()
        self._disk.step()
        if self._disk.fail_sync:
            raise OSError(errno.EIO, "the sync fails", str(self.path))
        self._inode.sync()
        self._disk.syncs += 1

    def close(self) -> None:
        self._open = False


class CrashLock:
    def __init__(self, disk: CrashDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class CrashDisk:
    def __init__(self) -> None:
        self.boot = 0
        self.reads = 0
        self.syncs = 0
        self.capacity: int | None = None
        self.fail_sync = False
        self.fail_truncate = False
        self.cut_after: int | None = None
        self.skip_directory_sync = False
        self.locks: set[Path] = set()
        self._files: dict[Path, _Inode] = {}
        self._durable: dict[Path, _Inode] = {}
        self._directories: set[Path] = set()

    # -- faults

    def step(self) -> None:
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                raise PowerCut

    def room(self) -> int | None:
        if self.capacity is None:
            return None
        return max(0, self.capacity - sum(len(inode.content) for inode in self._files.values()))

    def kill(self) -> None:
        """The process is gone, the machine is not: everything written stays, synced or not."""
        self.boot += 1
        self.locks.clear()
        self.cut_after = None

    def crash(self, random: Random) -> None:
        """The power is gone: see the module's text."""
        self.kill()
        names: dict[Path, _Inode] = {}
        for path in sorted(set(self._files) | set(self._durable)):
            now, before = self._files.get(path), self._durable.get(path)
            inode = now if now is before or random.random() < 0.5 else before
            if inode is not None:
                names[path] = inode
        survivors = {id(inode): inode.survive(random) for inode in names.values()}
        self._files = {path: survivors[id(inode)] for path, inode in names.items()}
        self._durable = dict(self._files)

    def flip_bit(self, path: Path, position: int) -> None:
        inode = self._files[path]
        inode.content[position] ^= 1
        inode.sync()

    # -- the port

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> CrashFile:
        inode = self._files.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            if self.room() == 0:
                raise OSError(errno.ENOSPC, "no room for a file", str(path))
            inode = self._files[path] = _Inode()
            self.step()
        return CrashFile(self, path, inode)

    def exists(self, path: Path) -> bool:
        return path in self._files or path in self._directories

    def size(self, path: Path) -> int:
        return len(self._files[path].content)

    def list_names(self, directory: Path) -> list[str]:
        paths = (*self._files, *self._directories)
        return sorted({path.relative_to(directory).parts[0] for path in paths if directory in path.parents})

    def make_directory(self, directory: Path) -> None:
        self._directories.update((directory, *directory.parents))

    def read(self, path: Path) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return bytes(self._files[path].content)

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.step()
        room = self.room()
        if room is not None and len(data) > room:
            raise OSError(errno.ENOSPC, "no room", str(path))
        if self.fail_sync:
            raise OSError(errno.EIO, "the sync fails", str(path))
        self._files[path] = self._durable[path] = _Inode(data)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        for path in [path for path in self._files if path == source or source in path.parents]:
            self._files[target / path.relative_to(source)] = self._files.pop(path)
        if source in self._directories:
            self._directories.discard(source)
            self._directories.add(target)

    def remove(self, path: Path) -> None:
        self.step()
        del self._files[path]

    def remove_tree(self, directory: Path) -> None:
        for path in [path for path in self._files if directory in path.parents]:
            self.remove(path)
        self._directories = {path for path in self._directories if path != directory and directory not in path.parents}

    def sync_directory(self, directory: Path) -> None:
        self.step()
        if self.fail_sync:
            raise OSError(errno.EIO, "the sync fails", str(directory))
        if self.skip_directory_sync:
            return
        self._durable = {path: inode for path, inode in self._durable.items() if directory not in path.parents}
        self._durable.update({path: inode for path, inode in self._files.items() if directory in path.parents})

    def free_bytes(self, directory: Path) -> int:
        room = self.room()
        return 1 << 40 if room is None else room

    def lock(self, path: Path) -> CrashLock:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        self.locks.add(path)
        return CrashLock(self, path)
