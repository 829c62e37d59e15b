"""One run: members on a virtual clock, faults for a while, then healing and the demand for progress.

    counts = QuorumSimulation(QuorumOptions.draw(seed)).run()       raises Broken

Everything that happens is an event at a time, and follows from the seed.  A member sleeps for as long as its core says that
nothing can happen by itself, as the real thread does: a core that sleeps too long makes no progress.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import pysyncobj.syncobj as library

from ....controller.raft.core import RaftCore
from ....controller.raft.journal import DurableJournal
from ....controller.raft.snapshot_store import SnapshotStore
from ..disk import Lie
from .clients import Clients
from .faults import Faults
from .ledger import Ledger
from .machine import Machine
from .member import Member
from .network import DIAL_EVERY_S, Network
from .options import QuorumOptions

PROGRESS_S_MAX = 6.0
"""After healing: a command that is proposed then is acknowledged, everybody has the vote and one state, within this time.
The rest of a pause (`faults.PAUSE_S_MAX`) is part of it."""
PROGRESS_DELAYS_MAX = 50
"""And so many delays of a frame more: hundreds of entries that wait may each be a frame, sixteen of them under way."""
FIRST_START_S_MAX = 2.0
CHECK_EVERY_S = 0.25
EVENTS_MAX = 400_000
"""Of one run, which has some ten thousand: more is a storm of messages that feeds itself."""


@dataclass(slots=True, frozen=True)
class Parts:
    """What a simulation is made of; an ablation replaces one."""

    core_class: type[RaftCore] = RaftCore
    journal_class: type[DurableJournal] = DurableJournal
    snapshots_class: type[SnapshotStore] = SnapshotStore
    machine_class: type[Machine] = Machine
    lies: Lie = Lie.NONE


class QuorumSimulation:
    """See the module's text."""

    def __init__(self, options: QuorumOptions, parts: Parts | None = None) -> None:
        self.options, self.parts = options, parts or Parts()
        self.random = Random(options.seed)
        self.now = 100.0
        self.counts: Counter[str] = Counter()
        self.ids = list(range(1, options.voters + 1))
        self.ledger = Ledger(self)
        self.network = Network(self)
        self.members = {node_id: Member(self, node_id) for node_id in self.ids}
        self.clients = Clients(self)
        self.faults = Faults(self)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = self._happened = 0

    # ---- time -----------------------------------------------------------------------------------------------------------------

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def repeat(self, mean_s: float, action: Callable[[], None]) -> None:
        """Again and again, at random times."""

        def once() -> None:
            action()
            self.after(2 * mean_s * self.random.random(), once)

        self.after(2 * mean_s * self.random.random(), once)

    def pass_time(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Lets things happen; True as soon as `until` holds (looked at after every event), False when the time is over."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
            self._happened += 1
            if self._happened > EVENTS_MAX:
                self.ledger.broken(f"{EVENTS_MAX} events and no end: {self.describe()}")
            if until is not None and until():
                return True
        self.now = end
        return False

    # ---- the run --------------------------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Raises Broken."""
        with self.clock():
            self.begin()
            if self.options.fault_every_s:
                self.repeat(self.options.fault_every_s, self.faults.inflict)
            self.pass_time(self.options.seconds)
            self.heal()
        ledger = self.ledger
        self.counts.update(
            {
                "acknowledged": ledger.acknowledged - ledger.reads, "reads": ledger.reads, "duplicates": ledger.duplicates,
                "refused": ledger.refused,
            }
        )  # fmt: skip
        self.counts["terms"] = len(ledger.leaders)
        return self.counts

    @contextlib.contextmanager
    def clock(self) -> Iterator[None]:
        """The library reads this simulation's time."""
        real, library.monotonicTime = library.monotonicTime, lambda: self.now
        try:
            yield
        finally:
            library.monotonicTime = real

    def begin(self) -> None:
        """Everybody is started, some later."""
        for member in self.members.values():
            late = self.options.fault_every_s and self.random.random() < 0.2
            self.after(self.random.random() * FIRST_START_S_MAX if late else 0.0, member.start)
        self.repeat(DIAL_EVERY_S, self.network.dial)
        if self.options.operation_every_s:
            self.repeat(self.options.operation_every_s, self.clients.act)

    def acknowledged(self) -> None:
        """A command was acknowledged."""
        self.faults.acknowledged()

    def heal(self) -> None:
        """No faults any more: progress within a bound, then one state everywhere."""
        self.faults.end()
        self.network.mend_all()
        for member in self.members.values():
            member.disk.capacity = member.disk.fail_after = member.disk.cut_after = member.disk.fail_sync_after = None
            member.sync_s, member.stays_down = 0.0, False
            self.after(0.0, member.start)
        before, healed_at = self.ledger.acknowledged - self.ledger.reads, self.now
        within_s = PROGRESS_S_MAX + PROGRESS_DELAYS_MAX * self.options.delay_s
        if not self.pass_time(within_s, lambda: self.ledger.acknowledged - self.ledger.reads > before):
            self.ledger.broken(f"no progress within {within_s:g} s after healing: {self.describe()}")
        self.clients.rest()
        last = self.ledger.last_index
        while not self.agreed(last):
            if self.now > healed_at + 2 * within_s:
                self.ledger.broken(f"no agreement within {2 * within_s:g} s after healing: {self.describe()}")
            self.pass_time(CHECK_EVERY_S)
        self.ledger.compare_states()

    def agreed(self, last_index: int) -> bool:
        """Everybody is up, has a vote, and has applied everything that was committed, which is at least `last_index`."""
        return all(
            member.core is not None
            and member.machine is not None
            and member.core._journal.voting
            and member.machine.state.index == self.ledger.last_index >= last_index
            for member in self.members.values()
        )

    def describe(self) -> str:
        """Where everybody is."""
        lines = []
        for node_id, member in self.members.items():
            if member.core is None:
                lines.append(f"{node_id} is down")
            else:
                status = member.core.status()
                paused = f" paused for {member.paused_s:.1f} s more" if member.paused_s else ""
                lines.append(
                    f"{node_id}: role {status.role} term {status.term} leader {status.leader_id} commit {status.commit_index} "
                    f"last {status.last_index} connected {status.connected} {status.waits_for}{paused}"
                )
        return "; ".join(lines)
