"""A Disk in memory with the weakest allowed guarantees: a crash may lose, tear or reorder all writes that
were not synced.

    disk = LyingDisk()
    ...                            the code under test uses it
    disk.crash(Random(seed))       the power fails; open files are dead; the files are as a real disk might
                                   have kept them

What survives a crash

* Of a file: what `sync_data` has made durable, and of the writes and truncations since then any part: all,
  none, those before some point, or each by its own luck; a write may survive up to some sector, as some of
  its sectors, torn inside a sector, or as zeros (its length was noted, its data never came).
* Of a folder: the entries that `sync_directory` of this very folder has made durable, and of the creations,
  removals and renames since then any part, independently of one another and of the files' content.  A rename
  is one change: a crash shows the old name, the new one, or both.
* `write_atomic` and `make_directory` are made of these steps, in the order of `RealDisk`, and can be
  interrupted at each.

A process that is only killed loses nothing: `kill()`.

Faults, all off at first: `capacity` (writes then stop short with ENOSPC), `full_after` (no room from the n-th
growth on; what takes none goes on), `fail_after` (ENOSPC at the n-th change), `fail_sync` / `fail_sync_after`
(EIO; see below), `fail_truncate`, `unreadable` (files that give EIO when they are read), `cut_after`
(PowerCut at the n-th change) / `cut_after_truncation` (at the n-th change from the next truncation of a file
with this suffix on, in this life or a later one), `flip_bit` (rot).

**After a failed sync the dirty pages are gone**, as in Linux: what was written since the last good sync will
not reach the disk, and the next sync succeeds without it.  Whether readers still see it is the file system's
choice (ext4 shows it until the page is evicted, others at once what the disk has): `failed_sync_keeps_cache`.

The disk can also break its promises, for ablations that prove that a check would notice: `Lie`.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ...runtime.disk import FileIdentity, ReadFailed

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The power failed during an operation; no error handler may catch this and continue."""


class Lie(enum.Flag):
    """Promises that a simulated disk breaks on request, for ablations."""

    NONE = 0
    FILE_SYNC = enum.auto()
    """`sync_data` returns and makes nothing durable."""
    FOLDER_SYNC = enum.auto()
    """`sync_directory` returns and makes nothing durable."""
    ATOMIC_REPLACEMENT = enum.auto()
    """`write_atomic` writes into the existing file."""


class _Inode:
    __slots__ = ("content", "durable", "has_lost", "pending")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        # (position, data) of a write, (size, None) of a truncation
        self.pending: list[tuple[int, bytes | None]] = []
        self.has_lost = False  # `content` shows what neither `durable` nor `pending` has

    def change(self, position: int, data: bytes | None) -> None:
        self.pending.append((position, data))
        _apply(self.content, position, data)

    def sync(self) -> None:
        # not a copy of `content`: after a failed sync that holds what never got here
        for position, data in self.pending:
            _apply(self.durable, position, data)
        self.pending.clear()

    def lose_pages(self, keep_cache: bool) -> None:
        self.pending.clear()
        self.has_lost = keep_cache
        if not keep_cache:
            self.content = bytearray(self.durable)

    def forget_cached(self) -> None:
        if self.has_lost:
            self.content = bytearray(self.durable)
            for position, data in self.pending:
                _apply(self.content, position, data)
            self.has_lost = False

    def survive(self, random: Random, fate: str) -> None:
        survivor = self.durable
        count = len(self.pending)
        if fate == "any":
            fate = random.choice(("none", "all", "some", "some", "prefix"))
        if fate == "none":
            count = 0
        elif fate == "prefix":
            count = random.randrange(count + 1)
        for position, data in self.pending[:count]:
            if fate == "some":
                luck = random.random()
                if luck < 0.35:
                    continue
                if luck < 0.65 and data:
                    _tear(survivor, position, data, random)
                    continue
            _apply(survivor, position, data)
        if fate == "prefix" and count < len(self.pending):
            position, data = self.pending[count]
            if data:
                _tear(survivor, position, data, random)
        self.pending.clear()
        self.has_lost = False
        self.content = bytearray(survivor)


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if data and position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _tear(content: bytearray, position: int, data: bytes, random: Random) -> None:
    """Applies a part of a write."""
    how = random.randrange(4)
    if how == 0:  # up to some byte: the sector that was being written is torn
        _apply(content, position, data[: random.randrange(len(data) + 1)])
    elif how == 1:  # up to some sector
        end = random.randrange(position, position + len(data) + 1) // SECTOR_BYTES * SECTOR_BYTES
        _apply(content, position, data[: max(0, end - position)])
    elif how == 2:  # only its length
        if position + len(data) > len(content):
            _apply(content, position + len(data), None)
    else:  # some sectors, in any order
        if random.random() < 0.5 and position + len(data) > len(content):
            _apply(content, position + len(data), None)
        start = position
        while start < position + len(data):
            end = min(position + len(data), (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if random.random() < 0.5:
                _apply(content, start, data[start - position : end - position])
            start = end


class _Folder:
    """Entries as programs see them, as the disk has them, and the changes between the two, in order."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Folder] = {}
        self.durable: dict[str, _Inode | _Folder] = {}
        self.pending: list[tuple[str | None, str | None, _Inode | _Folder]] = []
        """(old name, new name, what): a creation has no old name, a removal no new one, a rename has both."""

    def change(self, old: str | None, new: str | None, node: _Inode | _Folder) -> None:
        self.pending.append((old, new, node))
        if old is not None:
            del self.entries[old]
        if new is not None:
            self.entries[new] = node

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def survive(self, random: Random, fate: str) -> None:
        if fate == "any" and self.pending:
            fate = random.choice(("none", "all", "some", "some", "some"))
        for old, new, node in self.pending if fate != "none" else ():
            if fate == "some" and random.random() < 0.5:
                continue
            if (
                old is not None
                and self.durable.get(old) is node
                and (new is None or fate == "all" or random.random() < 0.9)
            ):
                del self.durable[old]
            if new is not None:
                self.durable[new] = node
        self.pending.clear()
        self.entries = dict(self.durable)


class LyingFile:
    """A file of a LyingDisk; dead after a crash or kill."""

    __slots__ = ("_boot", "_disk", "_inode", "_open", "path")

    def __init__(self, disk: LyingDisk, path: Path, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._boot = disk.boot
        self._open = True

    def _check(self) -> None:
        self._disk.called()
        assert self._boot == self._disk.boot, "a file of before the crash is used after it"
        if not self._open:
            raise OSError(errno.EBADF, "closed", str(self.path))

    def read_at(self, position: int, length: int) -> bytes:
        self._check()
        self._disk.reads += 1
        self._disk.require_readable(self.path)
        return bytes(self._inode.content[position : position + length])

    def send_at(self, descriptor: int, position: int, length: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "a simulated node has no sockets", str(self.path))

    def write_at(self, position: int, data: Buffer) -> None:
        self._check()
        self._disk.write(self._inode, position, bytes(data), self.path)

    def write_vector_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self.write_at(position, b"".join(buffers))

    def size(self) -> int:
        self._check()
        return len(self._inode.content)

    def identity(self) -> FileIdentity:
        raise OSError(errno.EOPNOTSUPP, "a simulated file has no other process", str(self.path))

    def truncate(self, size: int) -> None:
        self._check()
        if self._disk.fail_truncate:
            raise OSError(errno.EIO, "the truncation fails", str(self.path))
        self._disk.truncates(self.path)
        self._disk.step(self.path)
        self._inode.change(size, None)

    def sync_data(self) -> None:
        self._check()
        self._disk.sync(self._inode, self.path)

    def forget_cached(self) -> None:
        self._check()
        self._inode.forget_cached()

    def close(self) -> None:
        self._open = False


class LyingLock:
    """A lock of a LyingDisk; a crash or kill releases it."""

    def __init__(self, disk: LyingDisk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._boot = disk.boot

    def release(self) -> None:
        if self._boot == self._disk.boot:
            self._disk.locks.discard(self._path)


class LyingDisk:
    """See the module's text.  Implements the Disk port; every history of it follows from its calls and the
    crashes' seeds."""

    def __init__(self, lies: Lie = Lie.NONE) -> None:
        self.lies = lies
        self.boot = 0
        self.reads = 0
        self.syncs = 0
        self.changes = 0
        self.capacity: int | None = None
        self.fail_after: int | None = None
        self.full_after: int | None = None
        self.fail_sync = False
        self.fail_sync_after: int | None = None
        self.failed_sync_keeps_cache = True
        self.fail_truncate = False
        self.unreadable: frozenset[Path] = frozenset()
        self.cut_after: int | None = None
        self.cut_after_truncation: tuple[str, int] | None = None
        self.on_call: Callable[[], None] | None = None
        """Before calls that no thread makes under a lock: another thread may run first (`turns`)."""
        self.locks: set[Path] = set()
        self._root = _Folder()
        # by path; follows what programs see
        self._folders: dict[str, _Folder] = {"/": self._root, "": self._root}

    # ---- faults --------------------------------------------------------------------------------------------

    def called(self) -> None:
        if self.on_call is not None:
            self.on_call()

    def step(self, path: Path) -> None:
        """One change is about to happen: the power may go, or there may be no room."""
        self.changes += 1
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                raise PowerCut
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise OSError(errno.ENOSPC, "no space left", str(path))

    def truncates(self, path: Path) -> None:
        """This file is about to be truncated."""
        if self.cut_after is None and self.cut_after_truncation is not None:
            suffix, changes = self.cut_after_truncation
            if path.suffix == suffix:
                self.cut_after, self.cut_after_truncation = changes, None

    def used_bytes(self) -> int:
        return sum(
            len(inode.content) for inode in {id(inode): inode for _path, inode in self._walk()}.values()
        )

    def room(self) -> int | None:
        """Bytes that something may grow by now; None for any number."""
        if self.full_after is not None:
            self.full_after -= 1
            return 0 if self.full_after < 0 else None
        return None if self.capacity is None else max(0, self.capacity - self.used_bytes())

    def kill(self) -> None:
        """The process is gone, the machine is not: everything written stays, synced or not."""
        self.boot += 1
        self.locks.clear()
        self.cut_after = self.fail_after = self.full_after = self.fail_sync_after = None

    def crash(self, random: Random) -> None:
        """The power is gone: see the module's text."""
        self.kill()
        luck = random.random()
        fate = "none" if luck < 0.15 else "all" if luck < 0.25 else "any"
        self._survive(self._root, random, fate, set())
        self._folders = {"/": self._root, "": self._root}
        self._note_folders("", self._root)

    def _survive(self, folder: _Folder, random: Random, fate: str, seen: set[int]) -> None:
        folder.survive(random, fate)
        for node in folder.entries.values():
            if id(node) in seen:  # a rename that left both names
                continue
            seen.add(id(node))
            if isinstance(node, _Folder):
                self._survive(node, random, fate, seen)
            elif node.pending or node.has_lost:
                node.survive(random, fate)

    def _note_folders(self, path: str, folder: _Folder) -> None:
        for name, node in folder.entries.items():
            if isinstance(node, _Folder):
                self._folders[f"{path}/{name}"] = node
                self._note_folders(f"{path}/{name}", node)

    def flip_bit(self, path: Path, position: int, bit: int = 0) -> None:
        """A bit of the file rots, for readers and on the disk."""
        inode = self._file(path)
        inode.content[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit

    def put(self, path: Path, content: bytes) -> None:
        """Makes this the file's durable content, in the place of any other: damage, or the work of another
        program."""
        folder, name = self._place(path)
        folder.entries[name] = folder.durable[name] = _Inode(content)

    def files(self) -> list[Path]:
        """All files that programs see, in order."""
        return sorted(path for path, _inode in self._walk())

    def _walk(self) -> list[tuple[Path, _Inode]]:
        return [
            (Path(f"{path}/{name}"), node)
            for path, folder in self._folders.items()
            if path != "/"
            for name, node in folder.entries.items()
            if isinstance(node, _Inode)
        ]

    # ---- data paths ----------------------------------------------------------------------------------------

    def write(self, inode: _Inode, position: int, content: bytes, path: Path) -> None:
        grows = max(0, position + len(content) - len(inode.content))
        room = self.room() if grows else None
        kept = content
        if room is not None:
            kept = content if grows <= room else content[: max(0, len(content) - (grows - room))]
        try:
            self.step(path)
        except PowerCut:
            if not self._is_dead():
                inode.change(position, kept)  # in progress when the power failed
            raise
        inode.change(position, kept)
        if len(kept) < len(content):
            raise OSError(errno.ENOSPC, f"only {len(kept)} of {len(content)} bytes", str(path))

    def _is_dead(self) -> bool:
        return self.cut_after is not None and self.cut_after < -1

    def sync(self, inode: _Inode, path: Path) -> None:
        try:
            self.step(path)
            if self._sync_fails():
                raise OSError(errno.EIO, "the sync fails", str(path))
        except OSError:
            inode.lose_pages(self.failed_sync_keeps_cache)
            raise
        if Lie.FILE_SYNC not in self.lies:
            inode.sync()
        self.syncs += 1

    def _sync_fails(self) -> bool:
        if self.fail_sync_after is not None:
            self.fail_sync_after -= 1
            if self.fail_sync_after < 0:
                self.fail_sync_after = None
                return True
        return self.fail_sync

    # ---- the port ------------------------------------------------------------------------------------------

    def _place(self, path: Path) -> tuple[_Folder, str]:
        """The folder that holds, or would hold, a path, and its name there."""
        head, _, name = str(path).rpartition("/")
        folder = self._folders.get(head)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
        return folder, name

    def _file(self, path: Path) -> _Inode:
        folder, name = self._place(path)
        node = folder.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, "a folder", str(path))
        return node

    def _folder(self, path: Path) -> _Folder:
        folder = self._folders.get(str(path))
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
        return folder

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> LyingFile:
        folder, name = self._place(path)
        inode = folder.entries.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            if self.room() == 0:
                raise OSError(errno.ENOSPC, "no room for a file", str(path))
            self.step(path)
            inode = _Inode()
            folder.change(None, name, inode)
        if isinstance(inode, _Folder):
            raise IsADirectoryError(errno.EISDIR, "a folder", str(path))
        return LyingFile(self, path, inode)

    def exists(self, path: Path) -> bool:
        head, _, name = str(path).rpartition("/")
        folder = self._folders.get(head)
        return folder is not None and (name in folder.entries or not name)

    def size(self, path: Path) -> int:
        return len(self._file(path).content)

    def list_names(self, directory: Path) -> list[str]:
        self.called()
        return sorted(self._folder(directory).entries)

    def make_directory(self, directory: Path, *, durable: bool = True) -> None:
        if str(directory) in self._folders:
            return
        self.make_directory(directory.parent)
        folder, name = self._place(directory)
        if self.room() == 0:
            raise OSError(errno.ENOSPC, "no room for a folder", str(directory))
        self.step(directory)
        made = self._folders[str(directory)] = _Folder()
        folder.change(None, name, made)
        if durable:
            self.sync_directory(directory.parent)

    def read(self, path: Path) -> bytes:
        self.called()
        self.require_readable(path)
        return bytes(self._file(path).content)

    def require_readable(self, path: Path) -> None:
        if path in self.unreadable:
            raise ReadFailed(errno.EIO, "the read fails", str(path))

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.called()
        in_place = Lie.ATOMIC_REPLACEMENT in self.lies
        temporary = path if in_place else path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        if file.size():
            file.truncate(0)
        if data:
            file.write_at(0, data)
        file.sync_data()
        if not in_place:
            self.rename(temporary, path)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        self.called()
        folder, name = self._place(source)
        into, new_name = self._place(target)
        node = folder.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        self.step(source)
        if folder is into:
            folder.change(name, new_name, node)
        else:
            into.change(None, new_name, node)
            folder.change(name, None, node)
        if isinstance(node, _Folder):
            self._folders = {
                path: each for path, each in self._folders.items() if not _is_below(path, str(source))
            }
            self._folders[str(target)] = node
            self._note_folders(str(target), node)

    def remove(self, path: Path) -> None:
        self.called()
        inode = self._file(path)
        self.step(path)
        folder, name = self._place(path)
        folder.change(name, None, inode)

    def remove_tree(self, directory: Path) -> None:
        folder = self._folder(directory)
        for name, node in sorted(folder.entries.items()):
            if isinstance(node, _Folder):
                self.remove_tree(directory / name)
            else:
                self.remove(directory / name)
        self.step(directory)
        parent, name = self._place(directory)
        parent.change(name, None, folder)
        del self._folders[str(directory)]

    def sync_directory(self, directory: Path) -> None:
        self.called()
        folder = self._folder(directory)
        self.step(directory)
        if self._sync_fails():
            raise OSError(errno.EIO, "the sync fails", str(directory))
        if Lie.FOLDER_SYNC not in self.lies:
            folder.sync()

    def free_bytes(self, directory: Path) -> int:
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self.used_bytes())

    def total_bytes(self, directory: Path) -> int:
        return 2 << 40 if self.capacity is None else self.capacity

    def lock(self, path: Path) -> LyingLock:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        self.locks.add(path)
        return LyingLock(self, path)


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")
