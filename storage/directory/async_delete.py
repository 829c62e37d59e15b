"""A thread that takes off the disk what nobody needs any more, so that no unlink of a large file holds up the loop.

Jobs are done one after another, in the order they came.  At most `jobs_max` wait: whoever comes then does the work at once, so
that a node cannot free less than it fills.  What is not done when the node stops is done at the next start: all of it has names
that mean nothing (`<file>.deleted`, `<n>-delete`).
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
        """Does `work` in the thread, and then calls `done` on the loop with what it raised.  False: it will not; there is no
        loop (yet, or any more), or too much waits."""
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
            except RuntimeError as error:  # the loop is closed: the process is on its way out and nobody waits
                log.info("erasure_result_dropped", reason=error)

        self.waiting += 1
        self._executor.submit(work).add_done_callback(ended)
        return True

    def close(self) -> None:
        """Waits for the job that is under way; the others are not begun."""
        self._closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)
