"""A thread that deletes files from the disk, so that no unlink of a large file holds up the loop.

The thread runs its jobs one after another, in the order in which they came.  At most `jobs_max` jobs wait;
when the queue is full, the caller does the work itself, so that a node cannot free less than it writes.  Jobs
that are not done when the node stops are done at the next start: all these files have names that no reader
uses (`<file>.deleted`, `<log>.<n>-delete`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ...runtime import logs

JOBS_MAX = 1000
log = logs.get(__name__)


class AsyncFileDeleter:
    """See the module's text.  Used from one event loop."""

    def __init__(self, jobs_max: int = JOBS_MAX) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="file_deleter")
        self._jobs_max = jobs_max
        self._closed = False
        self.waiting = 0

    def submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> bool:
        """Runs `work` in the thread, then calls `done` on the loop with the error that `work` raised.  False:
        it does not run the work, because no loop runs (yet or any more) or the queue is full."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if self._closed or self.waiting >= self._jobs_max:
            return False

        def over(error: BaseException | None) -> None:
            self.waiting -= 1
            done(error if isinstance(error, Exception) else None)

        def ended(job: Future[None]) -> None:
            if job.cancelled():
                return
            try:
                loop.call_soon_threadsafe(over, job.exception())
            except RuntimeError as error:  # the loop is closed: the process is about to exit
                log.info("erasure_result_dropped", reason=error)

        self.waiting += 1
        self._executor.submit(work).add_done_callback(ended)
        return True

    def close(self) -> None:
        """Waits for the running job; the jobs that wait do not start."""
        self._closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)
