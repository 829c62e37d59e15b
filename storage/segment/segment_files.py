"""The files of one segment: their names, the file of batches, and the segment checksums.

Promises

* **A file of batches with unsynced writes stays open** (`held`) until a flush is over: a file that was closed
  and opened again need not report an earlier write-back error (`open_files`).
* A segment that the cleaner writes has names with an extension, so a restart does not find it; `adopt` gives
  it the final names.
* The data loses its name first: without it, the other files have no meaning after a crash.
"""

from __future__ import annotations

from pathlib import Path

from crc32c import crc32c

from ...runtime import logs
from ...runtime.disk import Disk, File
from .checksums import ChecksumsInvalid, SegmentChecksums, decode_checksums
from .open_files import OpenFiles
from .swap import DELETED, SEGMENT_SUFFIXES
from .transaction_index import ENTRY_BYTES

log = logs.get(__name__)


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """`suffix` is 'log', 'index', 'timeindex', 'txnindex' or 'snapshot'."""
    return directory / f"{base_offset:020d}.{suffix}"


class SegmentFiles:
    """See the module's text."""

    __slots__ = ("base_offset", "directory", "disk", "extension", "held", "log_path", "open_files")

    def __init__(self, open_files: OpenFiles, directory: Path, base_offset: int, extension: str = "") -> None:
        self.open_files = open_files
        self.disk: Disk = open_files.disk
        self.directory = directory
        self.base_offset = base_offset
        self.extension = extension
        # made once: every read looks its file up
        self.log_path = segment_path(directory, base_offset, "log" + extension)
        self.held: File | None = None
        """The file of batches while it has unsynced writes."""

    def path(self, suffix: str) -> Path:
        return segment_path(self.directory, self.base_offset, suffix + self.extension)

    # ---- the file of batches -------------------------------------------------------------------------------

    @property
    def batches(self) -> File:
        """For reading and syncing; not to be kept.  Writers use `batches_to_write`."""
        return self.held or self.open_files.get(self.log_path)

    @property
    def batches_to_write(self) -> File:
        """The open file, held from now on until `release`."""
        if self.held is None:
            self.held = self.open_files.get(self.log_path)
        return self.held

    def create(self) -> File:
        """A new, empty file of batches.  Raises OSError."""
        self.open_files.forget(self.log_path)
        self.held = file = self.open_files.get(self.log_path, create=True)
        return file

    def release(self) -> None:
        """The file has no unsynced writes."""
        self.held = None

    def hold(self) -> None:
        """Keeps the file open, also when it is renamed or removed.  Raises OSError."""
        self.held = self.batches

    # ---- segment checksums ---------------------------------------------------------------------------------

    @property
    def checksums(self) -> SegmentChecksums | None:
        """The segment checksums on the disk; None when there are none, or they cannot be read."""
        path = self.path("seal")
        try:
            return decode_checksums(self.disk.read(path), self.base_offset)
        except FileNotFoundError:
            return None
        except ChecksumsInvalid as error:
            log.warning("seal_damaged", path=path, reason=error)
            return None

    def match(self, checksums: SegmentChecksums) -> bool:
        """Whether the files have the sizes in the checksums, and the transaction index its content.  Raises
        OSError."""
        if (
            self._size_of("index") != checksums.index_bytes
            or self._size_of("timeindex") != checksums.time_index_bytes
        ):
            return False
        size = self._size_of("txnindex")
        if size != checksums.aborted * ENTRY_BYTES:
            return not checksums.aborted and size < 0
        return not size or crc32c(self.disk.read(self.path("txnindex"))) == checksums.aborted_crc

    def _size_of(self, suffix: str) -> int:
        try:
            return self.disk.size(self.path(suffix))
        except FileNotFoundError:
            return -1

    def remove_checksums(self) -> bool:
        """Removes the files that cover more than a truncation will leave, durable with the folder's next
        sync; whether there were any.  Raises OSError."""
        # Counts as well: other batches may reach the same size, with an equal one at the last entry.
        there = [path for suffix in ("seal", "countindex") if self.disk.exists(path := self.path(suffix))]
        for path in there:
            self.disk.remove(path)
        return bool(there)

    # ---- the end -------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """The files have their final names now."""
        self.extension = ""
        self.log_path = self.path("log")
        # a late reader of the old segment may have opened the old file
        self.open_files.forget(self.log_path)

    def close(self) -> None:
        """The file of batches is closed when no other thread reads it."""
        self.held = None
        self.open_files.forget(self.log_path)

    def rename_batches(self) -> Path:
        """The data loses its name, which can be repeated; returns the new one.  Any thread.  Raises
        OSError."""
        gone = self.log_path.with_name(self.log_path.name + DELETED)
        if self.disk.exists(self.log_path):
            self.disk.rename(self.log_path, gone)
        # and no more: a flush that has not begun may hold the file
        self.open_files.forget(self.log_path)
        return gone

    def discard(self) -> None:
        """Removes all files, the data first.  Raises OSError."""
        for suffix in SEGMENT_SUFFIXES:
            if self.disk.exists(self.path(suffix)):
                self.disk.remove(self.path(suffix))
