"""One voter: a process on a machine.

The process is killed, paused and started; its rounds are those of `controller/raft/thread.py`.  The machine's power goes, its
disk is slow, full, fails to sync, or is lost.  A member stops by itself only when its disk fails (fail-stop): for any other
reason it is a broken promise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from ....controller.raft.core import RaftCore
from ....controller.raft.failure import RaftFatal
from ....controller.raft.messages import Message
from ....controller.raft.snapshot_store import SnapshotStore
from ....controller.raft.thread import EVENTS_PER_ROUND_MAX, Event, RaftThread, in_order
from ..disk import LyingDisk, PowerCut
from ..runs import Broken
from .machine import Machine

if TYPE_CHECKING:
    from ....controller.raft.journal import DurableJournal
    from .simulation import QuorumSimulation

DATA = Path("/data")  # a mounted disk: it is there from the start
METADATA = DATA / "metadata"
FOLDER = METADATA / "raft"
AT_ONCE_S = 0.0002


class Outbox:
    """Where a core's messages leave."""

    def __init__(self, member: Member, journal: DurableJournal) -> None:
        self._member, self._journal = member, journal

    def send(self, node_id: int, message: Message) -> None:
        simulation, sender = self._member.simulation, self._member.node_id
        simulation.ledger.promises[sender].sent(self._journal, message)
        simulation.network.send(sender, node_id, message)


class Member:
    """See the module's text."""

    def __init__(self, simulation: QuorumSimulation, node_id: int) -> None:
        self.simulation, self.node_id = simulation, node_id
        self.disk = self._new_disk()
        self.core: RaftCore | None = None
        self.machine: Machine | None = None
        self.life = 0
        self.sync_s = 0.0
        self.stays_down = False
        self.cut_is_of_power = True
        self.power_follows = False
        self._fate = Random(f"disk {node_id} of {simulation.options.seed}")
        self._thread: RaftThread | None = None
        self._inbox: list[Event] = []
        self._busy_until = 0.0
        self._round_at = float("inf")
        self._sleeps_s = 0.0

    def _new_disk(self) -> LyingDisk:
        disk = LyingDisk(self.simulation.parts.lies)
        disk.make_directory(DATA)
        disk.failed_sync_keeps_cache = self.simulation.random.random() < 0.7
        return disk

    @property
    def is_up(self) -> bool:
        return self.core is not None

    # ---- the process ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.is_up or self.stays_down:
            return
        self.life += 1
        self._inbox.clear()
        self.guarded(self._open)
        if not self.is_up:
            self.disk.kill()
            self.simulation.after(0.2 + self.simulation.random.random(), self.start)
            return
        self.simulation.ledger.started(self)
        self._busy_until, self._round_at = self.simulation.now, float("inf")
        self.wake(self.simulation.now)

    def _open(self) -> None:
        simulation, parts = self.simulation, self.simulation.parts
        self.disk.make_directory(METADATA)
        new_id = simulation.random.getrandbits(64) | 1
        journal = parts.journal_class(self.disk, FOLDER, node_id=self.node_id, new_id=new_id)
        snapshots: SnapshotStore = parts.snapshots_class(self.disk, FOLDER)
        machine = parts.machine_class(self, snapshots)
        core = parts.core_class(
            self.node_id,
            simulation.ids,
            journal,
            snapshots,
            machine,
            Outbox(self, journal),
            timings=simulation.options.timings,
            random=simulation.random.random,
        )
        self.core, self.machine = core, machine
        self._thread = RaftThread(core, self._dies)

    def _dies(self, reason: str) -> None:
        raise AssertionError(f"the simulator drives the thread, it cannot end by itself: {reason}")

    def _end(self, *, silently: bool) -> None:
        self.core = self.machine = self._thread = None
        self.life += 1
        self._inbox.clear()
        self.simulation.network.lose(self.node_id, silently=silently)
        self.simulation.after(0.05 + self.simulation.random.random() ** 2 * 1.2, self.start)

    def kill(self) -> None:
        """SIGKILL: what was written is in the page cache."""
        if self.is_up:
            self.disk.kill()
            self._end(silently=False)

    def cut_power(self) -> None:
        """What was not synced is lost, torn or reordered; also what a process killed before has left in the page cache."""
        self.disk.crash(self._fate)
        if self.is_up:
            self._end(silently=True)

    def _cut_power_soon_after_start(self) -> None:
        self.power_follows = False
        self.simulation.after(0.0, self.start)
        self.simulation.after(self.simulation.random.random() ** 2 * 0.5, self.cut_power)

    def lose_disk(self) -> None:
        """An empty disk in the place of the one that is lost."""
        self.kill()
        self.disk = self._new_disk()
        self.simulation.network.forget(self.node_id)
        self.simulation.ledger.disk_lost(self.node_id)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, or a long collection of garbage: it wakes up believing what it believed.  Pauses that overlap do not add up:
        a machine that stood still for longer than the bound for progress would break it without being at fault."""
        self._busy_until = max(self._busy_until, self.simulation.now + seconds)

    @property
    def paused_s(self) -> float:
        """How long it will still stand still."""
        return max(0.0, self._busy_until - self.simulation.now)

    # ---- its rounds -----------------------------------------------------------------------------------------------------------

    def post(self, event: Event) -> None:
        if self.is_up:
            self._inbox.append(event)
            self.wake(self.simulation.now)

    def wake(self, when: float) -> None:
        """A round at this time, or as soon as the process runs again."""
        when = max(when, self._busy_until)
        if when < self._round_at:
            self._round_at = when
            life = self.life
            self.simulation.at(when, lambda: self._round(life, when))

    def _round(self, life: int, when: float) -> None:
        if life != self.life or when != self._round_at:
            return
        now, self._round_at = self.simulation.now, float("inf")
        if now < self._busy_until:
            self.wake(self._busy_until)
            return
        self.guarded(self._work)
        if self.core is None:
            return
        if self.sync_s:
            self._busy_until = now + self.sync_s * self.simulation.random.random()
        self.wake(now + self._sleeps_s)

    def _work(self) -> None:
        """As in `RaftThread`: sync, the messages, tick."""
        core, thread = self.core, self._thread
        assert core is not None and thread is not None
        core.sync()
        events, self._inbox = self._inbox[:EVENTS_PER_ROUND_MAX], self._inbox[EVENTS_PER_ROUND_MAX:]
        for event in in_order(events):
            thread.handle(event)
            self.simulation.ledger.observe(self)
        more = core.tick()
        self.simulation.ledger.observe(self)
        self._sleeps_s = AT_ONCE_S if more or self._inbox else core.seconds_to_wake()

    def loop_runs(self) -> None:
        """Something crossed over to the event loop: it is looked at a little later."""
        life, lag_s = self.life, self.simulation.options.lag_s

        def turn() -> None:
            if life != self.life or self.machine is None:
                return
            if self.simulation.now < self._busy_until:
                self.simulation.at(self._busy_until, turn)
            else:
                self.guarded(self.machine.turn)

        self.simulation.after(lag_s * self.simulation.random.random(), turn)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Unless the process has ended by then; not while it is paused."""
        life = self.life

        def run() -> None:
            if life != self.life:
                return
            if self.simulation.now < self._busy_until:
                self.simulation.at(self._busy_until, run)
            else:
                self.guarded(action)

        self.simulation.after(seconds, run)

    def guarded(self, action: Callable[[], object]) -> None:
        """Fail-stop for a disk that fails, and a broken promise for everything else that would end the process."""
        try:
            action()
        except Broken:
            raise
        except PowerCut:
            if self.cut_is_of_power:
                self.cut_power()
            else:
                self.kill()
                if self.power_follows:
                    self._cut_power_soon_after_start()
        except OSError:
            self.simulation.counts["disk failures"] += 1
            self.kill()
        except (RaftFatal, AssertionError, LookupError, ValueError, TypeError) as error:
            self.simulation.ledger.broken(f"node {self.node_id} stops: {type(error).__name__}: {error}")
