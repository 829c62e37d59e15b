"""Which journal gets a vote, and when: the rules of formation and return one by one, without clocks and
networks."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.controller.raft.failure import RaftFatal
from tidegate.controller.raft.journal import DurableJournal
from tidegate.controller.raft.membership import Returns, VoterMembership, decode_return, encode_return
from tidegate.controller.raft.messages import VoterStatus

VOTERS = (1, 2, 3)


class Voter:
    """A journal on its disk and its membership; `restart` forgets what was heard, `wipe` everything."""

    def __init__(
        self, node_id: int, ids: itertools.count[int], rules: type[VoterMembership] = VoterMembership
    ) -> None:
        self.node_id, self._ids, self._rules = node_id, ids, rules
        self.wipe()

    def wipe(self) -> None:
        self.disk = LyingDisk()
        self.restart()

    def restart(self) -> None:
        self.journal = DurableJournal(
            self.disk, Path("/data/raft"), node_id=self.node_id, new_id=next(self._ids)
        )
        self.membership = self._rules(self.node_id, VOTERS, self.journal)


@pytest.fixture
def voters() -> dict[int, Voter]:
    ids = itertools.count(100)
    return {node_id: Voter(node_id, ids) for node_id in VOTERS}


def tell(voters: dict[int, Voter], source: int, *targets: int) -> None:
    for target in targets:
        voters[target].membership.on_voter_status(source, voters[source].membership.announcement())


def tell_all(voters: dict[int, Voter], rounds: int = 3) -> None:
    for _ in range(rounds):
        for source in voters:
            tell(voters, source, *(target for target in voters if target != source))


def with_vote(voters: dict[int, Voter]) -> list[int]:
    return [node_id for node_id, voter in voters.items() if voter.journal.voting]


def test_all_voters_together_form_a_quorum_and_remember_it(voters: dict[int, Voter]) -> None:
    tell_all(voters)
    assert with_vote(voters) == [1, 2, 3]
    for voter in voters.values():
        voter.restart()
    assert with_vote(voters) == [1, 2, 3]
    assert {tuple(sorted(voter.journal.voter_records.values())) for voter in voters.values()} == {
        ((1, 100, 0), (2, 101, 0), (3, 102, 0))
    }


def test_a_majority_forms_no_quorum_and_names_the_missing_voters(voters: dict[int, Voter]) -> None:
    two = {node_id: voters[node_id] for node_id in (1, 3)}
    assert (
        voters[1]
        .membership.waits_for()
        .startswith("its folder is new, and these voters were not seen yet: 2, 3;")
    )
    tell_all(two)
    assert with_vote(voters) == []
    assert "not seen yet: 2;" in voters[1].membership.waits_for()
    assert voters[1].membership.not_voting() == (1, 3)


def test_a_journal_of_a_formed_quorum_opens_for_no_fewer_voters(voters: dict[int, Voter]) -> None:
    """One voter of three that is configured to be alone would be a majority of one, while the other two are a
    majority of three: two leaders of one term.  More voters than there were wait for a majority of the larger
    number."""
    tell_all(voters)
    journal = voters[1].journal
    for fewer in [(1,), (1, 2), (1, 2, 4)]:
        with pytest.raises(RaftFatal, match=r"controller\.quorum\.voters does not name them"):
            VoterMembership(1, fewer, journal)
    assert VoterMembership(1, (1, 2, 3, 4, 5), journal).voting


@pytest.mark.parametrize("trace", ["an entry", "a term"])
def test_around_a_disk_that_knows_anything_no_quorum_is_formed(voters: dict[int, Voter], trace: str) -> None:
    journal = voters[2].journal
    if trace == "a term":
        journal.set_term(1, None)
    else:
        journal.add(b"\x00x", 2, 1)
        journal.sync()
    tell_all(voters)
    assert with_vote(voters) == []
    assert "as soon as there is a leader" in voters[1].membership.waits_for()


def test_where_some_have_the_vote_already_the_rest_of_their_roster_follows(voters: dict[int, Voter]) -> None:
    tell(voters, 1, 2, 3)
    tell(voters, 2, 1, 3)
    tell(voters, 3, 1, 2)
    tell(voters, 2, 1)
    tell(voters, 3, 1)
    assert with_vote(voters) == [1]
    for voter in voters.values():
        voter.restart()
    tell(voters, 1, 3)
    assert with_vote(voters) == [1, 3]
    voters[2].wipe()
    tell_all(voters)
    assert with_vote(voters) == [1, 3], "the new journal of 2 is not in their roster"


def test_a_disk_that_is_lost_during_the_formation_only_delays_it(voters: dict[int, Voter]) -> None:
    tell(voters, 3, 1, 2)
    tell(voters, 1, 2, 3)
    tell(voters, 2, 1, 3)
    voters[3].wipe()
    tell_all(voters)
    assert with_vote(voters) == [1, 2, 3]


class FormsAtSight(VoterMembership):
    """Without the second round: the vote is taken when all were seen fresh, whatever they have become
    since."""

    def on_voter_status(self, voter: int, voter_status: VoterStatus) -> bool:
        news = super().on_voter_status(voter, voter_status)
        if not self.voting and self.roster():
            self._take_vote(self.roster())
        return news


@pytest.mark.parametrize("broken", [False, True])
def test_no_vote_existed_when_a_quorums_youngest_journal_was_made(broken: bool) -> None:
    """The moment B of the argument, over statements that come in any order and late, restarts and lost
    disks."""
    violations = formed = 0
    for seed in range(150):
        rng, ids = random.Random(seed), itertools.count(100)
        voters = {
            node_id: Voter(node_id, ids, FormsAtSight if broken else VoterMembership) for node_id in VOTERS
        }
        said: list[tuple[int, VoterStatus]] = []
        births = {voter.journal.journal_id: 0 for voter in voters.values()}
        with_a_vote: dict[int, list[float]] = {}  # journal -> from when until when
        for step in range(1, 150):
            voter, draw = voters[rng.choice(VOTERS)], rng.random()
            if draw < 0.03:
                if voter.journal.voting:
                    with_a_vote[voter.journal.journal_id][1] = step
                voter.wipe()
                births[voter.journal.journal_id] = step
            elif draw < 0.08:
                voter.restart()
            elif draw < 0.45 or not said:
                said.append((voter.node_id, voter.membership.announcement()))
            else:
                source, voter_status = rng.choice(said[-12:])
                if source == voter.node_id or voter.journal.voting:
                    continue
                voter.membership.on_voter_status(source, voter_status)
                if voter.journal.voting:
                    formed += 1
                    youngest = max(births[journal] for _, journal, _ in voter.journal.voter_records.values())
                    violations += any(since <= youngest < until for since, until in with_a_vote.values())
                    with_a_vote[voter.journal.journal_id] = [step, math.inf]
    assert formed > 100
    assert (violations > 0) is broken


def test_a_voter_returns_only_with_the_entry_that_names_its_journal(voters: dict[int, Voter]) -> None:
    tell_all(voters)
    voters[2].wipe()
    new = voters[2].journal.journal_id
    assert decode_return(encode_return(2, new)) == (2, new)
    assert not voters[2].membership.apply_return(2, 101, 7), "an entry for the journal that was lost"
    assert not voters[2].membership.apply_return(3, 102, 8)
    assert with_vote(voters) == [1, 3]
    assert not voters[1].membership.apply_return(2, new, 9)
    tell_all(voters)
    assert with_vote(voters) == [1, 3], "the record is shown, but taken only with the entry"
    assert voters[2].membership.apply_return(2, new, 9)
    voters[2].restart()
    assert with_vote(voters) == [1, 2, 3]
    assert not voters[2].membership.apply_return(2, new, 9)


def test_a_journal_that_was_replaced_does_not_count_and_stops(voters: dict[int, Voter]) -> None:
    tell_all(voters)
    stale, voters[2] = voters[2], Voter(2, itertools.count(900))
    tell_all({1: voters[1], 2: voters[2]})
    voters[1].membership.apply_return(2, 900, 9)
    voters[2].membership.apply_return(2, 900, 9)
    tell(voters, 2, 1, 3)
    assert not voters[1].membership.is_stale(2)
    voters[1].restart()
    voters[1].membership.on_voter_status(2, stale.membership.announcement())
    assert voters[1].membership.is_stale(2)
    with pytest.raises(RaftFatal, match="an old one that was put back"):
        stale.membership.on_voter_status(1, voters[1].membership.announcement())
    with pytest.raises(RaftFatal, match="says the log"):
        stale.membership.apply_return(2, 900, 9)
    # which has not heard of the return: harmless
    voters[2].membership.on_voter_status(3, voters[3].membership.announcement())


def test_a_late_message_of_a_lost_journal_changes_nothing(voters: dict[int, Voter]) -> None:
    tell_all(voters)
    late = voters[2].membership.announcement()
    voters[2].wipe()
    tell(voters, 2, 1)
    assert voters[1].membership.not_voting() == (2,)
    assert not voters[1].membership.on_voter_status(2, late)
    assert voters[1].membership.not_voting() == (2,)
    assert voters[1].membership.is_superseded(2, late.journal)
    assert voters[1].membership.is_stale(2)
    tell(voters, 2, 1)
    assert not voters[1].membership.is_stale(2)


def test_a_return_is_proposed_again_only_when_it_had_no_effect() -> None:
    returns = Returns(again_s=1.0)
    returns.begin()
    returns.acknowledged(2, 55, 4, 9, now=10.0)
    assert returns.take() == {2: 55}
    assert returns.take() == {}
    returns.proposed(2, 55, 10, now=10.0)
    for match, commit in ((9, 20), (10, 9)):
        returns.acknowledged(2, 55, match, commit, now=20.0)
    returns.acknowledged(2, 55, 12, 12, now=10.5)
    assert returns.take() == {}
    returns.acknowledged(2, 55, 12, 12, now=12.0)
    assert returns.take() == {2: 55}, "a snapshot took the place of the entry"
    returns.acknowledged(2, 56, 1, 12, now=12.0)
    assert returns.take() == {2: 56}, "its disk was lost once more"
