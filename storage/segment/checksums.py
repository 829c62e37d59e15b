"""What vouches for the files beside a segment's batches: how long they and the batches were, and their checksums.  Pure.

    <base>.seal     base offset, end offset, bytes of batches, bytes and crc32c of `.index` and of `.timeindex`, entries and
                    crc32c of `.txnindex`; one line of a checkpoint

Kafka's formats of these files have no checksums.  A transaction index that lost an entry gives aborted records to readers as
committed ones; an index of offsets that was damaged, or is that of an earlier life, leads them past batches; a segment, or a log,
that lost its end looks like one that never was longer.  A seal is written with the indexes (when a segment is complete, with
every snapshot in the active one, at a clean close), after the batches are durable, and so it proves:

* that so many bytes of batches were flushed: a file that is shorter has lost them;
* of a complete segment, which offset the next one begins at: when there is none of that name, it is gone;
* that indexes with these checksums are those of this segment, as it was then.

What it does not vouch for is not believed, but built again from the batches (`recovery`, `Segment`).  Before anything is cut that
a seal vouches for, the seal goes, durably (`Segments.cut`); when segments leave at the front, their data goes first (`removal`).
So a seal without its batches is a loss, too.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from ..checkpoint import CheckpointInvalid, decode_checkpoint, encode_checkpoint

STILL_OPEN = -1
"""End offset of a segment that was active: what follows on it was not yet known."""


class ChecksumsInvalid(ValueError):
    """The file is damaged: it vouches for nothing."""


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
        return encode_checkpoint([self])

    def vouches_for(self, index: bytes, time_index: bytes) -> bool:
        """Whether these are the contents of the two index files."""
        return (crc32c(index), crc32c(time_index)) == (self.index_crc, self.time_index_crc)


def checksums_of(
    base_offset: int, end_offset: int, log_bytes: int, index: bytes, time_index: bytes, aborted: int, aborted_crc: int
) -> SegmentChecksums:
    """`aborted` entries of the transaction index have the checksum `aborted_crc`, as bytes."""
    indexes = len(index), crc32c(index), len(time_index), crc32c(time_index)
    return SegmentChecksums(base_offset, end_offset, log_bytes, *indexes, aborted, aborted_crc)


def decode_checksums(data: bytes, base_offset: int) -> SegmentChecksums:
    """Reads the file of the segment that begins at `base_offset`.  Raises ChecksumsInvalid, also for another segment's."""
    try:
        (row,) = decode_checkpoint(data, len(SegmentChecksums._fields))
        seal = SegmentChecksums(*map(int, row))
    except (CheckpointInvalid, ValueError) as error:
        raise ChecksumsInvalid(str(error)) from error
    if seal.base_offset != base_offset:
        raise ChecksumsInvalid(f"it is that of the segment {seal.base_offset}")
    return seal
