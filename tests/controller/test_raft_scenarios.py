"""Single rules of the quorum, played by hand on the simulator's parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from quorum_simulator import Simulation, _virtual_clock
from tidegate.controller.raft.contract import Proposal
from tidegate.controller.raft.core import LEADER, RaftCore
from tidegate.controller.raft.failure import RaftFatal
from tidegate.controller.raft.messages import AppendEntries, AppendReply, Message, VoteReply, VoteRequest


class CountsAnyTerm(RaftCore):
    """Stock's replies: no term in them."""

    def _leads(self, node: object, term: int) -> bool:
        return super()._leads(node, self.term)


@contextlib.contextmanager
def quorum(core_class: type[RaftCore] = RaftCore, voters: int = 3) -> Iterator[Simulation]:
    simulation = Simulation(1, voters, faults=False, core_class=core_class, delay_s=0.002)
    with _virtual_clock(simulation):
        for node_id in simulation.ids:
            simulation.start(node_id)
        simulation.connect_all()
        yield simulation


def steps(simulation: Simulation, seconds: float) -> None:
    end = simulation.now + seconds
    while simulation.now < end:
        simulation.step()


def leader(simulation: Simulation) -> RaftCore:
    for _ in range(2000):
        simulation.step()
        active = [core for core in simulation.cores.values() if core.active]
        if active:
            return active[0]
    raise AssertionError("no leader")


def others(simulation: Simulation, core: RaftCore) -> list[int]:
    return [node_id for node_id in simulation.ids if node_id != core.selfNode.id]


def cut_off(simulation: Simulation, node_id: int) -> None:
    for other in simulation.ids:
        if other != node_id:
            simulation.disconnect(node_id, other)
            simulation.cuts.add(frozenset((node_id, other)))


@pytest.mark.parametrize(("core_class", "counted"), [(RaftCore, False), (CountsAnyTerm, True)])
def test_an_acknowledgement_given_to_an_earlier_leadership_does_not_count(core_class: type[RaftCore], counted: bool) -> None:
    """The follower has truncated since, so what it acknowledged then is gone.  Without terms in the replies it commits."""
    with quorum(core_class) as simulation:
        core = leader(simulation)
        for other in others(simulation, core):
            simulation.deaf.update({(core.selfNode.id, other), (other, core.selfNode.id)})
        committed = core.commit_index
        core.propose(Proposal(b"only here", lambda index, term: None, lambda reason: None))
        core.tick()
        core.sync()
        stale = AppendReply(core.term - 1, True, core.last_index + 1, core.last_index - 1, journal=1, voting=True)
        core.receive(others(simulation, core)[0], stale)
        core.tick()
        assert (core.commit_index > committed) is counted


def test_a_late_frame_never_takes_back_what_agrees() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        for _ in range(5):
            simulation.propose()
            steps(simulation, 0.1)
        follower = simulation.cores[others(simulation, core)[0]]
        before = list(follower._journal[:])
        early = follower._journal[2]
        late = AppendEntries(core.term, core.commit_index, early[1] - 1, follower._journal[1][2], (early,))
        follower.receive(core.selfNode.id, late)
        assert follower._journal[:] == before


def test_a_node_that_comes_back_from_a_cut_does_not_depose_the_leader() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        lonely = others(simulation, core)[0]
        cut_off(simulation, lonely)
        steps(simulation, 5.0)
        assert simulation.cores[lonely].term == core.term, "PreVote: no election that cannot be won"
        simulation.cuts.clear()
        simulation.connect_all()
        steps(simulation, 2.0)
        assert core.role == LEADER and {c.term for c in simulation.cores.values()} == {core.term}


def test_a_leader_without_a_majority_steps_down() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        cut_off(simulation, core.selfNode.id)
        steps(simulation, 2 * simulation.timings.leader_fallback_s)
        assert core.role != LEADER and not core.active


def test_a_vote_is_given_once_a_term_and_only_to_a_log_that_is_not_behind() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        steps(simulation, 0.5)
        voter_id, third = others(simulation, core)
        voter, sent = simulation.cores[voter_id], list[tuple[int, Message]]()
        voter._outbox.send = lambda node_id, message: sent.append((node_id, message))
        term, last = core.term + 1, voter._journal[-1]
        voter.receive(third, VoteRequest(term, last[1] - 1, last[2], preliminary=False))
        voter.receive(third, VoteRequest(term, last[1], last[2], preliminary=False))
        voter.receive(core.selfNode.id, VoteRequest(term, last[1], last[2], preliminary=False))
        voter.receive(third, VoteRequest(term, last[1], last[2], preliminary=False))
        replies = [(to, message.granted) for to, message in sent if isinstance(message, VoteReply)]
        assert replies == [(third, False), (third, True), (core.selfNode.id, False), (third, True)]
        assert voter._journal.getVotedForNodeId() == third


def test_a_repeated_vote_counts_once() -> None:
    with quorum(voters=5) as simulation:
        steps(simulation, 0.05)
        core = simulation.cores[1]
        core._SyncObj__setState(1)
        core._SyncObj__setCurrentTerm(core.term + 1, 1)
        for _ in range(5):
            core.receive(2, VoteReply(core.term, granted=True, preliminary=False))
        assert core.role != LEADER
        core.receive(3, VoteReply(core.term, granted=True, preliminary=False))
        assert core.role == LEADER


def test_a_leader_that_contradicts_committed_entries_stops_the_follower() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        simulation.propose()
        steps(simulation, 0.5)
        follower = simulation.cores[others(simulation, core)[0]]
        with pytest.raises(RaftFatal, match="committed entry"):
            follower.receive(core.selfNode.id, AppendEntries(core.term, 1, follower.commit_index, core.term + 5, ()))
        first = follower._journal[1]
        forged = replace(AppendEntries(core.term, 1, 1, 0, ()), entries=((b"\x00forged", 2, first[2] + 7),))
        with pytest.raises(RaftFatal, match="committed entry"):
            follower.receive(core.selfNode.id, forged)


def test_a_command_that_is_too_large_or_comes_to_a_follower_is_refused_and_not_appended() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        follower = simulation.cores[others(simulation, core)[0]]
        refusals: list[str] = []
        last = core.last_index
        core.propose(Proposal(bytes(600 << 10), lambda index, term: None, refusals.append))
        follower.propose(Proposal(b"x", lambda index, term: None, refusals.append))
        steps(simulation, 0.2)
        assert len(refusals) == 2 and core.last_index == last


def test_losing_the_connection_to_the_leader_hurries_the_election() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        steps(simulation, 1.0)
        simulation.crash(core.selfNode.id)
        began = simulation.now
        new = leader(simulation)
        assert new.term > core.term and simulation.now - began < simulation.timings.election_s_min + 0.2


def test_a_follower_far_behind_gets_the_snapshot_once_and_goes_on_from_there() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        behind = others(simulation, core)[0]
        simulation.crash(behind)
        for _ in range(400):
            simulation.propose()
            simulation.step()
        steps(simulation, 1.0)
        assert core._journal[0][1] > 50, "the leader has trimmed"
        simulation.start(behind)
        simulation.connect_all()
        steps(simulation, 2.0)
        returned, machine = simulation.cores[behind], simulation.machines[behind]
        assert returned.applied_index == core.applied_index
        assert machine.chain == simulation.machines[core.selfNode.id].chain


def without_disk(simulation: Simulation, node_id: int) -> RaftCore:
    simulation.crash(node_id)
    simulation.wipe(node_id)
    simulation.start(node_id)
    return simulation.cores[node_id]


def test_a_journal_without_a_vote_keeps_no_leader_in_office_and_commits_nothing() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        gone, wiped = others(simulation, core)
        steps(simulation, 0.5)
        cut_off(simulation, gone)
        learner = without_disk(simulation, wiped)
        simulation.connect(core.selfNode.id, wiped)
        committed = core.commit_index
        core.propose(Proposal(b"x", lambda index, term: None, lambda reason: None))
        steps(simulation, 0.3)
        assert core.match_indexes()[wiped] == core.last_index > committed, "it follows,"
        assert core.commit_index == committed and not learner._journal.voting, "but does not count"
        steps(simulation, 2 * simulation.timings.leader_fallback_s)
        assert core.role != LEADER and core.status().not_voting == (wiped,)
        simulation.cuts.clear()
        simulation.connect_all()
        leader(simulation)
        steps(simulation, 2.0)
        assert learner._journal.voting and {c.status().not_voting for c in simulation.cores.values()} == {()}


def test_a_journal_without_a_vote_gives_none_and_takes_no_term_from_a_candidate() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        steps(simulation, 0.5)
        wiped, candidate = others(simulation, core)
        learner, sent = without_disk(simulation, wiped), list[Message]()
        learner._outbox.send = lambda node_id, message: sent.append(message)
        for preliminary in (True, False):
            learner.receive(candidate, VoteRequest(9, 99, 8, preliminary))
        assert sent == [VoteReply(0, False, True), VoteReply(0, False, False)] and learner._journal.is_empty


def test_a_voter_that_needs_the_snapshot_returns_behind_it() -> None:
    """The entry that gives the vote may be compacted away before the voter gets it: then another one is made."""
    with quorum() as simulation:
        core = leader(simulation)
        for _ in range(400):
            simulation.propose()
            simulation.step()
        assert core._journal[0][1] > 50, "the leader has trimmed"
        learner = without_disk(simulation, others(simulation, core)[0])
        for _ in range(600):
            simulation.connect_all()
            simulation.propose()
            simulation.step()
        assert learner._journal.voting and learner._snapshots.latest is not None
        returns = [entry for entry in core._journal[:] if entry[0][:1] == b"\x10"]
        assert len(returns) <= 3
