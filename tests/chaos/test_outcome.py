"""A run's result: what passes, what fails, and what is written down for later."""

from __future__ import annotations

import json
from pathlib import Path

from tidegate.chaos.checks.anomaly import Anomaly, AnomalyKind
from tidegate.chaos.checks.checker import Report, check
from tidegate.chaos.run.outcome import PROMISES, Recovery, RunOutcome


def outcome(directory: Path) -> RunOutcome:
    return RunOutcome("test", 7, 1.0, directory)


def test_every_kind_of_anomaly_breaks_exactly_one_promise() -> None:
    assert sorted(kind for kinds in PROMISES.values() for kind in kinds) == sorted(AnomalyKind)


def test_a_run_that_checked_nothing_has_not_passed(tmp_path: Path) -> None:
    assert not outcome(tmp_path).passed


def test_one_anomaly_fails_the_run_and_is_named_in_the_table(tmp_path: Path) -> None:
    healthy = check([], {})
    found = outcome(tmp_path)
    found.judge(healthy)
    assert found.passed
    lost = Anomaly(AnomalyKind.LOST_WRITE, "'v1' is lost", ("topic", 3), "v1", (4,))
    failed = outcome(tmp_path)
    failed.judge(Report([lost], healthy.counts, []))
    assert not failed.passed
    assert [verdict.name for verdict in failed.verdicts if not verdict.passed] == ["0 records lost"]
    assert "'v1' is lost" in failed.table()
    assert "FAILED" in failed.table()


def test_report_and_table_are_written(tmp_path: Path) -> None:
    found = outcome(tmp_path / "run")
    found.require("something", True)
    found.recoveries.append(Recovery("killed", 2, "t", 1.5, None))
    found.write()
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["passed"]
    assert report["recoveries"][0]["affected_s"] == 1.5
    assert (
        "committed again after 1.50 s, any client after never" in (tmp_path / "run" / "table.txt").read_text()
    )


def test_a_check_that_failed_once_in_several_rounds_is_shown_as_failed(tmp_path: Path) -> None:
    found = outcome(tmp_path)
    for passed in (True, False, True):
        found.require("a clean restart", passed, "3 logs recovered")
    assert [line.split()[0] for line in found.table().splitlines() if "a clean restart" in line] == ["FAILED"]
