"""Putting one cleaned segment in the place of several old ones, so that a crash at any point leaves all old
ones or the new one.

    <base>.log.cleaned, <base>.index.cleaned, ...    the new segment while it is written; without a `.swap`
                                                     no reader uses it
    <base>.swap                                      the decision: which segments go, which files of the new
                                                     one come
    <name>.deleted                                   a file to unlink; no reader uses it

Order:

1. all `.cleaned` files are written and synced, and the folder, so that they have their names;
2. `<base>.swap` is written atomically and durably: from here on the new segment is the log's, whatever
   happens;
3. old files become `.deleted`, `.cleaned` files lose that suffix, producer snapshots below the end of the
   cleaned part go (one with an open transaction whose marker was cleaned away would keep it open for ever),
   the folder is synced;
4. `<base>.swap` is removed, the folder is synced; `.deleted` files are unlinked some time later.

Steps 3 and 4 can be repeated: opening a log does so when it finds a `.swap` (`finish_swaps`), and before that
nothing else of the folder is looked at.  A crash before step 2 is durable leaves the old segments, and
opening removes what was prepared.  Unlike Kafka's protocol of renames, the outcome never depends on which of
several renames reached the disk, nor on what the new segment holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...runtime import faults, logs
from ...runtime.disk import Disk
from ..checkpoint import RowShapes, decode_checkpoint, encode_checkpoint

INDEX_SUFFIXES = ("index", "timeindex", "countindex", "seal")
"""Written when a segment is complete; built again when they are missing."""
SEGMENT_SUFFIXES = ("log", *INDEX_SUFFIXES, "txnindex")
CLEANED = ".cleaned"
DELETED = ".deleted"
_SWAP = ".swap"
SWAP_SHAPES = RowShapes({1: 2}, writes=1)
_OLD, _NEW = "old", "new"
log = logs.get(__name__)


class SwapDamaged(Exception):
    """A decision file that cannot be read: whether the new segment replaces the old ones is not known."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


def swap_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{_SWAP}"


def decide_swap(disk: Disk, directory: Path, old_bases: Iterable[int], new_base: int) -> Path:
    """Step 2.  The `.cleaned` files of `new_base` must be durable.  Raises OSError; then it may have been
    decided or not."""
    new = [suffix for suffix in SEGMENT_SUFFIXES if disk.exists(_file(directory, new_base, suffix + CLEANED))]
    assert "log" in new
    rows = [(_OLD, base) for base in old_bases] + [(_NEW, suffix) for suffix in new]
    path = swap_path(directory, new_base)
    disk.write_atomic(path, encode_checkpoint(rows, SWAP_SHAPES.writes))
    faults.point("log.swap_decided", directory=directory.name)
    return path


def finish_swap(disk: Disk, directory: Path, path: Path) -> list[Path]:
    """Steps 3 and 4 of a decided swap; can be repeated.  Returns the files to unlink (any thread).  Raises
    SwapDamaged, OSError."""
    old, new = _read(disk, path)
    new_base = int(path.name.removesuffix(_SWAP))
    doomed: list[Path] = []
    for base in old:
        for suffix in SEGMENT_SUFFIXES:
            target = _file(directory, base, suffix)
            replaced = base == new_base and suffix in new
            if replaced and not disk.exists(target.with_name(target.name + CLEANED)):
                continue  # done already: this file is the new one
            if disk.exists(target):
                gone = target.with_name(target.name + DELETED)
                disk.rename(target, gone)
                doomed.append(gone)
    for suffix in new:
        cleaned = _file(directory, new_base, suffix + CLEANED)
        if disk.exists(cleaned):
            disk.rename(cleaned, _file(directory, new_base, suffix))
    _drop_snapshots(disk, directory, max(old))
    disk.sync_directory(directory)
    faults.point("log.swap_renamed", directory=directory.name)
    disk.remove(path)
    disk.sync_directory(directory)
    return doomed


def _drop_snapshots(disk: Disk, directory: Path, last_base: int) -> None:
    """Removes the snapshots below the first segment behind the cleaned ones; there always is one, because the
    active segment is never cleaned."""
    names = disk.list_names(directory)
    bases = [int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit()]
    end = min((base for base in bases if base > last_base), default=0)
    for name in names:
        if name.endswith(".snapshot") and name[:-9].isdigit() and int(name[:-9]) < end:
            disk.remove(directory / name)


def _read(disk: Disk, path: Path) -> tuple[list[int], list[str]]:
    try:
        rows = decode_checkpoint(disk.read(path), SWAP_SHAPES)
        return [int(value) for kind, value in rows if kind == _OLD], [
            value for kind, value in rows if kind == _NEW
        ]
    except ValueError as error:
        raise SwapDamaged(path, error) from error


def finish_swaps(disk: Disk, directory: Path) -> None:
    """The first step of opening a log: finishes the decided swaps, removes the files of the others.  Raises
    SwapDamaged, OSError."""
    names = disk.list_names(directory)
    for name in names:
        if name.endswith(_SWAP):
            log.info("segment_swap_finished", path=directory / name)
            finish_swap(disk, directory, directory / name)
    names = disk.list_names(directory)
    doomed = [name for name in names if name.endswith((CLEANED, DELETED))]
    interrupted = [name.partition(".")[0] for name in doomed if name.endswith(".log" + DELETED)]
    for stem in interrupted:  # of a removal: the other files of the segment have no meaning without its data
        if f"{stem}.log" not in names:
            for suffix in SEGMENT_SUFFIXES:
                if f"{stem}.{suffix}" in names:
                    disk.remove(directory / f"{stem}.{suffix}")
    if interrupted:
        disk.sync_directory(directory)
    for name in doomed:
        disk.remove(directory / name)
    if doomed:
        disk.sync_directory(directory)  # a crash may not bring them back into a later life of the same names


def _file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}.{suffix}"
