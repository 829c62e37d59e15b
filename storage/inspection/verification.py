"""Reads a data folder from outside: its files, whether a node uses them, and its batches.  Strictly
read-only.

Nothing here needs a node or disturbs one: files are opened for reading, no lock is kept, nothing is repaired.
A folder in use may change while it is read; `inspection.partition` reads twice before it reports a violation.

A replacement of segments that is decided but not finished (`segment.swap`) counts as the next start will
finish it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from ...runtime.disk import Disk, File
from ...wire.errors import KafkaError
from ...wire.records import HEADER_BYTES, BatchHeader, parse_header, validate_batch
from ..checkpoint import decode_checkpoint
from ..directory.move_state import REPLICA_MOVE
from ..segment.swap import CLEANED, DELETED, SEGMENT_SUFFIXES, SWAP_SHAPES

CHUNK_BYTES = 1024 * 1024
BATCH_BYTES_MAX = 128 * 1024 * 1024
"""A longer batch is taken for a damaged length: no request can carry it, and memory stays bounded."""
_RESUME_TRIES = 64
_SWAP = ".swap"
KNOWN_NAMES = frozenset({
    "leader-epoch-checkpoint", "partition.metadata", "log-config", "log-start", "damaged", "set-aside",
    REPLICA_MOVE,
})  # fmt: skip


class FolderState(Enum):
    """The state in which the data folder was left; it decides the demands on its files."""

    RUNNING = "in use by a running node"
    CLEAN = "stopped cleanly"
    UNCLEAN = "stopped uncleanly"
    UNKNOWN = "a partition's folder by itself"


class StoredBatch(NamedTuple):
    """A valid batch; `view` holds all of it until the caller asks for the next one."""

    position: int
    header: BatchHeader
    view: memoryview


class DamagedBytes(NamedTuple):
    """No valid batch begins at `position`.  `resumed_at` is where the next valid one was found; -1: none
    was."""

    position: int
    reason: str
    resumed_at: int


def walk_batches(
    file: File, size_bytes: int, likely_boundaries: Sequence[int] = (), *, start: int = 0
) -> Iterator[StoredBatch | DamagedBytes]:
    """All batches from byte `start` (where one must begin) to `size_bytes`, checked whole, in chunks of about
    a megabyte.

    Behind damage the walk goes on at the next valid batch: where the damaged one says that it ends, or at one
    of the `likely_boundaries` (rising positions, from the offset index).  Raises OSError.
    """
    position, last_offset = start, -1
    chunk, chunk_start = b"", start
    while position < size_bytes:
        at = position - chunk_start
        if at + HEADER_BYTES > len(chunk) or at + _size_at(chunk, at) > len(chunk):
            chunk, chunk_start, at = _read_batch(file, position, size_bytes), position, 0
        try:
            view = (
                memoryview(chunk)[at : at + _size_at(chunk, at)]
                if len(chunk) - at >= HEADER_BYTES
                else memoryview(chunk)[at:]
            )
            header = validate_batch(view)
        except KafkaError as error:
            resumed = _resume(file, position, size_bytes, last_offset, likely_boundaries)
            yield DamagedBytes(position, error.message or str(error), resumed)
            if resumed < 0:
                return
            position = resumed
            continue
        yield StoredBatch(position, header, view)
        position += header.size_bytes
        last_offset = header.last_offset


def _size_at(chunk: bytes, at: int) -> int:
    """The size that a batch claims, or a header's when the claim is absurd: then it is the check that says
    so."""
    header = parse_header(chunk, at)
    return header.size_bytes if HEADER_BYTES <= header.size_bytes <= BATCH_BYTES_MAX else HEADER_BYTES


def _read_batch(file: File, position: int, end: int) -> bytes:
    chunk = file.read_at(position, min(CHUNK_BYTES, end - position))
    if len(chunk) < HEADER_BYTES or _size_at(chunk, 0) <= len(chunk):
        return chunk
    return file.read_at(position, min(_size_at(chunk, 0), end - position))


def _resume(file: File, position: int, end: int, last_offset: int, likely: Sequence[int]) -> int:
    chunk = file.read_at(position, HEADER_BYTES)
    claimed = [position + _size_at(chunk, 0)] if len(chunk) == HEADER_BYTES else []
    hints = [boundary for boundary in likely if boundary > position][:_RESUME_TRIES]
    for candidate in (*claimed, *hints):
        if not position < candidate < end:
            continue
        try:
            if validate_batch(memoryview(_read_batch(file, candidate, end))).base_offset > last_offset:
                return candidate
        except KafkaError:
            continue
    return -1


# ---- a log's files -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class FoundSegment:
    """The files of one segment; a file that a pending replacement will rename has its future role here."""

    base_offset: int
    files: dict[str, Path] = field(default_factory=dict)


@dataclass(slots=True)
class PartitionFiles:
    """The files of one log's folder.  `segments` and `snapshots` by offset, rising."""

    directory: Path
    names: frozenset[str]
    segments: list[FoundSegment] = field(default_factory=list)
    snapshots: dict[int, Path] = field(default_factory=dict)
    leftovers: list[Path] = field(default_factory=list)
    strays: list[Path] = field(default_factory=list)
    damaged_swaps: list[tuple[Path, str]] = field(default_factory=list)


def list_partition(disk: Disk, directory: Path) -> PartitionFiles:
    """The contents of the folder.  Raises OSError."""
    names = frozenset(disk.list_names(directory))
    found = PartitionFiles(directory, names)
    present: dict[tuple[int, str], Path] = {}
    for name in sorted(names):
        stem, _, suffix = name.partition(".")
        is_offset = len(stem) == 20 and stem.isdigit() and stem.isascii()
        if is_offset and suffix in SEGMENT_SUFFIXES:
            present[int(stem), suffix] = directory / name
        elif is_offset and suffix == "snapshot":
            found.snapshots[int(stem)] = directory / name
        elif name.endswith((CLEANED, DELETED, _SWAP, ".tmp")):
            found.leftovers.append(directory / name)
        elif name not in KNOWN_NAMES:
            found.strays.append(directory / name)
    for path in [path for path in found.leftovers if path.name.endswith(_SWAP)]:
        _foresee_swap(disk, found, present, path)
    bases = sorted({base for base, suffix in present if suffix == "log"})
    found.segments = [
        FoundSegment(base, {s: present[base, s] for s in SEGMENT_SUFFIXES if (base, s) in present})
        for base in bases
    ]
    known = set(bases)
    found.leftovers += [path for (base, _suffix), path in present.items() if base not in known]
    return found


def _foresee_swap(
    disk: Disk, found: PartitionFiles, present: dict[tuple[int, str], Path], decision: Path
) -> None:
    """Treats a decided replacement as finished."""
    try:
        rows = decode_checkpoint(disk.read(decision), SWAP_SHAPES)
        old = [int(value) for kind, value in rows if kind == "old"]
        new = [value for kind, value in rows if kind == "new"]
        base = int(decision.name.removesuffix(_SWAP))
    except ValueError as error:
        found.damaged_swaps.append((decision, str(error)))
        return
    for gone in old:
        for suffix in SEGMENT_SUFFIXES:
            cleaned = found.directory / f"{gone:020d}.{suffix}{CLEANED}"
            if gone == base and suffix in new and cleaned.name not in found.names:
                continue  # renamed already: it is the new one
            present.pop((gone, suffix), None)
    for suffix in new:
        cleaned = found.directory / f"{base:020d}.{suffix}{CLEANED}"
        if cleaned.name in found.names:
            present[base, suffix] = cleaned
