"""A log's future replica in another data folder of the node (KIP-113): made, filled, flushed, and put into
the log's place.

    work = future.turn()        on the loop: the next step (`plan`); a swap happens at once
    work()                      any thread: waits for the disk
    future.refused(error)       on the loop, when it raised

The future replica is a `Log` that only this object knows, so a thread may use it; the caller that ends the
move waits for the thread's current work, which is bounded.  `move_state` says what becomes of both folders
after a crash.

Order of the swap, on the loop, so that nothing is appended meanwhile: the rest is copied and flushed;
`future` beside the new log is removed, durably, which decides; the old folder loses its name, durably; then
the log uses the new folder (`Log.exchange_files`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

from ...runtime import faults, logs
from ...runtime.disk import Disk
from ...wire.errors import ErrorCode, KafkaError
from ..checkpoint import encode_value
from ..directory.creation import PARTITION_METADATA
from ..directory.folder_notes import PartitionKey
from ..directory.found_logs import FoundLog, inspect_log_folder
from ..directory.log_directory import LogDirectory
from ..directory.move_state import MoveState, write_move_state
from ..directory.stored_config import LOG_CONFIG, encode_config
from ..durability.flush_notes import identity_of
from ..log.bulk_read import BulkRead, begin_copy, bytes_from
from ..log.log import Log
from ..segment.batch_scan import InvalidBatch
from ..segment.segment_files import segment_path
from ..topic_config import LogConfig
from .exchange import is_durable, is_flushing, reach_end, settle, take_over_start
from .plan import SWAP_BYTES_LIMIT, SWAP_BYTES_MAX, Epochs, Step, View, agreeing_end, next_step

SLICE_BYTES = 512 * 1024
FLUSH_BYTES = 32 * 1024 * 1024
"""The copy is flushed after so many bytes, so that the flush before the swap has little to do."""
log = logs.get(__name__)

Work = Callable[[], int]
"""Returns the number of bytes that were copied.  Raises KafkaError, OSError."""


class SourceFailed(KafkaError):
    """The log itself failed: it cannot be read, or its disk cannot be written (`written`)."""

    def __init__(self, error: Exception, *, written: bool) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be moved: {error}")
        self.written = written


@contextmanager
def _of_source(*, written: bool = False) -> Iterator[None]:
    try:
        yield
    except (OSError, InvalidBatch) as error:
        raise SourceFailed(error, written=written) from error


def _with_holes(config: LogConfig) -> LogConfig:
    """The copy has the log's gaps, whatever its cleanup policy becomes."""
    return replace(config, was_compacted=True) if config.may_have_offset_gaps else config


class FutureReplica:
    """See the module's text."""

    def __init__(
        self,
        disk: Disk,
        key: PartitionKey,
        topic_id: UUID,
        origin: LogDirectory,
        target: LogDirectory,
        ended: Callable[[], None],
    ) -> None:
        """`ended` is called when the move has ended."""
        self.key = key
        self.topic_id = topic_id
        self.origin = origin
        self.target = target
        self.is_over = False
        self.swap_bytes_max = SWAP_BYTES_MAX
        self._disk = disk
        self._ended = ended
        self._path = target.path_of(key)
        self._log: Log | None = None
        self._lock = threading.RLock()
        self._truncated_to: int | None = None
        self._truncating_to: int | None = None
        self._read_from = -1
        """The offset behind the last copied batch, when the log has an offset gap there."""
        self._unflushed_bytes = 0
        self._is_marked = False

    # ---- views ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def source(self) -> Log | None:
        """The log while it is usable; else None."""
        found = self.origin.logs.get(self.key)
        return (
            None
            if found is None or found.is_offline or self.origin.topic_ids.get(self.key) != self.topic_id
            else found
        )

    @property
    def is_made(self) -> bool:
        return self._log is not None

    @property
    def size_bytes(self) -> int:
        return 0 if self._log is None else self._log.size_bytes

    @property
    def offset_lag(self) -> int:
        """How many offsets it is behind the log's end."""
        source = self.source
        if source is None:
            return 0
        return max(
            0,
            source.log_end_offset
            - (source.log_start_offset if self._log is None else self._log.log_end_offset),
        )

    # ---- the next step -------------------------------------------------------------------------------------

    def source_truncated(self, offset: int) -> None:
        """The log is about to be truncated to `offset`."""
        self._truncated_to = offset if self._truncated_to is None else min(self._truncated_to, offset)

    def turn(self, slice_bytes: int = SLICE_BYTES) -> Work | None:
        """Runs on the loop. None: no step is possible now, or the move has ended. Raises KafkaError,
        OSError."""
        source = self.source
        self.origin.after_flush.pop(self.key, None)  # it would wait on the loop for the thread's present step
        if self.is_over or source is None or self.target.is_offline:
            return None
        if self._log is None:
            return self._opening(source)
        if self._truncated_to is not None and self._truncated_to >= self._log.log_end_offset:
            self._truncated_to, self._read_from = None, -1  # the copy ends below the truncation
        self._truncating_to = None
        match self._next(source, self._log):
            case Step.BEGIN:
                self._discard()
                return self._making(source)
            case Step.TRUNCATE:
                self._truncating_to, self._truncated_to, self._read_from = self._truncated_to, None, -1
                return self._in_thread(partial(self._log.truncate_to, self._truncating_to or 0))
            case Step.COPY:
                with _of_source():
                    read = begin_copy(source, max(self._log.log_end_offset, self._read_from), slice_bytes)
                return self._in_thread(partial(self._copy, source, self._log, read))
            case Step.FLUSH:
                return self._in_thread(partial(self._prepare, source, self._log))
            case Step.SWAP:
                self.try_to_swap()
                return None

    def _next(self, source: Log, future: Log) -> Step:
        first, end = future.segments[0].base_offset, future.log_end_offset
        with _of_source():
            left = bytes_from(source, max(end, self._read_from))
        flushed = self._is_marked and is_durable(future)
        places = source.segments[0].base_offset, source.log_start_offset
        return next_step(View(*places, left, first, end, self._truncated_to, flushed), self.swap_bytes_max)

    def _in_thread(self, work: Callable[[], int | None]) -> Work:
        def locked() -> int:
            with self._lock:
                return 0 if self.is_over else work() or 0

        return locked

    def refused(self, error: KafkaError | OSError) -> None:
        """On the loop: `turn`, or its work, raised.  Another turn tries again.  Raises OSError."""
        if self._truncating_to is not None:
            self.source_truncated(self._truncating_to)
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(error, SourceFailed):
            if error.written and isinstance(cause, OSError):
                self.origin.disk_failed(cause)
            # the log cannot be read, or was truncated, closed or deleted meanwhile: the copy is not at fault
            return
        if self.is_over or self.source is None:
            return
        if isinstance(cause, OSError):
            self.target.disk_failed(cause)
        elif self._truncated_to is not None:
            return  # a part of the bytes that were read is of another history
        if not self.target.is_offline and (self._log is None or self._log.is_offline):
            self._discard()  # the copy cannot be used: it begins anew

    # ---- beginning -----------------------------------------------------------------------------------------

    def _opening(self, source: Log) -> Work:
        """Opens the copy of an earlier life of the node, if there is one."""
        if not self._disk.exists(self._path):
            return self._making(source)
        epochs, end = source.epoch_history(), source.log_end_offset
        return self._in_thread(lambda: self._open(epochs, end))

    def _open(self, epochs: Epochs, end: int) -> None:
        """Continues the copy of before this node stopped. The log, the copy or both may have lost their end
        then."""
        if self._log is not None:
            return  # another turn has
        found = inspect_log_folder(self._disk, self._path, self.key, None)
        if not isinstance(found, FoundLog):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._path} cannot be used: {found}")
        opened = self._open_log(found.config)
        agreed = agreeing_end(opened.epoch_history(), opened.log_end_offset, epochs, end)
        try:
            if agreed < opened.log_end_offset:
                opened.truncate_to(agreed)
        except BaseException:
            opened.close(clean=False)
            raise
        self._log = opened

    def _open_log(self, config: LogConfig) -> Log:
        return Log.open(
            self._disk, self._path, topic=self.key[0], partition=self.key[1], config=config, clean=False,
            recovery_point=0,
            files=self.target.files,
        )  # fmt: skip

    def _making(self, source: Log) -> Work:
        """Makes an empty copy that begins where the log's first segment does, with the producer state of that
        offset."""
        settle(source)  # a removal may still have to write that snapshot
        first = source.segments[0].base_offset
        snapshot = segment_path(source.directory, first, "snapshot")
        with _of_source():
            known = self._disk.read(snapshot) if self._disk.exists(snapshot) else None
        config = _with_holes(source.config)
        self.target.notes.forget([self.key], identity_of(self.topic_id, self.key[1]))
        self.target.make_room(self.target.path)
        staging = self.target.renamed_folders.fresh_path()
        # a cut from here on, while the thread is at it, begins it anew
        self._truncated_to, self._read_from = None, -1
        return self._in_thread(lambda: self._make(staging, config, first, known))

    def _make(self, staging: Path, config: LogConfig, first: int, snapshot: bytes | None) -> None:
        if self._log is not None:
            return  # another turn has
        disk = self._disk
        try:
            disk.make_directory(staging, durable=False)
            disk.write_atomic(staging / LOG_CONFIG, encode_config(config))
            if snapshot is not None:
                disk.write_atomic(segment_path(staging, first, "snapshot"), snapshot)
            disk.open(segment_path(staging, first, "log"), create=True).close()
            disk.write_atomic(staging / PARTITION_METADATA, encode_value(self.topic_id))
            write_move_state(disk, staging, MoveState.FUTURE)
            disk.sync_directory(staging)
            disk.rename(staging, self._path)
            disk.sync_directory(self.target.path)
        except OSError:
            self._remove_quietly(staging)
            raise
        self._log = self._open_log(config)

    def _remove_quietly(self, staging: Path) -> None:
        try:
            if self._disk.exists(staging):
                self._disk.remove_tree(staging)
        except OSError as error:
            log.warning(
                "half_made_replica_not_removed",
                path=staging,
                reason=error,
                consequence="it goes at the next start",
            )

    # ---- in a thread ---------------------------------------------------------------------------------------

    def _copy(self, source: Log, future: Log, read: BulkRead) -> int:
        with _of_source():
            data, read_from = read.run()
        self._take_over_config(source, future)
        self._append(future, data, read_from)
        self._unflushed_bytes += len(data)
        if self._unflushed_bytes >= FLUSH_BYTES:
            self._unflushed_bytes = 0
            future.flush_now()
        return len(data)

    def _take_over_config(self, source: Log, future: Log) -> None:
        """Its segments are to be of the size, and its gaps no damage, also to a later start.  Raises
        OSError."""
        config = _with_holes(source.config)
        if config != future.config:
            self._disk.write_atomic(self._path / LOG_CONFIG, encode_config(config))
            future.update_config(config)

    def _append(self, future: Log, data: bytes, read_from: int) -> None:
        """The bytes may be a part of the slice only, so the append may be refused or take a part."""
        before = future.size_bytes
        if data:
            future.append_follower(data)
        if future.size_bytes - before == len(data):
            self._read_from = max(read_from, future.log_end_offset)

    def _prepare(self, source: Log, future: Log) -> None:
        """Flushes the whole copy, so that the swap has little to do, and marks the log as leaving
        (`MoveState.LEAVING`)."""
        take_over_start(source, future, also_wanted=False)
        future.flush_now()
        if not self._is_marked:
            with _of_source(written=True):
                write_move_state(self._disk, source.directory, MoveState.LEAVING)
            self._is_marked = True

    # ---- the swap ------------------------------------------------------------------------------------------

    def try_to_swap(self) -> bool:
        """On the loop; False when a flush runs or records were appended.  Raises KafkaError, OSError: the log
        is as before."""
        self.origin.after_flush.pop(self.key, None)
        source, future = self.source, self._log
        if self.is_over or source is None or future is None or self.target.is_offline:
            return False
        if is_flushing(source):
            self.origin.after_flush[self.key] = self._after_flush
            return False
        with self._lock:
            if (step := self._next(source, future)) is not Step.SWAP:
                # more comes during a flush than would be copied here: the next try may take longer
                if step is Step.COPY:
                    self.swap_bytes_max = min(2 * self.swap_bytes_max, SWAP_BYTES_LIMIT)
                return False
            settle(source)
            self._take_over_config(source, future)
            while rest := self._rest(source, future):
                self._append(future, *rest)
            reach_end(source, future)
            take_over_start(source, future, also_wanted=True)
            if not is_durable(future):
                future.flush_now()
            if (
                future.has_unflushed_records
                or future.log_end_offset != source.log_end_offset
                or self._truncated_to is not None
            ):
                return False
            self._decide()
            self._leave(source, future)
        return True

    def _rest(self, source: Log, future: Log) -> tuple[bytes, int] | None:
        """The bytes that are still to be appended, and the offset to read on from; None when there are
        none."""
        with _of_source():
            start = max(future.log_end_offset, self._read_from)
            left = bytes_from(source, start)
            return begin_copy(source, start, left).run() if left else None

    def _after_flush(self) -> None:
        """Called at the end of a flush: on a busy log the next flush begins at once."""
        try:
            self.try_to_swap()
        except (KafkaError, OSError) as error:
            log.warning("replica_not_swapped", log=self.name, reason=error)
            try:
                self.refused(error)
            except OSError as second:  # the waiter for the flush must not wait for ever
                self.target.disk_failed(second)

    def _decide(self) -> None:
        """Raises OSError: the log stays where it is, and the target folder is out of use."""
        faults.point("move.undecided", topic=self.key[0], partition=self.key[1])
        try:
            write_move_state(self._disk, self._path, MoveState.CURRENT)
        except OSError as error:  # later starts may take the new log for the log
            try:
                write_move_state(self._disk, self.origin.path_of(self.key), MoveState.STAYED)
            except OSError as second:
                self.origin.go_offline(second)
            self.close()
            self.target.go_offline(error)
            raise
        faults.point("move.decided", topic=self.key[0], partition=self.key[1])

    def _leave(self, source: Log, future: Log) -> None:
        self._over()
        self.origin.release(self.key)
        source.exchange_files(future)
        future.close(clean=False)
        try:
            self.origin.renamed_folders.delete(self.key, self.topic_id)
        # while the old folder has its name, no record that only the new log has may be acknowledged
        except OSError as error:
            self.origin.go_offline(error)
        self.target.adopt(self.key, self.topic_id, source)
        source.report_flushed()
        log.info(
            "replica_moved", log=source.name, path=source.directory, log_end_offset=source.log_end_offset
        )

    # ---- ends ----------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """The log stays where it is.  Waits for the thread's present step.  Raises KAFKA_STORAGE_ERROR."""
        self.close()
        try:
            if not self.target.is_offline and self._disk.exists(self._path):
                self._discard()
        except OSError as error:
            self.target.disk_failed(error)
            message = f"the future replica {self._path} cannot be removed: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        finally:
            self.stay()

    def stay(self) -> None:
        """Nothing was decided, and nothing will be: a start need not ask the other folder.  Raises
        KAFKA_STORAGE_ERROR."""
        assert self.is_over
        source = self.source
        if not self._is_marked or source is None:
            return
        try:
            write_move_state(self._disk, source.directory, MoveState.CURRENT)
        except OSError as error:
            self.origin.disk_failed(error)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the move of {self.name} cannot be undone: {error}"
            ) from error
        self._is_marked = False

    def close(self) -> None:
        """Keeps the files: the next start finds them."""
        with self._lock:
            self.is_over = True
        if self._log is not None:
            self._log.close(clean=False)
            self._log = None
        self._over()

    def _over(self) -> None:
        self.is_over = True
        self.origin.after_flush.pop(self.key, None)
        self._ended()

    def _discard(self) -> None:
        """Raises OSError."""
        with self._lock:
            if self._log is not None:
                self._log.close(clean=False)
            self._log, self._truncated_to, self._read_from = None, None, -1
        if self._disk.exists(self._path):
            self.target.renamed_folders.delete(self.key, self.topic_id)
