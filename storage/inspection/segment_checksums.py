"""Checks the segment checksums against the files that they cover."""

from __future__ import annotations

from ...runtime.disk import Disk
from ..segment.checksums import STILL_OPEN, ChecksumsInvalid, decode_checksums
from ..segment.transaction_index import ENTRY_BYTES
from .findings import Finding
from .verification import FoundSegment


def check_segment_checksums(
    disk: Disk, segment: FoundSegment, size_bytes: int, following: int | None, *, is_closed: bool
) -> Finding | None:
    """The fault, if any.  `following`: where the next segment begins, if there is one; `is_closed`: the
    segment was not written since the checksums.  Raises OSError."""
    path, data, base = segment.files["seal"], segment.files["log"], segment.base_offset
    try:
        checksums = decode_checksums(disk.read(path), base)
    except ChecksumsInvalid as error:
        return Finding("seal-damaged", path, str(error), 0, base)
    if size_bytes < checksums.log_bytes:
        what = f"{checksums.log_bytes} bytes had been flushed, {size_bytes} are left"
        return Finding("segment-short", data, what, size_bytes, base)
    if following is not None and checksums.end_offset not in (STILL_OPEN, following):
        what = f"it ends at offset {checksums.end_offset}, the next one begins at {following}"
        return Finding("segment-gap", data, what, size_bytes, checksums.end_offset)
    if not is_closed:
        return None
    if size_bytes != checksums.log_bytes:
        return Finding(
            "seal-wrong",
            path,
            f"it is that of {checksums.log_bytes} bytes, the segment has {size_bytes}",
            0,
            base,
        )
    if not checksums.vouches_for(disk.read(segment.files["index"]), disk.read(segment.files["timeindex"])):
        return Finding("seal-wrong", path, "it is that of other indexes", 0, base)
    aborted = disk.size(segment.files["txnindex"]) if "txnindex" in segment.files else 0
    if aborted != checksums.aborted * ENTRY_BYTES:
        what = f"it knows {checksums.aborted} aborted transactions, and their index has {aborted} bytes"
        return Finding("seal-wrong", path, what, 0, base)
    return None
