"""A seeded simulation of the metadata quorum: the real core, journal and snapshot store on a virtual clock, network and disk.

    python tests/controller/quorum_simulator.py --voters 3 --seeds 0:500 [--reorder] [--mutation no_fsync]

One seed draws everything: delays, cuts (also one-way), resets, reordering, crashes of one node or all that lose unsynced writes,
full disks, late first starts, disks that are lost (the journals without a vote because of that stay a minority).  Then the faults
stop and the quorum must make progress.  Checked: no acknowledged command is lost, no two nodes apply different commands at one
index, one leader a term, no node stops by itself (other than for its full disk), all states equal and all with a vote at the end.

`MUTATIONS` break one safeguard each; a mutation that no seed catches means that the safeguard is not tested.  (Replies without
terms are played by hand in test_raft_scenarios.py: they do harm only in coincidences that seeds do not find.)
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pysyncobj.syncobj as library
from tidegate.chaos.sim.disk import Lie, LyingDisk
from tidegate.controller.raft.contract import Proposal, QuorumStatus, RaftTimings
from tidegate.controller.raft.core import LEADER, RaftCore
from tidegate.controller.raft.failure import RaftFatal
from tidegate.controller.raft.journal import DurableJournal
from tidegate.controller.raft.membership import VOTER_RETURNS, Membership, decode_return
from tidegate.controller.raft.messages import (
    AppendEntries,
    AppendReply,
    Entry,
    Message,
    Seat,
    Standing,
    decode,
    encode,
)
from tidegate.controller.raft.snapshot_store import Snapshot, SnapshotStore

STEP_S = 0.005
TIMINGS = RaftTimings(
    election_s_min=0.3,
    election_s_max=0.6,
    heartbeat_s=0.05,
    leader_fallback_s=0.6,
    batch_bytes=300,
    compact_after_entries=40,
    trailing_entries=10,
)


@dataclass(slots=True)
class Outcome:
    seed: int
    acknowledged: int = 0
    terms: int = 0
    lost: list[bytes] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    progress: bool = False
    equal: bool = False
    all_vote: bool = False
    wiped: int = 0

    @property
    def good(self) -> bool:
        ends_well = self.progress and self.equal and self.all_vote
        return not self.lost and not self.violations and not self.stopped and ends_well


class Machine:
    """A state machine that is a hash chain: equal states mean equal histories."""

    def __init__(self, simulation: Simulation, node_id: int) -> None:
        self._simulation, self._node_id = simulation, node_id
        self.index, self.term, self.chain = 1, 0, b""
        self.waiting: dict[int, tuple[int, bytes]] = {}
        self.core: RaftCore | None = None
        self.wanted = False

    def applied(self, entries: list[Entry]) -> None:
        for command, index, term in entries:
            if index != self.index + 1:
                self._simulation.outcome.violations.append(f"entry {index} applied after {self.index} on node {self._node_id}")
            self._simulation.note_applied(self._node_id, index, command, term)
            self.index, self.term = index, term
            self.chain = hashlib.md5(self.chain + command + struct.pack("<Q", term)).digest()
            waiting = self.waiting.pop(index, None)
            if waiting is not None and waiting[0] == term:
                self._simulation.acknowledged[waiting[1]] = self._simulation.now

    def installed(self, snapshot: Snapshot) -> None:
        self.index, self.term, self.chain = snapshot.index, snapshot.term, bytes(snapshot.state)
        self.waiting = {index: value for index, value in self.waiting.items() if index > snapshot.index}

    def snapshot_wanted(self) -> None:
        self.wanted = True

    def status_changed(self, status: QuorumStatus) -> None:
        pass


class Outbox:
    def __init__(self, simulation: Simulation, node_id: int) -> None:
        self._simulation, self._node_id = simulation, node_id

    def send(self, node_id: int, message: Message) -> None:
        self._simulation.send(self._node_id, node_id, message)


class Simulation:
    """One run.  `core_class`, `journal_class` let a mutation replace a part."""

    def __init__(
        self,
        seed: int,
        voters: int = 3,
        *,
        reorder: bool = False,
        faults: bool = True,
        core_class: type[RaftCore] = RaftCore,
        journal_class: type[DurableJournal] = DurableJournal,
        syncs_work: bool = True,
        delay_s: float | None = None,
        late_replies: bool = False,
        wipes: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.outcome = Outcome(seed)
        self.now = 100.0
        self.reorder, self.faults, self.late_replies = reorder or late_replies, faults, late_replies
        self.core_class, self.journal_class = core_class, journal_class
        self.ids = list(range(1, voters + 1))
        lies = Lie.NONE if syncs_work else Lie.FILE_SYNC | Lie.FOLDER_SYNC
        self.disks = {node_id: LyingDisk(lies) for node_id in self.ids}
        self.fates = {node_id: random.Random(seed * 31 + node_id) for node_id in self.ids}
        self.cores: dict[int, RaftCore] = {}
        self.machines: dict[int, Machine] = {}
        self.links: dict[tuple[int, int], deque[tuple[float, bytes]]] = defaultdict(deque)
        self.last_due: dict[tuple[int, int], float] = {}
        self.connected: dict[int, set[int]] = {}
        self.cuts: set[frozenset[int]] = set()
        self.deaf: set[tuple[int, int]] = set()  # one-way cuts: frames vanish
        self.history: dict[int, tuple[bytes, int]] = {}
        self.acknowledged: dict[bytes, float] = {}
        self.leaders: dict[int, int] = {}
        self.sequence = 0
        self.lies = lies
        self.wipes = wipes and voters > 1
        self.plan: list[tuple[float, Callable[[], None]]] = []
        self.wiped: set[int] = set()  # the disks that were lost and have no vote yet
        self.absent: dict[int, float] = {}  # nodes that are started for the first time only then
        self.delay_s = delay_s or self.random.choice((0.002, 0.02, 0.06))
        self.timings = replace(TIMINGS, batch_bytes=self.random.choice((60, 300, 5000)))

    # ---- nodes ------------------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        disk, folder = self.disks[node_id], Path("/data/raft")
        machine = Machine(self, node_id)
        try:
            journal = self.journal_class(disk, folder, node_id=node_id, new_id=self.random.getrandbits(64) | 1)
            core = self.core_class(
                node_id, self.ids, journal, SnapshotStore(disk, folder), machine, Outbox(self, node_id),
                timings=self.timings, random=self.random.random,
            )  # fmt: skip
        except RaftFatal as error:
            self.outcome.stopped.append(f"node {node_id} does not start: {error}")
            raise _Hopeless from error
        machine.core = core
        self.cores[node_id], self.machines[node_id], self.connected[node_id] = core, machine, set()

    def crash(self, node_id: int) -> None:
        del self.cores[node_id]
        for other in self.ids:
            if other != node_id:
                self.disconnect(node_id, other)
        self.disks[node_id].crash(self.fates[node_id])

    def wipe(self, node_id: int) -> None:
        """The disk of a node that is down is lost.  Frames of its lost journal go with the connection, whatever the mode."""
        self.disks[node_id] = LyingDisk(self.lies)
        self.wiped.add(node_id)
        self.outcome.wiped += 1
        for other in self.ids:
            self.links[node_id, other].clear()

    def may_wipe(self) -> bool:
        self.wiped -= {node_id for node_id, core in self.cores.items() if core._journal.voting}
        return self.wipes and len(self.wiped) < (len(self.ids) - 1) // 2

    def lose_disk_at_the_worst_time(self) -> None:
        """Coincidences that single faults hardly ever make: a follower that has just acknowledged or voted loses its disk while
        some of the others have nothing of that; then the one goes that it was promised to (or comes back, out of office)."""
        rng = self.random
        leader = next((node_id for node_id, core in self.cores.items() if core.role == LEADER), None)
        others = [node_id for node_id in self.cores if node_id != leader and node_id not in self.wiped]
        if leader is None or len(others) < len(self.ids) // 2 + 1 or not self.may_wipe():
            return
        rng.shuffle(others)
        victim, behind = others[0], others[1 : 1 + len(self.ids) // 2]
        deposed = rng.random() < 0.5
        for other in [*behind, victim] if deposed else behind:
            self.cuts.add(frozenset((leader, other)))
            self.disconnect(leader, other)

        def lose() -> None:
            if victim in self.cores:
                self.crash(victim)
            if self.may_wipe():
                self.wipe(victim)
            self.start(victim)
            self.cuts.discard(frozenset((leader, victim)))
            for other in behind if deposed else []:
                self.cuts.add(frozenset((victim, other)))
            self.connect(leader, victim)

        def crash_again() -> None:
            if victim in self.cores:
                self.crash(victim)
                self.start(victim)
                self.connect(leader, victim)

        def turn() -> None:
            if leader in self.cores and not deposed:
                self.crash(leader)
            self.connect_all()

        lost_at = self.now + rng.uniform(0.1, 0.7)
        self.plan = [(lost_at, lose), (lost_at + rng.uniform(0.0, 0.4), turn), (lost_at + 2.5, self.cuts.clear)]
        if rng.random() < 0.5:
            self.plan.append((lost_at + rng.uniform(0.0, 0.2), crash_again))

    def carry_out_plan(self) -> None:
        for entry in sorted(self.plan, key=lambda entry: entry[0]):
            if entry[0] <= self.now:
                self.plan.remove(entry)
                entry[1]()

    def connect(self, a: int, b: int) -> None:
        if a not in self.cores or b not in self.cores or frozenset((a, b)) in self.cuts or b in self.connected[a]:
            return
        for one, other in ((a, b), (b, a)):
            self.connected[one].add(other)
        for one, other in ((a, b), (b, a)):
            self.guarded(one, lambda one=one, other=other: self.cores[one].peer_connected(other))

    def disconnect(self, a: int, b: int) -> None:
        for one, other in ((a, b), (b, a)):
            if not self.late_replies:  # else as a transport would that does not ignore frames of replaced connections
                self.links[one, other].clear()
            if other in self.connected.get(one, ()):
                self.connected[one].discard(other)
                if one in self.cores:
                    self.guarded(one, lambda one=one, other=other: self.cores[one].peer_disconnected(other))

    def send(self, source: int, target: int, message: Message) -> None:
        if target not in self.connected.get(source, ()):
            return
        slow = 10 if self.random.random() < 0.05 else 1
        due = self.now + self.random.random() * self.delay_s * slow
        if self.late_replies and isinstance(message, AppendReply) and self.random.random() < 0.3:
            due += self.random.random() * 4  # long enough to meet another leadership
        if not self.reorder:
            due = max(due, self.last_due.get((source, target), 0.0))
        self.last_due[source, target] = due
        self.links[source, target].append((due, encode(message)))

    def guarded(self, node_id: int, action: Callable[[], object]) -> None:
        try:
            if node_id in self.cores:
                action()
        except OSError:
            self.crash(node_id)  # fail-stop on a full disk is what we want
        except (RaftFatal, AssertionError, KeyError, IndexError) as error:
            self.outcome.stopped.append(f"node {node_id} at {self.now:.2f}: {error!r}")
            self.crash(node_id)

    # ---- time ---------------------------------------------------------------------------------------------------------------

    def note_applied(self, node_id: int, index: int, command: bytes, term: int) -> None:
        known = self.history.setdefault(index, (command, term))
        if known != (command, term):
            self.outcome.violations.append(f"entry {index} is {known} and on node {node_id} {(command, term)}")

    def step(self) -> None:
        self.now += STEP_S
        for node_id in list(self.cores):
            self.guarded(node_id, lambda node_id=node_id: self.cores[node_id].sync())
        for (source, target), queue in list(self.links.items()):
            if self.reorder and len(queue) > 1:
                queue = self.links[source, target] = deque(sorted(queue))
            while queue and queue[0][0] <= self.now and target in self.cores:
                message = decode(queue.popleft()[1])
                if (source, target) in self.deaf:
                    continue
                self.guarded(target, lambda s=source, t=target, m=message: self.cores[t].receive(s, m))  # type: ignore[misc]
        for node_id in list(self.cores):
            self.guarded(node_id, lambda node_id=node_id: self.cores[node_id].tick())
            self.snapshot_when_wanted(node_id)
        for node_id, core in self.cores.items():
            if core.role == LEADER and self.leaders.setdefault(core.term, node_id) != node_id:
                self.outcome.violations.append(f"nodes {node_id} and {self.leaders[core.term]} both lead in term {core.term}")

    def snapshot_when_wanted(self, node_id: int) -> None:
        core, machine = self.cores.get(node_id), self.machines[node_id]
        if core is None or not machine.wanted or self.random.random() < 0.5:
            return
        machine.wanted = False
        snapshot = Snapshot.make(machine.index, machine.term, machine.chain)

        def store() -> None:
            core._snapshots.store(snapshot)
            core.snapshot_stored(snapshot.index)

        self.guarded(node_id, store)

    def propose(self) -> None:
        leaders = [node_id for node_id, core in self.cores.items() if core.role == LEADER]
        if not leaders:
            return
        node_id = self.random.choice(leaders)
        self.sequence += 1
        command = b"command %d" % self.sequence
        machine = self.machines[node_id]

        def accepted(index: int, term: int) -> None:
            machine.waiting[index] = (term, command)

        self.cores[node_id].propose(Proposal(command, accepted, lambda reason: None))

    # ---- the run ------------------------------------------------------------------------------------------------------------

    def run(self, seconds: float = 20.0) -> Outcome:
        with _virtual_clock(self), contextlib.suppress(_Hopeless):
            for node_id in self.ids:
                if self.faults and self.random.random() < 0.2:
                    self.absent[node_id] = self.now + self.random.random() * 5
                else:
                    self.start(node_id)
            end = self.now + seconds
            while self.now < end and not self.outcome.violations:
                self.step()
                if self.random.random() < 0.4:
                    self.propose()
                if self.faults:
                    self.inflict()
                elif self.random.random() < 0.05:
                    self.connect_all()
            self.heal()
        outcome = self.outcome
        outcome.acknowledged, outcome.terms = len(self.acknowledged), len(self.leaders)
        committed = {command for command, _ in self.history.values()}
        outcome.lost = [command for command in self.acknowledged if command not in committed]
        return outcome

    def connect_all(self) -> None:
        for a in self.ids:
            for b in self.ids:
                if a < b:
                    self.connect(a, b)

    def inflict(self) -> None:
        """At most one fault a step, drawn from the seed."""
        draw, rng = self.random.random(), self.random
        up = list(self.cores)
        if draw < 0.004 and up:
            self.crash(rng.choice(up))
        elif draw < 0.016:
            absent = {node_id for node_id, until in self.absent.items() if until > self.now}
            down = [node_id for node_id in self.ids if node_id not in self.cores and node_id not in absent]
            if down:
                node_id = rng.choice(down)
                if rng.random() < 0.25 and self.may_wipe():
                    self.wipe(node_id)
                self.start(node_id)
        elif draw < 0.0166:
            for node_id in up:
                self.crash(node_id)
        elif draw < 0.020 and len(self.ids) > 1:
            a, b = rng.sample(self.ids, 2)
            self.cuts.add(frozenset((a, b)))
            self.disconnect(a, b)
        elif draw < 0.022 and len(self.ids) > 1:
            self.deaf.add(tuple(rng.sample(self.ids, 2)))  # type: ignore[arg-type]
        elif draw < 0.030:
            if self.cuts:
                self.cuts.discard(rng.choice(sorted(self.cuts, key=sorted)))
            if self.deaf:
                self.deaf.discard(rng.choice(sorted(self.deaf)))
        elif draw < 0.036 and len(self.ids) > 1:
            self.disconnect(*rng.sample(self.ids, 2))
        elif draw < 0.037 and up:
            self.disks[rng.choice(up)].fail_after = rng.randrange(4)
        elif draw < 0.040 and not self.plan:
            self.lose_disk_at_the_worst_time()
        if draw > 0.97:
            self.connect_all()
        self.carry_out_plan()

    def heal(self) -> None:
        """No faults any more: progress within a bound, then equal states."""
        self.cuts.clear()
        self.deaf.clear()
        for disk in self.disks.values():
            disk.fail_after = None
        healed_at = self.now
        while self.now < healed_at + 8 and not self.outcome.violations:
            for node_id in self.ids:
                if node_id not in self.cores:
                    self.start(node_id)
            self.connect_all()
            self.step()
            if self.random.random() < 0.1:
                self.propose()
            if len(self.outcome.stopped) > 20:
                return
        for _ in range(300):
            self.connect_all()
            self.step()
        last = max(self.acknowledged.values(), default=0.0)
        self.outcome.progress = last > healed_at + 6.0
        states = {(machine.index, machine.chain) for node_id, machine in self.machines.items() if node_id in self.cores}
        self.outcome.equal = len(states) == 1 and len(self.cores) == len(self.ids)
        self.outcome.all_vote = all(core._journal.voting for core in self.cores.values())
        forgotten = max(self.history, default=0) - max((index for index, _ in states), default=0)
        if forgotten > 0:
            self.outcome.violations.append(f"the last {forgotten} entries that were applied are known to nobody any more")


class _Hopeless(Exception):
    """A node cannot start: the run ends here."""


@contextlib.contextmanager
def _virtual_clock(simulation: Simulation) -> Iterator[None]:
    real, library.monotonicTime = library.monotonicTime, lambda: simulation.now
    try:
        yield
    finally:
        library.monotonicTime = real


# ---- mutations: each takes one safeguard away -----------------------------------------------------------------------------


class _ForgetsVotes(DurableJournal):
    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        self._term, self._vote = term, -1 if votedForNodeId is None else votedForNodeId


class _AcknowledgesUnsynced(DurableJournal):
    """Vote and snapshot are safe, the entries are only written."""

    def sync(self) -> None:
        self._write_pending()
        self._dirty, self.durable_index = False, self._entries[-1][1]


class _TruncatesMatching(RaftCore):
    """Stock's rule: everything after the previous entry goes, also what agrees."""

    def _append_missing(self, previous: int, entries: tuple[Entry, ...]) -> int:
        position = previous + 1 - self._journal[0][1]
        if 0 < position < len(self._journal) and previous + 1 > self.commit_index:
            self._journal.deleteEntriesFrom(position)
        return super()._append_missing(previous, entries)


class _CommitsWhatItHasNotSeen(RaftCore):
    """Commit index taken from the leader without regard to what this frame has shown to agree."""

    def _on_append(self, node: object, message: AppendEntries) -> None:
        super()._on_append(node, message)
        if message.term == self.term and self.role != LEADER:
            self._SyncObj__raftCommitIndex = max(self.commit_index, min(message.commit_index, self.last_index))


class _TrimsBeforeSnapshot(RaftCore):
    def _SyncObj__tryLogCompaction(self) -> None:
        if len(self._journal) > 40:
            self._journal.deleteEntriesTo(len(self._journal) - 20)


class _VotesWhileFresh(RaftCore):
    def _may_vote(self) -> bool:
        return True


class _CountsEverybody(RaftCore):
    """As if the answers of a journal without a vote were like all others."""

    def _on_message(self, node: object, message: Message) -> None:
        super()._on_message(node, message)
        if isinstance(message, AppendReply) and self.role == LEADER:
            self._SyncObj__raftMatchIndex[node] = self._replication.reached(node)


class _MajorityForms(Membership):
    """A majority of fresh voters is taken for the whole."""

    def roster(self) -> tuple[Seat, ...]:
        fresh = {voter: seen for voter, seen in self._seen.items() if not seen.voting and seen.empty}
        if self._journal.voting or not self._journal.is_empty or len(fresh) < (len(self._others) + 1) // 2:
            return ()
        seats = [(voter, standing.journal, 0) for voter, standing in fresh.items()]
        return tuple(sorted([*seats, (self._node_id, self._journal.journal_id, 0)]))

    def heard(self, voter: int, standing: Standing) -> bool:
        news = super().heard(voter, standing)
        if not self.voting and self.roster():
            self._take_seat(self.roster())
        return news


class _FormsAroundSurvivors(_MajorityForms):
    """Journals without a vote form a quorum among them although others have one."""

    def roster(self) -> tuple[Seat, ...]:
        if self._journal.voting or not self._journal.is_empty or self._seen.keys() != self._others:
            return ()
        seats = [(voter, standing.journal, 0) for voter, standing in self._seen.items()]
        return tuple(sorted([*seats, (self._node_id, self._journal.journal_id, 0)]))


class _ReturnsWhenProposed(RaftCore):
    """The vote is taken when the entry that gives it arrives: not committed, not yet durable."""

    def _append_missing(self, previous: int, entries: tuple[Entry, ...]) -> int:
        match = super()._append_missing(previous, entries)
        for command, index, _ in entries:
            if command[:1] == VOTER_RETURNS and decode_return(command) == (self.selfNode.id, self._journal.journal_id):
                journal = self._journal
                journal._voting, journal._seats[self.selfNode.id] = True, (self.selfNode.id, journal.journal_id, index)
                journal._disk.write_atomic(journal._vote_path, journal._encode_vote(journal._term, journal._vote))
        return match


def _core_with(membership: type[Membership]) -> type[RaftCore]:
    return type(membership.__name__, (RaftCore,), {"membership_class": membership})


MUTATIONS: dict[str, dict[str, object]] = {
    "no_fsync": {"syncs_work": False},
    "no_journal_sync": {"journal_class": _AcknowledgesUnsynced},
    "lost_vote": {"journal_class": _ForgetsVotes},
    "truncates_matching": {"core_class": _TruncatesMatching, "reorder": True},
    "commits_unseen": {"core_class": _CommitsWhatItHasNotSeen},
    "trims_before_snapshot": {"core_class": _TrimsBeforeSnapshot},
    "votes_while_fresh": {"core_class": _VotesWhileFresh},
    "counts_everybody": {"core_class": _CountsEverybody},
    "majority_forms": {"core_class": _core_with(_MajorityForms)},
    "forms_around_survivors": {"core_class": _core_with(_FormsAroundSurvivors)},
    "returns_when_proposed": {"core_class": _ReturnsWhenProposed},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voters", type=int, default=3, choices=(1, 3, 5))
    parser.add_argument("--seeds", default="0:100", help="first:last, the last not included")
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated time with faults")
    parser.add_argument("--reorder", action="store_true")
    parser.add_argument("--late-replies", action="store_true")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS))
    parser.add_argument("--delay", type=float, help="mean of the network's delays, in seconds")
    options = parser.parse_args()
    first, last = (int(part) for part in options.seeds.split(":"))
    extra: dict[str, object] = dict(MUTATIONS[options.mutation]) if options.mutation else {}
    if options.reorder:
        extra["reorder"] = True
    if options.late_replies:
        extra["late_replies"] = True
    if options.delay:
        extra["delay_s"] = options.delay
    bad = acknowledged = terms = wiped = 0
    for seed in range(first, last):
        outcome = Simulation(seed, options.voters, **extra).run(options.seconds)  # type: ignore[arg-type]
        acknowledged += outcome.acknowledged
        terms += outcome.terms
        wiped += outcome.wiped
        if not outcome.good:
            bad += 1
            if bad <= 5:
                print(f"seed {seed}: {outcome}")
    print(f"{last - first} runs, {acknowledged} acknowledged, {terms} terms, {wiped} disks lost, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
