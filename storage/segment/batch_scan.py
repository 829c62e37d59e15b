"""Walking over the batches of a segment file, from byte to byte, in few reads.

Two walks: over headers only (big batches are skipped, not read), for lookups, replays and index building; and
over whole batches with their checksums, for recovery.  Both stop at the first byte that is no valid batch and
say why; the caller knows whether that is a torn tail or damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...runtime.disk import File
from ...wire.errors import KafkaError
from ...wire.records import HEADER_BYTES, BatchHeader, parse_header, validate_batch

CHUNK_BYTES = 256 * 1024
_LENGTH_MIN = HEADER_BYTES - 12


class ScannedBatch(NamedTuple):
    """A batch and where it begins.  `view` holds the whole batch for control batches and in walks over whole
    batches, else None."""

    position: int
    header: BatchHeader
    view: memoryview | None


class InvalidBatch(Exception):
    """The bytes at `position` are no valid batch; `offset` is the last offset known to be before them (-1:
    unknown)."""

    def __init__(self, position: int, reason: str, path: Path | None = None, offset: int = -1) -> None:
        super().__init__(f"{'' if path is None else f'{path} '}at byte {position}: {reason}")
        self.position = position
        self.reason = reason
        self.path = path
        self.offset = offset


def scan_batches(
    file: File, start: int, end: int, *, check: bool = False, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[ScannedBatch]:
    """The batches in bytes [start, end) of `file`; with `check`, whole and with their CRC verified.

    Raises InvalidBatch where the chain of batches breaks, also when the last one does not fit before `end`.
    """
    position, before = start, -1
    chunk, chunk_start = b"", start
    while position < end:
        offset = position - chunk_start
        if offset + HEADER_BYTES > len(chunk):
            chunk, chunk_start, offset = file.read_at(position, min(chunk_bytes, end - position)), position, 0
            if len(chunk) < HEADER_BYTES:
                raise InvalidBatch(position, f"{len(chunk)} bytes are too few for a batch", file.path, before)
        header = parse_header(chunk, offset)
        wrong = _wrong_length(header, position, end)
        if wrong:
            raise InvalidBatch(position, wrong, file.path, before)
        size = header.size_bytes
        view: memoryview | None = None
        if check or header.is_control:
            if offset + size > len(chunk):
                length = min(max(size, chunk_bytes), end - position)
                chunk, chunk_start, offset = file.read_at(position, length), position, 0
                if len(chunk) < size:
                    raise InvalidBatch(
                        position, f"{len(chunk)} bytes of a batch of {size}", file.path, before
                    )
            view = memoryview(chunk)[offset : offset + size]
            if check:
                try:
                    header = validate_batch(view)
                except KafkaError as error:
                    raise InvalidBatch(position, str(error), file.path, before) from error
        yield ScannedBatch(position, header, view)
        position += size
        before = header.last_offset


def _wrong_length(header: BatchHeader, position: int, end: int) -> str:
    if header.magic != 2 or header.batch_length < _LENGTH_MIN:
        return f"no batch of version 2: length {header.batch_length}, magic {header.magic}"
    if header.last_offset_delta < 0:
        return f"a batch that ends {-header.last_offset_delta} offsets before it begins"
    if position + header.size_bytes > end:
        return f"a batch of {header.size_bytes} bytes where {end - position} are left"
    return ""
