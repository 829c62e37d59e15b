"""The checker against a whole broker: the healthy one passes whatever the seed, and every bug is found
soon."""

from __future__ import annotations

import pytest
from tidegate.chaos.checks.anomaly import AnomalyKind
from tidegate.chaos.checks.checker import Report, check

from .model_broker import GROUP, Bug, Run

SEEDS = range(12)

# What each bug must at least show; it may show more.
SYMPTOMS: dict[Bug, set[AnomalyKind]] = {
    Bug.LOSES_A_RECORD: {AnomalyKind.LOST_WRITE},
    Bug.APPENDS_TWICE: {AnomalyKind.DUPLICATE},
    Bug.READS_UNCOMMITTED: {AnomalyKind.ABORTED_READ},
    Bug.FORGETS_AN_ABORT_MARKER: {AnomalyKind.ABORTED_READ},
    Bug.COMMITS_ONE_PARTITION_ONLY: {AnomalyKind.LOST_WRITE, AnomalyKind.TORN_TRANSACTION},
    Bug.DROPS_OFFSETS_ON_COMMIT: {AnomalyKind.CONSUMED_TWICE},
    Bug.KEEPS_OFFSETS_ON_ABORT: {AnomalyKind.CONSUMED_NEVER},
    Bug.DOES_NOT_FENCE: {AnomalyKind.ZOMBIE_ACKNOWLEDGED},
    Bug.TRUNCATES_WHAT_WAS_READ: {AnomalyKind.LOST_WRITE, AnomalyKind.INCONSISTENT_OFFSETS},
    Bug.REORDERS_BATCHES: {AnomalyKind.INTERNAL_NONMONOTONIC_SEND},
    Bug.SKIPS_WHEN_FETCHING: {AnomalyKind.POLL_SKIP},
    Bug.GOES_BACK_WHEN_FETCHING: {AnomalyKind.NONMONOTONIC_POLL},
    Bug.WRITES_TO_ANOTHER_PARTITION: {AnomalyKind.UNWRITTEN_VALUE, AnomalyKind.LOST_WRITE},
    Bug.CORRUPTS_A_VALUE: {AnomalyKind.UNWRITTEN_VALUE, AnomalyKind.LOST_WRITE},
}


def judge(bug: Bug, seed: int) -> Report:
    run = Run(bug, seed)
    return check(run.history.ops(), run.final_logs(), {GROUP: run.broker.group}, tolerated_cycles=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_broker_passes(seed: int) -> None:
    report = judge(Bug.NONE, seed)
    assert report.valid, report.describe()
    assert report.counts.transactions_ok > 10, "a workload that proves nothing"
    assert report.counts.transactions_failed > 3, "a workload that proves nothing"
    assert report.counts.records_final > 50


def test_every_bug_has_its_symptom_here() -> None:
    assert SYMPTOMS.keys() == set(Bug) - {Bug.NONE}


@pytest.mark.parametrize("bug", SYMPTOMS, ids=lambda bug: bug.name.lower())
def test_a_broken_broker_is_found(bug: Bug) -> None:
    reports = [judge(bug, seed) for seed in SEEDS]
    found = {anomaly.kind for report in reports for anomaly in report.anomalies}
    assert found >= SYMPTOMS[bug], f"found only {sorted(found)}"
    rejected = sum(not report.valid for report in reports)
    assert rejected >= len(SEEDS) * 3 // 4, f"only {rejected} of {len(SEEDS)} runs were rejected"
