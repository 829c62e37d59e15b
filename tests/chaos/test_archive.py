"""A run that was written down is checked again with the same result, and one that was tampered with is found
out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tidegate.chaos.checks import archive
from tidegate.chaos.checks.checker import check
from tidegate.chaos.checks.history import History, HistoryError, Partition, Value
from tidegate.chaos.command import app
from typer.testing import CliRunner

A, B = ("topic", 0), ("topic", 1)
LOGS: dict[Partition, list[tuple[int, Value]]] = {A: [(0, "ä")], B: [(4, "b")]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """One committed transaction over two partitions, with offsets of a group."""
    history = History(lambda: 1.0)
    with history.begin("p/1", transactional_id="t") as op:
        op.send(A, "ä")
        op.send(B, "b")
        op.offsets("group", {A: 7})
        op.ending()
        op.ok()
    archive.write(tmp_path, history.ops(), LOGS, {"group": {A: 7}})
    return tmp_path


def test_a_run_is_read_back_as_it_was_written(run: Path) -> None:
    found = archive.read(run)
    assert (found.logs, found.offsets) == (LOGS, {"group": {A: 7}})
    assert check(found.history, found.logs, found.offsets).valid


def test_the_command_checks_a_run_again(run: Path) -> None:
    result = CliRunner().invoke(app, ["check", str(run)])
    assert result.exit_code == 0
    assert "no anomaly in 1 operations" in result.stdout


def test_a_record_that_is_gone_from_the_final_read_is_found_by_the_command(run: Path) -> None:
    final = json.loads((run / "final.json").read_text())
    final["logs"][1][1].clear()
    (run / "final.json").write_text(json.dumps(final))
    result = CliRunner().invoke(app, ["check", str(run), "--json"])
    assert result.exit_code == 1
    assert [anomaly.split()[0] for anomaly in json.loads(result.stdout)["anomalies"]] == [
        "lost-write",
        "torn-transaction",
    ]


@pytest.mark.parametrize("content", [None, "no json", "{}"])
def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "history.jsonl").write_text("")
        (tmp_path / "final.json").write_text(content)
    with pytest.raises(HistoryError):
        archive.read(tmp_path)
    result = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
