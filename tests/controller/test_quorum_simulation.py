"""The simulated quorum: seeds that must hold, and safeguards without which they must not
(`chaos/sim/quorum/`).

A failure prints the seed.  TIDEGATE_QUORUM_SEED moves the range of seeds, TIDEGATE_QUORUM_HISTORIES its
length; `tidegate chaos sim quorum --seeds N` runs as many as one likes.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tidegate.chaos.command import app
from tidegate.chaos.sim.quorum.ablations import ABLATIONS
from tidegate.chaos.sim.quorum.faults import PAUSE_S_MAX
from tidegate.chaos.sim.quorum.member import Parts
from tidegate.chaos.sim.quorum.network import SLOW_FACTOR
from tidegate.chaos.sim.quorum.options import WEIGHTS, QuorumOptions
from tidegate.chaos.sim.quorum.simulation import QuorumSimulation
from tidegate.chaos.sim.runs import Broken
from tidegate.controller.raft.core import RaftCore
from tidegate.controller.state.validation import StateValidator
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode
from typer.testing import CliRunner

FIRST_SEED = int(os.environ.get("TIDEGATE_QUORUM_SEED", "0"))
HISTORIES = int(os.environ.get("TIDEGATE_QUORUM_HISTORIES", "200"))
SHARES = 25
ABLATION_SEEDS = 60
COMMAND_SEEDS = 60
CHANGES = 30
SLOW_NETWORKS = (1, 32, 44, 47)
PINNED = [
    (20559, 3),  # the answer to the last chunk of a snapshot is lost: the leader sent the end of it for ever
    (2000476, 0),  # pauses of a single voter added up beyond the time in which it must make progress
    (2005040, 0),
]


@pytest.fixture(autouse=True)
def silent_logs() -> Iterator[None]:
    """Keeping what thousands of crashing members say would cost more than they do."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(disabled)


def run(options: QuorumOptions, parts: Parts | None = None) -> QuorumSimulation:
    simulation = QuorumSimulation(options, parts)
    simulation.run()
    return simulation


@pytest.mark.parametrize("share", range(SHARES))
def test_hundreds_of_histories_break_no_promise(share: int) -> None:
    each, acknowledged = HISTORIES // SHARES, 0
    for seed in range(FIRST_SEED + share * each, FIRST_SEED + (share + 1) * each):
        acknowledged += run(QuorumOptions.draw(seed)).counts["acknowledged"]
    assert acknowledged > 10 * each, "faults so dense that nothing happens prove nothing"


@pytest.mark.parametrize(("seed", "voters"), PINNED)
def test_seeds_that_once_found_a_defect_hold(seed: int, voters: int) -> None:
    run(QuorumOptions.draw(seed, voters))


def healthy(seed: int, voters: int) -> QuorumOptions:
    """No faults, and a command every 10 ms."""
    drawn = QuorumOptions.draw(seed, voters)
    return replace(drawn, datagrams=False, late_replies=False, operation_every_s=0.01).only()


@pytest.mark.parametrize("voters", [1, 3, 5])
def test_without_faults_everything_is_acknowledged_under_one_leader(voters: int) -> None:
    simulation = run(healthy(1, voters))
    assert simulation.counts["terms"] == 1
    assert simulation.counts["acknowledged"] + simulation.counts["reads"] > 300


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", SLOW_NETWORKS)
def test_no_leader_is_deposed_while_frames_are_faster_than_an_election(seed: int, voters: int) -> None:
    """With the drawn timings the slowest frame of these networks takes as long as the longest election
    timeout: followers that hear nothing for so long rightly elect another leader, in some of these seeds."""
    options = healthy(seed, voters)
    heartbeat_s, slowest_s = options.timings.heartbeat_s, SLOW_FACTOR * options.delay_s
    assert slowest_s >= options.timings.election_s_max
    timings = replace(
        options.timings,
        election_s_min=slowest_s + 2 * heartbeat_s,
        election_s_max=2 * slowest_s + 4 * heartbeat_s,
        leader_fallback_s=2 * slowest_s + 2 * heartbeat_s,
    )
    assert run(replace(options, timings=timings)).counts["terms"] == 1


@pytest.mark.parametrize("fault", sorted(WEIGHTS))
def test_every_fault_is_inflicted_and_survived(fault: str) -> None:
    for voters in (3, 5):
        options = replace(QuorumOptions.draw(7, voters), seconds=3.0).only(fault, every_s=0.3)
        assert run(options).counts["faults"] > 3


def test_a_seed_always_gives_the_same_history() -> None:
    runs = [run(QuorumOptions.draw(5, 3)) for _ in range(2)]
    assert runs[0].ledger.history == runs[1].ledger.history != {}
    assert runs[0].counts == runs[1].counts
    assert runs[0].now == runs[1].now


@pytest.mark.parametrize("voters", [1, 3])
def test_a_member_with_many_pauses_goes_on_after_the_last_one(voters: int) -> None:
    options = QuorumOptions.draw(1, voters).only("pause", every_s=0.05)
    simulation = QuorumSimulation(options)
    simulation.begin()
    simulation.schedule.repeat(options.fault_every_s, simulation.faults.inflict)
    simulation.pass_time(options.seconds)
    assert simulation.counts["faults"] > 50
    assert all(member.process.paused_s <= PAUSE_S_MAX for member in simulation.members.values())
    simulation.heal()


def test_commands_of_every_kind_are_applied_and_refused() -> None:
    """What is never proposed is not tested; neither is what never works."""
    every = {field.name for field in pb.Operation.DESCRIPTOR.oneofs_by_name["kind"].fields}
    applied, refused = Counter[str](), Counter[str]()
    for seed in range(COMMAND_SEEDS):
        if every <= applied.keys() and every <= refused.keys():
            break
        ledger = run(QuorumOptions.draw(seed)).ledger
        for index, (command, _) in ledger.history.items():
            result = ledger._results[index]
            kinds = [
                str(operation.WhichOneof("kind")) for operation in pb.Command.FromString(command).operations
            ]
            if not result.duplicate and result.error is not ErrorCode.NOT_CONTROLLER:
                (applied if result.ok else refused).update(kinds)
    assert every <= applied.keys(), (applied, refused)
    assert every <= refused.keys(), (applied, refused)
    assert "None" in refused
    assert "None" not in applied


@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_every_ablation_of_the_quorum_is_noticed(name: str) -> None:
    """By what the history shows, not by a broken invariant only."""
    ablation = ABLATIONS[name]
    for seed in range(ABLATION_SEEDS):
        options = ablation.kind(QuorumOptions.draw(seed))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RaftCore, "validate", lambda core: None)
                patch.setattr(StateValidator, "check", lambda validator, state, result: None)
                run(options, ablation.parts)
        except Broken:
            run(options)  # with the safeguard the very same run holds
            return
    pytest.fail(f"nothing notices: {name}")


@pytest.mark.parametrize("role", ["leader", "follower", "far behind"])
def test_a_member_may_be_killed_at_every_change_of_its_disk(role: str) -> None:
    """Every write, sync, rename and trim of a stretch of its life, and of the installation of a snapshot;
    then the power goes of all.  What it called durable must be there (`promises`), and everything that was
    acknowledged."""
    drawn = QuorumOptions.draw(3, 3)
    timings = replace(
        drawn.timings,
        batch_bytes=300,
        compact_after_entries=12,
        trailing_entries=3,
        snapshot_chunk_bytes=4000,
    )
    quiet: dict[str, Any] = {
        "delay_s": 0.002,
        "lag_s": 0.0,
        "operation_every_s": 0.02,
        "datagrams": False,
        "late_replies": False,
    }
    options = replace(drawn, timings=timings, **quiet).only()
    for change in range(CHANGES):
        simulation = QuorumSimulation(replace(options, seed=change))
        simulation.begin()
        assert simulation.pass_time(5.0, lambda s=simulation: s.ledger.acknowledged > 12)  # type: ignore[misc]
        leader = simulation.cluster.leader()
        assert leader is not None
        member = (
            leader if role == "leader" else next(m for m in simulation.members.values() if m is not leader)
        )
        if role == "far behind":
            member.stays_down = True
            member.kill()
            simulation.pass_time(0.6)
            member.stays_down = False
            member.start()
        life = member.process.life
        member.cut_is_of_power, member.disk.cut_after = False, change
        assert simulation.pass_time(3.0, lambda m=member, life=life: m.process.life > life), "it was killed"  # type: ignore[misc]
        assert simulation.pass_time(3.0, lambda m=member: m.is_up)  # type: ignore[misc]
        simulation.pass_time(0.3)
        simulation.faults.cut_all_power()
        simulation.heal()


def test_the_command_runs_seeds_and_says_what_it_counted() -> None:
    result = CliRunner().invoke(
        app, ["sim", "quorum", "--seeds", "3", "--first", "7", "--voters", "3", "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["first_seed"], report["histories"], report["broken"]) == (7, 3, [])
    assert report["acknowledged"] > 0
    assert report["terms"] > 0


def test_the_command_says_how_to_repeat_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuorumSimulation, "run", lambda self: self.ledger.broken("nothing is well"))
    result = CliRunner().invoke(app, ["sim", "quorum", "--seeds", "2", "--first", "40", "--voters", "5"])
    assert result.exit_code == 1
    assert "seed 40, 5 voters" in result.output
    assert "nothing is well" in result.output
    assert "tidegate chaos sim quorum --voters 5 --seconds 6 --seeds 1 --first 40" in result.output
