"""The chaos scenarios on real processes, each with a few seconds of load: faults hit, the cluster recovers, nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate.chaos.harness import run_scenario
from tidegate.chaos.history import from_json
from tidegate.chaos.outcome import Outcome
from tidegate.chaos.scenarios import SCENARIOS

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(180)]

SECONDS = 4.0


async def run(name: str, directory: Path) -> Outcome:
    outcome = await run_scenario(SCENARIOS[name], directory / name, SECONDS, seed=1)
    assert outcome.passed, outcome.table() + "\n".join(outcome.disturbances[:20])
    return outcome


def verdicts(outcome: Outcome) -> set[str]:
    return {verdict.name for verdict in outcome.verdicts}


async def test_a_commit_is_finished_by_another_node_when_its_coordinator_dies_before_the_markers(tmp_path: Path) -> None:
    outcome = await run("coordinator-mid-commit", tmp_path)
    assert verdicts(outcome) >= {
        "the coordinator died between PREPARE_COMMIT and its markers",
        "another coordinator finished the transaction",
        "the commit that was decided before the kill is visible",
        "0 transactions hang",
        "all replicas hold the same bytes",
    }
    (recovery,) = outcome.recoveries
    assert recovery.affected_s is not None and recovery.back_s is not None


async def test_writers_go_on_when_the_leader_of_their_partitions_dies(tmp_path: Path) -> None:
    outcome = await run("data-leader", tmp_path)
    assert "commits go on after: data leader killed" in verdicts(outcome)


async def test_another_node_takes_over_when_the_active_controller_dies(tmp_path: Path) -> None:
    outcome = await run("controller", tmp_path)
    assert "another node became the controller" in verdicts(outcome)


async def test_a_rolling_restart_fails_no_operation_and_needs_no_recovery(tmp_path: Path) -> None:
    outcome = await run("rolling-restart", tmp_path)
    assert len(outcome.recoveries) == 3
    assert verdicts(outcome) >= {
        "a stop by SIGTERM is clean",
        "a clean restart needs no recovery",
        "no operation of a client failed",
    }
    lines = (tmp_path / "rolling-restart" / "history.jsonl").read_text().splitlines()
    assert len([from_json(json.loads(line)) for line in lines]) == outcome.figures["operations"]
