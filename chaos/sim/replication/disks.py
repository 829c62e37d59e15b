"""How long a simulated disk takes to flush: an executor that runs each flush at some moment of its delay.

The disk itself is `chaos.sim.disk.LyingDisk`.  Half of the flushes are on the disk at once and complete late,
the others happen late: a crash in between finds both cases.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

from .virtual_loop import Process, VirtualLoop

FLUSH_S = 0.004


class DelayedFlushes(Executor):
    """Flushes of one process; `slow_s` is how much longer they take at the moment, at most."""

    def __init__(
        self, loop: VirtualLoop, random: Random, process: Process, slow_s: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._random = random
        self._process = process
        self._slow_s = slow_s

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        completion: Future[Any] = Future()
        outcome: list[BaseException | None] = []

        def flush() -> None:
            if not completion.set_running_or_notify_cancel():
                return  # the caller has cancelled it before it began, as in a thread pool
            try:
                fn(*args, **kwargs)
                outcome.append(None)
            except BaseException as error:  # the power may go in here, too
                outcome.append(error)

        def end() -> None:
            if self._process.alive:
                if not outcome:
                    flush()
                if outcome:
                    self._process.run(_complete, completion, outcome[0])

        if self._random.random() < 0.5:
            flush()
        self._loop.world_later((FLUSH_S + self._slow_s()) * self._random.random(), end)
        return completion

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing runs between two steps of the loop."""


def _complete(completion: Future[Any], error: BaseException | None) -> None:
    if error is None:
        completion.set_result(None)
    else:
        completion.set_exception(error)
