"""Single rules of the quorum, played by hand on the simulator's parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tidegate.chaos.sim.quorum.ablations import (
    NO_PREVOTE,
    NO_TERMS_IN_ACKNOWLEDGEMENTS,
    voter_of,
)
from tidegate.chaos.sim.quorum.member import Parts
from tidegate.chaos.sim.quorum.network import Way
from tidegate.chaos.sim.quorum.options import QuorumOptions
from tidegate.chaos.sim.quorum.simulation import QuorumSimulation
from tidegate.controller.raft.contract import Proposal, Role
from tidegate.controller.raft.core import RaftCore
from tidegate.controller.raft.failure import RaftFatal
from tidegate.controller.raft.follower import Follower
from tidegate.controller.raft.messages import (
    AppendEntries,
    AppendReply,
    Message,
    SnapshotChunk,
    SnapshotReply,
    VoteReply,
    VoteRequest,
    VoterRecord,
    VoterStatus,
)
from tidegate.controller.raft.replication import Replication
from tidegate.controller.raft.snapshot_store import Snapshot
from tidegate.controller.raft.state import NEVER
from tidegate.controller.raft.thread import Inspect
from tidegate.controller.raft.transport import PeerEvent


@contextlib.contextmanager
def quorum(
    parts: Parts | None = None, voters: int = 3, delay_s: float = 0.002, seed: int = 1, **timings: Any
) -> Iterator[QuorumSimulation]:
    """Only the test proposes commands and causes faults."""
    drawn = QuorumOptions.draw(seed, voters).only()
    usual = replace(
        drawn.timings,
        batch_bytes=300,
        compact_after_entries=40,
        trailing_entries=10,
        snapshot_chunk_bytes=4000,
    )
    quiet: dict[str, Any] = {
        "delay_s": delay_s,
        "lag_s": 0.0,
        "operation_every_s": 0.0,
        "datagrams": False,
        "late_replies": False,
    }
    simulation = QuorumSimulation(replace(drawn, timings=replace(usual, **timings), **quiet), parts)
    simulation.begin()
    yield simulation


def core_of(simulation: QuorumSimulation, node_id: int) -> RaftCore:
    core = simulation.members[node_id].core
    assert core is not None
    return core


def cores(simulation: QuorumSimulation) -> list[RaftCore]:
    return [member.core for member in simulation.members.values() if member.core is not None]


def leader(simulation: QuorumSimulation) -> RaftCore:
    def active() -> list[RaftCore]:
        return [core for core in cores(simulation) if core.active]

    assert simulation.pass_time(20.0, lambda: bool(active())), "no leader"
    return max(active(), key=lambda core: core.term)


def others(simulation: QuorumSimulation, core: RaftCore) -> list[int]:
    return [node_id for node_id in simulation.members if node_id != core.state.node_id]


def cut_off(simulation: QuorumSimulation, node_id: int) -> None:
    simulation.network.isolate(node_id)
    for other in simulation.members:
        if other != node_id:
            simulation.network.reset(node_id, other)


def stand(core: RaftCore, term: int) -> None:
    """As if its election timer had ended in the term before."""
    core.state.role = Role.CANDIDATE
    core.state.set_term(term, core.state.node_id)


def nothing(_: object) -> None: ...


def propose(
    simulation: QuorumSimulation, core: RaftCore, command: bytes, refused: Callable[[str], None] = nothing
) -> None:
    simulation.members[core.state.node_id].post(Proposal(command, lambda index, term: None, refused))


def propose_many(simulation: QuorumSimulation, core: RaftCore, count: int, seconds: float = 2.0) -> None:
    for _ in range(count):
        propose(simulation, core, b"")
        simulation.pass_time(seconds / count)


def stop(simulation: QuorumSimulation, node_id: int) -> None:
    simulation.members[node_id].stays_down = True
    simulation.members[node_id].kill()


def start(simulation: QuorumSimulation, node_id: int) -> RaftCore:
    simulation.members[node_id].stays_down = False
    simulation.members[node_id].start()
    return core_of(simulation, node_id)


@pytest.mark.parametrize(("parts", "counted"), [(None, False), (NO_TERMS_IN_ACKNOWLEDGEMENTS, True)])
def test_an_acknowledgement_given_to_an_earlier_leadership_does_not_count(
    parts: Parts | None, counted: bool
) -> None:
    """The follower has truncated since, so what it acknowledged then is gone.  Without terms in the replies
    it commits."""
    with quorum(parts) as simulation:
        core = leader(simulation)
        simulation.network.isolate(core.state.node_id)
        committed = core.commit_index
        core.propose(Proposal(b"only here", lambda index, term: None, lambda reason: None))
        core.tick()
        core.sync()
        stale = AppendReply(
            core.term - 1, True, core.last_index + 1, core.last_index - 1, journal=1, voting=True
        )
        core.receive(others(simulation, core)[0], stale)
        core.tick()
        assert (core.commit_index > committed) is counted


class SendsRepliesOfAnyTerm(Follower):
    def send_acknowledgements(self) -> None:
        self._state.must_sync()
        replies, self._replies = self._replies, []
        for leader, reply in replies:
            self._state.send(leader, reply)


@pytest.mark.parametrize(
    ("parts", "sent_old"), [(None, False), (voter_of(follower=SendsRepliesOfAnyTerm), True)]
)
def test_an_acknowledgement_of_a_past_term_is_not_sent(parts: Parts | None, sent_old: bool) -> None:
    """It waited for the sync, and meanwhile this node has voted in a newer term."""
    with quorum(parts) as simulation:
        core = leader(simulation)
        simulation.pass_time(0.5)
        voter_id, third = others(simulation, core)
        voter, sent = core_of(simulation, voter_id), list[Message]()
        voter._outbox.send = lambda node_id, message: sent.append(message)
        _, last_index, last_term = voter.journal[-1]
        entry = (b"\x00new", last_index + 1, core.term)
        voter.receive(
            core.state.node_id, AppendEntries(core.term, core.commit_index, last_index, last_term, (entry,))
        )
        voter.receive(third, VoteRequest(core.term + 1, last_index + 1, core.term, preliminary=False))
        voter.tick()
        acknowledged = [message for message in sent if isinstance(message, AppendReply)]
        assert (acknowledged != []) is sent_old
        assert voter.journal.durable_index == last_index + 1, (
            "the vote was given for a log with this entry: it is durable"
        )


def test_a_late_frame_never_takes_back_what_agrees() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        for _ in range(5):
            propose(simulation, core, b"x")
            simulation.pass_time(0.1)
        follower = core_of(simulation, others(simulation, core)[0])
        before = list(follower.journal[:])
        early = follower.journal[2]
        late = AppendEntries(core.term, core.commit_index, early[1] - 1, follower.journal[1][2], (early,))
        follower.receive(core.state.node_id, late)
        assert follower.journal[:] == before


@pytest.mark.parametrize(("parts", "disturbs"), [(None, False), (NO_PREVOTE, True)])
def test_a_node_back_from_a_network_partition_does_not_depose_the_leader(
    parts: Parts | None, disturbs: bool
) -> None:
    """PreVote: no election that cannot be won."""
    with quorum(parts) as simulation:
        core = leader(simulation)
        term, lonely = core.term, others(simulation, core)[0]
        cut_off(simulation, lonely)
        simulation.pass_time(5.0)
        simulation.network.mend_all()
        simulation.pass_time(2.0)
        assert (len(simulation.ledger.leaders) > 1 or core.role is not Role.LEADER) is disturbs
        assert (max(c.term for c in cores(simulation)) > term) is disturbs


def test_no_preliminary_vote_is_given_while_the_leader_sends_heartbeats() -> None:
    """A voter that lost only its connection to the leader, and has every entry, could depose it again and
    again."""
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(0.5)
        voter_id, cut = others(simulation, core)
        voter, sent = core_of(simulation, voter_id), list[Message]()
        voter._outbox.send = lambda node_id, message: sent.append(message)
        _, last_index, last_term = voter.journal[-1]
        asked = VoteRequest(core.term + 1, last_index, last_term, preliminary=True)
        voter.receive(cut, asked)
        voter.state.leader_heard_at -= 2 * simulation.options.timings.election_s_min
        voter.receive(cut, asked)
        assert [reply.granted for reply in sent if isinstance(reply, VoteReply)] == [False, True]


def test_a_leader_without_a_majority_steps_down() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        cut_off(simulation, core.state.node_id)
        simulation.pass_time(2 * simulation.options.timings.leader_fallback_s)
        assert core.role is not Role.LEADER
        assert not core.active


def test_a_vote_is_given_once_a_term_and_only_to_a_log_that_is_not_behind() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(0.5)
        voter_id, third = others(simulation, core)
        voter, sent = core_of(simulation, voter_id), list[tuple[int, Message]]()
        voter._outbox.send = lambda node_id, message: sent.append((node_id, message))
        term, last = core.term + 1, voter.journal[-1]
        voter.receive(third, VoteRequest(term, last[1] - 1, last[2], preliminary=False))
        voter.receive(third, VoteRequest(term, last[1], last[2], preliminary=False))
        voter.receive(core.state.node_id, VoteRequest(term, last[1], last[2], preliminary=False))
        voter.receive(third, VoteRequest(term, last[1], last[2], preliminary=False))
        replies = [(to, message.granted) for to, message in sent if isinstance(message, VoteReply)]
        assert replies == [(third, False), (third, True), (core.state.node_id, False), (third, True)]
        assert voter.journal.voted_for == third


def test_a_repeated_vote_counts_once() -> None:
    with quorum(voters=5) as simulation:
        simulation.pass_time(0.05)
        core = core_of(simulation, 1)
        stand(core, core.term + 1)
        for _ in range(5):
            core.receive(2, VoteReply(core.term, granted=True, preliminary=False))
        assert core.role is not Role.LEADER
        core.receive(3, VoteReply(core.term, granted=True, preliminary=False))
        assert core.role is Role.LEADER


def test_a_vote_of_an_earlier_term_does_not_count() -> None:
    """The voter that granted it may vote for another candidate in this term: there could be two leaders."""
    with quorum() as simulation:
        simulation.pass_time(0.05)
        core = core_of(simulation, 1)
        stand(core, core.term + 2)
        core.receive(2, VoteReply(core.term - 1, granted=True, preliminary=False))
        assert core.role is not Role.LEADER
        core.receive(2, VoteReply(core.term, granted=True, preliminary=False))
        assert core.role is Role.LEADER


def test_messages_of_a_replaced_journal_do_not_count() -> None:
    """An old folder that was put back has its vote, and knows nothing of what was promised since."""
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(0.5)
        voter_id, old_one = others(simulation, core)
        voter = core_of(simulation, voter_id)
        _, last_index, last_term = voter.journal[-1]
        asked = VoteRequest(core.term + 1, last_index, last_term, preliminary=False)
        mine = voter.state.voter_records[old_one]
        # "returns with another journal" was applied
        voter.state.voter_records[old_one] = VoterRecord(old_one, mine.journal + 1, last_index)
        voter.receive(old_one, asked)
        assert voter.term == core.term
        assert voter.journal.voted_for != old_one
        voter.state.voter_records[old_one] = mine
        voter.receive(old_one, asked)
        assert voter.journal.voted_for == old_one


def test_a_leader_that_contradicts_committed_entries_stops_the_follower() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        propose(simulation, core, b"x")
        simulation.pass_time(0.5)
        follower = core_of(simulation, others(simulation, core)[0])
        with pytest.raises(RaftFatal, match="committed entry"):
            follower.receive(
                core.state.node_id, AppendEntries(core.term, 1, follower.commit_index, core.term + 5, ())
            )
        first = follower.journal[1]
        forged = replace(AppendEntries(core.term, 1, 1, 0, ()), entries=((b"\x00forged", 2, first[2] + 7),))
        with pytest.raises(RaftFatal, match="committed entry"):
            follower.receive(core.state.node_id, forged)


def test_a_command_too_large_or_at_a_follower_is_rejected_and_not_appended() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        follower = core_of(simulation, others(simulation, core)[0])
        refusals: list[str] = []
        last = core.last_index
        propose(simulation, core, bytes(600 << 10), refusals.append)
        propose(simulation, follower, b"x", refusals.append)
        simulation.pass_time(0.2)
        assert len(refusals) == 2
        assert core.last_index == last


def test_losing_the_connection_to_the_leader_hurries_the_election() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(1.0)
        stop(simulation, core.state.node_id)
        began = simulation.now
        new = leader(simulation)
        assert new.term > core.term
        assert simulation.now - began < simulation.options.timings.election_s_min + 0.2


def test_a_follower_far_behind_gets_the_snapshot_once() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        behind = others(simulation, core)[0]
        stop(simulation, behind)
        propose_many(simulation, core, 400)
        assert core.journal[0][1] > 50, "the leader has trimmed"
        returned = start(simulation, behind)
        simulation.pass_time(2.0)
        assert returned.applied_index == core.applied_index
        states = {
            member.machine.state.state_hash()
            for member in simulation.members.values()
            if member.machine is not None
        }
        assert len(states) == 1


def without_disk(simulation: QuorumSimulation, node_id: int) -> RaftCore:
    simulation.members[node_id].lose_disk()
    return start(simulation, node_id)


def test_a_lost_announcement_of_a_returned_journal_is_repeated() -> None:
    """The frame that says so, and nothing else, is lost: without another one the voter would be ignored for
    as long as the connection stays."""
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(0.5)
        returning, listener = others(simulation, core)
        simulation.network.cut((returning, listener), (listener, returning))
        simulation.network.reset(returning, listener)
        without_disk(simulation, returning)
        assert simulation.pass_time(8.0, lambda: core_of(simulation, returning).state.voting)
        lost: list[Message] = []
        send = simulation.network.send

        def lossy(source: int, target: int, message: Message) -> None:
            first = (
                isinstance(message, VoterStatus) and (source, target) == (returning, listener) and not lost
            )
            if first:
                lost.append(message)
            else:
                send(source, target, message)

        simulation.network.send = lossy
        simulation.network.mend_all()
        membership = core_of(simulation, listener).voter.membership
        assert simulation.pass_time(8.0, lambda: bool(lost) and not membership.is_stale(returning))


def test_a_journal_without_a_vote_neither_keeps_a_leader_nor_commits() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        gone, wiped = others(simulation, core)
        simulation.pass_time(0.5)
        cut_off(simulation, gone)
        learner = without_disk(simulation, wiped)
        committed = core.commit_index
        propose(simulation, core, b"x")
        simulation.pass_time(0.5)
        assert core.followers()[wiped].match_index == core.last_index > committed, "it follows,"
        assert core.commit_index == committed, "but does not count"
        assert not learner.journal.voting, "but does not count"
        simulation.pass_time(2 * simulation.options.timings.leader_fallback_s)
        assert core.role is not Role.LEADER
        assert core.status().not_voting == (wiped,)
        simulation.network.mend_all()
        leader(simulation)
        simulation.pass_time(2.0)
        assert learner.journal.voting
        assert {c.status().not_voting for c in cores(simulation)} == {()}


def test_a_journal_without_a_vote_gives_none_and_takes_no_candidates_term() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(0.5)
        wiped, candidate = others(simulation, core)
        learner, sent = without_disk(simulation, wiped), list[Message]()
        learner._outbox.send = lambda node_id, message: sent.append(message)
        for preliminary in (True, False):
            learner.receive(candidate, VoteRequest(9, 99, 8, preliminary))
        assert sent == [VoteReply(0, False, True), VoteReply(0, False, False)]
        assert learner.journal.is_empty


def test_a_voter_that_needs_the_snapshot_returns_behind_it() -> None:
    """The entry that gives the vote may be compacted away before the voter gets it: then another one is
    made."""
    with quorum() as simulation:
        core = leader(simulation)
        propose_many(simulation, core, 400)
        assert core.journal[0][1] > 50, "the leader has trimmed"
        learner = without_disk(simulation, others(simulation, core)[0])
        propose_many(simulation, core, 600, 3.0)
        assert learner.journal.voting
        assert learner._snapshots.latest is not None
        returns = [entry for entry in core.journal[:] if entry[0][:1] == b"\x10"]
        assert len(returns) <= 3


def entries_behind_after_load(simulation: QuorumSimulation, core: RaftCore, follower: RaftCore) -> int:
    """After one more compaction's worth of commands."""
    propose_many(simulation, core, 60, 1.0)
    return core.last_index - follower.applied_index


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize(("trims_at_once", "arrives"), [(False, True), (True, False)])
def test_the_entries_after_a_snapshot_are_kept_for_a_follower_under_load(
    trims_at_once: bool, arrives: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot travels for longer than the leader takes to make the next one, and for less than
    `CATCH_UP_COMPACTIONS_MAX` of them.  Without the entries after it the follower would need snapshot after
    snapshot, for ever."""
    if trims_at_once:
        monkeypatch.setattr(Replication, "_goes_on_from", lambda self, node: self._state.log.last_index)
    with quorum(
        delay_s=0.06,
        seed=seed,
        compact_after_entries=60,
        trailing_entries=0,
        snapshot_chunk_bytes=1,
        # no election: the slowest frame is faster
        election_s_min=1.5,
        election_s_max=3.0,
        leader_fallback_s=3.0,
    ) as simulation:
        core = leader(simulation)
        behind = others(simulation, core)[0]
        stop(simulation, behind)
        propose_many(simulation, core, 200)
        returned, snapshots = start(simulation, behind), list[Snapshot]()
        install = returned._machine.installed

        def installed(snapshot: Snapshot) -> None:
            snapshots.append(snapshot)
            install(snapshot)

        monkeypatch.setattr(returned._machine, "installed", installed)
        nearest = min(entries_behind_after_load(simulation, core, returned) for _ in range(8))
        assert (nearest < 20) is arrives
        assert (len(snapshots) == 1) is arrives


def test_a_snapshot_of_a_deposed_leader_changes_nothing() -> None:
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(0.5)
        follower = core_of(simulation, others(simulation, core)[0])
        before, journal = follower.applied_index, follower.journal[:]
        follower.receive(core.state.node_id, SnapshotChunk(core.term - 1, 99, 7, 1, 0, b"x"))
        assert (follower.applied_index, follower.journal[:]) == (before, journal)


def test_a_snapshot_whose_last_answer_was_lost_is_sent_again() -> None:
    """The follower knows nothing of the file any more, and the leader believed that it had all but the
    end."""
    with quorum(snapshot_chunk_bytes=10) as simulation:
        core = leader(simulation)
        behind = others(simulation, core)[0]
        stop(simulation, behind)
        propose_many(simulation, core, 200)
        returned, lost = start(simulation, behind), list[Message]()
        send = returned._outbox.send

        def lose_the_first_last_answer(node_id: int, message: Message) -> None:
            if isinstance(message, SnapshotReply) and message.last_index and not lost:
                lost.append(message)
            else:
                send(node_id, message)

        returned._outbox.send = lose_the_first_last_answer
        simulation.pass_time(5.0)
        assert lost
        assert returned.applied_index == core.last_index


def test_a_refused_pre_vote_is_asked_for_again_soon() -> None:
    """Connections of a leader that died do not close at the same moment: a voter that notices it later
    refuses first."""
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(1.0)
        early, late = (core_of(simulation, node_id) for node_id in others(simulation, core))
        stop(simulation, core.state.node_id)
        timings, began = simulation.options.timings, simulation.now
        early.state.election_deadline = began
        late.state.election_deadline = began + 10
        noticed_s = 2 * timings.heartbeat_s
        late.state.leader_heard_at = early.now() - timings.election_s_min + noticed_s
        assert leader(simulation) is early
        assert simulation.now - began < noticed_s + 1.5 * timings.heartbeat_s + 0.05


@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("gives_way", [True, False])
def test_of_two_simultaneous_candidates_one_yields(
    gives_way: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it each votes for itself, and the next try comes a whole election timeout later.  Every frame
    takes as long as any other."""
    with quorum(seed=seed) as simulation:
        core = leader(simulation)
        simulation.pass_time(1.0)
        network = simulation.network

        def travel(way: Way, event: PeerEvent, number: int) -> None:
            simulation.schedule.after(0.005, lambda: network._arrive(way, event, number, 0))

        monkeypatch.setattr(network, "_travel", travel)
        stop(simulation, core.state.node_id)
        for node_id in others(simulation, core):
            each = core_of(simulation, node_id)
            each.state.leader_heard_at, each.state.election_deadline = NEVER, simulation.now
            each.voter.election.gave_way_in = 0 if gives_way else 1 << 60
            simulation.members[node_id].post(Inspect(nothing))  # it wakes up
        assert (leader(simulation).term == core.term + 1) is gives_way


def test_a_candidate_yields_only_once_a_term() -> None:
    """One whose answers are lost asks for ever: it must not keep the others from standing."""
    with quorum() as simulation:
        core = leader(simulation)
        simulation.pass_time(1.0)
        voter_id, third = others(simulation, core)
        stop(simulation, core.state.node_id)
        cut_off(simulation, third)
        voter, last = core_of(simulation, voter_id), core_of(simulation, voter_id).journal[-1]
        deadlines = []
        for _ in range(2):
            simulation.pass_time(simulation.options.timings.heartbeat_s)
            voter.receive(third, VoteRequest(core.term + 1, last[1], last[2], preliminary=True))
            deadlines.append(voter.state.election_deadline)
        assert deadlines[0] == deadlines[1]
