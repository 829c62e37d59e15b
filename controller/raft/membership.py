"""Votes of the metadata quorum: how a quorum is formed, and how a voter whose disk was lost gets its vote
back.

A journal knows everything that it ever promised; an empty folder in its place knows nothing, and would
promise the opposite. So a vote belongs to a *journal* (a random id, made with the folder) and not to a node.
A journal without a vote follows the leader as a learner: it gives no vote and no preliminary one, never
stands, and its acknowledgements say that they do not count. A journal gets its vote in one of two ways, each
durable (`VoterState.store_voter_records`) before it is used:

    no vote --- every voter says of one roster "seen; I am empty and have no vote" ----------> vote
    no vote --- applies the entry "voter N returns with journal J", being journal J of N ----> vote

**Formation.**  A journal that is empty says which roster (voter -> journal id) it would agree to: the
journals of all voters as it has seen them, all empty and without a vote.  It has a vote when all voters have
named the same roster, or when a voting journal shows a roster of a formation in which it is itself.

* Why that is safe.  Be B the moment when the youngest journal of a roster was made.  Each voter names the
  roster after B, and without a vote; a voter loses its vote only with its disk.  All voters have named it: so
  at B there was *no journal with a vote anywhere*, and what any journal promised before was lost with all
  disks, not forgotten by some.  No clock, no persistence and no fresh connection is needed: each statement is
  about the past and stays true.  If two rosters are completed, then at the later B no journal had a vote; the
  journals that get one afterwards by either roster existed then, one a voter.  One disk that survives with a
  vote (or with an entry) never agrees, so no quorum is formed anew around it.
* Why it converges.  A crash changes nothing but what was heard, which is said again.  Where some have the
  vote already, they show their roster, and the rest of it follow.  A voter whose disk is lost meanwhile is
  not in it: it comes back the other way.

**Return.**  The active leader, seeing that journal J of voter N has no vote and follows its log, appends "N
returns with J"; J has its vote when it applies that entry R, hence holds it and all before it durably.  Let t
be R's term and m the majority of n:

* R commits by m acknowledgements of journals with a vote, so not by J's: J gets no vote before R is
  committed.
* An acknowledgement that the lost journal gave is not missed.  It was given before J existed, hence before R
  was appended. What it helped to commit in a term up to t is in the log of R's leader before R (leader
  completeness: m acknowledged, m voted, and J did neither), so J holds it.  In a term T > t it cannot be: T's
  leader had m votes before that acknowledgement; one of those m is among the m that acknowledged R, later, in
  a lower term: it would not have.
* A vote that the lost journal gave to X in term T is not given twice to any effect.  T <= t: J is in term t
  at least, and its log ends at or after R: a candidate that asked in a term up to t does not have R, and J
  refuses it.  T > t: X can never win T: a voter of X among the m that acknowledged R either voted first, and
  then would not acknowledge R in t, or acknowledged first, and then refuses X, whose log, as it was when it
  asked for that vote, ends before R (nor has it an entry of a term between: that term's leader, too, would
  have had m votes above t before R).
* Where the journal of such a common voter was itself replaced meanwhile, the same holds for its own, earlier
  return: induction over the returns.  Two sets of m among n always have a common voter, also when both leave
  out the same k <= n - m voters.
* A majority of lost disks stops the quorum (fewer than m votes are left), it never forgets.  All disks lost:
  a new quorum is formed.

**A disk that was thought lost.**  A journal whose voter returned with another one is stale though it has a
vote.  Every journal that applied R knows it (`voter_records`): it ignores the stale journal and announces R
to it; that node stops, as it does when it applies R itself.  (Best effort: a member that has not applied R
does not know.  An old folder must not be put back: operations.md.)"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ...runtime import logs
from .failure import RaftFatal
from .messages import VoterRecord, VoterStatus

log = logs.get(__name__)

VOTER_RETURNS = b"\x10"  # the first byte of the entry; PySyncObj's own kinds are 0 to 3
SUPERSEDED_MAX = 64
_RETURN = struct.Struct("<ciQ")


def encode_return(voter: int, journal: int) -> bytes:
    """The entry "voter returns with this journal"."""
    return _RETURN.pack(VOTER_RETURNS, voter, journal)


def decode_return(command: bytes) -> tuple[int, int]:
    """(voter, journal) of such an entry."""
    if len(command) != _RETURN.size or command[:1] != VOTER_RETURNS:
        raise RaftFatal(f"{command[:32]!r} is not the return of a voter")
    _, voter, journal = _RETURN.unpack(command)
    return voter, journal


class JournalIdentity(Protocol):
    """What a voter knows of its own journal; `state.VoterState` and the journal itself."""

    @property
    def journal_id(self) -> int: ...

    @property
    def voting(self) -> bool: ...

    @property
    def voter_records(self) -> dict[int, VoterRecord]: ...

    @property
    def is_empty(self) -> bool: ...

    def store_voter_records(self, *voter_records: VoterRecord, voting: bool) -> None: ...


def _record_of(voter: int, roster: Collection[VoterRecord]) -> VoterRecord | None:
    return next((record for record in roster if record.voter == voter), None)


class VoterMembership:
    """One voter's view of which journals have a vote.  Pure.  (Members of consumer groups are another
    thing.)"""

    def __init__(self, node_id: int, voters: Collection[int], journal: JournalIdentity) -> None:
        self._node_id, self._journal = node_id, journal
        self._others = frozenset(voters) - {node_id}
        self._seen: dict[int, VoterStatus] = {}
        self._superseded: dict[int, deque[int]] = {}
        self._ignored: set[int] = set()  # voters whose present connection is that of a superseded journal
        self._require_all_known_voters(frozenset(voters))
        if not self._others and not journal.voting:
            journal.store_voter_records(VoterRecord(node_id, journal.journal_id, 0), voting=True)

    def _require_all_known_voters(self, voters: Collection[int]) -> None:
        """A majority of fewer voters need share no voter with a majority of all: each would be a quorum of
        its own."""
        missing = self._journal.voter_records.keys() - set(voters)
        if missing:
            raise RaftFatal(
                f"this folder is of a quorum that nodes {sorted(missing)} belong to, and "
                "controller.quorum.voters does not name them: "
                "the members of a quorum are fixed when it is made"
            )

    @property
    def voting(self) -> bool:
        return self._journal.voting

    def announcement(self) -> VoterStatus:
        """This journal's present status, as it sends it to the other voters."""
        journal = self._journal
        roster = tuple(sorted(journal.voter_records.values())) if journal.voting else self.roster()
        return VoterStatus(journal.journal_id, journal.voting, journal.is_empty, roster)

    def roster(self) -> tuple[VoterRecord, ...]:
        """The formation to which this journal would agree: the journals of all voters, if all are empty and
        without a vote; else ()."""
        journal, seen = self._journal, self._seen
        if journal.voting or not journal.is_empty or seen.keys() != self._others:
            return ()
        if any(voter_status.voting or not voter_status.empty for voter_status in seen.values()):
            return ()
        others = [VoterRecord(voter, voter_status.journal, 0) for voter, voter_status in seen.items()]
        return tuple(sorted([*others, VoterRecord(self._node_id, journal.journal_id, 0)]))

    def on_voter_status(self, voter: int, voter_status: VoterStatus) -> bool:
        """Takes the status of another voter; True when this voter's own announcement changes by it."""
        before, known = self.announcement(), self._seen.get(voter)
        if self.is_superseded(voter, voter_status.journal):
            self._ignored.add(voter)
            return False
        self._ignored.discard(voter)
        if known is not None and known.journal != voter_status.journal:
            self._superseded.setdefault(voter, deque(maxlen=SUPERSEDED_MAX)).append(known.journal)
        self._seen[voter] = voter_status
        mine = _record_of(self._node_id, voter_status.roster) if voter_status.voting else None
        if self.voting:
            self._require_not_replaced(mine, f"says node {voter}")
        elif mine is not None and self._may_take(mine):
            self._take_vote(voter_status.roster)
        else:
            roster = self.roster()
            if roster and all(other.roster == roster for other in self._seen.values()):
                self._take_vote(roster)
        return self.announcement() != before

    def _may_take(self, mine: VoterRecord) -> bool:
        """A vote of the formation counts at once.  A vote that a log entry gives counts when this journal
        applies that entry."""
        return (mine.journal, mine.since) == (self._journal.journal_id, 0)

    def _take_vote(self, roster: tuple[VoterRecord, ...]) -> None:
        self._journal.store_voter_records(*roster, voting=True)
        log.info(
            "quorum_vote_taken",
            node=self._node_id,
            journal=f"{self._journal.journal_id:016x}",
            roster=len(roster),
        )

    def _require_not_replaced(self, record: VoterRecord | None, where: str) -> None:
        """Stops the node when a newer voter record gives its vote to another journal: then this journal was
        replaced.  (The entries of returns are in the order in which the journals lived, because a leader
        proposes only living ones.)"""
        own = self._journal.voter_records.get(self._node_id)
        if (
            record is not None
            and record.journal != self._journal.journal_id
            and record.since > (own.since if own is not None else 0)
        ):
            raise RaftFatal(
                f"entry {record.since} gave the vote of node {self._node_id} to another journal "
                f"({where}): this folder is "
                "an old one that was put back; remove it, and the quorum takes the node back with an "
                "empty one"
            )

    def is_superseded(self, voter: int, journal: int) -> bool:
        """Whether this voter has since announced another journal: a message of this one is late."""
        return journal in self._superseded.get(voter, ())

    def is_stale(self, voter: int) -> bool:
        """Whether this voter's journal was replaced by another: its messages do not count."""
        if voter in self._ignored:
            return True
        record, voter_status = self._journal.voter_records.get(voter), self._seen.get(voter)
        if (
            record is None
            or voter_status is None
            or not voter_status.voting
            or record.journal == voter_status.journal
        ):
            return False
        claimed = _record_of(voter, voter_status.roster)
        return record.since > (0 if claimed is None else claimed.since)

    def apply_return(self, voter: int, journal: int, index: int) -> bool:
        """Applies the committed entry `index`, which gives the vote of `voter` to `journal`.  True: this
        journal has it now."""
        known = self._journal.voter_records.get(voter)
        if known is not None and known.since >= index:
            return False
        if voter == self._node_id and self.voting:
            self._require_not_replaced(VoterRecord(voter, journal, index), "says the log")
        gains = voter == self._node_id and journal == self._journal.journal_id and not self.voting
        if voter == self._node_id and journal != self._journal.journal_id:
            return False  # that journal is lost as well
        self._journal.store_voter_records(VoterRecord(voter, journal, index), voting=gains)
        log.info("quorum_voter_returned", voter=voter, journal=f"{journal:016x}", index=index)
        return gains

    # ---- for people ----------------------------------------------------------------------------------------

    def not_voting(self) -> tuple[int, ...]:
        """The voters known to have no vote at present."""
        without = {voter for voter, voter_status in self._seen.items() if not voter_status.voting}
        return tuple(sorted(without if self.voting else without | {self._node_id}))

    def waits_for(self) -> str:
        """Why this journal has no vote yet; "" when it has one."""
        if self.voting:
            return ""
        if not self._journal.is_empty or any(
            voter_status.voting or not voter_status.empty for voter_status in self._seen.values()
        ):
            return (
                "its folder is new in a quorum that exists: it gets its vote back as soon as there "
                "is a leader, elected by a "
                "majority of votes among the other voters"
            )
        unseen = sorted(self._others - self._seen.keys())
        if unseen:
            return (
                "its folder is new, and these voters were not seen yet: "
                f"{', '.join(map(str, unseen))}; the first start of a "
                "quorum needs all of them, one that exists takes the node back when a majority of votes runs"
            )
        return "all voters were seen, and have to agree that the quorum is formed"


@dataclass(slots=True)
class _Return:
    journal: int
    index: int
    proposed_at: float


class Returns:
    """The leader's side: the voters whose return is due.  The leader proposes each once, and again only when
    the entry did not reach the voter (it may have got a snapshot instead)."""

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._proposed: dict[int, _Return] = {}
        self._due: dict[int, int] = {}

    def begin(self) -> None:
        """A leadership begins: entries that an earlier leadership proposed may be lost."""
        self._proposed.clear()
        self._due.clear()

    def acknowledged(self, voter: int, journal: int, reached: int, commit_index: int, now: float) -> None:
        """A journal without a vote has acknowledged entry `reached`."""
        known = self._proposed.get(voter)
        if known is not None and known.journal == journal:
            has_entry = min(reached, commit_index) >= known.index
            if not has_entry or now - known.proposed_at < self._again_s:
                return
        self._due[voter] = journal

    def take(self) -> dict[int, int]:
        """Voter -> journal of those to be proposed now."""
        due, self._due = self._due, {}
        return due

    def proposed(self, voter: int, journal: int, index: int, now: float) -> None:
        self._proposed[voter] = _Return(journal, index, now)
