"""The shell around a voter: reads the disk into it, and carries out what each of its steps asks for.

    event --> Voter.step --> Ready --> persist (journal, snapshots), send (outbox), apply (state machine)

The order of one round (`thread` drives it): 1. `sync` - one fdatasync for everything added in the round
before; 2. the messages; 3. `tick`.  With the contract of `state` no answer speaks of an entry, a term or a
vote that is not on this disk, and a leader counts itself only for entries that this disk has (docs/raft.md Q1
to Q3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ...runtime import faults, logs
from ...runtime.calm_logs import Outage
from .contract import FollowerView, Outbox, Proposal, QuorumStatus, RaftTimings, Role, StateMachine
from .log import RaftLog
from .messages import Message
from .snapshot_store import SnapshotStore
from .state import (
    NEVER,
    Accepted,
    Append,
    Change,
    Committed,
    Installed,
    Ready,
    ReplaceLog,
    SetTerm,
    SnapshotWanted,
    StoreSnapshot,
    StoreVoterRecords,
    TrimTo,
    TruncateFrom,
    VoterState,
)
from .voter import (
    Connected,
    Disconnected,
    Event,
    Receive,
    SnapshotDurable,
    Synced,
    Tick,
    Voter,
)

if TYPE_CHECKING:
    from .journal import DurableJournal

log = logs.get(__name__)


class RaftCore:
    """One voter with its disk.  Not thread-safe: only the Raft thread (or the simulator) calls it."""

    def __init__(
        self,
        node_id: int,
        voters: Collection[int],
        journal: DurableJournal,
        snapshots: SnapshotStore,
        machine: StateMachine,
        outbox: Outbox,
        *,
        timings: RaftTimings,
        random: Callable[[], float],
        now: Callable[[], float],
        voter_class: type[Voter] = Voter,
    ) -> None:
        """`now`: monotonic seconds."""
        self.journal, self._snapshots, self._machine, self._outbox = journal, snapshots, machine, outbox
        self.now = now
        last_term = journal[-1][2]
        state = VoterState(
            node_id=node_id,
            others=tuple(other for other in voters if other != node_id),
            timings=timings,
            random=random,
            log=RaftLog(journal[:]),
            term=max(journal.term, last_term),
            voted_for=journal.voted_for if journal.term >= last_term else None,
            journal_id=journal.journal_id,
            voting=journal.voting,
            voter_records=dict(journal.voter_records),
            snapshot=snapshots.latest,
        )
        self.state, self.timings = state, timings
        self.voter = voter_class(state, now())
        self._without_vote = Outage(log, "quorum_no_vote")
        self._waits_for = ""
        self._reported: tuple[object, ...] = ()
        self._carry_out(self.voter.first_ready)

    # ---- views ---------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def active(self) -> bool:
        return self.state.active

    @property
    def lost_leader(self) -> bool:
        """Whether the connection to the leader broke, and no leader has sent a message since."""
        return self.state.leader_heard_at == NEVER

    @property
    def commit_index(self) -> int:
        return self.state.commit_index

    @property
    def applied_index(self) -> int:
        return self.state.applied_index

    @property
    def last_index(self) -> int:
        return self.state.log.last_index

    def status(self) -> QuorumStatus:
        state = self.state
        return QuorumStatus(
            state.role,
            state.term,
            -1 if state.leader_id is None else state.leader_id,
            state.active,
            state.commit_index,
            state.log.last_index,
            connected=tuple(sorted(state.connected)),
            not_voting=self.voter.membership.not_voting(),
            waits_for=self._waits_for,
        )

    def followers(self) -> dict[int, FollowerView]:
        """The acknowledged index of each follower, and how long it has been silent; empty unless this node
        leads."""
        self.state.now = self.now()
        return self.voter.views()

    # ---- driven by the thread ------------------------------------------------------------------------------

    def propose(self, proposal: Proposal) -> None:
        """Queues the proposal for the next tick."""
        self.voter.propose(proposal)

    def sync(self) -> None:
        if self.journal.dirty:
            self.journal.sync()
            self._step(Synced(self.journal.durable_index))

    def tick(self) -> bool:
        """Elections, commits, queued proposals, frames.  True: the thread must run another round at once."""
        self._step(Tick())
        self._report()
        return self.journal.dirty or self.voter.has_proposals

    def seconds_to_wake(self) -> float:
        """How long the thread may sleep if no event arrives."""
        self.state.now = now = self.now()
        return max(0.0, self.voter.due_at() - now) + 0.001

    def receive(self, node_id: int, message: Message) -> None:
        """A message of a voter, over its present connection."""
        self._step(Receive(node_id, message))

    def peer_connected(self, node_id: int) -> None:
        self._step(Connected(node_id))

    def peer_disconnected(self, node_id: int) -> None:
        self._step(Disconnected(node_id))

    def snapshot_stored(self, index: int | None) -> None:
        """The wanted snapshot is durable up to `index`; None: none was made."""
        if index is not None:
            faults.point("raft.before_trim", index=index)
        self._step(SnapshotDurable(None if index is None else self._snapshots.latest))

    def bind_cluster(self, cluster_id: str) -> None:
        self.journal.bind_cluster(cluster_id)

    def close(self) -> None:
        self.journal.sync()
        self.journal.close()
        for proposal in self.voter.close():
            proposal.refused("the node is stopping")

    # ---- carrying out --------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        self._carry_out(self.voter.step(event, self.now()))

    def _carry_out(self, ready: Ready) -> None:
        """In the order of the contract (`state`)."""
        for change in ready.persist:
            self._persist(change)
        if ready.must_sync:
            self.journal.sync()
        for node_id, message in ready.send:
            self._outbox.send(node_id, message)
        for applied in ready.apply:
            match applied:
                case Committed(entries):
                    self._machine.applied(entries)
                case Installed(snapshot):
                    self._machine.installed(snapshot)
                case SnapshotWanted():
                    self._machine.snapshot_wanted()
        for answer in ready.answers:
            if isinstance(answer, Accepted):
                answer.proposal.accepted(answer.index, answer.term)
            else:
                answer.proposal.refused(answer.reason)

    def _persist(self, change: Change) -> None:
        journal = self.journal
        match change:
            case Append(entries):
                journal.extend(entries)
            case SetTerm(term, voted_for):
                journal.set_term(term, voted_for)
            case TruncateFrom(index):
                journal.truncate_from(index)
            case TrimTo(index):
                journal.trim_to(index)
            case StoreSnapshot(snapshot):
                self._snapshots.store(snapshot)
                faults.point("raft.snapshot.before_reset", index=snapshot.index)
            case ReplaceLog(entry):
                journal.reset([entry])
            case StoreVoterRecords(voter_records, voting):
                journal.store_voter_records(*voter_records, voting=voting)

    def _report(self) -> None:
        """Tells the state machine when the status has changed, the indexes apart, which change all the
        time."""
        state, membership = self.state, self.voter.membership
        self._waits_for = membership.waits_for()
        if state.voting:
            self._without_vote.over(state.now, node=state.node_id)
        else:
            self._without_vote.failed(
                state.now, news=self._waits_for, node=state.node_id, waits_for=self._waits_for
            )
        not_voting = membership.not_voting()
        links, active = tuple(state.connected), state.active
        news = (state.role, state.term, state.leader_id, active, links, not_voting, self._waits_for)
        if news != self._reported:
            self._reported = news
            self._machine.status_changed(self.status())

    # ---- invariants ----------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raises AssertionError when the voter breaks an invariant, or is not what its disk says."""
        state, journal = self.state, self.journal
        self.voter.validate()
        assert journal[0] == state.log.entries[0], "the journal begins with another entry than the log"
        assert journal[-1] == state.log.entries[-1], "the journal ends with another entry than the log"
        assert len(journal) == len(state.log), f"{len(journal)} entries on disk, {len(state.log)} in memory"
        assert journal.size_bytes == state.log.size_bytes, "the size of the log is miscounted"
        assert state.log.stable_index <= journal.durable_index, (
            f"stable up to {state.log.stable_index}, durable up to {journal.durable_index}"
        )
        assert max(journal.term, journal[-1][2]) == state.term, "the term is not on the disk"
        if journal.term == state.term:
            assert journal.voted_for == state.voted_for, "the vote is not on the disk"
        else:
            assert state.voted_for is None, "the vote is not on the disk"
        assert journal.voting == state.voting, "the journal has a vote, or none, otherwise"
        assert journal.voter_records == state.voter_records, "the voter records are not on the disk"
        latest = self._snapshots.latest
        assert state.snapshot is None or (latest is not None and latest.index >= state.snapshot.index), (
            "the snapshot is not on the disk"
        )
