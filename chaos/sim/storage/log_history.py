"""Random histories of one log in a data folder on a disk that lies, compared with a plain model.

    history = StorageHistory(seed)
    history.run()                  raises Broken (an AssertionError) with the seed and all steps when a
                                   promise does not hold

A history is a list of steps `(operation, a, b)`; the numbers choose sizes, offsets and fates.  What must hold
after any crash:

* flushed batches exist, byte for byte; no torn, invented or truncated batch is readable;
* producers, open and aborted transactions and the last stable offset are those of a replay of all batches
  from zero;
* leader epochs, indexes and time look-ups agree with the batches;
* offsets keep their order, and the log start does not fall below what a checkpoint has noted.

Everything follows from the steps: the same steps give the same history.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

from ....runtime.disk import OUT_OF_SPACE
from ....storage.cleaning.cleaner import clean_now
from ....storage.cleaning.retention import apply_retention
from ....storage.directory.log_directory import LogDirectory
from ....storage.directory.log_loader import FolderOptions
from ....storage.log.hooks import Done, Work
from ....storage.log.log import FlushTicket, Log, LogConfig
from ....storage.topic_config import CleanupPolicy
from ....wire.errors import KafkaError
from ..disk import Lie, LyingDisk, PowerCut
from ..runs import Step
from .appends import AppendSteps
from .checks import check_log, check_survivors, forget_removed, read_all
from .cleaning_checks import adopt_cleaned, check_aborted_are_gone
from .steps import NOW_MS, broken

ROOT = Path("/data")
TOPIC, PARTITION = "flights", 0
TOPIC_ID = UUID(int=7)

WEIGHTS = {
    "append": 5, "idempotent": 4, "transaction": 6, "commit": 3, "abort": 4, "follow": 3, "repeat": 1,
    "epoch": 2, "roll": 2,
    "flush": 5, "flush_begin": 3, "flush_run": 3, "flush_finish": 3, "watermark": 4, "delete": 2, "retain": 1,
    "clean": 3,
    "truncate": 2, "checkpoint": 3, "full": 3, "full_open": 1, "sync_fails": 1, "any_sync_fails": 1,
    "undo_fails": 1,
    "reconfigure": 1, "close": 1, "kill": 1, "crash": 3, "cut": 5, "cut_open": 1, "check": 1,
}  # fmt: skip
"""How often each operation is drawn."""
CLEANING_WEIGHTS = WEIGHTS | {"clean": 14, "roll": 10, "flush": 12, "watermark": 10, "truncate": 1}
CUTTABLE = (
    "append", "transaction", "abort", "follow", "roll", "flush", "flush", "flush_run", "delete", "truncate",
    "checkpoint",
    "checkpoint", "clean", "clean", "close", "reconfigure",
)  # fmt: skip
"""The operations that a power cut may interrupt, or that may meet a full disk."""


def random_steps(seed: int, length: int, weights: Mapping[str, int] = WEIGHTS) -> list[Step]:
    random = Random(seed)
    names = random.choices(list(weights), list(weights.values()), k=length)
    return [(name, random.randrange(1 << 20), random.randrange(1 << 20)) for name in names]


class Shape(NamedTuple):
    """What stays the same in a history: the log's limits, small enough that every boundary is near."""

    policies: str = "delete"
    segment_bytes: int = 1000
    index_interval_bytes: int = 200
    files_max: int = 4096
    index_bytes_max: int = 1 << 20
    resume_bytes: int = 1 << 20
    """A flush writes a snapshot for every so many bytes of a segment."""
    failed_sync_keeps_cache: bool = True

    @classmethod
    def drawn(cls, random: Random, *, compacted: bool) -> Shape:
        policies = "delete"
        if compacted or random.random() < 0.35:
            policies = random.choice(("compact", "compact", "compact,delete"))
        return cls(
            policies, random.choice((500, 1000, 2500)), random.choice((1, 200, 600)),
            random.choice((2, 4096)),
            random.choice((0, 1 << 20)), random.choice((300, 1 << 20)), random.random() < 0.5,
        )  # fmt: skip


def _policy(policies: str) -> frozenset[CleanupPolicy]:
    return frozenset(CleanupPolicy(each) for each in policies.split(","))


class StorageHistory(AppendSteps):
    """One log, its disk and its model.  Subclass and override steps to switch a safeguard off."""

    ALWAYS_COMPACTED = False
    CUT: Sequence[str] = CUTTABLE
    """The operations that power cuts interrupt."""
    WEIGHTS: Mapping[str, int] | None = None
    """How often each operation is drawn; None: as the log's policy says."""

    @classmethod
    def cut_after(cls, name: str, b: int) -> int:
        """How many changes of the disk succeed before the power fails."""
        return b % (45 if name == "clean" else 11)

    def __init__(
        self, seed: int = 0, *, lies: Lie = Lie.NONE, steps: Sequence[Step] | None = None, length: int = 14,
        shape: Shape | None = None,
    ) -> None:  # fmt: skip
        """`steps` and `shape` are drawn from the seed when not given."""
        super().__init__()
        self.seed = seed
        self.shape = shape or Shape.drawn(Random(~seed), compacted=self.ALWAYS_COMPACTED)
        self.config = LogConfig(
            segment_bytes=self.shape.segment_bytes, index_interval_bytes=self.shape.index_interval_bytes,
            cleanup_policy=_policy(self.shape.policies),
        )  # fmt: skip
        self.was_compacted = self.config.is_compacted
        weights = self.WEIGHTS or (CLEANING_WEIGHTS if self.was_compacted else WEIGHTS)
        self.steps = random_steps(seed, length, weights) if steps is None else list(steps)
        self.disk = LyingDisk()
        self.disk.failed_sync_keeps_cache = self.shape.failed_sync_keeps_cache
        self.crashes = 0
        self.trace = False
        self.flushed = 0  # the end of the batches that were acknowledged as durable
        self.start_noted = 0  # the log start below which no restart may fall
        self.start_most = 0
        self.ticket: FlushTicket | None = None
        self.ticket_was_run = False
        self.limit = self.settled = 0  # a cleaning could go so far, by markers that far
        self.may_forget = False  # what a full disk kept retention from noting
        self.restarting: int | None = None  # a truncation that begins the log anew may have been interrupted
        self._open(clean=False)
        self.disk.lies = lies

    def run(self) -> None:
        """All steps, then a power cut; checks after each restart.  Raises Broken."""
        done: list[Step] = []
        try:
            for step in self.steps:
                done.append(step)
                if self.trace:
                    print(step)
                self._step(*step)
                if self.trace:
                    print("   ", self.log.describe(), self.flushed)
            done.append(("crash", self.seed, 0))
            self.crash(self.seed, 0)
        except (PowerCut, Exception) as error:
            broken(self.seed, done, error)

    def _step(self, name: str, a: int, b: int) -> None:
        operation: Callable[[int, int], None] = getattr(self, name)
        operation(a, b)
        self.log.validate(whole=True)
        if name not in ("crash", "kill", "cut", "cut_open", "close"):
            self._learn()

    def _learn(self) -> None:
        """Notes what the log promises from now on."""
        self.config = self.log.config
        self.was_compacted = self.was_compacted or self.config.is_compacted
        if not self.log.is_offline:
            self.flushed = max(self.flushed, self._end_of_batches(self.log.flushed_end_offset))

    def _end_of_batches(self, offset: int) -> int:
        """The end of the last batch that ends at or below `offset`: behind it, a compacted log may have an
        offset gap."""
        ends = (b.header.next_offset for b in reversed(self.model.batches) if self.model.is_stored(b))
        return next((end for end in ends if end <= offset), 0)

    # ---- flushing ------------------------------------------------------------------------------------------

    def flush(self, _a: int, _b: int) -> None:
        self.ticket = None
        self.log.flush_now()

    def flush_begin(self, _a: int, _b: int) -> None:
        if self.ticket is None:
            self.ticket, self.ticket_was_run = self.log.begin_flush(), False

    def flush_run(self, _a: int, _b: int) -> None:
        if self.ticket is not None:
            self.ticket.run()
            self.ticket_was_run = True

    def flush_finish(self, _a: int, _b: int) -> None:
        if self.ticket is not None and self.ticket_was_run:
            self.log.finish_flush(self.ticket)  # changes nothing when a truncation cancelled it
            self.ticket = None

    def reconfigure(self, a: int, _b: int) -> None:
        """Another cleanup policy: a log that is no longer compacted keeps its offset gaps, and retention
        applies to it."""
        policy = _policy(("compact", "delete", "compact,delete")[a % 3])
        self.log.update_config(replace(self.config, cleanup_policy=policy))

    def checkpoint(self, a: int, _b: int) -> None:
        if a & 1:
            self._run_removals()
        self.directory.write_checkpoints()
        self.start_noted = self.log.log_start_offset

    # ---- truncation ----------------------------------------------------------------------------------------

    def watermark(self, a: int, _b: int) -> None:
        # With the flush policy `os` it may be above the flushed end; but a crash must not undo records that
        # the cleaner considers settled.
        most = self.log.flushed_end_offset if self.was_compacted else self.log.log_end_offset
        self.log.set_high_watermark(a % (most + 1))
        self.model.watermark_most = max(self.model.watermark_most, self.log.high_watermark)

    def delete(self, a: int, b: int) -> None:
        """DeleteRecords; or, when the topic is only compacted, a follower that takes over its leader's log
        start.  At times it is acknowledged, and must then last."""
        low, high = self.log.log_start_offset, self.log.high_watermark
        target = low + a % (high - low + 1)
        self.start_most = max(self.start_most, target)
        self.model.start_most = max(self.model.start_most, target)
        self.log.advance_log_start(target)
        self.model.start = max(self.model.start, target)
        if b % 2:
            note = self.log.local.start_note
            note.want(target)
            try:
                note.write()
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    self.log.go_offline(error)
            self.start_noted = max(self.start_noted, note.noted)

    def retain(self, a: int, _b: int) -> None:
        """Retention by time: removes only batches that are old enough, and none when the topic is only
        compacted."""
        now_ms = NOW_MS + self.config.retention_ms + a % 1200
        self.start_most = max(self.start_most, self.log.last_stable_offset)
        for start in apply_retention(self.log, now_ms):
            gone = [b.header for b in self.model.visible() if b.header.next_offset <= start]
            assert all(header.max_timestamp < now_ms - self.config.retention_ms for header in gone)
            self.model.start = start
            self.model.start_most = max(self.model.start_most, start)

    def clean(self, a: int, _b: int) -> None:
        """The cleaner cleans all that it may; at times much later, when tombstones and markers may go."""
        if not self.config.is_compacted:
            return
        self.limit = max(self.limit, self.log.last_stable_offset)
        self.settled = max(self.settled, self.log.high_watermark)
        now_ms = NOW_MS + self.config.delete_retention_ms * (a % 3)
        try:
            done = clean_now(self.log, self.disk, now_ms, key_map_bytes=1 << 12)
        except (KafkaError, OSError):
            if not self.log.is_offline:
                self._adopt_cleaned()  # of several groups of segments, the first ones may be done
            raise
        self._adopt_cleaned()
        if done is not None:
            check_aborted_are_gone(self.model, done.cleaned_to)

    def _adopt_cleaned(self) -> None:
        found = read_all(self.log, self.log.log_start_offset, self.log.log_end_offset, 100_000)
        adopt_cleaned(self.log, self.model, found, min(self.limit, self.model.end))

    def truncate(self, a: int, b: int) -> None:
        """Truncates like a follower whose leader has another history; at times below the log start."""
        try:
            self._truncate(a, b)
        except KafkaError:  # refused: nothing was truncated
            self.restarting = None
            self.check(a, b)
            raise

    def _truncate(self, a: int, b: int) -> None:
        low = self.log.log_start_offset
        end = self.log.log_end_offset
        # the cleaner considers records below the high watermark settled
        lowest = min(end, max(0, low - 2, self.settled))
        target = lowest + a % (end - lowest + 1)
        if b % 8 == 0:
            target += b % 5
            self._before_truncation(0, target)
            self.restarting = target
            self.log.truncate_fully_and_start_at(target)
            self.model.restart(target)
        else:
            restarts = target < low
            self._before_truncation(0 if restarts else target, target)
            self.restarting = target if restarts else None
            self.log.truncate_to(target)
            self.model.truncate(target)
        restarted, self.restarting = self.restarting is not None, None
        self.limit, self.settled = min(self.limit, self.model.end), min(self.settled, self.model.end)
        self.flushed = min(self.flushed, self.model.end)
        if restarted:  # the one segment there is begins there
            self.start_noted = self.start_most = self.model.start
        assert self.log.log_end_offset == self.model.end
        assert self.log.log_start_offset == self.model.start
        if self.log.flushed_end_offset > self.model.end:
            raise AssertionError("more is flushed than there is")

    def _before_truncation(self, target: int, restart: int) -> None:
        """From here on, a crash may or may not show the truncation."""
        self.flushed = min(self.flushed, self._end_of_batches(target))
        self.start_noted = min(self.start_noted, self._end_of_batches(target))
        self.start_most = max(self.start_most, restart)

    # ---- faults --------------------------------------------------------------------------------------------

    def full(self, a: int, b: int) -> None:
        """A full disk: an operation is refused, and the log is as before."""
        name = CUTTABLE[a % len(CUTTABLE)]
        if b % 2:
            self.disk.capacity = self.disk.used_bytes() + (b >> 1) % 300
        else:
            self.disk.full_after = (b >> 1) % 12
        before, start = self.log.log_end_offset, self.log.log_start_offset
        if name == "close":
            self._close_full(a, b)
            return
        try:
            self._step(name, b, a)
        except (KafkaError, OSError):
            assert self.log.log_end_offset <= before
            assert not self.log.is_offline, f"{name} on a full disk took the log offline"
        finally:
            self.disk.capacity = self.disk.full_after = None
        if self.log.log_start_offset > start:
            self.may_forget = True
        if self.log.is_offline:
            self.kill(a, b)

    def _close_full(self, a: int, b: int) -> None:
        """A clean close that finds no room is not clean; it loses nothing."""
        self.ticket = None
        try:
            self.directory.close(clean=True, broker_epoch=5)
        except (KafkaError, OSError):
            assert not self.log.is_offline, "a close on a full disk took the log offline"
            self.disk.capacity = self.disk.full_after = None
            self.kill(a, b)
        else:
            self.disk.capacity = self.disk.full_after = None
            self._closed(a, b)

    def full_open(self, a: int, b: int) -> None:
        """A power cut, then no room for the files that recovery writes: the log opens, or waits for room, and
        loses nothing."""
        self.crashes += 1
        self.disk.crash(Random(a))
        self.disk.full_after = b % 9
        self._open(clean=False, full=True)
        self.disk.full_after = None
        self._settle(a, b)
        self.crash(a + 1, b)

    def sync_fails(self, a: int, b: int) -> None:
        """A sync fails during a flush: the log promises nothing more, now or later."""
        if self.ticket is not None:
            self.ticket.run()
            self.log.finish_flush(self.ticket)
        ticket, self.ticket = self.log.begin_flush(), None
        promised = self.log.flushed_end_offset
        self.disk.fail_sync_after = b % 3
        try:
            ticket.run()
        except OSError as error:
            self._sync_failed(error, ticket)
            assert self.log.is_offline
            assert self.log.flushed_end_offset == promised
            (self.crash if a % 3 else self.kill)(a, b)
        else:
            self.disk.fail_sync_after = None
            self.log.finish_flush(ticket)

    def any_sync_fails(self, a: int, b: int) -> None:
        """A sync fails during any operation: the log refuses it or goes offline; no promise is broken."""
        name = CUTTABLE[a % len(CUTTABLE)]
        self.disk.fail_sync_after = b % 5
        try:
            self._step(name, b, a)
        except (KafkaError, OSError) as error:
            self.disk.fail_sync_after = None
            if name in ("flush", "flush_run", "truncate", "delete"):
                if isinstance(error, OSError):
                    self.log.go_offline(error)  # what the group commit does
                assert self.log.is_offline, f"a sync failed in {name}, and the log is in use"
            if name == "close":
                self.kill(a, b)
        self.disk.fail_sync_after = None
        if self.log.is_offline:
            (self.crash if b & 64 else self.kill)(a, b)

    def undo_fails(self, a: int, b: int) -> None:
        """The truncation of a short write fails: nothing may be appended behind it."""
        self.disk.capacity = self.disk.used_bytes() + b % 200
        self.disk.fail_truncate = True
        try:
            self._step(("append", "abort", "follow")[a % 3], b, a)
        except KafkaError:
            pass
        finally:
            self.disk.capacity, self.disk.fail_truncate = None, False
        if self.log.is_offline:
            (self.crash if a & 64 else self.kill)(a, b)

    def _sync_failed(self, error: OSError, _ticket: FlushTicket) -> None:
        """Takes the log offline, as the group commit does."""
        self.log.go_offline(error)

    def check(self, a: int, b: int) -> None:
        check_log(self.log, self.model, self.config, Random(a ^ b))

    # ---- ends and restarts ---------------------------------------------------------------------------------

    def close(self, a: int, b: int) -> None:
        self.ticket = None
        self.directory.close(clean=True, broker_epoch=5)
        self._closed(a, b)

    def _closed(self, a: int, b: int) -> None:
        self.flushed = self._end_of_batches(self.model.end)
        self.start_noted = self.start_most = self.log.log_start_offset
        self.disk.kill()
        self._open(clean=True)
        assert not self.log.recovered, "a clean close, and yet a scan"
        check_survivors(self.log, self.model, self.flushed, self.start_noted, self.start_most)
        # it was in an offset gap that the log lost
        self.start_noted = min(self.start_noted, self.model.start)
        self.check(a, b)

    def kill(self, a: int, b: int) -> None:
        """Only the process ends: unless a sync has failed, no written batch is lost."""
        lossless = not self.log.is_offline
        self.disk.kill()
        self._open(clean=False)
        if lossless:
            kept = self._end_of_batches(self.model.end), self.model.end
            assert self.log.log_end_offset in kept, "a killed process has lost what it wrote"
        self._settle(a, b)

    def crash(self, a: int, b: int) -> None:
        self.crashes += 1
        self.disk.crash(Random(a))
        self._open(clean=False)
        self._settle(a, b)

    def cut(self, a: int, b: int) -> None:
        """The power fails in the middle of an operation."""
        name = self.CUT[a % len(self.CUT)]
        self.disk.cut_after = self.cut_after(name, b)
        with contextlib.suppress(PowerCut):
            self._step(name, b, a)
        self.crash(a, b)

    def cut_open(self, a: int, b: int) -> None:
        """The power fails again during recovery, and at times once more, further on."""
        self.crashes += 1
        for turn in range(1 + a % 3):
            self.disk.crash(Random(a + turn))
            self.disk.cut_after = (b >> turn) % (7 << turn)
            with contextlib.suppress(PowerCut):
                self._open(clean=False)
        self.crash(a + 3, b)

    def _settle(self, a: int, b: int) -> None:
        """After a restart: the found state must be a possible one; from now on it is the required one."""
        log, target = self.log, self.restarting
        if target is not None and not log.size_bytes and log.log_start_offset == log.log_end_offset == target:
            self.model.restart(target)  # that came through
            target = None
        self.restarting = None
        self.raise_ghosts(self.flushed)
        check_survivors(log, self.model, self.flushed, self.start_noted, self.start_most)
        if self.may_forget:
            forget_removed(log, self.model)
            self.may_forget = False
        if target is not None:  # half done: the follower truncates again
            log.truncate_fully_and_start_at(target)
            self.model.restart(target)
        self.flushed = self._end_of_batches(self.log.flushed_end_offset)
        self.start_most = self.model.start
        self.start_noted = min(self.start_noted, self.model.start)
        if self.limit:
            self._adopt_cleaned()
        self.check(a, b)

    def _open(self, *, clean: bool, full: bool = False) -> None:
        self.ticket = None
        self.directory = LogDirectory(
            self.disk, ROOT, "cluster", 1, options=FolderOptions(files_max=self.shape.files_max)
        )
        self.directory.files.index_bytes_max = self.shape.index_bytes_max
        report = self.directory.open_all(lambda _topic: self.config, now_ms=NOW_MS)
        if full and report.failed:
            assert not self.directory.damaged
            assert not self.directory.is_offline
            self.disk.full_after = None
        else:
            assert not report.failed, f"the log cannot be opened: {next(iter(report.failed.values()))}"
        assert report.clean or not clean
        self.log: Log = self.directory.logs.get((TOPIC, PARTITION)) or self._create(waits=bool(report.failed))
        self.log.local.durability.resume_bytes = self.shape.resume_bytes
        # handed to a thread, which writes them at a later checkpoint
        self.removals: deque[tuple[Work, Done]] = deque()
        if self.seed & 1:
            local = self.log.local
            local.attach(replace(local.hooks, in_background=self._take_over))
        self.config = self.log.config
        self.leader_epoch = max(self.leader_epoch, self.log.latest_epoch)

    def _take_over(self, work: Work, done: Done) -> bool:
        self.removals.append((work, done))
        return True

    def _run_removals(self) -> None:
        while self.removals:
            (work, done), error = self.removals.popleft(), None
            try:
                work()
            except OSError as failure:
                error = failure
            done(error)

    def _create(self, *, waits: bool) -> Log:
        """Creates the log, or opens a log that waits for room."""
        assert waits or self.flushed == 0, "a log with flushed data is gone"
        return self.directory.create(TOPIC, TOPIC_ID, PARTITION, self.config, now_ms=NOW_MS)
