"""The flushes since the last checkpoint: one small file for each data folder, one record for each flush.

    flush-notes     topic id 16 bytes | partition i32 | flushed end offset i64 | crc32c u32; 32 bytes a record

After an unclean stop, recovery may take unreadable bytes for the torn tail of a write only above all that was
flushed.  The checkpoint knows the flushed end of some seconds ago (`log_directory`), this file that of the
last flush.

**A record says: all batches of this log below this offset are on the disk.**  That holds for every record in
the file at any time, so neither their order matters, nor which of them reached the disk: the highest record
of a log counts, and a record with a wrong checksum is ignored.  No record of 32 bytes crosses a sector.
These rules keep it true:

* A record is written after the sync of the batches came back, by the flushed end as it is then.
* **A log is not truncated below a record that may be in the file** before `void` has emptied the file,
  durably.  That needs no room on a full disk, and costs one sync for a thousand logs that follow a new
  leader: the next flush of any log, or the next checkpoint, writes all claims again that are still true.
  *May be*: dropping old records (`trim`, and when the file is full) is not synced, so a power cut can bring
  back every record since the file was last emptied or written anew (`_possible`, which is not what reads
  show, `_noted`).
* A log that is deleted, or set aside and fetched again under the same id, loses all its batches: `void`, too.
* Opening makes the file anew, durably, of the claims that were read.  Recovery has found each of them
  fulfilled by then.

No acknowledgement waits for a sync of a record: a killed process leaves them in the page cache, and every few
seconds they are made durable off the loop (`sync`).  A power cut that takes records costs no more than having
no such file.

The file is bounded: a checkpoint removes the records that it replaces; when the file is full before, every
log keeps its newest record; when these fill more than half of the bound, no flush is noted until the next
checkpoint.  On a full disk, records that find no room are not noted either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from uuid import UUID

from crc32c import crc32c

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk, File

FLUSH_NOTES = "flush-notes"
FILE_BYTES_MAX = 256 * 1024
_IDENTITY = Struct(">16si")
_BODY = Struct(">20sq")
_CRC = Struct(">I")
RECORD_BYTES = _BODY.size + _CRC.size
log = logs.get(__name__)

Identity = bytes
"""Topic id and partition, as a record has them."""


def identity_of(topic_id: UUID, partition: int) -> Identity:
    return _IDENTITY.pack(topic_id.bytes, partition)


def identified(identity: Identity) -> tuple[UUID, int]:
    """The topic id and the partition."""
    topic_id, partition = _IDENTITY.unpack(identity)
    return UUID(bytes=topic_id), partition


def read_flush_notes(disk: Disk, path: Path) -> dict[Identity, int]:
    """Per log, the highest offset below which all batches were flushed; empty when there is no file.  Raises
    OSError."""
    claims: dict[Identity, int] = {}
    for claim in decode_flush_notes(disk.read(path) if disk.exists(path) else b""):
        if claim is not None:
            identity, end = claim
            claims[identity] = max(end, claims.get(identity, 0))
    return claims


def decode_flush_notes(data: bytes) -> Iterator[tuple[Identity, int] | None]:
    """Every record in order; None for a record with a wrong checksum."""
    for position in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        body = data[position : position + _BODY.size]
        is_right = data[position + _BODY.size : position + RECORD_BYTES] == _CRC.pack(crc32c(body))
        yield _BODY.unpack(body) if is_right else None


def encode_flush_notes(claims: Iterable[tuple[Identity, int]]) -> bytes:
    parts: list[bytes] = []
    for claim in claims:
        body = _BODY.pack(*claim)
        parts += (body, _CRC.pack(crc32c(body)))
    return b"".join(parts)


class FlushNotes:
    """See the module's text.  Used on the loop's thread; `sync` in any."""

    def __init__(self, disk: Disk, path: Path, claims: Mapping[Identity, int]) -> None:
        """Writes the file anew with these claims; on a full disk, over the old one.  Raises OSError."""
        self._disk = disk
        self._path = path
        self._noted = dict(claims)
        self._possible = dict(claims)
        self._size = 0
        self._unsynced = False
        self._is_due = False  # the file lacks what is in `_noted`
        self._file: File | None = None
        content = encode_flush_notes(self._noted.items())
        try:
            disk.write_atomic(path, content)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            self._begin_on_full_disk(error)
            return
        self._size = len(content)
        self._file = disk.open(path)

    def _begin_on_full_disk(self, reason: OSError) -> None:
        """The old file has all claims that were read, so they fit into its place.  Without a file, this life
        of the node notes no flush.  Raises OSError."""
        if not self._disk.exists(self._path):
            log.warning("flushes_not_noted", path=self._path, reason=reason)
            return
        file = self._file = self._disk.open(self._path)
        try:
            self._rewrite(file, self._noted)
            file.sync_data()
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            file.truncate(0)  # on some file systems, overwriting needs room, too
            file.sync_data()
            self._possible, self._size, self._is_due = {}, 0, True
        self._unsynced = False

    def note(self, identity: Identity, end_offset: int) -> None:
        """A sync of this log's batches below `end_offset` has succeeded.  Raises OSError, but not on a full
        disk."""
        file = self._file
        if file is None or end_offset <= self._noted.get(identity, 0):
            return
        body = _BODY.pack(identity, end_offset)
        try:
            if (self._is_due or self._size >= FILE_BYTES_MAX) and not self._compact(file):
                return
            # First: a write that failed may have reached the disk.
            self._noted[identity] = self._possible[identity] = end_offset
            file.write_at(self._size, body + crc32c(body).to_bytes(4, "big"))
            self._size += RECORD_BYTES
            self._unsynced = True
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise

    def _compact(self, file: File) -> bool:
        """Keeps one record for each log.  False when that frees too little room."""
        if len(self._noted) * RECORD_BYTES > FILE_BYTES_MAX // 2:
            return False
        self._rewrite(file, self._noted)
        return True

    def trim(self, settled: Callable[[Identity], int]) -> None:
        """Drops the claims that are no higher than `settled`: a durable checkpoint says the same.  Raises
        OSError."""
        file = self._file
        if file is None or not (self._size or self._is_due):
            return
        kept = {identity: end for identity, end in self._noted.items() if end > settled(identity)}
        if self._is_due or len(kept) * RECORD_BYTES < self._size:
            self._rewrite(file, kept)

    def _rewrite(self, file: File, claims: dict[Identity, int]) -> None:
        """Writes over the records in the file: each sector, old or new, holds true claims, and the truncated
        rest may come back."""
        content = encode_flush_notes(claims.items())
        self._possible.update(claims)
        if content:
            file.write_at(0, content)
        file.truncate(len(content))
        self._noted, self._size, self._unsynced, self._is_due = claims, len(content), True, False

    def void(self, identity: Identity, offset: int) -> None:
        """Batches of this log at or above `offset`, where a batch begins, are about to be removed: no higher
        claim may stay on the disk.  Raises OSError."""
        if self._file is None:
            return
        if self._noted.get(identity, 0) > offset:
            self._noted[identity] = offset  # this claim is true as well
            if not offset:
                del self._noted[identity]
        if self._possible.get(identity, 0) > offset:
            self._file.truncate(0)
            self._file.sync_data()
            self._possible, self._size, self._unsynced, self._is_due = {}, 0, False, True

    def sync(self) -> None:
        """Makes what was noted durable; any thread.  Raises OSError."""
        file = self._file
        if file is not None and self._unsynced:
            self._unsynced = False
            file.sync_data()

    def close(self) -> None:
        self._file = None  # closed when no other thread syncs it any more
