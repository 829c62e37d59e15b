"""The files of one log in one data folder: segments, what is flushed of them, and the health of the disk
below.  Kafka's LocalLog.

`Log` decides what is appended, read and truncated, and knows producers, epochs and the high watermark; the
files know only batches.  A log that moves to another data folder (`moving`) exchanges its files and stays the
same log.

Promises

* A write is wholly in the files, or the file is truncated to the published end before the next one; when that
  fails, the log goes offline.
* Segments follow on each other without a gap, and only the last one is written.
* Before segments are truncated or begun anew, replacements and removals are settled, and all that needs room
  on the disk is done: on a full disk the truncation fails with nothing changed.

What the next start believes of the log's offsets, and what becomes of it when the log is cut (truncated, or
begun anew), moves to another data folder (M) or is closed cleanly (C).  A note may lag behind the log and
never leads: it is lowered, or gone, durably, before the batches are.

    log-start                   cut: `LogStart.lower`; then, of a log begun anew, `LogStart.begin`
                                M: `take_over_start` notes it in the copy    C: stays
    partition-checkpoint        cut: `FolderNotes.before_truncation` lowers the row
                                M: `FolderNotes.forget_if_room`; the new folder's next checkpoint has it
                                C: `LogDirectory.write_checkpoints`, when all logs are closed
    flush-notes                 cut: `FolderNotes.before_truncation` voids them
                                M: `FolderNotes.forget_if_room`, then `Log.report_flushed`    C: stay
    leader-epoch-checkpoint     cut: `Durability.prepare_epochs`, then `Durability.truncate_history`
                                M: the copy has its own; `Log.exchange_files` has a flush write what it lacks
                                C: `Durability.prepare_clean_close`
    <offset>.snapshot           cut: `Durability.truncate_history` removes those above the new end
                                M: the copy has its own    C: `LocalLog.prepare_clean_close`
    <base>.seal                 cut: `Segments.truncate`, `Segments.restart_at` remove them before the batches
                                M: the copy has its own    C: `LocalLog.prepare_clean_close`
    cleaner-offset-checkpoint   cut: stays; `believed_offset` refuses it by its leader epoch
                                M: `Log.exchange_files` begins at 0    C: stays
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from ...runtime.disk import Disk
from ...wire.errors import ErrorCode, KafkaError
from ..durability.flush import Durability, FlushTicket
from ..epoch_cache import EpochCache
from ..producers.producer_snapshot import encode_snapshot
from ..producers.producer_state import ProducerState
from ..recovery.index_rebuild import rebuild_transaction_index
from ..recovery.recovery import LoadedLog, aborted_entries, reload_producers
from ..segment.batch_scan import InvalidBatch
from ..segment.checksums import STILL_OPEN
from ..segment.segment import Segment
from ..segment.segment_files import segment_path
from ..segment.segment_list import Segments, TruncationPoint
from ..segment.transaction_index import AbortedTransaction
from ..topic_config import LogConfig
from .append_plan import AppendPlan
from .health import Health
from .hooks import DETACHED, LogHooks
from .log_start import LogStart
from .removal import Removals
from .replacement import Replacements

FLUSH_DUE_BYTES = 64 * 1024 * 1024
"""Unflushed bytes at which a background flush pays: the kernel writes back in bursts that block writers
(docs/hot-path.md H9)."""


class LocalLog:
    """See the module's text."""

    __slots__ = (
        "directory",
        "disk",
        "durability",
        "health",
        "hooks",
        "removals",
        "replacements",
        "segments",
        "start_note",
    )

    def __init__(self, disk: Disk, directory: Path, name: str, loaded: LoadedLog, start: LogStart) -> None:
        self.disk = disk
        self.directory = directory
        self.segments = Segments(loaded.files, directory, loaded.segments)
        self.health = Health(name, directory)
        self.durability = Durability(
            disk, directory, loaded.log_end_offset, self.segments.size_bytes, loaded.pending_files
        )
        self.start_note = start
        start.begin(loaded.log_start_offset, self.segments[0].base_offset)
        parts = disk, directory, self.segments, self.durability, self.health
        self.replacements, self.removals = Replacements(*parts), Removals(*parts)
        self.hooks = DETACHED

    def attach(self, hooks: LogHooks) -> None:
        """A data folder has the log in use from now on; `DETACHED`: none has."""
        self.hooks = self.health.hooks = self.start_note.hooks = self.removals.hooks = hooks

    @property
    def flush_due(self) -> bool:
        """Whether a flush pays that no request waits for: complete segments need checksums, counts wait, or
        much data is unflushed."""
        if self.durability.waits.complete or self.durability.waits.rebuilt_counts:
            return True
        return self.segments.size_bytes - self.durability.flushed_size >= FLUSH_DUE_BYTES

    # ---- appending -----------------------------------------------------------------------------------------

    def write(self, plan: AppendPlan) -> None:
        """Writes the plan's batches, and its aborted transactions, behind the published end; nothing is
        published.  Raises KAFKA_STORAGE_ERROR with nothing changed."""
        segment, buffers, prepared = self.segments.active, plan.buffers, plan.prepared
        try:
            file = segment.files.held
            if file is None:
                file = segment.files.batches_to_write
            if len(buffers) == 1:
                file.write_at(segment.size_bytes, buffers[0])
            else:
                file.write_vector_at(segment.size_bytes, buffers)
            if prepared is not None and prepared.completed:
                # Before the transactions are published as complete: a reader of their records must find their
                # aborts (rule L6).
                aborted = aborted_entries(prepared)
                if aborted:
                    segment.aborted.append(aborted)
        except OSError as error:
            self._undo_write(segment, error)

    def _undo_write(self, segment: Segment, error: OSError) -> NoReturn:
        """Truncates the file to the published end; no append may come before that."""
        try:
            segment.files.batches_to_write.truncate(segment.size_bytes)
            segment.aborted.truncate_file()
        except OSError as second:
            self.health.fail("undoing a failed write", second)
        self.health.refuse("the write", error)

    def roll(self, base_offset: int, index_interval_bytes: int) -> Segment:
        """Begins a new active segment at `base_offset`, durable with the next flush; returns the one before,
        for `complete`.  Raises KAFKA_STORAGE_ERROR with nothing changed."""
        old = self.segments.active
        try:
            self.segments.roll(base_offset, index_interval_bytes)
        except OSError as error:
            self.health.refuse("making a new segment", error)
        self.durability.leave_offset_gap()
        return old

    def complete(self, old: Segment, producers: ProducerState) -> None:
        """The next flush writes the derived files of a segment that takes no more batches, and the producer
        state at its end."""
        end = producers.end_offset
        snapshot = segment_path(self.directory, end, "snapshot")
        self.durability.add_complete(old, {**old.encoded_indexes(end), snapshot: encode_snapshot(producers)})

    # ---- reading -------------------------------------------------------------------------------------------

    def aborted_transactions(
        self, start_offset: int, upper_offset: int, config: LogConfig
    ) -> list[AbortedTransaction]:
        """See `Segments.aborted_transactions`; rebuilds the index of a segment that was damaged after the log
        was opened.  Raises KAFKA_STORAGE_ERROR."""
        with self.health.reading("a look-up"):
            try:
                return self.segments.aborted_transactions(start_offset, upper_offset)
            except InvalidBatch as error:
                rebuild_transaction_index(self.disk, self.directory, config, self.segments, error)
        return self.aborted_transactions(start_offset, upper_offset, config)

    def reload_producers(self, config: LogConfig, end_offset: int) -> ProducerState:
        """The producer state of the batches below `end_offset`, the log's end.  Raises OSError,
        InvalidBatch."""
        return reload_producers(self.disk, self.directory, config, self.segments, end_offset)

    # ---- flushing ------------------------------------------------------------------------------------------

    def begin_flush(self, epochs: EpochCache, producers: ProducerState) -> FlushTicket:
        """Notes what a flush must make durable.  One flush at a time; see `flush.py`.  Raises
        KAFKA_STORAGE_ERROR."""
        self.health.require()
        return self.durability.begin(self.segments.active, self.segments.size_bytes, epochs, producers)

    def settle(self, what: str) -> None:
        """No replacement or removal of segments runs any more.  Waits for the disk.  Raises
        KAFKA_STORAGE_ERROR."""
        with self.health.disk_at_work(what):
            self.replacements.settle()
            self.removals.settle()

    def stop_writers(self, what: str) -> None:
        """Like `settle`, and cancels the flush.  Raises KAFKA_STORAGE_ERROR."""
        self.settle(what)
        with self.health.disk_at_work(what):
            self.durability.cancel()

    @property
    def is_quiet(self) -> bool:
        """Whether a close has no batches to flush and no removal to wait for."""
        return self.durability.flushed_end >= self.segments.active.next_offset and self.removals.is_over

    # ---- truncating ----------------------------------------------------------------------------------------

    def find_truncation(self, offset: int) -> TruncationPoint:
        """Where to truncate so that no batch ends above `offset`.  Raises KAFKA_STORAGE_ERROR."""
        with self.health.reading("a truncation"):
            return self.segments.find_truncation(offset)

    def prepare_truncation(self, end: int, epochs: EpochCache, restart_at: int | None = None) -> None:
        """All steps that need room on the disk: on a full disk they fail, and nothing is truncated.  `end`:
        where the last batch will end; `epochs`: the history then.  Raises KAFKA_STORAGE_ERROR."""
        with self.health.room_needed("a truncation"):
            self.hooks.before_truncation(end)
            self.start_note.lower(end)
            self.durability.prepare_epochs(epochs)
            if restart_at is not None:
                self.segments.prepare_restart(restart_at)

    def truncate(self, to: TruncationPoint) -> None:
        """Removes all batches behind the truncation point, durably.  Raises OSError, InvalidBatch: then the
        log must go offline."""
        self.durability.truncate_history(to.end_offset)
        self.segments.truncate(to)
        self.durability.truncated_to(
            self.segments, to.end_offset, self.segments.size_bytes, data_end=to.data_end
        )

    def restart_at(self, offset: int, index_interval_bytes: int) -> None:
        """Removes all batches, durably; one empty segment begins at `offset`.  Raises OSError: then the log
        must go offline."""
        self.durability.truncate_history(-1)
        self.segments.restart_at(offset, index_interval_bytes)
        self.start_note.begin(offset, offset)
        self.durability.restarted_at(self.segments, offset)

    def remove_below(self, offset: int) -> None:
        """Removes the segments that end at or below `offset`, the log start.  Raises
        KAFKA_STORAGE_ERROR."""
        old = self.segments.wholly_below(offset)
        if old:
            with self.health.disk_at_work("a removal of old segments"):
                self.replacements.settle()
            self.removals.remove_front(old)

    # ---- the end -------------------------------------------------------------------------------------------

    def prepare_clean_close(self, epochs: EpochCache, producers: ProducerState) -> None:
        """Adds all derived files to the flush that follows, as if the active segment were complete.  Raises
        KAFKA_STORAGE_ERROR."""
        with self.health.disk_at_work("a removal of old segments"):
            self.removals.settle()
        end = self.durability.end_after_restart(self.segments.active.next_offset)
        producers.end_offset = end
        active, snapshot = self.segments.active, segment_path(self.directory, end, "snapshot")
        derived = {**active.encoded_indexes(STILL_OPEN), snapshot: encode_snapshot(producers)}
        self.durability.prepare_clean_close(active, derived, epochs)

    def require_no_pending_files(self) -> None:
        """After the flush of a clean close.  Raises KAFKA_STORAGE_ERROR."""
        if self.durability.waits.has_pending_files:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.health.name}: no room for the files of a clean close"
            )

    def close(self) -> None:
        """Closes all files; nothing is flushed."""
        self.durability.cancel()
        self.replacements.abandon()
        self.removals.abandon()
        self.start_note.close()
        self.health.close()
        self.segments.close()
