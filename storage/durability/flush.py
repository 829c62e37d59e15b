"""One flush of one log, split so that the waiting happens off the event loop.

    ticket = log.begin_flush()     on the loop: notes the files to flush, and up to which offset
    ticket.run()                   any thread: waits for the disk; or `run_in_kernel`, on the loop
    log.finish_flush(ticket)       on the loop: only now may the flushed end move

Order inside `run`: batches first, then the folder (new segments must have their names), then the derived
files: the epoch history, indexes, and last the producer snapshot of the same offset.  Data counts as flushed
once the first two are done; derived files that did not fit on a full disk stay pending, and hold back the
recovery point instead of the acknowledgement.

So a valid snapshot at an offset proves that everything below it was flushed, with indexes and epoch history:
a restart resumes there.  One is written for every `RESUME_BYTES` of the active segment, so that no restart
has to check more than that.

A failed sync is final.  After it the kernel may have dropped the dirty pages, so a second sync that succeeds
proves nothing: the log goes offline, and readers must take its data from another replica.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from ...runtime import faults, logs
from ...runtime.disk import OUT_OF_SPACE, Disk
from ...runtime.kernel_sync import KernelSync, Sync
from ..epoch_cache import EPOCH_CHECKPOINT, EpochCache
from ..producers.producer_snapshot import encode_snapshot
from ..producers.producer_state import ProducerState
from ..segment.checksums import STILL_OPEN
from ..segment.count_index import CountIndex
from ..segment.pending_indexes import PendingIndexFiles
from ..segment.segment import Segment
from ..segment.segment_files import segment_path
from ..segment.swap import INDEX_SUFFIXES
from .waits import Waits

RESUME_BYTES = 64 * 1024 * 1024
RESUME_PRODUCERS = 16384
"""A snapshot of more producers is expensive, and is written less often in proportion."""
REBUILT_COUNTS_MAX = 8
"""Count indexes of a log that were rebuilt and wait, in memory, for a flush; further ones are rebuilt again
when a count needs them."""
NO_OFFSET_GAP = (-1, -1)
log = logs.get(__name__)


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
        leaving: list[Segment],
        active: Segment | None,
        sync_directory: bool,
        derived: dict[Path, bytes],
        obsolete: Path | None,
    ) -> None:
        self.end_offset = end_offset
        self.end_size = end_size
        self.complete = complete
        self.leaving = leaving
        self.derived = derived
        self.obsolete = obsolete
        self.sync_directory = sync_directory
        self.derived_error: OSError | None = None
        self.written: list[Path] = []
        self.ran = False
        self._disk = disk
        self._directory = directory
        self._active = active
        self._lock = threading.Lock()
        self._cancelled = False
        self._dropped: set[Path] = set()
        self._sync: Sync | None = None

    def run(self) -> None:
        """Waits for the disk.  Raises OSError when the data may not be durable: then the log must go
        offline."""
        with self._lock:
            if self._cancelled:
                return
            faults.point("log.flush", directory=self._directory.name)
            for segment in (*self.leaving, *self.complete):
                segment.sync()
            if self._active is not None:
                self._active.sync()
            if self.sync_directory:
                self._disk.sync_directory(self._directory)
            try:
                for path, data in self.derived.items():
                    if path not in self._dropped:
                        self._disk.write_atomic(path, data)
                        self.written.append(path)
                if self.obsolete is not None and self._disk.exists(self.obsolete):
                    self._disk.remove(self.obsolete)
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    raise
                self.derived_error = error
            self.ran = True

    def run_in_kernel(self, kernel: KernelSync, done: Callable[[OSError | None], None]) -> bool:
        """Replaces `run` when only the batches of the active segment are to be flushed: starts that flush;
        `done` follows on the loop.  False when the caller must use `run`."""
        active = self._active
        if active is None or active.aborted.is_dirty or self.complete or self.leaving or self.derived:
            return False
        if self.obsolete or self.sync_directory:
            return False

        def over(error: OSError | None) -> None:
            self.ran = error is None
            done(error)

        if faults.armed("log.flush"):  # making the folder's name costs more than all else here
            faults.point("log.flush", directory=self._directory.name)
        self._sync = kernel.start(active.file, over)
        return self._sync is not None

    def forget(self, path: Path) -> None:
        """The derived file at `path` is obsolete; the flush does not write it from now on."""
        self._dropped.add(path)

    def apart(self) -> AbstractContextManager[object]:
        """A lock against the running flush, for a caller that renames files the flush may use."""
        return self._lock

    def cancel(self) -> None:
        """Waits until a running flush is over; a flush that has not begun does nothing.  For truncation and
        close."""
        if self._sync is not None:
            self._sync.wait()
        with self._lock:
            self._cancelled = True


class Durability:
    """Which part of one log is on the disk, and which part waits for a flush.  Used on the loop's thread
    only.

    Acknowledgements wait for the *flushed end*: batches below it are on the disk.  A restart trusts all below
    the *recovery point*: there every derived file is on the disk as well.  It is never above the flushed end.

    What else waits for a flush stands in `waits`.  A truncation cancels the flush and drops what waits above
    the new end.
    """

    def __init__(
        self, disk: Disk, directory: Path, end_offset: int, size_bytes: int, pending_files: PendingIndexFiles
    ) -> None:
        """`pending_files`: see `Waits.at_start`."""
        self._flushed_end = end_offset
        self.flushed_size = size_bytes
        self.waits = Waits.at_start(pending_files)
        self._disk = disk
        self._directory = directory
        # the snapshot in the active segment, which the next one makes obsolete
        self._resume: Path | None = None
        self._resume_size = 0
        self.resume_bytes = RESUME_BYTES
        # After a truncation into an offset gap of a compacted log: the end of the last batch, and the log's
        # end.  A restart finds only the end of that batch, so neither the recovery point nor a snapshot may
        # stand at the log's end.
        self._offset_gap = NO_OFFSET_GAP
        self._ticket: FlushTicket | None = None

    @property
    def flushed_end(self) -> int:
        """Batches below it are on the disk: acks=all rests on it.  Only a flush raises it (`finish`), and
        beginning anew (`restarted_at`)."""
        return self._flushed_end

    @property
    def recovery_point(self) -> int:
        return self.end_after_restart(self.waits.least(self._flushed_end))

    def end_after_restart(self, log_end_offset: int) -> int:
        return self._offset_gap[0] if log_end_offset == self._offset_gap[1] else log_end_offset

    def leave_offset_gap(self) -> None:
        """A segment begins at the log's end: the flushed end moves back to the end of the last batch, before
        the offset gap."""
        if self._flushed_end == self._offset_gap[1]:
            self._flushed_end = self._offset_gap[0]
        self._offset_gap = NO_OFFSET_GAP

    # ---- waiting records -----------------------------------------------------------------------------------

    def add_complete(self, segment: Segment, derived: dict[Path, bytes]) -> None:
        """The segment takes no more batches; `derived` are its files, or the snapshot at its end."""
        self.waits.derived.update(derived)
        self._resume, self._resume_size = None, 0
        self.waits.complete.append(segment)
        self.waits.folder_changed = True

    def prepare_clean_close(self, active: Segment, derived: dict[Path, bytes], epochs: EpochCache) -> None:
        """Adds the derived files of a clean close to the flush that follows.  A file that the disk has
        already is not written again: most of ten thousand logs did not change since the last clean close, and
        each file costs two syncs.  Counts that were not read in this life stay as they are when the segment
        checksums on the disk are the current ones."""
        counts = active.path("countindex")
        wanted = ((path, data) for path, data in derived.items() if data or path != counts)
        if self._flushed_end < active.next_offset or not all(
            self._is_there(path, data) for path, data in wanted
        ):
            self.add_complete(active, derived)
        if not self._is_there(self._directory / EPOCH_CHECKPOINT, epochs.encode()):
            self.epochs_changed(active.next_offset)

    def _is_there(self, path: Path, data: bytes) -> bool:
        """Such files get their names after they are durable, so a file with this content is durable.  False
        for a file that cannot be read."""
        try:
            return (
                self._disk.exists(path)
                and self._disk.size(path) == len(data)
                and self._disk.read(path) == data
            )
        except OSError:
            return False

    def epochs_changed(self, offset: int) -> None:
        before = self.waits.epochs_from
        self.waits.epochs_from = offset if before is None else min(before, offset)

    def take_pending(self, path: Path) -> tuple[Path, bytes] | None:
        """The derived file at `path`, when it is not on the disk yet: to be written by the caller, or to
        `add_pending` again."""
        data = self.waits.derived.pop(path, None)
        return None if data is None else (path, data)

    def add_pending(self, path: Path, data: bytes) -> None:
        self.waits.derived.setdefault(path, data)

    @property
    def running(self) -> FlushTicket | None:
        """The flush that began and is not finished."""
        return self._ticket

    def forget(self, segment: Segment) -> None:
        """The segment is about to be removed.  Raises OSError."""
        if segment in self.waits.complete:
            segment.files.hold()  # a later flush may still have to sync it
            self.waits.complete.remove(segment)
            self.waits.removed_unflushed.append(segment)
        self.flushed_size = max(0, self.flushed_size - segment.size_bytes)
        if self._ticket is not None:
            self._ticket.end_size = max(0, self._ticket.end_size - segment.size_bytes)
        for suffix in INDEX_SUFFIXES:
            self._drop(segment.path(suffix))
        self.waits.rebuilt_counts.pop(segment.path("countindex"), None)

    def _drop(self, path: Path) -> None:
        self.waits.derived.pop(path, None)
        if self._ticket is not None:
            self._ticket.forget(path)

    def add_counts(self, segment: Segment, counts: CountIndex, data: bytes) -> None:
        """Adds a rebuilt count index.  No caller waits for it: the next flush writes it, unless too many
        wait."""
        if len(self.waits.rebuilt_counts) < REBUILT_COUNTS_MAX:
            path = segment.path("countindex")
            self.waits.derived[path], self.waits.rebuilt_counts[path], segment.counts = data, segment, counts

    def withdraw_counts(self, segments: Iterable[Segment]) -> bool:
        """A cleaned segment is about to take the names of these segments; False when a running flush may be
        writing such a file."""
        for segment in segments:
            path = segment.path("countindex")
            if self._ticket is not None and path in self._ticket.derived:
                return False
            self.waits.derived.pop(path, None)
            if self.waits.rebuilt_counts.pop(path, None) is not None:
                segment.counts_are_durable()
        return True

    # ---- one flush -----------------------------------------------------------------------------------------

    def begin(
        self, active: Segment, size_bytes: int, epochs: EpochCache, producers: ProducerState
    ) -> FlushTicket:
        assert self._ticket is None, "a flush of this log is running"
        derived: dict[Path, bytes] = {}
        if self.waits.epochs_from is not None:
            derived[self._directory / EPOCH_CHECKPOINT] = epochs.encode()
        derived.update(self.waits.derived)
        obsolete: Path | None = None
        in_offset_gap = producers.end_offset == self._offset_gap[1]
        resume_bytes = self.resume_bytes * max(1, len(producers) / RESUME_PRODUCERS)
        if not in_offset_gap and active.size_bytes - self._resume_size >= resume_bytes:
            obsolete, self._resume = (
                self._resume,
                segment_path(self._directory, producers.end_offset, "snapshot"),
            )
            self._resume_size = active.size_bytes
            for path, data in {
                **active.encoded_indexes(STILL_OPEN),
                self._resume: encode_snapshot(producers),
            }.items():
                derived.setdefault(path, data)  # those of a clean close stay the ones that `finish` looks for
        self._ticket = FlushTicket(
            self._disk,
            self._directory,
            end_offset=active.next_offset,
            end_size=size_bytes,
            complete=list(self.waits.complete),
            leaving=list(self.waits.removed_unflushed),
            active=active if active.next_offset > self._flushed_end else None,
            sync_directory=self.waits.folder_changed,
            derived=derived,
            obsolete=obsolete,
        )
        self.waits.folder_changed = False
        return self._ticket

    def finish(self, ticket: FlushTicket, active: Segment, epochs: EpochCache) -> None:
        """Only now may the flushed end move.  A cancelled ticket changes nothing."""
        if ticket is not self._ticket:
            return
        self._ticket = None
        if not ticket.ran:
            return
        waits = self.waits
        self._flushed_end = max(self._flushed_end, ticket.end_offset)
        waits.removed_unflushed = [each for each in waits.removed_unflushed if each not in ticket.leaving]
        self.flushed_size = ticket.end_size
        if ticket.derived_error is not None:
            log.warning("derived_files_not_written", directory=self._directory, reason=ticket.derived_error)
        for path in ticket.written:
            if path.name == EPOCH_CHECKPOINT:
                if epochs.encode() == ticket.derived[path]:
                    waits.epochs_from = None
            elif waits.derived.get(path) is ticket.derived[path]:
                del waits.derived[path]
        for path in [path for path in waits.rebuilt_counts if path not in waits.derived]:
            waits.rebuilt_counts.pop(path).counts_are_durable()
        waiting: list[Segment] = []
        for each in waits.complete:
            if each not in ticket.complete or waits.has_pending(each):
                waiting.append(each)
            elif each is not active:
                each.written_is_durable(transactions_too=True)
                each.indexes_are_durable()
        waits.complete = waiting
        if self._flushed_end == active.next_offset:
            active.written_is_durable(transactions_too=False)

    def cancel(self) -> None:
        """Waits for a running flush and drops its result; a flush in a queue will do nothing."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.cancel()
            self.waits.folder_changed = True  # the folder may not be synced

    # ---- truncation ----------------------------------------------------------------------------------------

    def prepare_epochs(self, epochs: EpochCache) -> None:
        """Writes the truncated epoch history beside the current one: this step needs room on the disk and may
        fail without harm.  No flush may run."""
        file = self._disk.open(self._prepared_epochs, create=True)
        try:
            file.truncate(0)
            file.write_at(0, epochs.encode())
            file.sync_data()
        finally:
            file.close()

    def truncate_history(self, end_offset: int) -> None:
        """Removes the snapshots above the new end, then puts the prepared epoch history in place: a snapshot
        vouches for the epoch history below it.  Each step is durable before the next: a disk may keep a
        rename and lose the removals before it, and the truncation of the log may not be durable before that
        of its history."""
        self.drop_snapshots(lambda snapshot: snapshot > end_offset)
        self._disk.sync_directory(self._directory)
        self._disk.rename(self._prepared_epochs, self._directory / EPOCH_CHECKPOINT)
        self._disk.sync_directory(self._directory)
        self.waits.epochs_from = None

    @property
    def _prepared_epochs(self) -> Path:
        return self._directory / (EPOCH_CHECKPOINT + ".tmp")

    def drop_snapshots(self, which: Callable[[int], bool]) -> None:
        """Removes the snapshots whose offset `which` selects, written or waiting; the caller syncs the
        folder."""
        names = self._disk.list_names(self._directory)
        for name in (*names, *(path.name for path in self.waits.derived if path.name not in names)):
            stem, _, suffix = name.partition(".")
            if suffix == "snapshot" and stem.isdigit() and which(int(stem)):
                self.waits.derived.pop(self._directory / name, None)
                if name in names:
                    self._disk.remove(self._directory / name)

    def drop_waiting_snapshots(self, below: int) -> None:
        """Drops snapshots that are not written yet: a replay now finds another state."""
        waiting = [path for path in self.waits.derived if path.suffix == ".snapshot"]
        for path in [path for path in waiting if int(path.stem) < below]:
            self._drop(path)

    def truncated_to(
        self, segments: Sequence[Segment], end_offset: int, size_bytes: int, *, data_end: int
    ) -> None:
        """The log ends at `end_offset` now, durably, and its last batch at `data_end`; the last segment takes
        batches again."""
        self._forget_truncated(segments, size_bytes)
        self._flushed_end = min(self._flushed_end, end_offset)
        self._offset_gap = data_end, end_offset

    def restarted_at(self, segments: Sequence[Segment], offset: int) -> None:
        """The log is empty and begins at `offset` now, durably."""
        self._forget_truncated(segments, 0)
        self._flushed_end, self._offset_gap = offset, NO_OFFSET_GAP

    def _forget_truncated(self, segments: Sequence[Segment], size_bytes: int) -> None:
        self.waits = self.waits.truncated(segments)
        self._resume, self._resume_size = None, 0
        self.flushed_size = min(self.flushed_size, size_bytes)
