"""An event loop in virtual time, on which several simulated processes live, die, sleep and are resumed.

Time jumps to the next timer when nothing is ready, so a minute of a cluster's life takes a fraction of a
second and every run follows from its seed.  A `Process` owns everything that was started in its context:
callbacks, timers, tasks and whatever those start.  A killed process never runs again, not even a `finally`; a
paused one (SIGSTOP) finds, when it is resumed, all that fell due meanwhile, in the order that is worst for a
lease: messages from the network first, its own timers after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVarTuple

_Ts = TypeVarTuple("_Ts")
_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """One simulated process: a name and the handles that belong to it."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self._context = copy_context()
        self._context.run(_PROCESS.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._context.copy().run(self._loop.create_task, work)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context.copy())

    def run(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Calls `callback` at once, as this process."""
        return self._context.copy().run(callback, *args)

    def kill(self) -> None:
        self.alive = False
        self._held.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        # what the sockets had, then the timers
        held.sort(key=lambda handle: isinstance(handle, asyncio.TimerHandle))
        for handle in held:
            self._loop.ready(handle)

    def admits(self, handle: asyncio.Handle) -> bool:
        if not self.alive:
            return False
        if self.paused:
            self._held.append(handle)
            return False
        return True


def current_process() -> Process | None:
    """Whose callback is being run; None: the world's own."""
    return _PROCESS.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """As much of an event loop as tasks, futures and timers need; no selector, no threads, nothing of the
    base's own."""

    def __init__(self) -> None:
        self.after_step: Callable[[Process | None], None] = lambda _process: None
        self.steps = 0
        self.unhandled: list[BaseException] = []
        self._now = 0.0
        self._over = False
        self._order = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._world = copy_context()
        self._world.run(_PROCESS.set, None)

    # ---- running -------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], until_s: float) -> bool:
        """Runs until `done()`, looked at after every step, or until the time is `until_s`; True: done."""
        events._set_running_loop(self)
        try:
            while not done():
                if not self._ready and not self._advance(until_s):
                    return False
                self._step(self._ready.popleft())
        finally:
            events._set_running_loop(None)
        return True

    def _advance(self, until_s: float) -> bool:
        """Takes the next timer; False when it is due after `until_s`, which it is then."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers or self._timers[0][0] > until_s:
            self._now = max(self._now, until_s)
            return False
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])
        return True

    def _step(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is not None and not process.admits(handle):
            return
        self.steps += 1
        handle._run()
        self.after_step(process)

    def ready(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

    def close(self) -> None:
        """Cancels the remaining tasks: none of them may run on when it is garbage-collected."""
        self._over = True
        self._ready.clear()
        self._timers.clear()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            work: Any = task.get_coro()
            # RuntimeError, ValueError: it waits for something in its `finally`, and is dropped as it is
            with contextlib.suppress(RuntimeError, ValueError):
                work.close()
        self._tasks.clear()
        self._ready.clear()

    # ---- what asyncio asks of a loop -----------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # there is one thread

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._order += 1
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._order, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def world_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        """A timer that belongs to no process, whichever process sets it: the network's, the disks'."""
        self.call_at(self._now + delay_s, callback, context=self._world.copy())

    def world_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._world.copy().run(self.create_task, work)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        # kept, so that nothing is closed by the collector, at a moment that no seed decides
        self._tasks.append(task)
        return task

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is thrown away when it falls due."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._over

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.unhandled.append(error)
