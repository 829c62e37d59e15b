"""Derived files that recovery builds: written at once, or, on a full disk, left to the flushes that follow.

The order matters: segment checksums vouch for the indexes before them, a producer snapshot for all files
below it.  So after the first file that finds no room none is written, until a flush writes them in this order
(`flush`); the log's recovery point waits.
"""

from __future__ import annotations

from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from .segment import Segment
from .transaction_index import TransactionIndexEntry

log = logs.get(__name__)


class PendingIndexFiles:
    """See the module's text."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self.is_full = False
        """A file found no room."""
        self.epochs_from: int | None = None
        """The epoch history on the disk is right below this offset only; None: it is the loaded one."""
        self.segments: list[Segment] = []
        """Complete segments with files that wait."""
        self.derived: dict[Path, bytes] = {}
        """The files that wait, in the order in which they have to be written."""
        self._disk = disk
        self._directory = directory

    def write(self, path: Path, data: bytes) -> bool:
        """False when it waits.  Raises OSError."""
        if self._has_room_for(path, data):
            return True
        self.derived[path] = data
        return False

    def write_epochs(self, path: Path, data: bytes, known_to: int) -> None:
        """Writes the epoch history; the one on the disk is right up to the offset `known_to`.  A later flush
        writes the history as it is then.  Raises OSError."""
        if not self._has_room_for(path, data):
            self.epochs_from = known_to

    def _has_room_for(self, path: Path, data: bytes) -> bool:
        if not self.is_full:
            try:
                self._disk.write_atomic(path, data)
                return True
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    raise
                log.warning("derived_files_not_written", directory=self._directory, reason=error)
                self.is_full = True
        return False

    def write_indexes(self, segment: Segment, end_offset: int) -> None:
        """Writes the indexes of a complete segment and its checksums.  Raises OSError."""
        if all(self.write(path, data) for path, data in segment.encoded_indexes(end_offset).items()):
            segment.indexes_are_durable()
        else:
            self.segments.append(segment)

    def write_transactions(self, segment: Segment, entries: list[TransactionIndexEntry]) -> None:
        """Writes the transaction index of a segment.  It cannot wait, because the next entries are appended
        behind it; but the entries that a killed process had written have their room.  A half written index
        does not match the segment checksums.  Raises OSError."""
        try:
            segment.aborted.replace(entries)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            file = self._disk.open(segment.path("txnindex"), create=True)
            try:
                data = b"".join(entry.encode() for entry in entries)
                file.write_at(0, data)
                file.truncate(len(data))
                file.sync_data()
            finally:
                file.close()
