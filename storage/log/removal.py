"""Removes segments at the front of a log from the disk, after the log has dropped them in memory.

Readers lose the segments at once, in memory.  The disk follows, in a thread when there is one
(`AsyncFileDeleter`), because an unlink of a large file and the syncs around it take long.  Order on the disk,
per removal:

1. the producer snapshot of the offset where the log begins now, when it is not written yet: the producer
   state of the removed batches must be on the disk first, because no replay will find it again.  On a full
   disk it may find no room, and the removal must free room even so.  Then older snapshots go first, durably:
   after a crash they would report transactions as open whose markers are gone;
2. segment by segment from the front: the data is renamed to `<base>.log.deleted`, which no reader uses, its
   indexes are removed, the folder is synced.  So a crash leaves no gap between segments;
3. snapshots below the new beginning are removed;
4. `.deleted` files are unlinked; no caller waits for that.

A crash before 2 is over brings back segments that the log start, once it is noted
(`LogDirectory.write_checkpoints`), hides.

**Before a log's segments change in another way, its removals are settled**: 1 to 3 are done at once.
Otherwise a crash could show old segments in front of a log that was begun anew.  A running flush may be
syncing a removed segment: a removal waits for that flush, and holds the files open for a flush that has not
begun.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ..durability.flush import Durability, FlushTicket
from ..segment.segment import Segment
from ..segment.segment_files import segment_path
from ..segment.segment_list import Segments
from ..segment.swap import INDEX_SUFFIXES
from .health import Health
from .hooks import DETACHED

log = logs.get(__name__)


class Removal:
    """See the module's text.  Made by `Removals.remove_front` only."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segments: Sequence[Segment],
        snapshot: tuple[Path, bytes] | None,
        indexes: Sequence[tuple[Path, bytes]],
        flush: FlushTicket | None,
    ) -> None:
        self._indexes = indexes
        self.snapshot = snapshot
        """A snapshot that is not written yet."""
        self.is_over = False
        self._first = segments[-1].next_offset
        self._disk = disk
        self._directory = directory
        self._segments = deque(segments)
        self._flush = flush
        self._doomed: list[Path] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        """Steps 1 to 3; any thread, any number of times.  Raises OSError: then the log must go offline."""
        with self._lock, self._flush.apart() if self._flush is not None else nullcontext():
            if self.is_over:
                return
            if self.snapshot is not None:
                self._write_snapshot(*self.snapshot)
            if self.snapshot is not None:
                self._drop_snapshots()
                self._write_snapshot(*self.snapshot)  # by now there may be room
            while self._segments:
                self._doomed += self._segments[0].take_name_away()
                self._disk.sync_directory(self._directory)
                self._segments.popleft()
            self._drop_snapshots()
            self.is_over = True

    def _write_snapshot(self, path: Path, data: bytes) -> None:
        for segment in self._segments:  # a snapshot vouches for the batches below it, and for their indexes
            segment.sync()
        self._disk.sync_directory(self._directory)
        try:
            for index, content in self._indexes:
                self._disk.write_atomic(index, content)
            self._disk.write_atomic(path, data)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE:
                raise
            log.warning("derived_files_not_written", directory=self._directory, reason=error)
        else:
            self.snapshot = None

    def _drop_snapshots(self) -> None:
        for name in self._disk.list_names(self._directory):
            if name.endswith(".snapshot") and name[:-9].isdigit() and int(name[:-9]) < self._first:
                self._disk.remove(self._directory / name)
        self._disk.sync_directory(self._directory)

    def erase(self) -> None:
        """Step 4; any thread.  Raises OSError."""
        while self._doomed:
            try:
                self._disk.remove(self._doomed.pop())
            except FileNotFoundError:
                continue  # the log was deleted meanwhile

    def run_and_erase(self) -> None:
        """All steps; any thread.  Raises OSError: then the log must go offline."""
        self.run()
        self.erase()

    def abandon(self) -> None:
        """The log is closed: opening it again removes the remaining files."""
        with self._lock:
            self.is_over = True


class Removals:
    """The removals of one log, in order.  Used on the loop's thread only."""

    def __init__(
        self, disk: Disk, directory: Path, segments: Segments, durability: Durability, health: Health
    ) -> None:
        self.hooks = DETACHED
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._durability = durability
        self._health = health
        self._waiting: list[Removal] = []

    def remove_front(self, old: Sequence[Segment]) -> None:
        """`old` are the first segments of the log.  Raises KAFKA_STORAGE_ERROR: then the log is offline."""
        first = old[-1].next_offset
        with self._health.disk_at_work("a removal of old segments"):
            snapshot = self._durability.take_pending(segment_path(self._directory, first, "snapshot"))
            indexes = [
                self._durability.take_pending(gone.path(suffix)) for gone in old for suffix in INDEX_SUFFIXES
            ]
            for gone in old:
                self._durability.forget(gone)
            waiting = [index for index in indexes if index is not None]
            removal = Removal(self._disk, self._directory, old, snapshot, waiting, self._durability.running)
            self._segments.drop_first(len(old))
            self._durability.drop_waiting_snapshots(first)
            self._waiting.append(removal)
            if not self.hooks.in_background(removal.run_and_erase, partial(self.finish, removal)):
                self.settle()
                removal.erase()

    def finish(self, removal: Removal, error: Exception | None) -> None:
        """The background has run the removal, or failed to."""
        if removal not in self._waiting:
            return  # the removal was settled, or the log is closed
        self._waiting.remove(removal)
        if removal.snapshot is not None:
            self._durability.add_pending(*removal.snapshot)
        if isinstance(error, OSError):
            self._health.go_offline(error)
        elif error is not None:
            raise error

    @property
    def is_over(self) -> bool:
        return not self._waiting

    def settle(self) -> None:
        """Before the log's segments change in another way.  Waits for the disk.  Raises OSError: the log must
        go offline."""
        while self._waiting:
            removal = self._waiting[0]
            removal.run()
            self.finish(removal, None)

    def abandon(self) -> None:
        """The log is closed."""
        while self._waiting:
            self._waiting.pop(0).abandon()
