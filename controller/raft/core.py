"""PySyncObj's Raft, hardened.  Everything that touches a private name of `SyncObj` stands in this file.

What is kept of PySyncObj 0.3.17 (a guard test pins version and hash): its state, the election timer, the
start of an election, the counting of commits, the leader's fall-back, the order of one tick.  What is
replaced, and why, stands at each override.

Order within one round (`thread.py` drives it): 1. `sync` - one fdatasync for everything added in the round
before; 2. the messages; 3. `tick` - elections, commit, apply, new commands, frames to followers; 4. `sync`
when the messages added something, then the acknowledgements.  So (docs/raft.md Q1 to Q3) no answer speaks of
an entry, a term or a vote that is not on this disk.  A leader's frames may leave before its own sync, but it
counts itself only for entries that this sync has covered.

A journal without a vote (`membership`) gives none, does not stand, and does not count.

A Raft invariant that does not hold raises RaftFatal: the node stops rather than guess.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.version import VERSION
from tidegate.runtime import faults, logs
from tidegate.runtime.calm_logs import Outage

from .contract import FollowerView, Outbox, Proposal, QuorumStatus, RaftTimings, StateMachine
from .failure import RaftFatal
from .library_ports import NoPoller, VoteRequests
from .matching import align, append_missing, conflict_start
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
from .snapshot_store import SnapshotAssembly, SnapshotStore

if TYPE_CHECKING:
    from .journal import DurableJournal

log = logs.get(__name__)

LIBRARY_VERSION = "0.3.17"
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
COMMAND_BYTES_MAX = 512 << 10
PROPOSALS_PER_TICK_MAX = 2000


class RaftCore(SyncObj):  # type: ignore[misc]
    """One voter.  Not thread-safe: only the Raft thread (or the simulator) calls it."""

    _SyncObj__newAppendEntriesTime: float
    voter_membership_class: type[VoterMembership] = VoterMembership

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
    ) -> None:
        if VERSION != LIBRARY_VERSION:
            raise RaftFatal(
                f"PySyncObj {VERSION} is installed; the overrides are written for exactly {LIBRARY_VERSION}"
            )
        self._journal, self._snapshots, self._machine, self._outbox = journal, snapshots, machine, outbox
        self._timings, self._random = timings, random
        self._replies: list[tuple[int, AppendReply | SnapshotReply]] = []
        self._proposals: deque[Proposal] = deque()
        self._votes: set[int] = set()
        # (the term asked for, the voters that would grant it)
        self._pre_vote: tuple[int, set[int]] | None = None
        # (monotonic seconds; the last term for which this voter let another candidate go first)
        self._pre_vote_again_at, self._gave_way_in = 0.0, 0
        self._leader_heard_at = float("-inf")
        self._active_term = -1
        self._membership = self.voter_membership_class(node_id, voters, journal)
        self._returns = Returns(timings.election_s_max + 2 * timings.heartbeat_s)
        self._announce_at, self._waits_for = 0.0, ""
        self._without_vote = Outage(log, "quorum_no_vote")
        self._assembly = SnapshotAssembly()
        self._snapshot_pending = False
        self._reported: tuple[object, ...] = ()
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=True,
            commandsWaitLeader=False,
            dynamicMembershipChange=False,
            fullDumpFile=None,
            journalFile=None,
            raftMinTimeout=timings.election_s_min,
            raftMaxTimeout=timings.election_s_max,
            appendEntriesPeriod=timings.heartbeat_s,
            leaderFallbackTimeout=timings.leader_fallback_s,
            appendEntriesBatchSizeBytes=timings.batch_bytes,
            connectionTimeout=max(3.5, timings.election_s_max),
        )
        others = [Node(other) for other in voters if other != node_id]
        super().__init__(Node(node_id), others, conf, transport=VoteRequests(outbox))
        self._poller = NoPoller()
        self._replication = Replication(self, journal, snapshots, outbox)
        self._SyncObj__needLoadDumpFile = False
        self._take_over_journal()

    def _take_over_journal(self) -> None:
        """Puts the durable journal in the place of the one in memory that `SyncObj` made, and starts from the
        snapshot."""
        journal, snapshot = self._journal, self._snapshots.latest
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = max(journal.getCurrentTerm(), journal[-1][2])
        self._SyncObj__votedForNodeId = (
            journal.getVotedForNodeId() if journal.getCurrentTerm() >= journal[-1][2] else None
        )
        self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied = 1
        if snapshot is not None:
            align(journal, snapshot)
            self._SyncObj__raftCommitIndex = self._SyncObj__raftLastApplied = snapshot.index
            self._machine.installed(snapshot)
        elif journal[0][1] != 1:
            raise RaftFatal(
                f"the journal begins at entry {journal[0][1]} and there is no snapshot of what was before"
            )
        if not self._SyncObj__otherNodes:
            self._SyncObj__raftElectionDeadline = self.now()  # a quorum of one waits for no other voter

    # ---- names for PySyncObj's state -----------------------------------------------------------------------

    @staticmethod
    def now() -> float:
        """PySyncObj's monotonic clock (the simulator replaces it in the library's module)."""
        return float(library.monotonicTime())

    @property
    def term(self) -> int:
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def role(self) -> int:
        return int(self._SyncObj__raftState)

    @property
    def commit_index(self) -> int:
        return int(self._SyncObj__raftCommitIndex)

    @property
    def applied_index(self) -> int:
        return int(self._SyncObj__raftLastApplied)

    @property
    def leader_id(self) -> int:
        leader = self._SyncObj__raftLeader
        return -1 if leader is None else int(leader.id)

    @property
    def timings(self) -> RaftTimings:
        return self._timings

    @property
    def lost_leader(self) -> bool:
        """Whether the connection to the leader broke, and no leader has sent a message since."""
        return self._leader_heard_at == float("-inf")

    @property
    def active(self) -> bool:
        return self.role == LEADER and self._active_term == self.term

    @property
    def last_index(self) -> int:
        return self._journal[-1][1]

    @property
    def _majority(self) -> int:
        return (len(self._SyncObj__otherNodes) + 1) // 2 + 1

    def status(self) -> QuorumStatus:
        return QuorumStatus(
            self.role,
            self.term,
            self.leader_id,
            self.active,
            self.commit_index,
            self.last_index,
            connected=tuple(sorted(node.id for node in self._SyncObj__connectedNodes)),
            not_voting=self._membership.not_voting(),
            waits_for=self._waits_for if self._without_vote.lasts else "",
        )

    def followers(self) -> dict[int, FollowerView]:
        """The acknowledged index of each follower, and how long it has been silent; empty unless this node
        leads."""
        return (
            {node.id: self._replication.view(node) for node in self._SyncObj__otherNodes}
            if self.role == LEADER
            else {}
        )

    # ---- driven by the thread ------------------------------------------------------------------------------

    def propose(self, proposal: Proposal) -> None:
        """Queues the proposal for the next tick."""
        self._proposals.append(proposal)

    def sync(self) -> None:
        self._journal.sync()

    def tick(self) -> bool:
        """One step: elections, commits, queued proposals, frames.  True: the thread must run another round at
        once."""
        last_index = self.last_index
        self._onTick(0)
        if self.role == LEADER and self.last_index != last_index:
            self._SyncObj__sendAppendEntries()
        self._flush_replies()
        self._ask_for_vote()
        self._report()
        return self._journal.dirty or bool(self._proposals)

    def seconds_to_wake(self) -> float:
        """How long the thread may sleep if no event arrives."""
        now = self.now()
        if self.role == LEADER:
            due = self._SyncObj__newAppendEntriesTime
        elif not self._membership.voting:
            due = self._announce_at
        else:
            due = max(self._SyncObj__raftElectionDeadline, self._pre_vote_again_at)
            if self._SyncObj__raftElectionDeadline < now and not self.hasQuorum:
                due = now + self._timings.election_s_min  # a new connection wakes the thread before that
        return max(0.0, due - now) + 0.001

    def peer_connected(self, node_id: int) -> None:
        node = Node(node_id)
        self._SyncObj__connectedNodes.add(node)
        self._outbox.send(node_id, self._membership.announcement())
        if self.role == LEADER:
            self._replication.begin_again(node)

    def peer_disconnected(self, node_id: int) -> None:
        """Losing the connection to the leader hurries the election; PreVote stops it when only this
        connection was lost."""
        self._SyncObj__connectedNodes.discard(Node(node_id))
        if self.leader_id == node_id and self.role == FOLLOWER:
            self._leader_heard_at = float("-inf")
            soon = self.now() + self._timings.hurry_s * (0.2 + self._random())
            self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def receive(self, node_id: int, message: Message) -> None:
        """A message of a voter, over its present connection."""
        node = Node(node_id)
        if node not in self._SyncObj__otherNodes:
            return
        if isinstance(message, VoterStatus):
            self._on_voter_status(node_id, message)
        elif not self._membership.is_stale(node_id):
            self._on_message(node, message)

    def _on_message(self, node: Any, message: Message) -> None:
        match message:
            case AppendEntries():
                self._on_append(node, message)
            case AppendReply():
                if self._leads(node, message.term) and self._is_present_journal(node, message):
                    self._replication.on_append_reply(node, message)
                    if message.success and not message.voting:
                        reached = self._replication.reached(node)
                        self._returns.follows(
                            node.id, message.journal, reached, self.commit_index, self.now()
                        )
            case VoteRequest(preliminary=True):
                self._on_pre_vote_request(node, message)
            case VoteRequest():
                self._on_vote_request(node, message)
            case VoteReply():
                self._on_vote_reply(node, message)
            case SnapshotChunk():
                self._on_snapshot_chunk(node, message)
            case SnapshotReply():
                if self._leads(node, message.term) and self._is_present_journal(node, message):
                    self._replication.on_snapshot_reply(node, message)

    # ---- votes of journals ---------------------------------------------------------------------------------

    def _on_voter_status(self, node_id: int, voter_status: VoterStatus) -> None:
        had_vote = self._membership.voting
        if self._membership.on_voter_status(node_id, voter_status):
            self._announce()
        elif had_vote and not voter_status.voting:
            self._outbox.send(node_id, self._membership.announcement())
        if not had_vote and self._membership.voting:
            self._delay_first_election()

    def _delay_first_election(self) -> None:
        """All voters get their vote at the same time: a short random wait keeps them from all starting an
        election at once."""
        self._SyncObj__raftElectionDeadline = self.now() + self._timings.election_s_min * self._random()

    def _announce(self) -> None:
        for node in self._SyncObj__connectedNodes:
            self._outbox.send(node.id, self._membership.announcement())

    def _ask_for_vote(self) -> None:
        """Without a vote: announces that to the other voters and to the log, again and again."""
        if self._membership.voting:
            self._without_vote.over(self.now(), node=self.selfNode.id)
        elif self.now() >= self._announce_at:
            self._announce_at = self.now() + self._timings.election_s_min
            self._announce()
            self._waits_for = waits_for = self._membership.waits_for()
            self._without_vote.failed(self.now(), news=waits_for, node=self.selfNode.id, waits_for=waits_for)

    def _may_vote(self) -> bool:
        return self._membership.voting

    def _is_present_journal(self, node: Any, reply: AppendReply | SnapshotReply) -> bool:
        """Whether the answer is from the voter's present journal.  Only answers of journals with a vote keep
        the leader leading."""
        if reply.voting:
            self._SyncObj__lastResponseTime[node] = self.now()
        return not self._membership.is_superseded(node.id, reply.journal)

    def bind_cluster(self, cluster_id: str) -> None:
        self._journal.bind_cluster(cluster_id)

    def snapshot_stored(self, index: int | None) -> None:
        """The wanted snapshot is durable up to `index` (None: none was made): now, and only now, the journal
        may be trimmed."""
        self._snapshot_pending = False
        if index is None:
            return
        faults.point("raft.before_trim", index=index)
        followers = self._SyncObj__connectedNodes if self.role == LEADER else ()
        keep = self._replication.entries_to_keep(index, followers)
        position = min(index - keep, self.applied_index) - self._journal[0][1]
        if position > 0:
            self._journal.deleteEntriesTo(position)

    def close(self) -> None:
        self._journal.sync()
        self._journal._destroy()
        for proposal in self._proposals:
            proposal.refused("the node is stopping")

    def _report(self) -> None:
        links, waits_for = tuple(self._SyncObj__connectedNodes), self._without_vote.lasts and self._waits_for
        news = (
            self.role,
            self.term,
            self.leader_id,
            self.active,
            links,
            self._membership.not_voting(),
            waits_for,
        )
        if news != self._reported:  # without the indexes, which change all the time
            self._reported = news
            self._machine.status_changed(self.status())

    # ---- overrides: time, terms, elections -----------------------------------------------------------------

    def _SyncObj__generateRaftTimeout(self) -> float:
        """Replaced: randomness comes from the Clock port."""
        low, high = self._timings.election_s_min, self._timings.election_s_max
        return low + (high - low) * self._random()

    def _SyncObj__setCurrentTerm(self, term: int, vote: int | None) -> None:
        """Replaced: durable first (stock writes without fsync), and the votes counted belong to one term."""
        self._journal.setCurrentTerm(term, vote)
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = vote
        self._votes = {self.selfNode.id} if vote == self.selfNode.id else set()

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Replaced: stock asks this when the election timer has run out; it became the PreVote gate.  A node
        that could not win does not raise the term, so a node that returns from a network partition does not
        depose a good leader."""
        if not self._SyncObj__otherNodes:
            return True
        if not self.hasQuorum or not self._may_vote():
            return False
        wanted_term = self.term + 1
        if (
            self._pre_vote is not None
            and self._pre_vote[0] == wanted_term
            and len(self._pre_vote[1]) >= self._majority
        ):
            self._pre_vote = None
            return True
        if self.now() >= self._pre_vote_again_at:
            self._pre_vote, cut = (wanted_term, {self.selfNode.id}), self._leader_heard_at == float("-inf")
            # After a lost connection to the leader it asks again soon: the others may notice only now that
            # the leader is gone.
            pause_s = self._timings.hurry_s if cut else self._SyncObj__generateRaftTimeout() / 2
            self._pre_vote_again_at = self.now() + pause_s
            _, last_index, last_term = self._journal[-1]
            for node in self._SyncObj__otherNodes:
                self._outbox.send(node.id, VoteRequest(wanted_term, last_index, last_term, preliminary=True))
        return False

    def _SyncObj__onBecomeLeader(self) -> None:
        """Extended: the followers' progress begins anew, and the no-op is durable before this tick counts
        this node for it."""
        self._replication.begin(
            self._SyncObj__otherNodes, self._SyncObj__raftNextIndex, self._SyncObj__raftMatchIndex
        )
        self._returns.begin()
        super()._SyncObj__onBecomeLeader()
        self._journal.sync()
        log.info("quorum_leader_elected", term=self.term, node=self.selfNode.id, index=self.last_index)

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        _, last_index, last_term = self._journal[-1]
        return (request.last_term, request.last_index) >= (last_term, last_index)

    def _on_pre_vote_request(self, node: Any, request: VoteRequest) -> None:
        leader_is_silent = self.now() - self._leader_heard_at > self._timings.election_s_min
        granted = (
            request.term > self.term
            and self.role != LEADER
            and leader_is_silent
            and self._is_up_to_date(request)
        )
        granted = granted and self._may_vote()
        stands_too = self._pre_vote is not None and self._pre_vote[0] == request.term
        if granted and self._gave_way_in < request.term and (node.id > self.selfNode.id or not stands_too):
            # Two candidates at once would split the votes and lose a whole timeout.  Once a term: the other
            # may fail to win.
            self._gave_way_in, self._pre_vote, until = (
                request.term,
                None,
                self.now() + self._timings.election_s_min,
            )
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, until)
        self._outbox.send(
            node.id, VoteReply(request.term if granted else self.term, granted, preliminary=True)
        )

    def _on_vote_request(self, node: Any, request: VoteRequest) -> None:
        if not self._may_vote():
            self._outbox.send(node.id, VoteReply(self.term, granted=False, preliminary=False))
            return
        if request.term > self.term:
            self._step_down(request.term)
        voted_for = self._SyncObj__votedForNodeId
        granted = request.term == self.term and voted_for in (None, node.id) and self.role != LEADER
        granted = granted and self._is_up_to_date(request)
        if granted:
            self._SyncObj__setCurrentTerm(request.term, node.id)  # the vote is on disk before it is given
            self._SyncObj__raftElectionDeadline = self.now() + self._SyncObj__generateRaftTimeout()
        self._outbox.send(node.id, VoteReply(self.term, granted, preliminary=False))

    def _on_vote_reply(self, node: Any, reply: VoteReply) -> None:
        if not reply.granted:
            if reply.term > self.term:
                self._step_down(reply.term)
        elif reply.preliminary:
            if self._pre_vote is not None and reply.term == self._pre_vote[0]:
                self._pre_vote[1].add(node.id)
        elif self.role == CANDIDATE and reply.term == self.term:
            self._votes.add(node.id)  # a set: a repeated reply is one vote
            if len(self._votes) >= self._majority:
                self._SyncObj__onBecomeLeader()

    # ---- overrides: commands, apply, compaction ------------------------------------------------------------

    def _checkCommandsToApply(self) -> None:
        """Replaced: only the active leader takes commands, nothing is forwarded, and every proposal is
        answered."""
        for _ in range(min(len(self._proposals), PROPOSALS_PER_TICK_MAX)):
            proposal = self._proposals.popleft()
            if not self.active:
                proposal.refused("not the active controller")
            elif len(proposal.command) > COMMAND_BYTES_MAX:
                proposal.refused(
                    f"a command of {len(proposal.command)} bytes is larger than {COMMAND_BYTES_MAX}"
                )
            else:
                index = self.last_index + 1
                self._journal.add(REGULAR + proposal.command, index, self.term)
                proposal.accepted(index, self.term)
        if self.active:
            for voter, journal in self._returns.take().items():
                index = self.last_index + 1
                self._journal.add(encode_return(voter, journal), index, self.term)
                self._returns.proposed(voter, journal, index, self.now())

    def _SyncObj__applyLogEntries(self) -> bool:
        """Replaced: each entry exactly once and in order (stock applies one twice when a callback raises), as
        bytes."""
        applied, commit, first = self.applied_index, self.commit_index, self._journal[0][1]
        if commit == applied:
            return False
        if commit > self.last_index or (self.role == LEADER and commit > self._journal.durable_index):
            raise RaftFatal(
                f"commit index {commit} is beyond what this node has ({self.last_index}) or has on disk"
            )
        batch: list[Entry] = []
        for command, index, term in self._journal[applied + 1 - first : commit + 1 - first]:
            kind = command[:1]
            if index != applied + 1 + len(batch) or kind not in (REGULAR, NO_OP, VOTER_RETURNS):
                raise RaftFatal(f"entry {index} of kind {kind!r} cannot follow entry {applied + len(batch)}")
            if kind == VOTER_RETURNS and self._membership.returned(*decode_return(command), index):
                self._delay_first_election()
                self._announce()
            batch.append((command[1:] if kind == REGULAR else b"", index, term))
        self._SyncObj__raftLastApplied = commit
        self._machine.applied(batch)
        if self.role == LEADER and self.term != self._active_term and commit >= self._SyncObj__noopIDx:
            self._active_term = self.term
        return True

    def _SyncObj__tryLogCompaction(self) -> None:
        """Replaced: the state machine makes the snapshot when asked, without a fork, and the journal is
        trimmed afterwards."""
        if self._snapshot_pending:
            return
        latest = self._snapshots.latest
        fresh = self.applied_index - (latest.index if latest is not None else 1)
        too_many = fresh > self._timings.compact_after_entries
        if too_many or (fresh > 0 and self._journal.size_bytes > self._timings.compact_after_bytes):
            self._snapshot_pending = True
            self._machine.snapshot_wanted()

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise RaftFatal("PySyncObj's own dump files are never used")

    def _SyncObj__onMessageReceived(self, node: Any, message: Any) -> None:
        raise RaftFatal("PySyncObj's own messages are never used")

    # ---- the follower --------------------------------------------------------------------------------------

    def _accept_leader(self, node: Any, term: int) -> bool:
        """Whether `node` leads in a term not older than this voter's; then this voter follows it."""
        if term < self.term:
            # our term deposes it
            self._replies.append((node.id, self._append_reply(False, self.last_index + 1, 0)))
            return False
        if term > self.term:
            self._step_down(term)
        if self.role == LEADER or self.leader_id not in (-1, node.id):
            raise RaftFatal(f"two leaders in term {term}: {node.id} and {self.leader_id}")
        self._SyncObj__raftElectionDeadline = self.now() + self._SyncObj__generateRaftTimeout()
        self._pre_vote = None
        self._leader_heard_at = self.now()
        self._SyncObj__raftLeader = node
        self._SyncObj__setState(FOLLOWER)
        return True

    def _on_append(self, node: Any, message: AppendEntries) -> None:
        """Stock truncates everything after the previous entry, also what agrees: a late frame then takes back
        what was acknowledged.  This override truncates only at a conflict, and never below the commit
        index."""
        if not self._accept_leader(node, message.term):
            return
        self._SyncObj__leaderCommitIndex = message.commit_index
        journal = self._journal
        previous, previous_term, entries = message.previous_index, message.previous_term, message.entries
        first, last = journal[0][1], self.last_index
        if previous < first:  # what is before our journal is committed, so it agrees
            entries = tuple(entry for entry in entries if entry[1] > first)
            if not entries:
                self._reply(node, True, first + 1, message.previous_index)
                return
            previous, previous_term = first, journal[0][2]
        if previous > last:
            self._reply(node, False, last + 1, message.previous_index)
            return
        if journal[previous - first][2] != previous_term:
            self._reply(
                node, False, conflict_start(journal, self.commit_index, previous), message.previous_index
            )
            return
        match = self._append_missing(previous, entries)
        self._reply(node, True, match + 1, message.previous_index)
        if min(message.commit_index, match) > self.commit_index:  # only what this frame has shown to agree
            self._SyncObj__raftCommitIndex = min(message.commit_index, match)

    def _append_missing(self, previous: int, entries: tuple[Entry, ...]) -> int:
        return append_missing(self._journal, self.commit_index, previous, entries)

    def _reply(self, node: Any, success: bool, next_index: int, previous_index: int) -> None:
        """Queued until the journal is synced; of several successes to one leader only the highest matters."""
        reply = self._append_reply(success, next_index, previous_index)
        if success:
            self._replies = [
                (to, kept)
                for to, kept in self._replies
                if not (
                    to == node.id
                    and isinstance(kept, AppendReply)
                    and kept.success
                    and kept.next_index <= next_index
                )
            ]
        self._replies.append((node.id, reply))

    def _append_reply(self, success: bool, next_index: int, previous_index: int) -> AppendReply:
        journal = self._journal
        return AppendReply(self.term, success, next_index, previous_index, journal.journal_id, journal.voting)

    def _flush_replies(self) -> None:
        if not self._replies:
            return
        self._journal.sync()
        replies, self._replies = self._replies, []
        for node_id, reply in replies:
            if reply.term == self.term:  # else it was given in an older term: its promise may no longer hold
                self._outbox.send(node_id, reply)

    def _on_snapshot_chunk(self, node: Any, chunk: SnapshotChunk) -> None:
        if not self._accept_leader(node, chunk.term):
            return
        snapshot = self._assembly.add(chunk)
        if snapshot is None:
            same_file = self._assembly.checksum == chunk.checksum
            received = len(self._assembly.received) if same_file else 0
            self._replies.append((node.id, self._snapshot_reply(chunk, received, 0)))
            return
        if snapshot.index > self.applied_index:
            self._snapshots.store(snapshot)  # durable before anything is dropped for it
            faults.point("raft.snapshot.before_reset", index=snapshot.index)
            align(self._journal, snapshot)
            self._SyncObj__raftLastApplied = snapshot.index
            self._SyncObj__raftCommitIndex = max(snapshot.index, self.commit_index)
            self._machine.installed(snapshot)
            log.info(
                "quorum_snapshot_installed",
                index=snapshot.index,
                term=snapshot.term,
                file_bytes=len(snapshot.file),
            )
        self._replies.append((node.id, self._snapshot_reply(chunk, chunk.total_bytes, self.applied_index)))

    def _snapshot_reply(self, chunk: SnapshotChunk, received: int, last_index: int) -> SnapshotReply:
        return SnapshotReply(
            self.term, chunk.checksum, received, last_index, self._journal.journal_id, self._journal.voting
        )

    # ---- the leader ----------------------------------------------------------------------------------------

    def _leads(self, node: Any, term: int) -> bool:
        """Whether an answer belongs to this leadership.  Stock's answers carry no term: one given to an
        earlier leadership of the same node counted, although the follower had truncated since."""
        if term > self.term:
            self._step_down(term)
            return False
        return self.role == LEADER and term == self.term

    def _SyncObj__sendAppendEntries(self) -> None:
        """Replaced: stock never reconciles a divergent tail with a backlog above its batch size, and sends a
        snapshot again with every heartbeat."""
        now = self.now()
        heartbeat = now >= self._SyncObj__newAppendEntriesTime
        if heartbeat:
            self._SyncObj__newAppendEntriesTime = now + self._timings.heartbeat_s
        for node in self._SyncObj__connectedNodes:
            self._replication.send_to(node, heartbeat=heartbeat, commit_news=True)
