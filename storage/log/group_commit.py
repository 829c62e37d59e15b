"""Group commit: one flush for all writers that wait.

A log has at most one flush in flight.  A request during a flush joins the next one, which begins when this
one is over; a request without a running flush starts one at the end of the loop's current turn, so that all
appends of that turn share it.  The kernel waits for the disk (`runtime/kernel_sync.py`); a few threads do so
for flushes of several files, and on kernels without this call.  The threads do not touch the log
(`flush.py`).

A failed flush is final: the log goes offline, every waiting request gets KAFKA_STORAGE_ERROR, and
`on_storage_failure` is called, so that the whole folder can go offline.  A failed flush is never retried.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from ...runtime import logs
from ...runtime.disk import OUT_OF_SPACE
from ...runtime.kernel_sync import KernelSync
from ...wire.errors import ErrorCode, KafkaError
from ..durability.flush import FlushTicket
from .log import Log

log = logs.get(__name__)


Flushed = Callable[[KafkaError | None], None]
"""Called once, in a later turn of the loop: with None, or with KAFKA_STORAGE_ERROR."""


@dataclass(slots=True)
class _Queue:
    """A log has a queue from its first request on, which schedules a flush, until a flush ends and no request
    is left: so a log with a queue has a flush scheduled or running, and one flush at a time."""

    waiting: list[tuple[int, Flushed]] = field(default_factory=list)
    """`(offset, callback)`, until the flushed end reaches the offset."""
    wanted: bool = False
    """A flush that no caller waits for is requested."""


class GroupCommit:
    """`flush(log)` for any number of logs; see the module's text.  Used from one event loop."""

    def __init__(
        self,
        threads: int = 4,
        on_storage_failure: Callable[[Log, OSError], None] | None = None,
        kernel: KernelSync | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`kernel` and `executor` (in place of its own threads) belong to this object and are closed with
        it."""
        self._kernel = kernel
        self._executor: Executor = executor or ThreadPoolExecutor(threads, thread_name_prefix="flush")
        self._queues: dict[Log, _Queue] = {}
        self._on_storage_failure = on_storage_failure
        self._closed = False
        self.flush_count = 0
        """Flushes that reached the disk; requests divided by this number is the size of the commit groups."""

    async def flush(self, target: Log) -> int:
        """Waits until every batch that the log has now is on the disk; returns the flushed end offset.

        When the log is truncated meanwhile, it waits for the batches that are left.  Raises
        KAFKA_STORAGE_ERROR.
        """
        if not target.has_unflushed_records and not target.is_offline:
            return target.flushed_end_offset
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(error: KafkaError | None) -> None:
            if future.done():  # the request was cancelled
                return
            if error is None:
                future.set_result(target.flushed_end_offset)
            else:
                future.set_exception(error)

        self.when_flushed(target, done)
        return await future

    def when_flushed(self, target: Log, done: Flushed) -> None:
        """`flush` with a callback: every write of a leader needs one, and a task for each would cost more
        than the flush."""
        try:
            queue = self._queue(target)
        except KafkaError as error:
            asyncio.get_running_loop().call_soon(done, error)
            return
        queue.waiting.append((target.log_end_offset, done))

    def request(self, target: Log) -> None:
        """Starts a flush that no caller waits for (flush.policy=os: when `log.local.flush_due`, and before a
        checkpoint)."""
        if not target.is_offline:
            self._queue(target).wanted = True

    async def flush_all(self, targets: Iterable[Log]) -> dict[Log, KafkaError]:
        """Flushes every log that needs it; returns the errors, each of which took its log offline."""
        failures: dict[Log, KafkaError] = {}
        wanted = [target for target in targets if target.has_unflushed_records]
        unfinished = len(wanted)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(target: Log, error: KafkaError | None) -> None:
            nonlocal unfinished
            unfinished -= 1
            if error is not None:
                failures[target] = error
            if not unfinished and not over.done():
                over.set_result(None)

        for target in wanted:
            self.when_flushed(target, partial(done, target))
        if wanted:
            await over
        return failures

    async def note_start(self, target: Log) -> None:
        """Waits until the log start that is wanted is on the disk (`log_start`).  Raises KAFKA_STORAGE_ERROR;
        on a full disk, nothing has changed."""
        note = target.local.start_note
        try:
            await asyncio.wrap_future(self._executor.submit(note.write))
        except (OSError, RuntimeError) as error:  # RuntimeError: the executor has been shut down
            if target.local.start_note is not note:  # it has moved to another disk meanwhile, which has it
                return await self.note_start(target)
            if isinstance(error, OSError) and error.errno not in OUT_OF_SPACE:
                self._storage_failed(target, error)
            message = f"the log start of {target.name} could not be noted: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error

    def _storage_failed(self, target: Log, error: OSError) -> None:
        target.go_offline(error)
        if self._on_storage_failure is not None:
            self._on_storage_failure(target, error)

    def _queue(self, target: Log) -> _Queue:
        """Schedules a flush, unless one is scheduled or running.  Raises KAFKA_STORAGE_ERROR."""
        if self._closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the group commit is closed")
        queue = self._queues.get(target)
        if queue is None:
            queue = self._queues[target] = _Queue()
            asyncio.get_running_loop().call_soon(self._start, target, queue)
        return queue

    def _start(self, target: Log, queue: _Queue) -> None:
        """Begins a flush; forgets the log when no request waits."""
        self._release(target, queue)
        if not queue.waiting and not queue.wanted:
            del self._queues[target]
            return
        queue.wanted = False
        loop = asyncio.get_running_loop()
        try:
            ticket = target.begin_flush()
            self.flush_count += 1
            if (
                self._kernel is not None
                and not self._closed
                and ticket.run_in_kernel(
                    self._kernel, lambda error: self._finish(target, queue, ticket, error)
                )
            ):
                return
            running = self._executor.submit(ticket.run)
        # offline or closed; RuntimeError: the executor has been shut down
        except (KafkaError, RuntimeError) as error:
            self._fail(target, queue, error)
            return

        def done(finished: Future[None]) -> None:
            try:
                loop.call_soon_threadsafe(self._finish, target, queue, ticket, finished.exception())
            except RuntimeError as error:  # the loop is closed: the process is about to exit
                log.info("flush_result_dropped", log=target.name, reason=error)

        running.add_done_callback(done)

    def _finish(self, target: Log, queue: _Queue, ticket: FlushTicket, error: BaseException | None) -> None:
        if error is not None:
            self._storage_failed(target, _as_failure_of_the_disk(error))
            self._fail(target, queue, error)
            return
        target.finish_flush(ticket)
        self._start(target, queue)

    def _release(self, target: Log, queue: _Queue) -> None:
        """Calls the callbacks of the requests whose offset is flushed; in a truncated log an offset above the
        end counts as the end."""
        flushed, end = target.flushed_end_offset, target.log_end_offset
        still: list[tuple[int, Flushed]] = []
        for offset, done in queue.waiting:
            if min(offset, end) > flushed:
                still.append((offset, done))
            else:
                asyncio.get_running_loop().call_soon(done, None)
        queue.waiting = still

    def _fail(self, target: Log, queue: _Queue, error: BaseException) -> None:
        del self._queues[target]
        for _offset, done in queue.waiting:
            failure = KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{target.name} could not be flushed: {error}"
            )
            failure.__cause__ = error
            asyncio.get_running_loop().call_soon(done, failure)

    def close(self) -> None:
        """Refuses new flushes and waits for running ones.  The loop answers the requests that still wait, if
        it still runs."""
        self._closed = True
        self._executor.shutdown(wait=True)
        if self._kernel is not None:
            self._kernel.close()


def _as_failure_of_the_disk(error: BaseException) -> OSError:
    """A flush that ends by any other error has made an unknown part durable, as one that the disk refused."""
    if isinstance(error, OSError):
        return error
    failure = OSError(errno.EIO, f"a flush ended by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
