"""`RaftCore.validate`: what no sequence of steps may lead to is noticed, in the voter and beside its disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidegate.chaos.sim.quorum.options import QuorumOptions
from tidegate.chaos.sim.quorum.simulation import QuorumSimulation
from tidegate.controller.raft.contract import Role
from tidegate.controller.raft.core import RaftCore
from tidegate.controller.raft.messages import VoterRecord
from tidegate.controller.raft.state import Ready
from tidegate.controller.raft.voter import Event, Voter

from .test_raft_scenarios import leader, others, propose, quorum


def _two_entries_of_one_index(core: RaftCore) -> None:
    core.state.log.entries.append(core.state.log.entries[-1])


def _falling_term(core: RaftCore) -> None:
    command, index, _ = core.state.log.entries[-1]
    core.state.log.entries[-1] = (command, index, 0)


def _unstored_entry(core: RaftCore) -> None:
    core.state.append_commands(b"\x00not on the disk")
    core.state.take_ready()


def _commit_beyond_the_end(core: RaftCore) -> None:
    core.state.commit_index = core.last_index + 1


def _applied_before_committed(core: RaftCore) -> None:
    core.state.commit_index = core.applied_index - 1


def _match_beyond_the_end(core: RaftCore) -> None:
    core.state.match_index[core.state.others[0]] = core.last_index + 1


def _stranger_counted(core: RaftCore) -> None:
    core.state.match_index[99] = 1


def _counts_itself_too_early(core: RaftCore) -> None:
    core.state.log.stable_index = core.commit_index - 1


def _stable_before_the_disk(core: RaftCore) -> None:
    core.journal.durable_index = core.last_index - 1


def _term_not_stored(core: RaftCore) -> None:
    core.state.term += 1


def _vote_not_stored(core: RaftCore) -> None:
    core.state.voted_for = core.state.others[0]
    core.state.role = Role.FOLLOWER


def _leads_without_its_own_vote(core: RaftCore) -> None:
    core.state.voted_for = None


def _stands_without_a_vote(core: RaftCore) -> None:
    core.state.voting = False


def _records_not_stored(core: RaftCore) -> None:
    record = VoterRecord(core.state.node_id, 1, 99)
    core.state.voter_records[core.state.node_id] = record


def _snapshot_of_the_future(core: RaftCore) -> None:
    core.state.log.trim_to(core.last_index)


@pytest.mark.parametrize(
    "break_it",
    [
        _two_entries_of_one_index,
        _falling_term,
        _unstored_entry,
        _commit_beyond_the_end,
        _applied_before_committed,
        _match_beyond_the_end,
        _stranger_counted,
        _counts_itself_too_early,
        _stable_before_the_disk,
        _term_not_stored,
        _vote_not_stored,
        _leads_without_its_own_vote,
        _stands_without_a_vote,
        _records_not_stored,
        _snapshot_of_the_future,
    ],
    ids=lambda break_it: break_it.__name__.lstrip("_"),
)
def test_a_voter_that_breaks_an_invariant_is_noticed(break_it: Callable[[RaftCore], None]) -> None:
    with quorum() as simulation:
        core = leader(simulation)
        propose(simulation, core, b"x")
        simulation.pass_time(0.5)
        core.validate()
        break_it(core)
        with pytest.raises(AssertionError):
            core.validate()


def test_every_voter_of_a_healthy_quorum_keeps_its_invariants() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        for _ in range(60):
            propose(simulation, core, b"x")
            simulation.pass_time(0.02)
        for node_id in others(simulation, core):
            follower = simulation.members[node_id].core
            assert follower is not None
            follower.validate()
        assert core.state.snapshot is not None, "the run has trimmed its log"


def test_roles_change_only_as_the_voters_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    changes, step = set[tuple[Role, Role]](), Voter.step

    def watched(voter: Voter, event: Event, now: float) -> Ready:
        before = voter.state.role
        ready = step(voter, event, now)
        changes.add((before, voter.state.role))
        return ready

    monkeypatch.setattr(Voter, "step", watched)
    for seed in range(14):
        QuorumSimulation(QuorumOptions.draw(seed, 3)).run()
    follower, candidate, leads = Role.FOLLOWER, Role.CANDIDATE, Role.LEADER
    assert changes - {(role, role) for role in Role} == {
        (candidate, follower),
        (leads, follower),
        (follower, candidate),
        (candidate, leads),
    }
