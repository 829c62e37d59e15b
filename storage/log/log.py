"""One partition's log: append, read, truncate, flush, and the state that its batches define (producers,
epochs, last stable offset).

Parts of their own are its files (`local_log`), its producers (`Log.producers`), and what a caller asks a log:
for a timestamp or for ranges (`lookup`), for counts (`counting`), for a long range (`bulk_read`).

Promises

* **An append is wholly in the file and published, or nothing changed.**  Checks work on copies; then the file
  is written; then, in steps that cannot fail, indexes, producers, epochs and the log end move.  After a
  failed or short write the file is truncated to the published end before the next append; when that fails,
  the log goes offline.
* **The flushed end moves only after the disk has confirmed the sync** (`flush.py`), and never over bytes that
  were truncated meanwhile.
* **Readers see batches in `[log start, upper offset)`**, whole, and at least one when there is one, however
  large.
* `last_stable_offset` = min(high watermark, first offset of any transaction that is open, or ended by a
  marker that is not yet below the high watermark) (docs/semantics.md L1).
* An offline log refuses every request: only opening it again, after a restart, can find out what the disk
  holds.

All methods are called from the loop's thread, except `FlushTicket.run`.  Nothing here waits, except that
truncation, removal and close wait for the disk: they are rare, and what follows them must not run before they
are durable.

Offsets, in the order that always holds: log_start <= last_stable <= high_watermark <= log_end, and
flushed_end <= log_end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...runtime import faults, logs
from ...runtime.disk import Disk
from ...wire.errors import ErrorCode, KafkaError
from ..durability.flush import FlushTicket
from ..epoch_cache import EpochCache, EpochEnd
from ..producers.producer_state import AppendOrigin, VerificationGuard
from ..recovery.recovery import (
    CorruptLog,
    LoadedLog,
    load_log,
)
from ..segment.batch_scan import InvalidBatch
from ..segment.batch_slices import ReadResult
from ..segment.offset_index import OFFSET_SPAN_MAX
from ..segment.open_files import OpenFiles
from ..segment.segment_list import Segments
from ..segment.transaction_index import AbortedTransaction
from ..topic_config import FlushPolicy, LogConfig
from .admission import NO_APPEND_TIME, CheckedBatches
from .append_plan import AppendInfo, AppendPlan, plan_follower_append, plan_leader_append
from .hooks import DETACHED
from .local_log import LocalLog
from .log_start import LogStart
from .pins import Pin
from .validation import epoch_violations, offset_violations, producer_violations, segment_violations

__all__ = [
    "AbortedTransaction", "AppendInfo", "AppendOrigin", "CorruptLog", "EpochEnd", "FlushPolicy",
    "FlushTicket", "Log",
    "LogConfig", "ReadResult", "VerificationGuard",
]  # fmt: skip

log = logs.get(__name__)


class Log:
    """See the module's text.  Opened by `Log.open`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        topic: str,
        partition: int,
        config: LogConfig,
        loaded: LoadedLog,
        start: LogStart,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.config = config
        self.recovered = loaded.recovered
        """Whether opening the log had to scan and repair: false after a clean stop."""
        self.recovery_truncated_bytes = loaded.truncated_bytes
        self.cleaned_to = 0
        """The cleaner has cleaned below this offset (`cleaning/cleaner.py` moves it); a truncation lowers
        it."""
        self.pins: tuple[Pin, ...] = ()
        self.truncations = 0
        """Rises with every truncation: a decision made on the log's content before is void."""
        self.local = LocalLog(disk, directory, self.name, loaded, start)
        self.producers = loaded.producers
        """The producers of the log's batches; another object after each truncation."""
        self._epochs = loaded.epochs
        self._log_start = loaded.log_start_offset
        self._log_end = loaded.log_end_offset
        self._high_watermark = self._log_start
        self.cleaned_at_most = self.decided_end if config.may_have_offset_gaps else 0
        """No record at or above this offset has let the cleaner, of this log or of the one that it was copied
        from, take another one away.  Of the process's former life nothing more exact is known."""
        self._copied_cleaned_at_most = 0
        """What leaders have said of it in this life (`note_copied`)."""
        self.was_copied_in_part = config.may_have_offset_gaps and self._log_end > self._log_start
        """Perhaps: the process's former life may have copied some of a log that was cleaned, and not have
        come to what the cleaner had seen.  `cleaned_at_most` may be too low until `note_copied`, unless the
        replica is in sync."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: Path,
        *,
        topic: str,
        partition: int,
        config: LogConfig,
        clean: bool,
        recovery_point: int,
        flushed_end: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        files: OpenFiles | None = None,
    ) -> Log:
        """Opens the folder, made when absent.  `clean`: the last close was one, and `recovery_point` is the
        end it noted. `flushed_end`: batches below it are known to have been flushed.

        Raises CorruptLog when flushed data is damaged, OSError when the disk fails.
        """
        start = LogStart(disk, directory)
        loaded = load_log(
            disk, directory, config=config, clean=clean, recovery_point=recovery_point,
            flushed_end=flushed_end,
            log_start_offset=max(log_start_offset, start.noted),
            files=OpenFiles(disk) if files is None else files,
        )  # fmt: skip
        opened = cls(disk, directory, topic, partition, config, loaded, start)
        opened.set_high_watermark(high_watermark)
        if loaded.recovered and loaded.truncated_bytes:
            lost = loaded.truncated_bytes
            log.info(
                "log_recovered", log=opened.name, log_end_offset=opened.log_end_offset, truncated_bytes=lost
            )
        return opened

    # ---- properties ----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def directory(self) -> Path:
        return self.local.directory

    @property
    def log_start_offset(self) -> int:
        return self._log_start

    @property
    def noted_start_offset(self) -> int:
        """The log start after a restart is not below this offset; the log start itself may be noted some
        seconds later (`log_start`)."""
        return self.local.start_note.noted

    @property
    def log_end_offset(self) -> int:
        return self._log_end

    @property
    def flushed_end_offset(self) -> int:
        """All batches below are on the disk."""
        return self.local.durability.flushed_end

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        first = self.producers.first_unstable_offset
        if first is None or first >= self._high_watermark:
            return self._high_watermark
        return max(first, self._log_start)

    @property
    def decided_end(self) -> int:
        """Below it this log has the end of each transaction.  A log with all committed records has here what
        is at least as high as any last stable offset before, of any replica, so as any cleaner has gone."""
        first = self.producers.first_open_offset
        return self._log_end if first is None else first

    @property
    def deletable_end(self) -> int:
        """Retention and DeleteRecords may raise the log start to this offset, and not above."""
        return min((self._high_watermark, *(pin.start for pin in self.pins)))

    @property
    def pinned_bytes(self) -> int:
        """Of the segments that hold what pins name."""
        ends = [(pin.start, pin.end) for pin in self.pins]
        return sum(
            each.size_bytes
            for each in (self.local.segments if ends else ())
            if any(start < each.next_offset and each.base_offset < end for start, end in ends)
        )

    def keep(self, pins: tuple[Pin, ...]) -> None:
        """From now on, what these pins name, and no other.  A leader may have applied the end of a pin before
        this node, and have cleaned since: what it said counts again once the pin has gone here."""
        self.pins = pins
        self.note_cleaned(self._copied_cleaned_at_most)

    def note_cleaned(self, offset: int) -> None:
        """Records below this offset may let the cleaner take others away, here or in the log that this one
        copies."""
        sure = (pin.settled_end for pin in self.pins if pin.is_confirmed)
        self.cleaned_at_most = min((max(self.cleaned_at_most, offset), *sure))

    def note_copied(self, cleaned_at_most: int) -> None:
        """A leader says what its `Replica.cleaned_at_most_for` this log is."""
        self._copied_cleaned_at_most = max(self._copied_cleaned_at_most, cleaned_at_most)
        self.note_cleaned(cleaned_at_most)
        self.was_copied_in_part = False

    def pin_problem(self, pin: Pin) -> str | None:
        """Why a reader at the cut does not find here what was there when it was taken; None when it does:
        between that moment and the pin, nothing kept it."""
        note = self.local.start_note
        start = max(self._log_start, note.noted, note.wanted)
        if start > pin.start:
            return f"{self.name} starts at {start} by now, the cut at {pin.start}"
        if self.cleaned_at_most > pin.settled_end:
            return (
                f"{self.name} may have been compacted up to {self.cleaned_at_most} since, the cut is settled "
                f"up to {pin.settled_end}: take another one"
            )
        return None

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log; -1 when there is none."""
        return self._epochs.latest

    @property
    def size_bytes(self) -> int:
        return self.local.segments.size_bytes

    @property
    def segments(self) -> Segments:
        """For look-ups; the log itself changes them."""
        return self.local.segments

    @property
    def recovery_point(self) -> int:
        """Below it, batches *and everything derived from them* are durable: recovery need not look there."""
        return self.local.durability.recovery_point

    @property
    def is_offline(self) -> bool:
        return self.local.health.offline is not None

    @property
    def is_closed(self) -> bool:
        return self.local.health.closed

    @property
    def has_unflushed_records(self) -> bool:
        return self.local.durability.flushed_end < self._log_end

    # ---- appending -----------------------------------------------------------------------------------------

    def append_leader(
        self,
        batches: bytes | bytearray | memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin,
        now_ms: int,
        guard: VerificationGuard | None = None,
        transaction_version: int = 0,
        checked: CheckedBatches | None = None,
    ) -> AppendInfo:
        """Checks batches (unless they come with `checked`), assigns offsets and the leader epoch (in place
        when the buffer is writable), and appends them all.

        A client's batch that repeats one of the last five of its producer appends nothing and returns the
        original offsets. Raises KafkaError with CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD,
        INVALID_TIMESTAMP, FENCED_LEADER_EPOCH, UNSUPPORTED_COMPRESSION_TYPE, OUT_OF_ORDER_SEQUENCE_NUMBER,
        INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED, THROTTLING_QUOTA_EXCEEDED,
        KAFKA_STORAGE_ERROR; then the log is as before.
        """
        if self.local.health.unusable:
            self.local.health.require()
        view = memoryview(batches)
        if leader_epoch < self._epochs.latest:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"append in leader epoch {leader_epoch}; the log holds epoch {self._epochs.latest}",
            )
        base_offset = self._log_end
        plan = plan_leader_append(
            view, self.config, self.producers, base_offset, leader_epoch=leader_epoch, origin=origin,
            now_ms=now_ms, guard=guard,
            transaction_version=transaction_version, log_start_offset=self._log_start, checked=checked,
        )  # fmt: skip
        if isinstance(plan, AppendInfo):
            return plan  # a duplicate
        self._write(plan)
        return AppendInfo(
            base_offset, plan.next_offset - 1, plan.append_time_ms, False, self._log_start, plan.next_offset
        )

    def append_follower(self, batches: bytes | bytearray | memoryview) -> AppendInfo:
        """Appends batches as the leader stamped them; ignores a partial batch at the end.

        Offsets must follow on this log's end without a gap (compacted topics may have gaps).  The producer
        state accepts what the leader accepted; violations are only logged.  Raises CORRUPT_MESSAGE (also for
        a gap or an overlap), KAFKA_STORAGE_ERROR; then the log is as before.
        """
        if self.local.health.unusable:
            self.local.health.require()
        plan = plan_follower_append(
            memoryview(batches), self.config, self.producers, self._log_end, self.name
        )
        if plan is None:
            return AppendInfo(
                self._log_end, self._log_end - 1, NO_APPEND_TIME, False, self._log_start, self._log_end
            )
        self._write(plan)
        if plan.prepared is not None and plan.prepared.warnings:
            warnings = plan.prepared.warnings
            log.warning("replicated_batch_is_odd", log=self.name, what=warnings[0], more=len(warnings) - 1)
        first, end = plan.placed[0].base_offset, plan.next_offset
        return AppendInfo(first, end - 1, NO_APPEND_TIME, False, self._log_start, end)

    def _write(self, plan: AppendPlan) -> None:
        """Writes, then publishes.  Raises KAFKA_STORAGE_ERROR with no record changed; a new active segment,
        and the end behind an offset gap, stay."""
        placed, prepared, local = plan.placed, plan.prepared, self.local
        size, segments = plan.size_bytes, local.segments
        if segments.must_roll(self.config, size, placed[-1].max_timestamp_ms, plan.next_offset):
            self._roll(
                self._log_end
                if plan.next_offset - self._log_end <= OFFSET_SPAN_MAX
                else placed[0].base_offset
            )
        local.write(plan)
        faults.point("log.written_unpublished", topic=self.topic, partition=self.partition)
        # From here on nothing can fail.
        segment = segments.active
        position = segment.size_bytes
        note_batch = segment.note_batch if plan.is_plain else segment.note_special_batch
        for header, base_offset, max_timestamp_ms, leader_epoch in placed:
            batch_bytes = header.batch_length + 12
            note_batch(header, base_offset, max_timestamp_ms, position, batch_bytes)
            position += batch_bytes
            if leader_epoch > self._epochs.latest:
                self.assign_epoch(leader_epoch, base_offset)
        segments.size_bytes += size
        self._log_end = plan.next_offset
        if prepared is not None:
            if prepared.completed and segment.counts is not None:
                segment.counts.end_transactions(prepared.completed)
            self.producers.publish(prepared, plan.next_offset)
        self.producers.end_offset = plan.next_offset

    def roll(self) -> bool:
        """Completes the active segment, so that it can be cleaned or removed; False when it is empty.  Raises
        KAFKA_STORAGE_ERROR."""
        self.local.health.require()
        if has_batches := self.local.segments.active.size_bytes > 0:
            self._roll(self._log_end)
        return has_batches

    def skip_to(self, offset: int) -> None:
        """Moves the log end over an offset gap of a compacted topic.  Raises KAFKA_STORAGE_ERROR."""
        self._roll(offset)

    def _roll(self, base_offset: int) -> None:
        """Completes the active segment and begins a new one at `base_offset`, durable with the next flush.
        When the offset gap before the next batch is larger than a segment can span, the new segment begins
        behind it."""
        old = self.local.roll(base_offset, self.config.index_interval_bytes)
        self._log_end = self.producers.end_offset = base_offset
        self.local.complete(old, self.producers)

    # ---- reading -------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int, at_least_one_batch: bool = True
    ) -> ReadResult:
        """Whole batches from the one that holds `offset`, all below `upper_offset`, about `max_bytes` of
        them.

        Empty at the upper offset.  Raises OFFSET_OUT_OF_RANGE outside [log start, log end],
        KAFKA_STORAGE_ERROR.
        """
        if self.local.health.unusable:
            self.local.health.require()
        if not self._log_start <= offset <= self._log_end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.name} is outside [{self._log_start}, {self._log_end}]",
            )
        if offset < upper_offset:
            try:
                found = self.local.segments.read(offset, max_bytes, upper_offset)
            except (OSError, InvalidBatch) as error:
                self.local.health.fail_read("a read", error, offset)
            if found.first_offset >= 0 and (at_least_one_batch or len(found.data) <= max_bytes):
                return found
        return ReadResult(b"", offset, offset)

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in [start_offset, upper_offset), by first offset (rules L6,
        F1)."""
        return self.local.aborted_transactions(start_offset, upper_offset, self.config)

    # ---- epochs, high watermark ----------------------------------------------------------------------------

    def epoch_end(self, epoch: int) -> EpochEnd:
        return self._epochs.end_of(epoch, self._log_end)

    def epoch_history(self) -> list[tuple[int, int]]:
        """Every leader epoch, with the offset where it begins."""
        return self._epochs.entries()

    def epoch_at(self, offset: int) -> int:
        """The leader epoch that wrote `offset`; -1 when unknown."""
        return self._epochs.epoch_at(offset)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Notes that a leader epoch begins at `start_offset` (a new leader: its log end)."""
        if self._epochs.assign(epoch, start_offset):
            self.local.durability.epochs_changed(start_offset)

    def set_high_watermark(self, offset: int) -> None:
        """Raises the high watermark (a lower value is ignored) and forgets ended transactions whose marker is
        below it."""
        offset = min(offset, self._log_end)
        if offset > self._high_watermark:
            self._high_watermark = offset
            self.producers.set_high_watermark(offset)

    # ---- flushing ------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushTicket:
        """Notes what a flush must make durable.  One flush at a time; see `flush.py`."""
        return self.local.begin_flush(self._epochs, self.producers)

    def finish_flush(self, ticket: FlushTicket) -> None:
        """Moves the flushed end after `ticket.run()` returned.  A ticket that a truncation cancelled changes
        nothing."""
        before = self.local.durability.flushed_end
        self.local.durability.finish(ticket, self.local.segments.active, self._epochs)
        if self.local.durability.flushed_end > before:
            self.report_flushed()

    def report_flushed(self) -> None:
        """The data folder notes the flushed end, as after a flush."""
        durability = self.local.durability
        self.local.hooks.flushed(durability.end_after_restart(durability.flushed_end))

    def flush_now(self) -> None:
        """A flush that waits on the loop's thread: for closing, tools and tests."""
        self.local.durability.cancel()
        ticket = self.begin_flush()
        with self.local.health.disk_at_work("a flush"):
            ticket.run()
        self.finish_flush(ticket)

    # ---- truncating ----------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Removes every batch that ends above `offset`, durably.  Below the log start, the log begins anew,
        empty, at `offset`.

        Producers, epochs and indexes are as if the removed batches had never been there; the high watermark
        falls to the new end at most.  Raises KAFKA_STORAGE_ERROR; on a full disk the log is as before, and
        the caller truncates it again when there is room.
        """
        self.local.health.require()
        if offset >= self._log_end:
            # An election without a record may have left an epoch here that the leader never knew: it is
            # dropped, or two histories that differ only in it would never agree (KIP-279).
            if self._epochs.truncate_from_end(self._log_end):
                self.local.durability.epochs_changed(self._log_end)
            return
        if offset < self._log_start:
            self.truncate_fully_and_start_at(offset)
            return
        found = self.local.find_truncation(offset)
        end = found.end_offset
        log.debug("log_truncated", log=self.name, offset=offset, new_end=end, old_end=self._log_end)
        epochs = self._epochs.below(end)
        self._prepare_truncation(found.data_end, epochs)
        with self.local.health.disk_at_work("a truncation"):
            self._epochs = epochs
            self.local.truncate(found)
            self._end_at(end)
            self.producers = self.local.reload_producers(self.config, end)
        self.producers.set_high_watermark(self._high_watermark)

    def _prepare_truncation(self, end: int, epochs: EpochCache, *, restart_at: int | None = None) -> None:
        """See `LocalLog.prepare_truncation`."""
        self.local.stop_writers("a truncation")
        self.truncations += 1
        self.cleaned_to = min(self.cleaned_to, end)
        self.cleaned_at_most = min(self.cleaned_at_most, end)
        self._copied_cleaned_at_most = min(self._copied_cleaned_at_most, end)
        self.local.prepare_truncation(end, epochs, restart_at)

    def _end_at(self, end: int) -> None:
        self._log_end = end
        self._log_start = min(self._log_start, end)  # above it when it was inside the first truncated batch
        self._high_watermark = min(self._high_watermark, end)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes all batches; the log is empty and begins at `offset`.  For a follower whose end is below
        its leader's log start."""
        self.local.health.require()
        log.info(
            "log_restarted", log=self.name, offset=offset, old_start=self._log_start, old_end=self._log_end
        )
        epochs = EpochCache()
        self._prepare_truncation(0, epochs, restart_at=offset)
        with self.local.health.disk_at_work("a truncation"):
            self._epochs = epochs
            self.local.restart_at(offset, self.config.index_interval_bytes)
        self._log_start = self._log_end = self._high_watermark = offset
        self.producers = self.local.reload_producers(self.config, offset)

    def advance_log_start(self, offset: int) -> None:
        """Raises the log start (a lower value is ignored): readers lose the records below it, and the disk
        loses whole segments below it.

        Producers stay (rule I10).  Raises OFFSET_OUT_OF_RANGE above the high watermark.
        """
        self.local.health.require()
        if offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log start cannot move to {offset}, above the high watermark {self._high_watermark}",
            )
        if offset <= self._log_start:
            return
        self._log_start = offset
        if self._epochs.truncate_from_start(offset):
            self.local.durability.epochs_changed(self._log_end)
        self.local.remove_below(offset)

    # ---- the end -------------------------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Sets a new configuration.  The next append reads it, but what a segment copied when it was begun
        (`index_interval_bytes`) changes with the next roll."""
        if self.config.may_have_offset_gaps:
            config = replace(config, was_compacted=True)  # a change of the policy fills no offset gaps
        if config != self.config:
            self.config = self.local.hooks.config_changed(config)
        self.producers.expiration_ms = config.producer_id_expiration_ms

    def allow_offset_gaps(self) -> None:
        """From now on the leader may send batches with offset gaps: its log was compacted once, whatever the
        topic's policy is now.  Stored beside the log, because recovery must not take the gaps for lost
        data."""
        if not self.config.may_have_offset_gaps:
            self.update_config(replace(self.config, was_compacted=True))

    def exchange_files(self, future: Log) -> None:
        """The log uses the files of its future replica from now on, and the future replica those of the log:
        cannot fail.  Both hold the same records, no flush of either runs, and both are detached."""
        assert future.log_end_offset == self._log_end
        assert self.local.hooks is future.local.hooks is DETACHED
        assert self.local.durability.running is future.local.durability.running is None
        self.local, future.local = future.local, self.local
        if self._epochs.entries() != future._epochs.entries():  # an epoch of an election without a record
            self.local.durability.epochs_changed(self._log_end)
        self.truncations += 1  # a reader or a cleaning that noted the log's segments finds others
        self.cleaned_to = 0  # the copy may have begun before a cleaning

    def close(self, *, clean: bool) -> None:
        """Closes all files.  `clean`: all is made durable first, and opening needs no scan.  Raises
        KAFKA_STORAGE_ERROR."""
        if self.local.health.closed:
            return
        try:
            if clean and self.local.health.offline is None:
                self.local.prepare_clean_close(self._epochs, self.producers)
                self.flush_now()
                self.local.require_no_pending_files()
        finally:
            self.local.close()

    def go_offline(self, error: OSError | CorruptLog) -> None:
        self.local.health.go_offline(error)

    def validate(self, *, whole: bool = False) -> None:
        """Raises AssertionError when an invariant does not hold (`validation`); with `whole`, of every
        segment and producer, otherwise of those that change.  A log that is closed or offline is not asked:
        only opening it again finds out what the disk holds."""
        if self.local.health.unusable:
            return
        local, end = self.local, self._log_end
        violations = [
            *offset_violations(self._log_start, self.last_stable_offset, self._high_watermark, end, local),
            *segment_violations(
                local.segments[:] if whole else local.segments[-2:],
                may_have_offset_gaps=self.config.may_have_offset_gaps,
            ),
            *epoch_violations(self._epochs, end, whole=whole),
            *producer_violations(self.producers, end, whole=whole),
        ]
        if whole and local.segments.size_bytes != sum(segment.size_bytes for segment in local.segments):
            violations.append(f"the segments have not {local.segments.size_bytes} bytes")
        if violations:
            raise AssertionError(f"the log {self.name} breaks its invariants: {'; '.join(violations)}")

    def describe(self) -> Mapping[str, int]:
        """All offsets at once, for logs and metrics."""
        return {
            "log_start_offset": self._log_start,
            "last_stable_offset": self.last_stable_offset,
            "high_watermark": self._high_watermark,
            "flushed_end_offset": self.flushed_end_offset,
            "log_end_offset": self._log_end,
        }
