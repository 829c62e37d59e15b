"""Segment checksums: sizes and checksums of the files beside a segment's batches, and the size of the
batches.  Pure.

    <base>.seal     base offset, end offset, bytes of batches, bytes and crc32c of `.index` and of
                    `.timeindex`, entries and crc32c of `.txnindex`; one line of a checkpoint

Kafka's formats of these files have no checksums.  A transaction index that lost an entry gives aborted
records to readers as committed ones; an offset index that was damaged, or belongs to an earlier life, leads
readers past batches; a segment, or a log, that lost its end looks like one that was never longer.  The
checksums are written with the indexes (when a segment is complete, with every snapshot in the active one, at
a clean close), after the batches are durable, so they prove:

* that so many bytes of batches were flushed: a shorter file has lost some;
* of a complete segment, the base offset of the next one: when no segment has that name, it is lost;
* that indexes with these checksums are those of this segment as it was then.

A file that does not match is rebuilt from the batches (`recovery`, `Segment`).  Before a truncation removes
bytes that the checksums cover, it removes the checksums, durably (`Segments.truncate`); when segments leave
at the front, their data goes first (`removal`).  So checksums without batches show a loss, too.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from ..checkpoint import RowShapes, encode_checkpoint, parse_checkpoint

CHECKSUMS_SHAPES = RowShapes({1: 9}, writes=1)
STILL_OPEN = -1
"""End offset of a segment that was active: the base offset of the next one was not known yet."""


class ChecksumsInvalid(ValueError):
    """The file is damaged and proves nothing."""


class SegmentChecksums(NamedTuple):
    """See the module's text."""

    base_offset: int
    end_offset: int
    log_bytes: int
    index_bytes: int
    index_crc: int
    time_index_bytes: int
    time_index_crc: int
    aborted: int
    aborted_crc: int

    def encode(self) -> bytes:
        return encode_checkpoint([self], CHECKSUMS_SHAPES.writes)

    def vouches_for(self, index: bytes, time_index: bytes) -> bool:
        """Whether the two index files with these contents match."""
        return (crc32c(index), crc32c(time_index)) == (self.index_crc, self.time_index_crc)


def checksums_of(
    base_offset: int,
    end_offset: int,
    log_bytes: int,
    index: bytes,
    time_index: bytes,
    aborted: int,
    aborted_crc: int,
) -> SegmentChecksums:
    """`aborted` is the number of entries of the transaction index, `aborted_crc` their checksum."""
    indexes = len(index), crc32c(index), len(time_index), crc32c(time_index)
    return SegmentChecksums(base_offset, end_offset, log_bytes, *indexes, aborted, aborted_crc)


def _parse_row(*fields: str) -> SegmentChecksums:
    return SegmentChecksums(*map(int, fields))


def decode_checksums(data: bytes, base_offset: int) -> SegmentChecksums:
    """Reads the file of the segment that begins at `base_offset`.  Raises ChecksumsInvalid, also for another
    segment's."""
    try:
        (checksums,) = parse_checkpoint(data, CHECKSUMS_SHAPES, _parse_row)
    except ValueError as error:
        raise ChecksumsInvalid(str(error)) from error
    if checksums.base_offset != base_offset:
        raise ChecksumsInvalid(f"it is that of the segment {checksums.base_offset}")
    return checksums
