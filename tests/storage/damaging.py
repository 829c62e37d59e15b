"""Hands to damage a data folder with: its files are changed as a failing disk or faulty software would, and
looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c
from tidegate.runtime.disk import RealDisk
from tidegate.runtime.lock_probe import is_locked
from tidegate.storage.checkpoint import decode_checkpoint, encode_checkpoint
from tidegate.storage.directory.folder_notes import PARTITION_CHECKPOINT_SHAPES
from tidegate.storage.inspection.directory import DataFolder, VerificationOptions, verify
from tidegate.storage.inspection.partition import PartitionReport
from tidegate.storage.segment.count_index import CountIndex, decode_count_index
from tidegate.wire.records import assign_in_place, iterate_headers

from .workload import NOW_MS

P = "flights-0"


def look(
    *paths: Path, now_ms: int = NOW_MS, compacted: frozenset[str] = frozenset()
) -> list[DataFolder | PartitionReport]:
    return list(verify(RealDisk(), paths, VerificationOptions(now_ms, is_locked, compacted)))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def batches(path: Path) -> list[tuple[int, int, int]]:
    """(position, size, base offset) of all batches in a file."""
    return [(at, header.size_bytes, header.base_offset) for at, header in iterate_headers(path.read_bytes())]


def patch(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, position: int) -> None:
    patch(path, position, bytes([path.read_bytes()[position] ^ 1]))


def replace_batch(path: Path, at: int, new: bytes) -> None:
    """Puts another batch of the same size in the place of the `at`-th: offsets and leader epoch as before."""
    content = bytearray(path.read_bytes())
    position, header = list(iterate_headers(content))[at]
    stamped = bytearray(new)
    assign_in_place(stamped, 0, header.base_offset, header.partition_leader_epoch)
    assert len(stamped) == header.size_bytes, "the replacement must not move what follows"
    content[position : position + len(stamped)] = stamped
    path.write_bytes(content)


def restamp(path: Path, at: int, change: Callable[[bytearray, int], None]) -> None:
    """Changes the `at`-th batch, and makes its checksum right again: a fault of software, not of the disk."""
    content = bytearray(path.read_bytes())
    position, header = list(iterate_headers(content))[at]
    change(content, position)
    content[position + 17 : position + 21] = crc32c(
        content[position + 21 : position + header.size_bytes]
    ).to_bytes(4, "big")
    path.write_bytes(content)


def find(folder: Path, wanted: Callable[..., bool], skip: int = 0) -> tuple[Path, int]:
    """The segment and number of the batch, the `skip`-th of those whose header is wanted."""
    for path in segments(folder):
        for number, (_at, header) in enumerate(iterate_headers(path.read_bytes())):
            if wanted(header):
                if not skip:
                    return path, number
                skip -= 1
    raise AssertionError("no such batch")


def without_snapshots(folder: Path) -> None:
    for path in folder.glob("*.snapshot"):
        path.unlink()


def rewrite_checkpoint(root: Path, name: str, column: int, value: int) -> None:
    path = root / "partition-checkpoint"
    rows = decode_checkpoint(path.read_bytes(), PARTITION_CHECKPOINT_SHAPES)
    for row in rows:
        if f"{row[0]}-{row[1]}" == name:
            row[column] = str(value)
    path.write_bytes(encode_checkpoint(rows, 1))


def end_of(root: Path, name: str) -> int:
    return next(
        r.end_offset for r in look(root) if isinstance(r, PartitionReport) and r.directory.name == name
    )


def recount(root: Path, change: Callable[[CountIndex], object], *, with_runs: bool = False) -> None:
    """Another count index of one of the segments, as well made as any."""
    for path in segments(root / P)[1:]:
        stored, index = decode_count_index(path.with_suffix(".countindex").read_bytes(), int(path.stem))
        if index._runs or not with_runs:
            change(index)
            end = int(path.stem) + stored.total.records  # as if there were nothing else in it
            path.with_suffix(".countindex").write_bytes(
                index.encode(stored.segment_bytes, end, stored.batch_crc)
            )
            return
    raise AssertionError("no segment has such an index")


def edit_snapshot(path: Path, position: int, value: int, size: int) -> None:
    body = bytearray(path.read_bytes()[4:])
    body[position : position + size] = value.to_bytes(size, "big")
    path.write_bytes(crc32c(bytes(body)).to_bytes(4, "big") + body)


def rest_of_sequences(
    folder: Path, path: Path, number: int, change: Callable[[bytearray, int], None]
) -> None:
    """Changes this batch and all later ones of its producer, so that the gap is one."""
    started = False
    for each in segments(folder):
        for at, (_position, header) in enumerate(list(iterate_headers(each.read_bytes()))):
            started |= (each, at) == (path, number)
            if started and header.producer_id == 7:
                restamp(each, at, change)
