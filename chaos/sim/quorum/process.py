"""The process of one voter: it starts, is paused and ends, and what it does later it does only in the same
life.

Its rounds are those of `controller/raft/thread.py`.  It sleeps for as long as its core says that nothing can
happen by itself, as the real thread does: a core whose wake-up time is too late makes no progress.
"""

from __future__ import annotations

from collections.abc import Callable

from ....controller.raft.core import RaftCore
from ....controller.raft.failure import RaftFatal
from ....controller.raft.thread import EVENTS_PER_ROUND_MAX, Event, RaftThread, in_order
from ..disk import PowerCut
from ..runs import Broken
from .ledger import Ledger
from .schedule import Schedule

AT_ONCE_S = 0.0002


class Process:
    """See the module's text."""

    def __init__(self, node_id: int, schedule: Schedule, ledger: Ledger) -> None:
        self.node_id = node_id
        self.core: RaftCore | None = None
        self.life = 0
        self.sync_s = 0.0
        """A round may take so much longer: its disk is slow."""
        self._schedule, self._ledger = schedule, ledger
        self._thread: RaftThread | None = None
        self._disk_fails: Callable[[PowerCut | OSError], None] = self._has_no_disk
        self._inbox: list[Event] = []
        self._busy_until = 0.0
        self._round_at = float("inf")
        self._sleeps_s = 0.0

    @property
    def is_up(self) -> bool:
        return self.core is not None

    # ---- its life ------------------------------------------------------------------------------------------

    def start(
        self, open_core: Callable[[], RaftCore], disk_fails: Callable[[PowerCut | OSError], None]
    ) -> None:
        """A new life, unless the core cannot be opened.  `disk_fails` is called with what the disk raises,
        then and later: it ends the process."""
        self.life += 1
        self._inbox.clear()
        self._disk_fails = disk_fails
        self._guarded(lambda: self._run(open_core()))
        if self.core is not None:
            self._ledger.started(self.node_id, self.core)
            self._busy_until, self._round_at = self._schedule.now, float("inf")
            self._wake(self._schedule.now)

    def _run(self, core: RaftCore) -> None:
        self.core, self._thread = core, RaftThread(core, self._dies)

    def _dies(self, reason: str) -> None:
        raise AssertionError(f"the simulator drives the thread, it cannot end by itself: {reason}")

    def end(self) -> None:
        self.core = self._thread = None
        self.life += 1
        self._inbox.clear()

    def pause(self, seconds: float) -> None:
        """SIGSTOP, or a long collection of garbage: it wakes up believing what it believed.  Pauses that
        overlap do not add up: a process that stood still for longer than the bound for progress would break
        it without being at fault."""
        self._busy_until = max(self._busy_until, self._schedule.now + seconds)

    @property
    def paused_s(self) -> float:
        """How long it will still stand still."""
        return max(0.0, self._busy_until - self._schedule.now)

    # ---- its rounds ----------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        if self.is_up:
            self._inbox.append(event)
            self._wake(self._schedule.now)

    def _wake(self, when: float) -> None:
        """A round at this time, or as soon as the process runs again."""
        when = max(when, self._busy_until)
        if when < self._round_at:
            self._round_at = when
            life = self.life
            self._schedule.at(when, lambda: self._round(life, when))

    def _round(self, life: int, when: float) -> None:
        if life != self.life or when != self._round_at:
            return
        now, self._round_at = self._schedule.now, float("inf")
        if now < self._busy_until:
            self._wake(self._busy_until)
            return
        self._guarded(self._work)
        if self.core is None:
            return
        if self.sync_s:
            self._busy_until = now + self.sync_s * self._schedule.random.random()
        self._wake(now + self._sleeps_s)

    def _work(self) -> None:
        """As in `RaftThread`: sync, the messages, tick."""
        core, thread = self.core, self._thread
        assert core is not None
        assert thread is not None
        core.sync()
        events, self._inbox = self._inbox[:EVENTS_PER_ROUND_MAX], self._inbox[EVENTS_PER_ROUND_MAX:]
        for event in in_order(events):
            thread.handle(event)
            self._ledger.observe(self.node_id, core)
        more = core.tick()
        self._ledger.observe(self.node_id, core)
        self._sleeps_s = AT_ONCE_S if more or self._inbox else core.seconds_to_wake()

    # ---- what happens later in it --------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Unless the process has ended by then; not while it is paused."""
        life = self.life

        def run() -> None:
            if life != self.life or not self.is_up:
                return
            if self._schedule.now < self._busy_until:
                self._schedule.at(self._busy_until, run)
            else:
                self._guarded(action)

        self._schedule.after(seconds, run)

    def _guarded(self, action: Callable[[], object]) -> None:
        """Fail-stop for a disk that fails, and a broken promise for everything else that would end the
        process."""
        try:
            action()
        except Broken:
            raise
        except (PowerCut, OSError) as failure:
            self._disk_fails(failure)
        except (RaftFatal, AssertionError, LookupError, ValueError, TypeError) as error:
            self._ledger.broken(f"node {self.node_id} stops: {type(error).__name__}: {error}")

    def _has_no_disk(self, failure: PowerCut | OSError) -> None:
        raise AssertionError("a process that was never started uses a disk") from failure
