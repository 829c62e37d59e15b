"""The source of a segment's counts: its `.countindex` when that is valid, or a walk over the headers of its
batches.

Any thread; nothing of the segment itself is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ...runtime import logs
from ...runtime.disk import Disk, File
from ...wire.records import HEADER_BYTES, decode_marker, parse_header
from .batch_scan import CHUNK_BYTES, ScannedBatch, scan_batches
from .count_index import (
    HEAD,
    RUN,
    CountIndex,
    CountIndexInvalid,
    StoredCounts,
    Total,
    decode_count_index,
    decode_head,
    runs_in,
)  # fmt: skip

HEADER_READ_BYTES = 512
"""Bytes read for one header: with small batches they contain the next headers too, with large ones little
else."""
_LARGE_BATCH_BYTES = 4096
log = logs.get(__name__)


def batch_crc_at(file: File, position: int) -> int:
    """The checksum in the header at `position`; -1 when there is none, or no place."""
    head = file.read_at(position, HEADER_BYTES) if position >= 0 else b""
    return parse_header(head).crc if len(head) == HEADER_BYTES else -1


def load_counts(
    disk: Disk,
    path: Path,
    file: File,
    base_offset: int,
    segment_bytes: int,
    end_offset: int,
    index_interval_bytes: int,
) -> CountIndex:
    """The counts of the first `segment_bytes` of `file`, which end at `end_offset`.  Raises
    CountIndexInvalid, OSError (also when there is no file)."""
    stored, index = decode_count_index(disk.read(path), base_offset, end_offset, index_interval_bytes)
    _check(stored, file, segment_bytes)
    return index


def load_total(disk: Disk, path: Path, file: File, base_offset: int, segment_bytes: int) -> Total:
    """As `load_counts`, without the entries."""
    counts = disk.open(path, read_only=True)
    try:
        head = counts.read_at(0, HEAD.size)
        wanted = RUN.size * runs_in(head)
        if wanted > counts.size():  # damaged: not to be asked for
            raise CountIndexInvalid(f"{counts.size()} bytes are too few for {wanted} of runs")
        stored = decode_head(head + counts.read_at(HEAD.size, wanted), base_offset)
    finally:
        counts.close()
    _check(stored, file, segment_bytes)
    return stored.total


def encoded_counts(counts: CountIndex | None, file: File, segment_bytes: int, end_offset: int) -> bytes:
    """The content of the file; empty when no counts are known: a file of an earlier life may not stay."""
    if counts is None or not counts.is_whole:
        return b""
    try:
        crc = batch_crc_at(file, counts.last_position)
    except OSError as error:  # on the way of an append, which does not need this
        log.warning("counts_not_kept", path=file.path, reason=error)
        return b""
    return counts.encode(segment_bytes, end_offset, max(0, crc))


def _check(stored: StoredCounts, file: File, segment_bytes: int) -> None:
    if stored.segment_bytes != segment_bytes:
        raise CountIndexInvalid(
            f"it is that of {stored.segment_bytes} bytes, the segment has {segment_bytes}"
        )
    if segment_bytes and batch_crc_at(file, stored.last_position) != stored.batch_crc:
        raise CountIndexInvalid(f"it is that of another batch at byte {stored.last_position}")


def scan_headers(file: File, start: int, end: int) -> Iterator[ScannedBatch]:
    """The batches in bytes [start, end), for their headers: large ones are skipped, small ones read together.
    Raises InvalidBatch, OSError."""
    first = list(islice(scan_batches(file, start, end, chunk_bytes=HEADER_READ_BYTES), 16))
    large = sum(batch.header.size_bytes for batch in first) > _LARGE_BATCH_BYTES * len(first)
    return scan_batches(file, start, end, chunk_bytes=HEADER_READ_BYTES if large else CHUNK_BYTES)


def build_counts(
    file: File, base_offset: int, segment_bytes: int, end_offset: int, index_interval_bytes: int
) -> CountIndex:
    """Counts anew, by the headers of the batches below `segment_bytes`.  Raises InvalidBatch, OSError."""
    index, expected = CountIndex(base_offset, index_interval_bytes), base_offset
    for position, header, view in scan_headers(file, 0, segment_bytes):
        if position >= index.next_entry_at:
            index.mark(expected, position)
        index.take(header, header.base_offset, position, header.base_offset - expected)
        expected = header.next_offset
        marker = decode_marker(view) if view is not None else None
        if marker is not None:
            index.end_transaction(marker)
    index.absent += end_offset - expected
    return index
