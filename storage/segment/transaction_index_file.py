"""The transaction index of one segment, in memory and in its file: the aborted transactions whose marker is
there.

Promises

* The file holds the entries in memory, in order, and no others below their size; `crc` is their checksum.
  Entries are written before the markers are published: a reader of their records must find their aborts
  (docs/semantics.md L6).
* The file stays open while it has unsynced writes, like the file of batches.
* A file that does not match the segment checksums is not read: one entry less would give aborted records to
  readers as committed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crc32c import crc32c

from ...runtime.disk import File
from .batch_scan import InvalidBatch
from .checksums import SegmentChecksums
from .segment_files import SegmentFiles
from .transaction_index import ENTRY_BYTES, TransactionIndexEntry, decode_transaction_index


class TransactionIndexFile:
    """See the module's text."""

    __slots__ = ("_entries", "_files", "_held", "crc", "is_dirty")

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._entries: list[TransactionIndexEntry] | None = None
        self._held: File | None = None
        self.crc = 0
        """Of the known entries, as in the file."""
        self.is_dirty = False
        """The file has unsynced writes."""

    @property
    def entries(self) -> list[TransactionIndexEntry]:
        """Raises InvalidBatch when the file does not match the segment checksums."""
        if self._entries is None:
            files = self._files
            checksums, path = files.checksums, files.path("txnindex")
            try:
                data = files.disk.read(path) if files.disk.exists(path) else b""
                if checksums is None or (len(data), crc32c(data)) != (
                    checksums.aborted * ENTRY_BYTES,
                    checksums.aborted_crc,
                ):
                    raise ValueError("it is not the one that the segment's seal vouches for")
                self._entries, self.crc = decode_transaction_index(data), checksums.aborted_crc
            except ValueError as error:
                raise InvalidBatch(0, str(error), path, files.base_offset) from error
        return self._entries

    def clear(self) -> None:
        """Empties the index in memory: recovery rebuilds it, and then calls `replace`."""
        self._entries, self.crc = [], 0

    def decode_below(self, checksums: SegmentChecksums) -> list[TransactionIndexEntry]:
        """The entries that the checksums cover; others may have been added since.  Raises OSError,
        ValueError."""
        files = self._files
        data = files.disk.read(files.path("txnindex")) if checksums.aborted else b""
        known = data[: checksums.aborted * ENTRY_BYTES]
        if crc32c(known) != checksums.aborted_crc:
            raise ValueError("the seal vouches for other files")
        return decode_transaction_index(known)

    def keep_first(self, entries: Sequence[TransactionIndexEntry]) -> None:
        """Only these first entries of the file count from now on.  Raises OSError."""
        files = self._files
        data = files.disk.read(files.path("txnindex"))[: len(entries) * ENTRY_BYTES] if entries else b""
        self._entries, self.crc = list(entries), crc32c(data)

    def replace(self, entries: list[TransactionIndexEntry]) -> None:
        """Replaces the entries on the disk by these, in one step: after a crash in between, a snapshot would
        vouch for a half empty index.  Raises OSError."""
        files, data = self._files, b"".join(entry.encode() for entry in entries)
        path = files.path("txnindex")
        self._entries, self.crc = entries, crc32c(data)
        # also when the file has the same: it may be in the page cache only
        if entries or files.disk.exists(path):
            files.open_files.forget(path)
            files.disk.write_atomic(path, data)

    def append(self, entries: Sequence[TransactionIndexEntry]) -> None:
        """Writes entries behind the present ones.  OSError leaves memory unchanged; then call
        `truncate_file`."""
        known = self.entries
        file = self._file_to_write()
        data = b"".join(entry.encode() for entry in entries)
        file.write_at(len(known) * ENTRY_BYTES, data)
        # after it: a flush in another thread takes the flag down before it syncs
        self.is_dirty = True
        known.extend(entries)
        self.crc = crc32c(data, self.crc)

    def truncate_file(self) -> None:
        """Truncates the file to the entries in memory.  Raises OSError."""
        if self._files.disk.exists(self._files.path("txnindex")):
            self._file_to_write().truncate(len(self.entries) * ENTRY_BYTES)
            self.is_dirty = True

    def _file_to_write(self) -> File:
        if self._held is None:
            self._held = self._files.open_files.get(self._files.path("txnindex"), create=True)
        return self._held

    def sync(self) -> None:
        """Any thread.  Raises OSError."""
        file = self._held
        if self.is_dirty and file is not None:
            self.is_dirty = False
            file.sync_data()

    def release(self) -> None:
        """The file has no unsynced writes."""
        self._held = None

    def forget(self) -> None:
        """The file is renamed or removed; a flush that has not begun may still hold it."""
        self._files.open_files.forget(self._files.path("txnindex"))

    def close(self) -> None:
        self._held = None
        self.forget()

    def violations(self, next_offset: int) -> Iterator[str]:
        """What does not hold of the last entry in memory, of a segment that ends at `next_offset`."""
        if self._entries:
            last = self._entries[-1]
            if not (0 <= last.first_offset < last.last_offset < next_offset):
                yield f"its last aborted transaction is at offsets {last.first_offset} to {last.last_offset}"
            if last.last_offset < self._files.base_offset:
                yield f"its last aborted transaction ends at {last.last_offset}, in an earlier segment"
