"""A disk in memory that can lose power: what was not synced survives in any combination, as it may on a real one.

A file's content is its durable image plus the operations since the last sync.  `crash()` keeps a random subset of those
operations (a write may also be torn in the middle), so unsynced pages arrive out of order, and drops the rest.  `write_atomic`
does everything in the right order, as the real one.  `fail_after` makes the n-th operation raise ENOSPC.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: Path, content: _Content) -> None:
        self.path = path
        self._disk = disk
        self._content = content

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._content.present[position : position + length])

    def write_at(self, position: int, data: bytes) -> None:
        self._disk.check("write", self.path)
        self._content.operate(("write", position, bytes(data)))

    def write_vector_at(self, position: int, buffers: list[bytes]) -> None:
        self.write_at(position, b"".join(bytes(buffer) for buffer in buffers))

    def size(self) -> int:
        return len(self._content.present)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self.path)
        self._content.operate(("truncate", size, b""))

    def sync_data(self) -> None:
        self._disk.check("sync", self.path)
        if self._disk.syncs_work:
            self._content.sync()

    def close(self) -> None:
        pass


class _Content:
    def __init__(self, data: bytes = b"") -> None:
        self.durable = bytes(data)
        self.present = bytearray(data)
        self.operations: list[tuple[str, int, bytes]] = []

    def operate(self, operation: tuple[str, int, bytes]) -> None:
        self.operations.append(operation)
        _perform(self.present, operation)

    def sync(self) -> None:
        self.durable = bytes(self.present)
        self.operations.clear()

    def crash(self, rng: random.Random) -> None:
        survivor = bytearray(self.durable)
        kept = rng.choice(("none", "all", "prefix", "any"))
        count = rng.randint(0, len(self.operations)) if kept == "prefix" else len(self.operations)
        for number, (kind, position, data) in enumerate(self.operations):
            if kept == "none" or number >= count or (kept == "any" and rng.random() < 0.5):
                continue
            if kind == "write" and kept == "any" and rng.random() < 0.5 and data:
                start = rng.randrange(len(data))
                position, data = position + start, data[start : rng.randint(start, len(data))]
            _perform(survivor, (kind, position, data))
        self.__init__(bytes(survivor))  # type: ignore[misc]


def _perform(content: bytearray, operation: tuple[str, int, bytes]) -> None:
    kind, position, data = operation
    if kind == "truncate":
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if not data:
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


class _Lock:
    def release(self) -> None:
        pass


class SimulatedDisk:
    """Implements the Disk port."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.files: dict[Path, _Content] = {}
        self.folders: set[Path] = set()
        self.syncs_work = True
        self.fail_after: int | None = None
        self.operations = 0

    def check(self, kind: str, path: Path) -> None:
        self.operations += 1
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise OSError(errno.ENOSPC, f"no space left for a {kind}", str(path))

    def crash(self) -> None:
        """The power goes: every file keeps what was durable and a random part of what was not."""
        self.fail_after = None
        for content in self.files.values():
            content.crash(self.random)

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> SimulatedFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self.files[path] = _Content()
        return SimulatedFile(self, path, self.files[path])

    def exists(self, path: Path) -> bool:
        return path in self.files or path in self.folders

    def size(self, path: Path) -> int:
        return len(self.files[path].present)

    def list_names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in (*self.files, *self.folders) if path.parent == directory)

    def make_directory(self, directory: Path) -> None:
        self.folders.update((directory, *directory.parents))

    def read(self, path: Path) -> bytes:
        return bytes(self.files[path].present)

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.check("write", path)
        self.check("sync", path)
        self.check("rename", path)
        if self.syncs_work:
            self.files[path] = _Content(data)
        else:
            old = self.files.get(path, _Content())
            replacement = _Content(old.durable)
            replacement.operate(("truncate", 0, b""))
            replacement.operate(("write", 0, data))
            self.files[path] = replacement

    def rename(self, source: Path, target: Path) -> None:
        self.check("rename", source)
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        for path in [path for path in self.files if source in path.parents]:
            self.files[target / path.relative_to(source)] = self.files.pop(path)
        self.folders.discard(source)
        self.folders.add(target)

    def remove(self, path: Path) -> None:
        del self.files[path]

    def remove_tree(self, directory: Path) -> None:
        for path in [path for path in self.files if directory in path.parents]:
            del self.files[path]
        self.folders = {folder for folder in self.folders if folder != directory and directory not in folder.parents}

    def sync_directory(self, directory: Path) -> None:
        self.check("sync", directory)

    def free_bytes(self, directory: Path) -> int:
        return 1 << 30

    def lock(self, path: Path) -> _Lock:
        return _Lock()
