"""What a read returns of the bytes that it took from a segment: whole batches, and only those in the
requested range.  Pure.

Every fetch runs this code, so its cost is per read and not per batch: it parses one header when the index
made both ends batch boundaries, and walks over headers only where the index could not
(`OffsetIndex.stretch`).
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ...wire.records import HEADER_BYTES, LOG_OVERHEAD_BYTES
from .batch_scan import InvalidBatch

_BOUNDS = Struct(">qi4xb6xi").unpack_from  # of a header: base offset, length, magic, last offset delta
_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES


class ReadResult(NamedTuple):
    """Whole batches.  The first may begin below the requested offset; the next read starts at `next_offset`.

    When there is nothing to read, a segment returns NOTHING; the log returns the requested offset, twice.
    """

    data: bytes
    next_offset: int
    first_offset: int


NOTHING = ReadResult(b"", -1, -1)
_new = tuple.__new__  # a quarter of a microsecond less than the class's own


def batch_at(data: bytes, position: int) -> tuple[int, int, int]:
    """(base offset, next offset, position behind it) of a batch; four fields instead of a whole header.

    Raises InvalidBatch for bytes that are no batch: a length that is wrong must not lead anywhere."""
    if position + HEADER_BYTES <= len(data):
        base_offset, length, magic, last_offset_delta = _BOUNDS(data, position)
        end = position + LOG_OVERHEAD_BYTES + length
        if magic == 2 and length >= _LENGTH_MIN and end <= len(data) and last_offset_delta >= 0:
            return base_offset, base_offset + last_offset_delta + 1, end
    raise InvalidBatch(position, "no whole batch stands in what was read")


def _nothing(data: bytes, next_offset: int) -> ReadResult:
    """None of these batches, which end below `next_offset`, was asked for.  Raises InvalidBatch when they do
    not say so with one voice: a reader would be led past a batch whose end is wrong."""
    position = expected = 0
    while position < len(data):
        at = position
        base_offset, following, position = batch_at(data, at)
        if base_offset < expected or following > next_offset:
            raise InvalidBatch(
                at,
                f"offsets {base_offset} to {following - 1} cannot stand between {expected} and {next_offset}",
            )
        expected = following
    return NOTHING


def trim(
    data: bytes,
    begins_at: int,
    offset: int,
    upper_offset: int,
    max_bytes: int,
    next_offset: int,
    walk_from: int,
) -> ReadResult:
    """Cuts from the front the batches that end at or below `offset`; from the end, walking from `walk_from`
    (-1: no need), those that are not wholly below `upper_offset`, and those beyond `max_bytes` except the
    first.

    Raises InvalidBatch when what it walks over is no batch, or the first one does not begin at the offset
    `begins_at`."""
    size = len(data)
    begin = 0
    first_base, first_next, first_end = batch_at(data, 0)
    if first_base != begins_at:
        raise InvalidBatch(0, f"no batch of offset {begins_at} begins here")
    while first_next <= offset:
        begin = first_end
        if begin >= size:
            return _nothing(data, next_offset)
        first_base, first_next, first_end = batch_at(data, begin)
    if first_next > upper_offset:
        return _nothing(data, next_offset)
    end = size
    if end - begin > max_bytes:
        walk_from = begin
    if walk_from >= 0:
        end, next_offset = first_end, first_next
        if walk_from >= end:
            end, next_offset = walk_from, batch_at(data, walk_from)[0]
        while end < size:
            _, following, batch_end = batch_at(data, end)
            if following > upper_offset or batch_end - begin > max_bytes:
                break
            end, next_offset = batch_end, following
    return _new(ReadResult, (data if not begin and end == size else data[begin:end], next_offset, first_base))
