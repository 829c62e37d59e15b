"""One run: members on a virtual clock, faults for a while, then healing and the demand for progress.

    counts = QuorumSimulation(QuorumOptions.draw(seed)).run()       raises Broken

Everything that happens is an event at a time (`schedule`), and follows from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .clients import Clients
from .cluster import Cluster
from .faults import Faults
from .member import Parts
from .network import DIAL_EVERY_S
from .options import QuorumOptions

PROGRESS_S_MAX = 6.0
"""After healing: a command that is proposed then is acknowledged, every member has the vote and the same
state, within this time. The rest of a pause (`faults.PAUSE_S_MAX`) is part of it."""
PROGRESS_DELAYS_MAX = 50
"""And so many delays of a frame more: hundreds of entries that wait may each be a frame, sixteen of them in
flight."""
FIRST_START_S_MAX = 2.0
CHECK_EVERY_S = 0.25
EVENTS_MAX = 400_000
"""Of one run, which has some ten thousand: more is a storm of messages that feeds itself."""


class QuorumSimulation:
    """See the module's text."""

    def __init__(self, options: QuorumOptions, parts: Parts | None = None) -> None:
        self.options = options
        self.cluster = cluster = Cluster(options, parts or Parts())
        self.schedule, self.ledger = cluster.schedule, cluster.ledger
        self.network, self.members = cluster.network, cluster.members
        self.counts = cluster.ledger.counts
        self.faults = Faults(cluster)
        self.clients = Clients(cluster, self.faults.acknowledged)
        self._happened = 0

    @property
    def now(self) -> float:
        return self.schedule.now

    def pass_time(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Runs events; True as soon as `until` holds (checked after every event), False when the time has
        passed."""
        end = self.now + seconds
        while self.schedule.step(end):
            self._happened += 1
            if self._happened > EVENTS_MAX:
                self.ledger.broken(f"{EVENTS_MAX} events and no end: {self.describe()}")
            if until is not None and until():
                return True
        self.schedule.now = end
        return False

    # ---- the run -------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Raises Broken."""
        self.begin()
        if self.options.fault_every_s:
            self.schedule.repeat(self.options.fault_every_s, self.faults.inflict)
        self.pass_time(self.options.seconds)
        self.heal()
        ledger = self.ledger
        self.counts.update(
            {
                "acknowledged": ledger.acknowledged - ledger.reads, "reads": ledger.reads,
                "duplicates": ledger.duplicates,
                "refused": ledger.refused,
            }
        )  # fmt: skip
        self.counts["terms"] = len(ledger.leaders)
        return self.counts

    def begin(self) -> None:
        """Every member is started, some later."""
        for member in self.members.values():
            late = self.options.fault_every_s and self.schedule.random.random() < 0.2
            self.schedule.after(
                self.schedule.random.random() * FIRST_START_S_MAX if late else 0.0, member.start
            )
        self.schedule.repeat(DIAL_EVERY_S, self.network.dial)
        if self.options.operation_every_s:
            self.schedule.repeat(self.options.operation_every_s, self.clients.act)

    def heal(self) -> None:
        """No faults any more: progress within a bound, then one state everywhere."""
        self.faults.end()
        self.network.mend_all()
        for member in self.members.values():
            member.disk.capacity = member.disk.fail_after = member.disk.cut_after = (
                member.disk.fail_sync_after
            ) = None
            member.process.sync_s, member.stays_down = 0.0, False
            self.schedule.after(0.0, member.start)
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
        self.ledger.compare_states(self.cluster.states())

    def agreed(self, last_index: int) -> bool:
        """Every member is up, has a vote, and has applied everything that was committed, which is at least
        `last_index`."""
        return all(
            member.core is not None
            and member.machine is not None
            and member.core.state.voting
            and member.machine.state.index == self.ledger.last_index >= last_index
            for member in self.members.values()
        )

    def describe(self) -> str:
        """Where each member is."""
        lines = []
        for node_id, member in self.members.items():
            if member.core is None:
                lines.append(f"{node_id} is down")
            else:
                status = member.core.status()
                paused = (
                    f" paused for {member.process.paused_s:.1f} s more" if member.process.paused_s else ""
                )
                lines.append(
                    f"{node_id}: role {status.role} term {status.term} leader {status.leader_id} "
                    f"commit {status.commit_index} "
                    f"last {status.last_index} connected {status.connected} {status.waits_for}{paused}"
                )
        return "; ".join(lines)
