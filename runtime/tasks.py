"""Tasks that run as long as their part, or until their queue is empty.

asyncio keeps the error of such a task until the task is collected: its work stops without a word.  So the
part that starts one names what a defect in it does: it ends the node (`fail_stop` of the node), or the part
goes on without this run (`log_failure`, with the reason why it may).  `tests/architecture/test_tasks.py`
holds that node/, replication/ and controller/ start every task here, or say there what becomes of its error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from . import logs

log = logs.get(__name__)

OnFailure = Callable[[BaseException], None]


def spawn(work: Coroutine[object, object, None], name: str, on_failure: OnFailure) -> asyncio.Task[None]:
    """`on_failure(error)` is called on the loop when the work raises; not when the task is cancelled."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failure(error)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


def log_failure(name: str, *, consequence: str) -> OnFailure:
    """The part goes on: `consequence` says what happens without this run of the task, and until when."""
    return lambda error: log.failure("task_failed", error, task=name, consequence=consequence)
