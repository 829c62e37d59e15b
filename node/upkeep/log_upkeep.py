"""Keeps the logs of this node small: retention by time and size, and the cleaner of compacted topics.

Both run from time to time, as tasks on the node's loop.  Retention is short work, done there, a segment at a
time.  A cleaning reads, decides, writes, syncs and renames in a thread of its own; only taking down what to
clean, and putting new segments into the place of old ones in memory, happen on the loop.  The thread gives
way after every piece of work (it holds Python's lock while it decides about records) and keeps to
`log.cleaner.io.max.bytes.per.second`, reads and writes together.

One log is cleaned at a time: one past its `max.compaction.lag.ms`, then the one with the greatest share of
dirty bytes.  A log that cannot be cleaned (damage, a failing disk) is left alone from then on, with an error
in the node's log and in the metric, and nothing else suffers; one whose disk is full is tried again later.  A
log that changes under a cleaning is cleaned another time.

Leaders decide what is too old, and followers take over their log start; every replica cleans its own log.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from ...controller.state.broker_settings import (
    CLEANER_BACKOFF_SETTING,
    CLEANER_BUFFER_SETTING,
    CLEANER_SETTING,
)
from ...replication.replica.replica import Replica, Role
from ...runtime import logs
from ...runtime.clock import Clock, until_next
from ...runtime.disk import OUT_OF_SPACE, Disk
from ...runtime.tasks import OnFailure, spawn
from ...storage.checkpoint import CheckpointInvalid
from ...storage.cleaning.cleaner import (
    Cleaning,
    CleaningResult,
    ConcurrentTruncation,
    begin_cleaning,
    cleanable_part,
)
from ...storage.cleaning.plan import Cleanable, dirtiest
from ...storage.cleaning.positions import (
    CLEANER_CHECKPOINT,
    CleanerPosition,
    PositionKey,
    believed_offset,
    decode_positions,
    encode_positions,
    position_of,
)
from ...storage.cleaning.retention import apply_retention
from ...storage.log.log import Log
from ...storage.segment.batch_scan import InvalidBatch
from ...wire.errors import KafkaError
from ..settings.configuration import Configuration
from .timed_flushes import LOOK_INTERVAL_S, TimedFlushes

log = logs.get(__name__)
T = TypeVar("T")

FULL_DISK_PAUSE_S: Final = 60.0
LOGS_AT_ONCE: Final = 100
UNKNOWN_KEPT_S: Final = 3600.0
WORK_S: Final = 0.0005
"""The cleaner's thread gives way when it has worked for so long ..."""
GIVE_WAY_S: Final = 0.0001
"""... for at least this time."""


class Stopped(ConcurrentTruncation):
    """The node stops: the cleaning ends where it is, and is begun anew in the next life."""


class CannotClean(Exception):
    """One log could not be cleaned; `is_full`: only because its disk is full."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        origin = cause.__cause__ if isinstance(cause, KafkaError) and cause.__cause__ is not None else cause
        self.is_full = isinstance(origin, OSError) and origin.errno in OUT_OF_SPACE


@dataclass(slots=True)
class UpkeepView:
    """The metrics of retention and cleaner; from `cleanings` on, counters since the start of the node."""

    uncleanable_partitions: int = 0
    oldest_dirty_age_s: float = 0.0
    dirty_ratio_max: float = 0.0
    cleanings: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    records_removed: int = 0
    segments_expired: int = 0


@dataclass(slots=True)
class _Known:
    """What is remembered of one log, as long as it is the same object."""

    log: Log
    uncleanable: str = ""
    pause_until_s: float = 0.0
    horizon_ms: int | None = None
    """When tombstones or markers in its clean part may go."""
    part: Cleanable | None = None


class _Pace:
    """In the cleaner's thread: keeps to the rate, gives way to the loop, and ends the work when the node
    stops."""

    def __init__(self, clock: Clock, bytes_per_second: int, stopping: threading.Event) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._stopping = stopping
        self._began_s = self._gave_way_s = clock.monotonic()
        self._bytes = 0

    def __call__(self, size: int) -> None:
        if self._stopping.is_set():
            raise Stopped("the node stops")
        self._bytes += size
        now_s = self._clock.monotonic()
        ahead_s = self._bytes / self._rate - (now_s - self._began_s) if self._rate else 0.0
        if ahead_s > GIVE_WAY_S or now_s - self._gave_way_s > WORK_S:
            self._stopping.wait(max(ahead_s, GIVE_WAY_S))
            self._gave_way_s = self._clock.monotonic()


@dataclass(slots=True)
class _Folder:
    """One data folder's notes of cleaner positions."""

    path: Path
    noted: dict[PositionKey, CleanerPosition] = field(default_factory=dict)
    written: bytes = b""


class LogUpkeep:
    """See the module's text.  `start` and `stop` on the loop."""

    def __init__(
        self,
        configuration: Configuration,
        disk: Disk,
        clock: Clock,
        replicas: Callable[[], Iterable[Replica]],
        request_flush: Callable[[Log], None],
        setting: Callable[[str], int],
        on_failure: OnFailure,
    ) -> None:
        """`setting`: the present value of one that may change while the node runs.  `on_failure(error)`: a
        defect ended a task."""
        self._on_failure = on_failure
        self._setting = setting
        self._configuration = configuration
        self._disk = disk
        self._clock = clock
        self._replicas = replicas
        self._request_flush = request_flush
        self._known: dict[PositionKey, _Known] = {}
        self._folders: dict[Path, _Folder] = {}
        self._counters = UpkeepView()
        self._cleaning: Log | None = None
        self._forget_at_s = clock.monotonic() + UNKNOWN_KEPT_S
        self._stopping = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="cleaner")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(spawn(self._retain_forever(), "retention", self._on_failure))
        self._tasks.append(spawn(self._flush_by_time(), "timed-flushes", self._on_failure))
        if self._configuration.flag("log.cleaner.enable"):
            self._tasks.append(spawn(self._clean_forever(), "cleaner", self._on_failure))

    async def stop(self) -> None:
        """Ends a cleaning at the next piece of work; after this no log is touched any more."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The thread may wait for a swap on this loop, so the loop must run on until it is over.
        await asyncio.to_thread(self._executor.shutdown)

    def view(self) -> UpkeepView:
        now_ms = self._clock.wall_ms()
        parts = [known.part for known in self._known.values() if known.part is not None]
        oldest_ms = min(
            (part.oldest_dirty_ms for part in parts if part.oldest_dirty_ms is not None), default=now_ms
        )
        return replace(
            self._counters,
            uncleanable_partitions=sum(bool(known.uncleanable) for known in self._known.values()),
            oldest_dirty_age_s=max(0, now_ms - oldest_ms) / 1000,
            dirty_ratio_max=max((part.dirty_ratio for part in parts), default=0.0),
        )

    # --------------------------------------------------------------------------------------------------------
    # flush.ms

    async def _flush_by_time(self) -> None:
        timed = TimedFlushes()
        while True:
            await self._clock.sleep(until_next(self._clock.monotonic(), LOOK_INTERVAL_S))
            now_s, seen = self._clock.monotonic(), set[Log]()
            for count, replica in enumerate(list(self._replicas()), start=1):
                seen.add(replica.log)
                if timed.is_due(replica, now_s):
                    self._request_flush(replica.log)
                if count % 500 == 0:
                    await asyncio.sleep(0)  # thousands of partitions must not hold the loop
            timed.keep(seen)

    # --------------------------------------------------------------------------------------------------------
    # retention

    async def _retain_forever(self) -> None:
        while True:
            await self._clock.sleep(self._configuration.seconds("log.retention.check.interval.ms"))
            await self.retain_once()

    async def retain_once(self) -> None:
        for replica in list(self._replicas()):
            try:
                await self._retain(replica)
            except (KafkaError, OSError, InvalidBatch) as error:
                log.error("retention_failed", topic=replica.topic, partition=replica.partition, error=error)
            await asyncio.sleep(0)

    async def _retain(self, replica: Replica) -> None:
        if not replica.is_leader or replica.log is self._cleaning:
            return
        for start in apply_retention(replica.log, self._clock.wall_ms()):
            self._counters.segments_expired += 1
            log.info(
                "segment_expired", topic=replica.topic, partition=replica.partition, log_start_offset=start
            )
            await asyncio.sleep(0)
            if not replica.is_leader or replica.log is self._cleaning:
                return

    # --------------------------------------------------------------------------------------------------------
    # cleaning

    async def _clean_forever(self) -> None:
        while True:
            try:
                cleaned = await self.clean_once()
                await self._note_positions()
            except OSError as error:  # of the notes: without them the next life cleans more
                log.warning("cleaner_positions_not_written", error=error)
                cleaned = False
            if not cleaned:
                await self._clock.sleep(self._setting(CLEANER_BACKOFF_SETTING) / 1000)

    async def clean_once(self) -> bool:
        """Cleans the log that needs it most; False when none is due, or the cleaning came to nothing."""
        found = dirtiest(await self._due())
        if found is None:
            return False
        replica, known = found
        try:
            result = await self._clean(replica.log, known.horizon_ms)
        except ConcurrentTruncation as reason:
            log.info("cleaning_overtaken", topic=replica.topic, partition=replica.partition, reason=reason)
            return False
        except CannotClean as error:
            self._give_up(replica, known, error)
            return False
        if result is None:
            return False
        known.horizon_ms = result.next_horizon_ms
        known.part = cleanable_part(replica.log, self._clock.wall_ms(), known.horizon_ms)
        log.info(
            "log_cleaned", topic=replica.topic, partition=replica.partition, cleaned_to=result.cleaned_to,
            bytes_read=result.bytes_read, bytes_written=result.bytes_written,
            records=result.counts.records_read,
            kept=result.counts.records_kept, segments=f"{result.segments_before} -> {result.segments_after}",
            map_was_full=result.map_was_full,
        )  # fmt: skip
        return True

    def _give_up(self, replica: Replica, known: _Known, error: CannotClean) -> None:
        if error.is_full:
            known.pause_until_s = self._clock.monotonic() + FULL_DISK_PAUSE_S
            log.warning("cleaning_needs_room", topic=replica.topic, partition=replica.partition, error=error)
            return
        known.uncleanable = str(error)
        log.error("log_uncleanable", topic=replica.topic, partition=replica.partition, error=error,
                  consequence="it grows until the node has been restarted")  # fmt: skip

    async def _due(self) -> list[tuple[tuple[Replica, _Known], Cleanable, bool]]:
        """The logs that are worth a cleaning; brings what is known of all compacted logs up to date."""
        due: list[tuple[tuple[Replica, _Known], Cleanable, bool]] = []
        seen: set[PositionKey] = set()
        for count, replica in enumerate(list(self._replicas()), start=1):
            if count % LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not replica.log.config.is_compacted or replica.role is Role.OFFLINE or replica.log.is_offline:
                continue
            key = (replica.topic_id, replica.partition)
            seen.add(key)
            known = await self._know(key, replica.log)
            now_ms = self._clock.wall_ms()
            try:
                self._prepare(replica.log, now_ms)
                known.part = cleanable_part(replica.log, now_ms, known.horizon_ms)
            except (KafkaError, OSError, InvalidBatch) as error:
                if not known.uncleanable:
                    self._give_up(replica, known, CannotClean(error))
                continue
            usable = not known.uncleanable and self._clock.monotonic() >= known.pause_until_s
            if usable and known.part is not None and known.part.is_due(replica.log.config, now_ms):
                due.append(((replica, known), known.part, known.part.is_overdue(replica.log.config, now_ms)))
        for key in self._known.keys() - seen:
            del self._known[key]
        return due

    def _prepare(self, target: Log, now_ms: int) -> None:
        """An active segment beyond the greatest lag is completed; complete segments become durable: only such
        are cleaned."""
        first_ms = target.segments.active.first_timestamp()
        if first_ms is not None and now_ms - first_ms > target.config.max_compaction_lag_ms:
            target.roll()
        if target.recovery_point < target.segments.active.base_offset:
            self._request_flush(target)

    async def _clean(self, target: Log, horizon_ms: int | None) -> CleaningResult | None:
        """Raises ConcurrentTruncation, CannotClean."""
        began_s = self._clock.monotonic()
        try:
            cleaning = begin_cleaning(target, self._clock.wall_ms(), horizon_ms)
        except (KafkaError, OSError, InvalidBatch) as error:
            raise CannotClean(error) from error
        if cleaning is None:
            return None
        self._cleaning = target
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._run, cleaning, loop)
            return cleaning.finish()
        except ConcurrentTruncation:
            raise
        except Exception as error:  # any error: the node does not clean this log again, and cleans the others
            if cleaning.is_invalidated():
                raise ConcurrentTruncation(f"the log changed: {error}") from error
            raise CannotClean(error) from error
        finally:
            self._cleaning = None
            result, counters = cleaning.result, self._counters
            counters.cleanings += 1
            counters.bytes_read += result.bytes_read
            counters.bytes_written += result.bytes_written
            counters.seconds += self._clock.monotonic() - began_s
            counters.records_removed += result.counts.records_read - result.counts.records_kept

    def _run(self, cleaning: Cleaning, loop: asyncio.AbstractEventLoop) -> None:
        """In the cleaner's thread."""
        pace = _Pace(self._clock, self._setting(CLEANER_SETTING), self._stopping)

        def on_loop(work: Callable[[], T]) -> T:
            turn: Future[T] = Future()
            loop.call_soon_threadsafe(_take_turn, turn, work)
            while True:
                try:
                    return turn.result(timeout=1.0)
                except TimeoutError:
                    if turn.done():
                        raise  # its own
                    if self._stopping.is_set() and turn.cancel():
                        raise Stopped("the node stops") from None

        cleaning.run(self._disk, on_loop, pace, self._setting(CLEANER_BUFFER_SETTING))

    # --------------------------------------------------------------------------------------------------------
    # positions

    async def _know(self, key: PositionKey, target: Log) -> _Known:
        known = self._known.get(key)
        if known is None or known.log is not target:
            folder = await self._folder(target.directory.parent)
            noted = folder.noted.get(key)
            if noted is not None and not target.cleaned_to:
                target.cleaned_to = believed_offset(target, noted)
                known_horizon_ms = noted.horizon_ms if target.cleaned_to > target.log_start_offset else -1
            else:
                known_horizon_ms = -1
            known = self._known[key] = _Known(
                target, horizon_ms=None if known_horizon_ms < 0 else known_horizon_ms
            )
        return known

    async def _folder(self, path: Path) -> _Folder:
        found = self._folders.get(path)
        if found is None:
            found = _Folder(path)
            found.noted, found.written = await asyncio.to_thread(self._read_notes, path / CLEANER_CHECKPOINT)
            self._folders[path] = found
        return found

    def _read_notes(self, path: Path) -> tuple[dict[PositionKey, CleanerPosition], bytes]:
        try:
            data = self._disk.read(path) if self._disk.exists(path) else b""
            return (decode_positions(data) if data else {}), data
        except (CheckpointInvalid, OSError) as error:
            log.warning(
                "cleaner_positions_not_read",
                path=path,
                error=error,
                consequence="its logs are cleaned from the start",
            )
            return {}, b""

    async def _note_positions(self) -> None:
        """Writes the positions of all logs that are known, where they have changed.  Raises OSError."""
        for folder in list(self._folders.values()):
            # Notes of logs that are not open yet are kept for a while; those of deleted topics must not be
            # kept for ever.
            keep_all = self._clock.monotonic() < self._forget_at_s
            unknown = {
                key: noted for key, noted in folder.noted.items() if keep_all and key not in self._known
            }
            positions = unknown | {
                key: position_of(known.log, known.horizon_ms)
                for key, known in self._known.items()
                if known.log.directory.parent == folder.path
                and known.log.cleaned_to > known.log.log_start_offset
            }
            data = encode_positions(positions)
            if data != folder.written:
                await asyncio.to_thread(self._disk.write_atomic, folder.path / CLEANER_CHECKPOINT, data)
                folder.written, folder.noted = data, positions


def _take_turn(turn: Future[T], work: Callable[[], T]) -> None:
    """On the loop."""
    if not turn.set_running_or_notify_cancel():
        return
    try:
        turn.set_result(work())
    except Exception as error:
        turn.set_exception(error)
