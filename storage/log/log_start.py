"""The log start, noted beside the log: `log-start`.

A data folder's checkpoint notes the log starts of all logs every few seconds (`folder_notes`), and the base
offset of the first segment is a lower bound.  A start *within* a segment shows nowhere else.  Records whose
deletion the broker has acknowledged (DeleteRecords) can neither wait for the checkpoint nor come back when it
is damaged; so the start is noted here as well. Each note is a lower bound: the higher one counts, and a
damaged one is ignored.

Neither note may be above the log's end: readers would not see the records that are appended there.  Before a
truncation, call `lower`.
"""

from __future__ import annotations

import threading
from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..checkpoint import CheckpointInvalid, encode_value, parse_value
from .hooks import DETACHED

LOG_START = "log-start"
log = logs.get(__name__)


def read_log_start(disk: Disk, directory: Path) -> int:
    """0 when nothing is noted.  Raises CheckpointInvalid, OSError."""
    path = directory / LOG_START
    return parse_value(disk.read(path), int) if disk.exists(path) else 0


class LogStart:
    """See the module's text.  Used on the loop's thread, except `write`."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Raises OSError."""
        self.noted = 0
        """After a restart the log start is at least this offset."""
        self.hooks = DETACHED
        self._disk = disk
        self._path = directory / LOG_START
        self._lock = threading.Lock()
        self._closed = False
        try:
            self.noted = read_log_start(disk, directory)
        except CheckpointInvalid as error:
            log.warning(
                "log_start_damaged", path=self._path, reason=error, consequence="the checkpoint's counts"
            )
        self._written = self._wanted = self.noted

    @property
    def is_due(self) -> bool:
        return self._wanted > self.noted

    @property
    def wanted(self) -> int:
        return self._wanted

    def begin(self, offset: int, first_base_offset: int) -> None:
        """The log was opened, or begun anew: it starts at `offset`, its first segment at `first_base_offset`.
        Raises OSError."""
        if self._written > offset:
            self.lower(offset)
        self._wanted = offset
        if self._written < offset and offset > first_base_offset:
            try:
                self.write()
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    raise
                # the checkpoint has this start
                log.warning("log_start_not_written", path=self._path, reason=error)
        self.noted = offset

    def want(self, offset: int) -> None:
        """Records below `offset` are deleted for good once `write` has returned."""
        self._wanted = max(self._wanted, offset)

    def withdraw(self, offset: int) -> None:
        """The start could not be noted, and the records below stay; unless a higher start is wanted by
        now."""
        if self._wanted == offset:
            self._wanted = self.noted

    def write(self) -> None:
        """Makes the wanted start durable; any thread.  Raises OSError."""
        with self._lock:
            wanted = self._wanted
            if wanted > self.noted and not self._closed:
                self.hooks.make_room()
                self._disk.write_atomic(self._path, encode_value(wanted))
                self._written = self.noted = wanted

    def lower(self, offset: int) -> None:
        """The log is about to be truncated to `offset`.  Waits for the disk; needs no room on a full disk.
        Raises OSError."""
        with self._lock:
            self._wanted, self.noted = min(self._wanted, offset), min(self.noted, offset)
            if self._written > offset:
                try:
                    self._disk.write_atomic(self._path, encode_value(offset))
                except OSError as error:
                    if error.errno not in OUT_OF_SPACE:
                        raise
                    self._disk.remove(self._path)
                    self._disk.sync_directory(self._path.parent)
                self._written = offset

    def close(self) -> None:
        """Waits for a running write; no other write follows, so the folder may be renamed."""
        with self._lock:
            self._closed = True
