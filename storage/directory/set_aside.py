"""Damaged logs that were set aside, `<n>-damaged`: kept for the operator to examine, for a limited time and
up to a limited size.

    <n>-damaged/set-aside       when, and which partition it was

In each data folder the oldest are removed first: those older than `retention_ms`, then more until all
together have at most `retention_bytes`.  The newest one always stays.  -1 is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..checkpoint import RowShapes, decode_checkpoint, encode_checkpoint
from .folder_notes import PartitionKey

DAMAGED_SUFFIX = "-damaged"
SET_ASIDE = "set-aside"
SET_ASIDE_SHAPES = RowShapes({1: 3}, writes=1)
log = logs.get(__name__)


@dataclass(slots=True, frozen=True)
class DamagedRetention:
    """How long, and how much, is kept in each data folder; -1: no bound."""

    retention_ms: int
    retention_bytes: int


def note_set_aside(disk: Disk, directory: Path, now_ms: int, key: PartitionKey | None) -> None:
    """Writes the note beside the log; on a full disk it writes nothing.  Raises OSError."""
    try:
        disk.write_atomic(
            directory / SET_ASIDE, encode_checkpoint([(now_ms, *(key or ("?", -1)))], SET_ASIDE_SHAPES.writes)
        )
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise


def remove_old_damaged(disk: Disk, folder: Path, now_ms: int, kept: DamagedRetention) -> list[Path]:
    """Removes the logs that are too old or exceed the size; returns their paths.  Any thread.  Raises
    OSError."""
    found = []
    for name in disk.list_names(folder):
        if name.endswith(DAMAGED_SUFFIX) and name.removesuffix(DAMAGED_SUFFIX).isdigit():
            path = folder / name
            found.append(
                (
                    _since_ms(disk, path, now_ms),
                    path,
                    sum(disk.size(path / each) for each in disk.list_names(path)),
                )
            )
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
        log.warning(
            "damaged_log_removed",
            path=path,
            size_bytes=size,
            since_ms=since_ms,
            reason="age" if is_old else "size",
        )
    return removed


def _since_ms(disk: Disk, path: Path, now_ms: int) -> int:
    """When the log was set aside; now, and noted, when the folder does not say."""
    try:
        return int(decode_checkpoint(disk.read(path / SET_ASIDE), SET_ASIDE_SHAPES)[0][0])
    except (FileNotFoundError, ValueError, IndexError):
        note_set_aside(disk, path, now_ms, None)
        return now_ms
