"""The chaos scenarios on real processes, each with a few seconds of load: faults hit, the cluster recovers,
nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tidegate.chaos.checks import archive
from tidegate.chaos.checks.anomaly import AnomalyKind
from tidegate.chaos.checks.checker import check
from tidegate.chaos.checks.cut_checks import CHECKS
from tidegate.chaos.checks.history import OpOutcome
from tidegate.chaos.load.processes import Plan
from tidegate.chaos.run import node_logs
from tidegate.chaos.run.harness import run_scenario
from tidegate.chaos.run.outcome import RunOutcome as RunOutcome
from tidegate.chaos.scenarios.bank import BANK, CUTS_PER_ROUND_MIN
from tidegate.chaos.scenarios.table import SCENARIOS

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(180)]

SECONDS = 4.0
LOUD_LINES_PER_FAULT_MAX = 8
"""Of three nodes together: on a crowded machine a node may be away for long enough to be worth a warning."""


async def run(name: str, directory: Path, *, secured: bool = False, plan: Plan | None = None) -> RunOutcome:
    outcome = await run_scenario(
        SCENARIOS[name], directory / name, SECONDS, seed=1, secured=secured, plan=plan
    )
    assert outcome.passed, outcome.table() + "\n".join(outcome.disturbances[:20])
    require_calm_logs(outcome)
    return outcome


def require_calm_logs(outcome: RunOutcome) -> None:
    """The log at WARNING is for what an operator has to look at: a node that dies and comes back is not."""
    loud = node_logs.loud(outcome.log_lines)
    del loud["WARNING", "fault_armed"]  # it is the scenario's own
    assert not node_logs.NEVER_LOUD & {event for _, event in loud}, outcome.table()
    assert loud.total() <= LOUD_LINES_PER_FAULT_MAX * len(outcome.recoveries), outcome.table()
    assert outcome.log_lines["INFO", "node_ready"] > 0, "the logs were found"


def verdicts(outcome: RunOutcome) -> set[str]:
    return {verdict.name for verdict in outcome.verdicts}


async def test_a_new_coordinator_finishes_a_commit_killed_before_its_markers(tmp_path: Path) -> None:
    outcome = await run("coordinator-mid-commit", tmp_path)
    assert verdicts(outcome) >= {
        "the coordinator died between PREPARE_COMMIT and its markers",
        "another coordinator finished the transaction",
        "the commit that was decided before the kill is visible",
        "0 transactions hang",
        "all replicas hold the same bytes",
    }
    (recovery,) = outcome.recoveries
    assert recovery.affected_s is not None
    assert recovery.back_s is not None


async def test_users_with_few_rights_commit_over_tls_and_after_their_coordinators_death(
    tmp_path: Path,
) -> None:
    outcome = await run("coordinator-mid-commit", tmp_path, secured=True)
    assert "another coordinator finished the transaction" in verdicts(outcome)
    refused = [each for each in outcome.disturbances if "is not that of" in each or "AUTHORIZ" in each]
    assert not refused, "leaders and coordinators on different nodes agree on the owners of producer ids"


async def test_writers_go_on_when_the_leader_of_their_partitions_dies(tmp_path: Path) -> None:
    outcome = await run("data-leader", tmp_path)
    assert "commits go on after: leader killed" in verdicts(outcome)


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


async def test_a_leader_that_wakes_up_after_its_session_does_no_harm(tmp_path: Path) -> None:
    outcome = await run("paused-leader", tmp_path)
    assert "commits go on after: leader paused" in verdicts(outcome)


async def test_nothing_is_lost_when_all_nodes_die_at_once(tmp_path: Path) -> None:
    outcome = await run("all-nodes", tmp_path)
    assert "commits go on after: all nodes killed" in verdicts(outcome)


async def test_a_node_killed_in_an_append_recovers_and_tampering_is_detected(tmp_path: Path) -> None:
    outcome = await run("crash-points", tmp_path)
    assert "the node died at the fault point" in verdicts(outcome)
    recorded = archive.read(outcome.directory)
    assert check(recorded.history, recorded.logs, recorded.offsets).valid
    sends = (
        send
        for op in recorded.history
        if op.outcome is OpOutcome.OK and op.transactional_id
        for send in op.sends
    )
    victim = next(sends)
    recorded.logs[victim.partition] = [r for r in recorded.logs[victim.partition] if r[1] != victim.value]
    kinds = {anomaly.kind for anomaly in check(recorded.history, recorded.logs, recorded.offsets).anomalies}
    assert AnomalyKind.LOST_WRITE in kinds


async def test_every_cut_of_a_bank_balances_and_waits_for_no_open_transaction(tmp_path: Path) -> None:
    outcome = await run("bank", tmp_path, plan=replace(BANK, partitions=10))
    assert verdicts(outcome) >= {
        *CHECKS,
        "a later cut contains an earlier one",
        "a cut that is read again has the same records",
        "no cut waits for a transaction that stays open",
        "an end that lies one transaction lower is found",
        "what a cut leaves out, and a reader does not, is found",
    }
    assert outcome.figures["open_beside_a_cut_min"] > 0
    assert outcome.figures["cuts"] >= CUTS_PER_ROUND_MIN
