"""One flush of one log, split so that the waiting happens off the event loop.

    ticket = log.begin_flush()     on the loop: takes down what is to be flushed, and up to which offset
    ticket.run()                   any thread: waits for the disk
    log.finish_flush(ticket)       on the loop: only now may the flushed end move

Order inside `run`: batches first, then the folder (new segments must have their names), then what is derived from them (indexes
of complete segments, producer snapshots, the epoch history).  Data counts as flushed once the first two are done; derived files
that did not fit on a full disk stay pending, and hold back the recovery point instead of the acknowledgement.

A failed sync is final.  After it the kernel may have dropped the dirty pages, so a second sync that succeeds proves nothing: the
log goes offline, and whoever reads the data must take it from another replica.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from ..runtime import faults
from ..runtime.disk import Disk, File
from .segment import Segment

OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that end when somebody makes room; every other error of a write says that the disk cannot be trusted."""


class FlushTicket:
    """See the module's text.  Made by `Log.begin_flush` only."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        end_offset: int,
        end_size: int,
        complete: list[Segment],
        active_file: File | None,
        sync_directory: bool,
        derived: dict[Path, bytes],
    ) -> None:
        self.end_offset = end_offset
        self.end_size = end_size
        self.complete = complete
        self.derived = derived
        self.sync_directory = sync_directory
        self.derived_error: OSError | None = None
        self.written: list[Path] = []
        self.ran = False
        self._disk = disk
        self._directory = directory
        self._active_file = active_file
        self._lock = threading.Lock()
        self._cancelled = False

    def run(self) -> None:
        """Waits for the disk.  Raises OSError when the data may not be durable: then the log must go offline."""
        with self._lock:
            if self._cancelled:
                return
            faults.point("log.flush", directory=self._directory.name)
            for segment in self.complete:
                segment.sync()
            if self._active_file is not None:
                self._active_file.sync_data()
            if self.sync_directory:
                self._disk.sync_directory(self._directory)
            try:
                for path, data in self.derived.items():
                    self._disk.write_atomic(path, data)
                    self.written.append(path)
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    raise
                self.derived_error = error
            self.ran = True

    def cancel(self) -> None:
        """Waits until a running `run` is over; one that has not begun will do nothing.  For truncation, close and removal."""
        with self._lock:
            self._cancelled = True
