"""A disk in memory that can lose power: what was not synced comes back only as far as the seed says.

Writes since the last sync survive as a prefix of their order, the last of them perhaps torn; folders and
names are kept.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer
    from tidegate.runtime.disk import FileIdentity


class _Content:
    __slots__ = ("data", "undo")

    def __init__(self) -> None:
        self.data = bytearray()
        self.undo: list[tuple[int, bytes, int]] = []  # position, old bytes there, old size: newest last


class MemoryFile:
    __slots__ = ("_content", "_disk", "path")

    def __init__(self, disk: MemoryDisk, path: Path, content: _Content) -> None:
        self._disk = disk
        self.path = path
        self._content = content

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._content.data[position : position + length])

    def send_at(self, descriptor: int, position: int, length: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "no sockets here", str(self.path))

    def write_at(self, position: int, data: Buffer) -> None:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "no space left", str(self.path))
        content, view = self._content, bytes(memoryview(data).cast("B"))
        size = len(content.data)
        content.undo.append((position, bytes(content.data[position : position + len(view)]), size))
        if position > size:
            content.data.extend(bytes(position - size))
        content.data[position : position + len(view)] = view

    def write_vector_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self.write_at(position, b"".join(bytes(memoryview(buffer).cast("B")) for buffer in buffers))

    def identity(self) -> FileIdentity:
        raise OSError(errno.EOPNOTSUPP, "no other process here", str(self.path))

    def size(self) -> int:
        return len(self._content.data)

    def truncate(self, size: int) -> None:
        data = self._content.data
        self._content.undo.append((size, bytes(data[size:]), len(data)))
        del data[size:]
        if len(data) < size:
            data.extend(bytes(size - len(data)))

    def sync_data(self) -> None:
        if self._disk.broken:
            raise OSError(errno.EIO, "input/output error", str(self.path))
        self._disk.syncs += 1
        self._content.undo.clear()

    def forget_cached(self) -> None: ...

    def close(self) -> None: ...


class MemoryLock:
    def release(self) -> None: ...


class MemoryDisk:
    """The Disk port in memory."""

    def __init__(self) -> None:
        self.files: dict[Path, _Content] = {}
        self.directories: set[Path] = {Path("/")}
        self.syncs = 0
        self.full = False
        self.broken = False

    def power_cut(self, rng: random.Random, *, keep: float = 0.5) -> None:
        """Loses unsynced writes: per file, with probability `keep` some prefix of them survives, else
        none."""
        for content in self.files.values():
            if not content.undo:
                continue
            survivors = rng.randint(0, len(content.undo)) if rng.random() < keep else 0
            while len(content.undo) > survivors:
                position, old, size = content.undo.pop()
                content.data[position : position + len(old)] = old
                if len(content.data) < size:
                    content.data.extend(old[len(content.data) - position :])
                del content.data[size:]
            content.undo.clear()

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> MemoryFile:
        content = self.files.get(path)
        if content is None:
            if not create:
                raise FileNotFoundError(str(path))
            content = self.files[path] = _Content()
        return MemoryFile(self, path, content)

    def exists(self, path: Path) -> bool:
        return path in self.files or path in self.directories

    def size(self, path: Path) -> int:
        return len(self._file(path).data)

    def list_names(self, directory: Path) -> list[str]:
        if directory not in self.directories:
            raise FileNotFoundError(str(directory))
        names = {path.name for path in self.files if path.parent == directory}
        names |= {path.name for path in self.directories if path.parent == directory and path != directory}
        return sorted(names)

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        self.directories.add(directory)
        self.directories.update(directory.parents)

    def read(self, path: Path) -> bytes:
        return bytes(self._file(path).data)

    def write_atomic(self, path: Path, data: bytes) -> None:
        content = self.files[path] = _Content()
        content.data.extend(data)

    def rename(self, source: Path, target: Path) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return
        self.directories.discard(source)
        self.directories.add(target)
        for path in [path for path in self.files if source in path.parents]:
            self.files[target / path.relative_to(source)] = self.files.pop(path)

    def remove(self, path: Path) -> None:
        self._file(path)
        del self.files[path]

    def remove_tree(self, directory: Path) -> None:
        for path in [path for path in self.files if directory in path.parents]:
            del self.files[path]
        self.directories = {
            path for path in self.directories if path != directory and directory not in path.parents
        }

    def sync_directory(self, directory: Path) -> None: ...

    def free_bytes(self, directory: Path) -> int:
        return 1 << 40

    def total_bytes(self, directory: Path) -> int:
        return 2 << 40

    def lock(self, path: Path) -> MemoryLock:
        return MemoryLock()

    def _file(self, path: Path) -> _Content:
        content = self.files.get(path)
        if content is None:
            raise FileNotFoundError(str(path))
        return content
