"""The quorum with one safeguard taken away each.

An ablation that no seed notices means that the safeguard is not tested.  `ABLATIONS` has for each the missing
safeguard, the parts that are replaced, and optionally a kind of run that finds it soon.  The two at the end
matter in one exact situation only, which tests/controller/test_raft_scenarios.py plays by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ....controller.raft.contract import Role
from ....controller.raft.election import Election
from ....controller.raft.follower import Follower
from ....controller.raft.journal import NO_VOTE, DurableJournal
from ....controller.raft.membership import VOTER_RETURNS, VoterMembership, decode_return
from ....controller.raft.messages import (
    AppendEntries,
    AppendReply,
    Entry,
    SnapshotReply,
    VoteRequest,
    VoterRecord,
    VoterStatus,
)
from ....controller.raft.snapshot_store import Snapshot, SnapshotStore
from ....controller.raft.state import StoreVoterRecords, VoterState
from ....controller.raft.voter import Voter
from ....controller.state.cluster_state import ClusterState
from ....controller.state.model import ApplyResult
from ....controller.state.proposers import CommandOutcome, ProposerTable
from ..disk import Lie
from .ledger import Ledger
from .machine import Answer, Machine
from .member import Parts
from .options import QuorumOptions
from .process import Process
from .schedule import Schedule

# ---- the journal and the snapshot --------------------------------------------------------------------------


class _AcknowledgesUnsynced(DurableJournal):
    """Vote and snapshot are safe, the entries are only written."""

    def sync(self) -> None:
        self._write_pending()
        self._dirty, self.durable_index = False, self._entries[-1][1]


class _ForgetsVotes(DurableJournal):
    def set_term(self, term: int, voted_for: int | None) -> None:
        self._term, self._vote = term, NO_VOTE if voted_for is None else voted_for


class _TrustsThePageCache(DurableJournal):
    """What a killed process left is taken for durable."""

    def _make_durable(self, claimed: int, data: bytes) -> None:
        pass


class _KeepsSnapshotsInMemory(SnapshotStore):
    """The journal is trimmed behind a snapshot that is not on the disk."""

    def store(self, snapshot: Snapshot) -> bool:
        if self.latest is not None and self.latest.index >= snapshot.index:
            return False
        self.latest = snapshot
        return True


class _TrimsBeforeSnapshot(Voter):
    def compact(self) -> None:
        log = self.state.log
        if len(log) > 40:
            self.state.trim_to(log.last_index - 19)


# ---- Raft's own rules --------------------------------------------------------------------------------------


class _AcknowledgesBeforeSync(Follower):
    """The right order of one step the wrong way round: acknowledgements leave before the entries are on the
    disk."""

    def send_acknowledgements(self) -> None:
        replies, self._replies = self._replies, []
        for leader, reply in replies:
            self._state.send(leader, reply)


class _TruncatesMatching(Follower):
    """Stock's rule: everything after the previous entry goes, also what agrees."""

    def _append_missing(self, previous: int, entries: tuple[Entry, ...]) -> int:
        state = self._state
        if state.commit_index <= previous < state.log.last_index:
            state.truncate_from(previous + 1)
        return super()._append_missing(previous, entries)


class _CommitsWhatItHasNotSeen(Follower):
    """Commit index taken from the leader without regard to what this frame has shown to agree."""

    def on_append(self, leader: int, message: AppendEntries) -> None:
        super().on_append(leader, message)
        state = self._state
        if message.term == state.term and state.role is not Role.LEADER:
            state.commit_index = max(state.commit_index, min(message.commit_index, state.log.last_index))


class _CommitsOlderTerms(Voter):
    """An entry of an older term counts as committed as soon as a majority has it, without an entry of the
    leader's own term."""

    def _tick(self) -> None:
        state = self.state
        if state.role is Role.LEADER:
            matches = sorted([state.log.stable_index, *state.match_index.values()])
            reached = min(matches[len(matches) - state.majority], state.log.last_index)
            if state.log.term_at(reached) < state.term:
                state.commit_index = max(state.commit_index, reached)
        super()._tick()


class _CountsAnyTerm(Voter):
    """Stock's answers carry no term: one given to an earlier leadership of the same node counts."""

    def _leads(self, term: int) -> bool:
        return super()._leads(self.state.term)


class _VotesForAnybody(Election):
    """Also for a log that is behind."""

    def is_up_to_date(self, request: VoteRequest) -> bool:
        return True


class _StandsAtOnce(Election):
    """No PreVote: a voter that receives no message raises its term."""

    def may_start(self) -> bool:
        return self.may_vote()


class _ActiveState(VoterState):
    __slots__ = ()

    @property
    def active(self) -> bool:
        return self.role is Role.LEADER


class _ActiveWhenElected(Voter):
    """The controller does not wait until the no-op of its term is applied."""

    def __init__(self, state: VoterState, now: float) -> None:
        state.__class__ = _ActiveState
        super().__init__(state, now)


# ---- voters and votes --------------------------------------------------------------------------------------


class _VotesWhileFresh(Election):
    def may_vote(self) -> bool:
        return True


class _CountsEveryVoter(Voter):
    """As if the answers of a journal without a vote were like all others."""

    def _on_acknowledgement(self, follower: int, reply: AppendReply | SnapshotReply) -> None:
        super()._on_acknowledgement(follower, reply)
        if isinstance(reply, AppendReply) and self.state.role is Role.LEADER:
            self.state.match_index[follower] = self.replication.reached(follower)


class _MajorityForms(VoterMembership):
    """A majority of fresh voters is taken for the whole."""

    def roster(self) -> tuple[VoterRecord, ...]:
        fresh = {voter: seen for voter, seen in self._seen.items() if not seen.voting and seen.empty}
        if self._journal.voting or not self._journal.is_empty or len(fresh) < (len(self._others) + 1) // 2:
            return ()
        others = [VoterRecord(voter, voter_status.journal, 0) for voter, voter_status in fresh.items()]
        return tuple(sorted([*others, VoterRecord(self._node_id, self._journal.journal_id, 0)]))

    def on_voter_status(self, voter: int, voter_status: VoterStatus) -> bool:
        news = super().on_voter_status(voter, voter_status)
        if not self.voting and self.roster():
            self._take_vote(self.roster())
        return news


class _FormsAroundSurvivors(_MajorityForms):
    """Journals without a vote form a quorum among them although others have one."""

    def roster(self) -> tuple[VoterRecord, ...]:
        if self._journal.voting or not self._journal.is_empty or self._seen.keys() != self._others:
            return ()
        others = [VoterRecord(voter, voter_status.journal, 0) for voter, voter_status in self._seen.items()]
        return tuple(sorted([*others, VoterRecord(self._node_id, self._journal.journal_id, 0)]))


class _ReturnsWhenProposed(Follower):
    """The vote is taken when the entry that gives it arrives: not committed, not yet durable."""

    def _append_missing(self, previous: int, entries: tuple[Entry, ...]) -> int:
        match, state = super()._append_missing(previous, entries), self._state
        mine = (state.node_id, state.journal_id)
        for command, index, _ in entries:
            if command[:1] == VOTER_RETURNS and decode_return(command) == mine:
                record = VoterRecord(*mine, index)
                state.voter_records[state.node_id], state.voting = record, True
                state.ready.persist.insert(0, StoreVoterRecords((record,), voting=True))
        return match


def voter_of(
    election: type[Election] = Election,
    follower: type[Follower] = Follower,
    membership: type[VoterMembership] = VoterMembership,
) -> Parts:
    """A voter with another one of its parts."""
    parts = {"election_class": election, "follower_class": follower, "membership_class": membership}
    return Parts(voter_class=type("_Voter", (Voter,), parts))


# ---- the state machine -------------------------------------------------------------------------------------


class _ReadsByRole(Machine):
    """A member that believes that it leads answers reads from its own state."""

    def read(self, answer: Answer) -> bool:
        if not self.status.active:
            return False
        answer(ApplyResult(self.state.index, self.state.term))
        return True


class _ForgetfulProposers(ProposerTable):
    def find(self, proposer: str, sequence: int) -> CommandOutcome | None:
        return None


class _AppliesTwice(Machine):
    """A command that is proposed again is applied again."""

    def turn(self) -> None:
        self.state._proposers = _ForgetfulProposers(self.state._proposers.freeze())
        super().turn()


class _ChoosesWhileApplying(Machine):
    """A value that should travel in the command is chosen where it is applied."""

    def turn(self) -> None:
        super().turn()
        if self.state.index > 20:
            self.state.controller_id = self._process.node_id


class _WithoutProducerIds(ClusterState):
    """The snapshot leaves something out."""

    def restore(self, data: bytes) -> ApplyResult:
        result = super().restore(data)
        self.next_producer_id = 0
        return result


class _WithoutNodeSettings(ClusterState):
    def restore(self, data: bytes) -> ApplyResult:
        result = super().restore(data)
        self.node_configs = {}
        return result


class _WithoutResourceSettings(ClusterState):
    def restore(self, data: bytes) -> ApplyResult:
        result = super().restore(data)
        self.resource_configs = {}
        return result


class _AnswersInTableOrder(ClusterState):
    """Tables are filled in another order by a snapshot than by the log."""

    def apply(self, index: int, term: int, command: bytes) -> ApplyResult:
        result = super().apply(index, term, command)
        return result if result.ok else replace(result, message=f"{result.message}: {', '.join(self.topics)}")


class _LooksAtNoLevel(ClusterState):
    def _require_level(self, level: int) -> None:
        pass


class _OlderNode(Machine):
    """One voter of a version that does not look at a level which the others do look at."""

    def __init__(
        self,
        process: Process,
        snapshots: SnapshotStore,
        ledger: Ledger,
        schedule: Schedule,
        options: QuorumOptions,
    ) -> None:
        if process.node_id == 1:
            self.state_class = _LooksAtNoLevel
        super().__init__(process, snapshots, ledger, schedule, options)


def _with_state(state: type[ClusterState]) -> type[Machine]:
    return type(state.__name__, (Machine,), {"state_class": state})


# ---- all of them -------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Ablation:
    """The missing safeguard. `kind` changes a drawn run so that it finds the fault sooner; the safe quorum
    must pass such a run as well."""

    parts: Parts
    kind: Callable[[QuorumOptions], QuorumOptions] = lambda options: options


def _three_voters(options: QuorumOptions) -> QuorumOptions:
    return replace(options, voters=3)


def _datagrams(options: QuorumOptions) -> QuorumOptions:
    return replace(options, datagrams=True, delay_s=0.02)


def _deposed(options: QuorumOptions) -> QuorumOptions:
    timings = replace(options.timings, batch_bytes=30, compact_after_entries=400)
    options = replace(
        options, timings=timings, delay_s=0.02, operation_every_s=0.01, datagrams=False, late_replies=False
    )
    return options.only("depose_in_turn", "isolate_leader", every_s=0.5)


def _worst_disks(options: QuorumOptions) -> QuorumOptions:
    options = replace(options, voters=3, seconds=16.0, datagrams=False, late_replies=False)
    return options.only("lose_disk_at_the_worst_time", every_s=0.3)


def _disks(options: QuorumOptions) -> QuorumOptions:
    return options.only("lose_disk", "lose_disk_at_the_worst_time", "kill", "cut_power", "mend", every_s=0.15)


def _slow(options: QuorumOptions) -> QuorumOptions:
    options = replace(options, voters=3, datagrams=False, late_replies=False, delay_s=0.002)
    return options.only("slow_disk", "cut_followers_at_acknowledgement", "mend", every_s=0.08)


def _kills(options: QuorumOptions) -> QuorumOptions:
    timings = replace(options.timings, compact_after_entries=40, trailing_entries=0)
    options = replace(options, timings=timings, operation_every_s=0.01)
    return options.only("kill_while_writing_then_cut_power", "isolate_leader", every_s=0.15)


ABLATIONS: dict[str, Ablation] = {
    "no fsync": Ablation(Parts(lies=Lie.FILE_SYNC | Lie.FOLDER_SYNC)),
    "no fsync of entries": Ablation(Parts(journal_class=_AcknowledgesUnsynced)),
    "acknowledgement before fsync": Ablation(voter_of(follower=_AcknowledgesBeforeSync), _slow),
    "lost vote": Ablation(Parts(journal_class=_ForgetsVotes)),
    "page cache trusted after a kill": Ablation(Parts(journal_class=_TrustsThePageCache), _kills),
    "snapshot not durable before the trim": Ablation(Parts(snapshots_class=_KeepsSnapshotsInMemory)),
    "trim before the snapshot": Ablation(Parts(voter_class=_TrimsBeforeSnapshot)),
    "truncation of matching entries": Ablation(voter_of(follower=_TruncatesMatching), _datagrams),
    "commit of unseen entries": Ablation(voter_of(follower=_CommitsWhatItHasNotSeen)),
    "commit of older terms": Ablation(Parts(voter_class=_CommitsOlderTerms), _deposed),
    "vote for a log that is behind": Ablation(voter_of(election=_VotesForAnybody)),
    "active before the no-op": Ablation(Parts(voter_class=_ActiveWhenElected)),
    "vote of a fresh journal": Ablation(voter_of(election=_VotesWhileFresh), _disks),
    "acknowledgement of a fresh journal": Ablation(Parts(voter_class=_CountsEveryVoter), _worst_disks),
    "formation by a majority": Ablation(voter_of(membership=_MajorityForms), _disks),
    "formation around survivors": Ablation(voter_of(membership=_FormsAroundSurvivors), _disks),
    "return when proposed": Ablation(voter_of(follower=_ReturnsWhenProposed), _worst_disks),
    "reads by role": Ablation(Parts(machine_class=_ReadsByRole)),
    "no memory of proposers": Ablation(Parts(machine_class=_AppliesTwice)),
    "choice while applying": Ablation(Parts(machine_class=_ChoosesWhileApplying)),
    "partial snapshot": Ablation(Parts(machine_class=_with_state(_WithoutProducerIds))),
    "snapshot without node settings": Ablation(Parts(machine_class=_with_state(_WithoutNodeSettings))),
    "snapshot without settings of resources": Ablation(
        Parts(machine_class=_with_state(_WithoutResourceSettings))
    ),
    "answer in the order of a table": Ablation(Parts(machine_class=_with_state(_AnswersInTableOrder))),
    "level that one node does not look at": Ablation(Parts(machine_class=_OlderNode), _three_voters),
}

NO_PREVOTE = voter_of(election=_StandsAtOnce)
"""Breaks no promise of safety; it shows in the number of terms."""
NO_TERMS_IN_ACKNOWLEDGEMENTS = Parts(voter_class=_CountsAnyTerm)
"""Does harm when an acknowledgement outlives two elections and meets the same leader again: seeds hardly get
there."""
