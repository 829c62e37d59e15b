"""What a voter knows (`VoterState`), and what one step of it asks for (`Ready`).  Values only.

    step(event, now) -> Ready(persist, send, apply, answers)

The contract between a step and `core`, which carries it out, in this order (docs/raft.md Q1 to Q3):

1. `persist`: each change is durable when it was carried out.  Only appended entries may wait: they are
   durable with the next sync, with any later change but a stored snapshot, or at once with `must_sync`.
2. `send`: only now, because a message speaks of terms, votes and entries that must be on this disk.  A
   leader's frames may leave before its own entries are durable; its acknowledgement of itself does not.
3. `apply`: what is committed, for the state machine.
4. `answers`: which proposals were appended, and which were refused.

A voter learns later which entries became durable (`Synced`, `SnapshotDurable`), and counts itself only for
that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .contract import Proposal, RaftTimings, Role
from .failure import RaftFatal
from .log import RaftLog
from .messages import NO_OP, Entry, Message, VoterRecord
from .snapshot_store import Snapshot

NEVER = float("-inf")

# ---- changes of what is on the disk ------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class SetTerm:
    term: int
    voted_for: int | None


@dataclass(slots=True, frozen=True)
class Append:
    entries: list[Entry]


@dataclass(slots=True, frozen=True)
class TruncateFrom:
    """Entry `index` and all after it conflict with the leader."""

    index: int


@dataclass(slots=True, frozen=True)
class TrimTo:
    """The entries before `index` stand in a durable snapshot."""

    index: int


@dataclass(slots=True, frozen=True)
class StoreSnapshot:
    snapshot: Snapshot


@dataclass(slots=True, frozen=True)
class ReplaceLog:
    """This entry, which a snapshot stands for, becomes the only one."""

    entry: Entry


@dataclass(slots=True, frozen=True)
class StoreVoterRecords:
    """`voting`: and this journal has its vote from now on."""

    voter_records: tuple[VoterRecord, ...]
    voting: bool


Change = SetTerm | Append | TruncateFrom | TrimTo | StoreSnapshot | ReplaceLog | StoreVoterRecords

# ---- what the state machine and the proposers learn --------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Committed:
    """Entries in the order of the log, each exactly once; the command without its type byte, empty for a
    no-op."""

    entries: list[Entry]


@dataclass(slots=True, frozen=True)
class Installed:
    """This snapshot replaces everything that was applied."""

    snapshot: Snapshot


@dataclass(slots=True, frozen=True)
class SnapshotWanted:
    """The log is long: the state machine makes a snapshot."""


@dataclass(slots=True, frozen=True)
class Accepted:
    proposal: Proposal
    index: int
    term: int


@dataclass(slots=True, frozen=True)
class Refused:
    proposal: Proposal
    reason: str


@dataclass(slots=True)
class Ready:
    """What one step asks for; the module's text has the order in which it is carried out."""

    persist: list[Change] = field(default_factory=list)
    must_sync: bool = False
    send: list[tuple[int, Message]] = field(default_factory=list)
    apply: list[Committed | Installed | SnapshotWanted] = field(default_factory=list)
    answers: list[Accepted | Refused] = field(default_factory=list)


# ---- the state ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class VoterState:
    """One voter.  Every part of it (`election`, `follower`, `replication`, `membership`) reads and changes
    this one."""

    node_id: int
    others: tuple[int, ...]
    timings: RaftTimings
    random: Callable[[], float]
    # persistent: what the journal and the snapshot say
    log: RaftLog
    term: int
    voted_for: int | None
    journal_id: int
    voting: bool
    """Whether this journal may vote, stand and be counted (`membership`)."""
    voter_records: dict[int, VoterRecord]
    snapshot: Snapshot | None
    """The newest durable one."""
    # volatile
    now: float = 0.0
    role: Role = Role.FOLLOWER
    leader_id: int | None = None
    commit_index: int = 1
    applied_index: int = 1
    active_term: int = -1
    """The last term whose no-op this voter applied as its leader."""
    connected: set[int] = field(default_factory=set)
    election_deadline: float = 0.0
    leader_heard_at: float = NEVER
    # a candidate's
    votes: set[int] = field(default_factory=set)
    # a leader's
    no_op_index: int = 0
    heartbeat_at: float = 0.0
    match_index: dict[int, int] = field(default_factory=dict)
    """Of journals with a vote: these are counted."""
    answered_at: dict[int, float] = field(default_factory=dict)
    ready: Ready = field(default_factory=Ready)

    @property
    def majority(self) -> int:
        return (len(self.others) + 1) // 2 + 1

    @property
    def is_majority_connected(self) -> bool:
        return len(self.connected) + 1 >= self.majority

    @property
    def active(self) -> bool:
        """It leads, and has applied the no-op of its own term (docs/raft.md Q14)."""
        return self.role is Role.LEADER and self.active_term == self.term

    @property
    def is_empty(self) -> bool:
        """Nothing was ever written: no term, no vote, no entry."""
        return self.term == 0 and self.voted_for is None and self.log.last_index == 1

    def election_timeout_s(self) -> float:
        low, high = self.timings.election_s_min, self.timings.election_s_max
        return low + (high - low) * self.random()

    # ---- what a step asks for ------------------------------------------------------------------------------

    def take_ready(self) -> Ready:
        ready = self.ready
        if ready.persist or ready.send or ready.apply or ready.answers or ready.must_sync:
            self.ready = Ready()
        return ready

    def send(self, node_id: int, message: Message) -> None:
        self.ready.send.append((node_id, message))

    def must_sync(self) -> None:
        """Everything appended is durable before this step sends anything."""
        self.ready.must_sync, self.log.stable_index = True, self.log.last_index

    def set_term(self, term: int, voted_for: int | None) -> None:
        """A term never goes back, and the vote within a term never changes (docs/raft.md Q2)."""
        if (term, voted_for) != (self.term, self.voted_for):
            if term < self.term or (term == self.term and self.voted_for is not None):
                before = f"term {self.term} with vote {self.voted_for}"
                raise RaftFatal(f"term {term} with vote {voted_for} after {before}")
            changes = self.ready.persist
            if changes and isinstance(changes[-1], SetTerm):
                changes.pop()  # of a step that raises the term and then votes in it: one change is enough
            self._persist(SetTerm(term, voted_for))
        self.term, self.voted_for = term, voted_for
        self.votes = {self.node_id} if voted_for == self.node_id else set()

    def step_down(self, term: int) -> None:
        self.set_term(term, None)
        self.role, self.leader_id = Role.FOLLOWER, None

    def append(self, entries: Sequence[Entry]) -> None:
        self.log.extend(entries)
        changes = self.ready.persist
        if changes and isinstance(changes[-1], Append):
            changes[-1].entries.extend(entries)
        else:
            changes.append(Append(list(entries)))

    def append_commands(self, *commands: bytes) -> int:
        """The leader's next entries; the index of the first one."""
        first, term = self.log.last_index + 1, self.term
        self.append([(command, index, term) for index, command in enumerate(commands, first)])
        return first

    def truncate_from(self, index: int) -> None:
        if index <= self.commit_index:
            raise RaftFatal(f"the leader would overwrite committed entry {index}")
        self.log.truncate_from(index)
        self._persist(TruncateFrom(index))

    def trim_to(self, index: int) -> None:
        self.log.trim_to(index)
        self._persist(TrimTo(index))

    def install(self, snapshot: Snapshot) -> None:
        """The snapshot, which is durable by now, replaces what was applied, and log and snapshot meet: the
        entry of the snapshot's index stays or becomes part of the log.

        A tail that conflicts with the snapshot, or ends before it, is left over from an installation that a
        crash interrupted after the snapshot was durable: nothing in it can have been committed."""
        log = self.log
        if snapshot.index < log.first_index:
            raise RaftFatal(
                f"the journal begins at entry {log.first_index}, after the snapshot of entry {snapshot.index}"
            )
        if snapshot.index > log.last_index or log.term_at(snapshot.index) != snapshot.term:
            entry = (NO_OP, snapshot.index, snapshot.term)
            log.replace(entry)
            self._persist(ReplaceLog(entry))
        self.applied_index = snapshot.index
        self.commit_index = max(snapshot.index, self.commit_index)
        self.ready.apply.append(Installed(snapshot))

    def store_voter_records(self, *voter_records: VoterRecord, voting: bool) -> None:
        self.voter_records |= {record.voter: record for record in voter_records}
        self.voting = self.voting or voting
        self._persist(StoreVoterRecords(voter_records, voting))

    def _persist(self, change: Change) -> None:
        """Any change but an append and a stored snapshot is durable with everything before it."""
        self.ready.persist.append(change)
        self.log.stable_index = self.log.last_index

    # ---- invariants ----------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raises AssertionError for a state that no sequence of steps may lead to."""
        log, last = self.log, self.log.last_index
        log.validate()
        assert log.first_index <= self.applied_index, f"applied {self.applied_index} is before the log"
        assert self.applied_index <= self.commit_index <= last, (
            f"applied {self.applied_index}, commit {self.commit_index}, last {last}"
        )
        assert log.last_term <= self.term, f"entry of term {log.last_term} in term {self.term}"
        assert self.connected <= set(self.others), f"connected {self.connected} of {self.others}"
        snapshot_index = 1 if self.snapshot is None else self.snapshot.index
        assert log.first_index <= snapshot_index <= self.applied_index, (
            f"the log begins at {log.first_index}, the snapshot is of {snapshot_index}, "
            f"applied {self.applied_index}"
        )
        if self.role is not Role.FOLLOWER:
            assert self.voted_for == self.node_id, f"{self.role.name} in term {self.term}, voted otherwise"
            assert self.voting, "a journal without a vote stands"
        if self.role is Role.LEADER:
            self._validate_leader()
        assert self.active_term <= self.term, f"active in term {self.active_term} of {self.term}"

    def _validate_leader(self) -> None:
        assert self.leader_id == self.node_id, f"the leader follows {self.leader_id}"
        assert self.commit_index <= self.log.stable_index, (
            f"commit {self.commit_index}, on this disk {self.log.stable_index}"
        )
        assert self.match_index.keys() == set(self.others), "the leader counts others than the voters"
        for node_id, match_index in self.match_index.items():
            assert 0 <= match_index <= self.log.last_index, f"node {node_id} has entry {match_index}"
