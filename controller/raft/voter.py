"""One voter of the metadata quorum as a pure step: `step(event, now) -> Ready`.

Read it with the Raft paper at hand: AppendEntries and its rules are in `follower`, RequestVote in `election`,
InstallSnapshot in `follower`, the variables of figure 2 in `state`.  The parts, each over the same
`VoterState`:

* `state`, `log`  what a voter knows, and what a step asks for, with the contract between the two
* `library`       PySyncObj's tick: when an election begins, what a leader may commit, when it falls back
* `election`      PreVote and votes
* `follower`      the log is made to agree with the leader's, by entries or by a snapshot
* `replication`   the leader's view of each follower, and what that is sent next
* `membership`    which journals have a vote

A step reads no clock, no disk and no socket: it depends on the state, the event, the time given with it and
the injected random numbers.  What is to be done in the world is its result, which `core` carries out.

How the role changes, and where; nothing else changes it:

    from         to          when                                               in
    any          FOLLOWER    a message has a higher term                        `VoterState.step_down`
    CANDIDATE    FOLLOWER    its term has a leader, which has sent a frame      `Follower._accept_leader`
    LEADER       FOLLOWER    no majority has answered for `leader_fallback_s`   `library`
    not LEADER   CANDIDATE   the election timer ended, and PreVote allows it    `library`, `Election`
    CANDIDATE    LEADER      a majority has voted for it in its term            `Voter.become_leader`

A leader is *active*, and takes commands, once it has applied the no-op of its own term.

A Raft invariant that does not hold raises RaftFatal: the node stops rather than guess.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ...runtime import logs
from .contract import FollowerView, Proposal, Role
from .election import Election
from .failure import RaftFatal
from .follower import Follower
from .library import LibraryTick
from .membership import VOTER_RETURNS, Returns, VoterMembership, decode_return, encode_return
from .messages import (
    NO_OP,
    REGULAR,
    AppendEntries,
    AppendReply,
    Entry,
    Message,
    SnapshotChunk,
    SnapshotReply,
    VoteReply,
    VoteRequest,
    VoterStatus,
)
from .replication import Replication
from .snapshot_store import Snapshot
from .state import Accepted, Committed, Ready, Refused, SnapshotWanted, VoterState

log = logs.get(__name__)

COMMAND_BYTES_MAX = 512 << 10
PROPOSALS_PER_TICK_MAX = 2000
ANNOUNCED_ELECTIONS = 10
"""For so many election timeouts a voter that came back with another journal goes on announcing it."""

# ---- what a voter is stepped with --------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Tick:
    """Time has passed: elections, commits, queued proposals, frames and acknowledgements."""


@dataclass(slots=True, frozen=True)
class Receive:
    """A message of another voter, over its present connection."""

    sender: int
    message: Message


@dataclass(slots=True, frozen=True)
class Connected:
    peer: int


@dataclass(slots=True, frozen=True)
class Disconnected:
    peer: int


@dataclass(slots=True, frozen=True)
class Synced:
    """Everything up to entry `index` is on this disk."""

    index: int


@dataclass(slots=True, frozen=True)
class SnapshotDurable:
    """The wanted snapshot is on this disk; None: none was made."""

    snapshot: Snapshot | None


Event = Tick | Receive | Connected | Disconnected | Synced | SnapshotDurable


class Voter:
    """See the module's text.  Not thread-safe."""

    election_class: type[Election] = Election
    follower_class: type[Follower] = Follower
    membership_class: type[VoterMembership] = VoterMembership

    def __init__(self, state: VoterState, now: float) -> None:
        """What `state` has of the disk was read from it; `first_ready` is to be carried out before a step."""
        self.state = state
        state.now = now
        self.election = self.election_class(state)
        self.follower = self.follower_class(state, self.election)
        self.replication = Replication(state)
        voters = (state.node_id, *state.others)
        self.membership = self.membership_class(state.node_id, voters, state)
        self._returns = Returns(state.timings.election_s_max + 2 * state.timings.heartbeat_s)
        self._proposals: deque[Proposal] = deque()
        self._announce_at = 0.0
        self._announce_until = 0.0
        self._snapshot_pending = False
        self.election.restart_timer()
        if state.snapshot is not None:
            state.install(state.snapshot)
        elif state.log.first_index != 1:
            raise RaftFatal(
                f"the journal begins at entry {state.log.first_index} and there is no snapshot of what was "
                "before"
            )
        if not state.others:
            state.election_deadline = now  # a quorum of one waits for no other voter
        self._library = LibraryTick(state, self)
        self.first_ready = state.take_ready()

    def step(self, event: Event, now: float) -> Ready:
        """What `event` leads to; the result is carried out before the next step.  `now`: monotonic
        seconds."""
        state = self.state
        state.now = now
        match event:
            case Receive(sender, message):
                self._receive(sender, message)
            case Tick():
                self._tick()
            case Synced(index):
                state.log.stable_index = index
            case Connected(peer):
                self._connected(peer)
            case Disconnected(peer):
                state.connected.discard(peer)
                if state.leader_id == peer and state.role is Role.FOLLOWER:
                    self.election.hurry()
            case SnapshotDurable(snapshot):
                self._snapshot_durable(snapshot)
        return state.take_ready()

    def propose(self, proposal: Proposal) -> None:
        """Queues the proposal: the next tick appends or refuses it."""
        self._proposals.append(proposal)

    @property
    def has_proposals(self) -> bool:
        return bool(self._proposals)

    def due_at(self) -> float:
        """When a tick is due while no other event comes."""
        state = self.state
        if state.role is Role.LEADER:
            return state.heartbeat_at
        return self.election.due_at() if state.voting else self._announce_at

    def views(self) -> dict[int, FollowerView]:
        """Of a leader's followers; empty unless this voter leads."""
        leads = self.state.role is Role.LEADER
        return {other: self.replication.view(other) for other in self.state.others} if leads else {}

    def close(self) -> list[Proposal]:
        """The proposals that were never looked at."""
        proposals, self._proposals = list(self._proposals), deque()
        return proposals

    def validate(self) -> None:
        """Raises AssertionError when an invariant does not hold between two steps."""
        self.state.validate()
        if self.state.role is Role.LEADER:
            self.replication.validate()

    # ---- messages ------------------------------------------------------------------------------------------

    def _receive(self, sender: int, message: Message) -> None:
        if sender not in self.state.others:
            return
        if isinstance(message, VoterStatus):
            self._on_voter_status(sender, message)
            return
        if self.membership.is_stale(sender):
            return
        match message:
            case AppendEntries():
                self.follower.on_append(sender, message)
            case AppendReply() | SnapshotReply():
                self._on_acknowledgement(sender, message)
            case VoteRequest(preliminary=True):
                self.election.on_pre_vote_request(sender, message)
            case VoteRequest():
                self.election.on_vote_request(sender, message)
            case VoteReply():
                if self.election.on_vote_reply(sender, message):
                    self.become_leader()
            case SnapshotChunk():
                self.follower.on_snapshot_chunk(sender, message)

    def _on_acknowledgement(self, follower: int, reply: AppendReply | SnapshotReply) -> None:
        state = self.state
        if reply.term > state.term:
            state.step_down(reply.term)
        if not self._leads(reply.term):
            return
        if reply.voting:  # only answers of journals with a vote keep the leader in office
            state.answered_at[follower] = state.now
        if self.membership.is_superseded(follower, reply.journal):
            return
        if isinstance(reply, SnapshotReply):
            self.replication.on_snapshot_reply(follower, reply)
            return
        self.replication.on_append_reply(follower, reply)
        if reply.success and not reply.voting:
            reached = self.replication.reached(follower)
            self._returns.acknowledged(follower, reply.journal, reached, state.commit_index, state.now)

    def _leads(self, term: int) -> bool:
        """Whether an answer belongs to this leadership.  One given to an earlier leadership of the same voter
        does not count: the follower may have truncated since (docs/raft.md Q4)."""
        return self.state.role is Role.LEADER and term == self.state.term

    def _connected(self, peer: int) -> None:
        self.state.connected.add(peer)
        self.state.send(peer, self.membership.announcement())
        if self.state.role is Role.LEADER:
            self.replication.begin_again(peer)

    # ---- votes of journals ---------------------------------------------------------------------------------

    def _on_voter_status(self, sender: int, voter_status: VoterStatus) -> None:
        had_vote = self.state.voting
        if self.membership.on_voter_status(sender, voter_status):
            self._announce()
        elif had_vote and not voter_status.voting:
            self.state.send(sender, self.membership.announcement())
        if not had_vote and self.state.voting:
            self.election.began_voting()

    def _announce(self) -> None:
        for peer in self.state.connected:
            self.state.send(peer, self.membership.announcement())

    def _announce_again(self) -> None:
        """While this journal has no vote, and for a while after it took the place of a lost one: announces
        its status to the other voters again and again.  One that misses it goes on ignoring this voter."""
        state = self.state
        if (not state.voting or state.now < self._announce_until) and state.now >= self._announce_at:
            self._announce_at = state.now + state.timings.election_s_min
            self._announce()

    # ---- the tick ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """The library's tick, which calls the steps below in this order; then the frames with new entries,
        and the acknowledgements."""
        state, last_index = self.state, self.state.log.last_index
        self._library.tick()
        if state.role is Role.LEADER and state.log.last_index != last_index:
            self.send_appends()
        self.follower.send_acknowledgements()
        self._announce_again()

    def may_start_election(self) -> bool:
        return self.election.may_start()

    def become_leader(self) -> None:
        """The followers' progress begins anew, and the no-op of the new term is durable before it counts."""
        state = self.state
        state.role, state.leader_id = Role.LEADER, state.node_id
        self.replication.begin()
        self._returns.begin()
        state.no_op_index = state.append_commands(NO_OP)
        state.must_sync()
        self.send_appends()
        log.info("quorum_leader_elected", term=state.term, node=state.node_id, index=state.log.last_index)

    def apply_committed(self) -> bool:
        """Each committed entry exactly once, in order."""
        state, entries = self.state, list[Entry]()
        applied, commit = state.applied_index, state.commit_index
        if commit == applied:
            return False
        if commit > state.log.last_index or (state.role is Role.LEADER and commit > state.log.stable_index):
            have = f"{state.log.last_index}, on disk {state.log.stable_index}"
            raise RaftFatal(f"commit index {commit} is beyond what this node has ({have})")
        for command, index, term in state.log.between(applied + 1, commit):
            kind = command[:1]
            if index != applied + 1 + len(entries) or kind not in (REGULAR, NO_OP, VOTER_RETURNS):
                raise RaftFatal(
                    f"entry {index} of kind {kind!r} cannot follow entry {applied + len(entries)}"
                )
            if kind == VOTER_RETURNS and self.membership.apply_return(*decode_return(command), index):
                self.election.began_voting()
                self._announce()
                self._announce_until = state.now + ANNOUNCED_ELECTIONS * state.timings.election_s_min
            entries.append((command[1:] if kind == REGULAR else b"", index, term))
        state.applied_index = commit
        state.ready.apply.append(Committed(entries))
        if state.role is Role.LEADER and commit >= state.no_op_index:
            state.active_term = state.term
        return True

    def send_appends(self) -> None:
        state = self.state
        heartbeat = state.now >= state.heartbeat_at
        if heartbeat:
            state.heartbeat_at = state.now + state.timings.heartbeat_s
        for peer in state.connected:
            self.replication.send_to(peer, heartbeat=heartbeat, commit_news=True)

    def take_proposals(self) -> None:
        """Only the active leader takes commands, and every proposal is answered (docs/raft.md Q13)."""
        state = self.state
        if self._proposals:
            self._append_proposals()
        if state.active:
            for voter, journal in self._returns.take().items():
                index = state.append_commands(encode_return(voter, journal))
                self._returns.proposed(voter, journal, index, state.now)

    def _append_proposals(self) -> None:
        state, active, commands = self.state, self.state.active, list[bytes]()
        following, term, answers = state.log.last_index + 1, state.term, state.ready.answers
        for _ in range(min(len(self._proposals), PROPOSALS_PER_TICK_MAX)):
            proposal = self._proposals.popleft()
            size = len(proposal.command)
            if not active:
                answers.append(Refused(proposal, "not the active controller"))
            elif size > COMMAND_BYTES_MAX:
                reason = f"a command of {size} bytes is larger than {COMMAND_BYTES_MAX}"
                answers.append(Refused(proposal, reason))
            else:
                answers.append(Accepted(proposal, following + len(commands), term))
                commands.append(REGULAR + proposal.command)
        if commands:
            state.append_commands(*commands)

    # ---- snapshots -----------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Asks the state machine for a snapshot when the log is long; it is trimmed afterwards."""
        state, timings = self.state, self.state.timings
        if self._snapshot_pending:
            return
        fresh = state.applied_index - (state.snapshot.index if state.snapshot is not None else 1)
        too_many = fresh > timings.compact_after_entries
        if too_many or (fresh > 0 and state.log.size_bytes > timings.compact_after_bytes):
            self._snapshot_pending = True
            state.ready.apply.append(SnapshotWanted())

    def _snapshot_durable(self, snapshot: Snapshot | None) -> None:
        """Now, and only now, the log may be trimmed."""
        state = self.state
        self._snapshot_pending = False
        if snapshot is None:
            return
        if state.snapshot is None or snapshot.index > state.snapshot.index:
            state.snapshot = snapshot
        followers = state.connected if state.role is Role.LEADER else ()
        keep = self.replication.entries_to_keep(snapshot.index, followers)
        begin = min(snapshot.index - keep, state.applied_index)
        if begin > state.log.first_index:
            state.trim_to(begin)
