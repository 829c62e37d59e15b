"""Damaged logs that were set aside, `<n>-damaged`: kept for whoever wants to look at them, for some time and up to some size.

    <n>-damaged/set-aside       when, and which partition it was

In each data folder the oldest go first: those older than `retention_ms`, and then until all together have no more than
`retention_bytes`, of which the newest one stays in any case.  -1 is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..checkpoint import CheckpointInvalid, decode_checkpoint, encode_checkpoint
from .folder_notes import PartitionKey

DAMAGED_SUFFIX = "-damaged"
SET_ASIDE = "set-aside"
log = logs.get(__name__)


@dataclass(slots=True, frozen=True)
class DamagedRetention:
    """How long, and how much, is kept in each data folder; -1: no bound."""

    retention_ms: int
    retention_bytes: int


def note_set_aside(disk: Disk, directory: Path, now_ms: int, key: PartitionKey | None) -> None:
    """On a full disk, when there is room.  Raises OSError."""
    try:
        disk.write_atomic(directory / SET_ASIDE, encode_checkpoint([(now_ms, *(key or ("?", -1)))]))
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise


def remove_old_damaged(disk: Disk, folder: Path, now_ms: int, kept: DamagedRetention) -> list[Path]:
    """Removes what is too old or too much; returns what.  Any thread.  Raises OSError."""
    found = []
    for name in disk.list_names(folder):
        if name.endswith(DAMAGED_SUFFIX) and name.removesuffix(DAMAGED_SUFFIX).isdigit():
            path = folder / name
            found.append((_since_ms(disk, path, now_ms), path, sum(disk.size(path / each) for each in disk.list_names(path))))
    found.sort(key=lambda each: (each[0], each[1]))
    total = sum(size for _since, _path, size in found)
    removed: list[Path] = []
    for number, (since_ms, path, size) in enumerate(found, start=1):
        is_old = kept.retention_ms >= 0 and now_ms - since_ms > kept.retention_ms
        is_too_much = kept.retention_bytes >= 0 and total > kept.retention_bytes and number < len(found)
        if not is_old and not is_too_much:
            break
        disk.remove_tree(path)
        total -= size
        removed.append(path)
        log.warning("damaged_log_removed", path=path, size_bytes=size, since_ms=since_ms, reason="age" if is_old else "size")
    return removed


def _since_ms(disk: Disk, path: Path, now_ms: int) -> int:
    """From now on, when nobody has noted it."""
    try:
        return int(decode_checkpoint(disk.read(path / SET_ASIDE), 3)[0][0])
    except (FileNotFoundError, CheckpointInvalid, ValueError, IndexError):
        note_set_aside(disk, path, now_ms, None)
        return now_ms
