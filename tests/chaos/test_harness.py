"""The harness' own rules, without a cluster: a failed run leaves nothing behind, and what was decided must be
visible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tidegate.chaos.checks.history import History, Op
from tidegate.chaos.command import _fresh, app
from tidegate.chaos.load.workload import FinalRead
from tidegate.chaos.run import harness
from tidegate.chaos.run.harness import decided_is_visible, run_scenario
from tidegate.chaos.run.timed_kills import InjectedFault
from tidegate.chaos.scenarios.table import SCENARIOS
from tidegate.processes.local_cluster import LocalClusterError
from tidegate.runtime.clock import ManualClock
from typer.testing import CliRunner

A, B = ("topic", 0), ("topic", 1)


def history_with_a_kill_at_2() -> list[Op]:
    """A commit that ended long before the kill, one in flight at the kill, one after it."""
    clock = ManualClock()
    history = History(clock.monotonic)
    for number in range(3):
        with history.begin("p/1", transactional_id="t") as op:
            op.send(A, f"a{number}")
            op.send(B, f"b{number}")
            clock.advance(0.5)
            op.ending()
            clock.advance(1)
            op.info("no answer") if number == 1 else op.ok()
    return history.ops()


KILL = InjectedFault(1, 2.1, -9, "t")


def visible(*values: str) -> FinalRead:
    logs: dict[Any, Any] = {A: [], B: []}
    for offset, value in enumerate(values):
        logs[A if value.startswith("a") else B].append((offset, value))
    return FinalRead(logs, {})


def test_the_commit_in_flight_at_the_kill_must_be_wholly_visible() -> None:
    passed, sentence = decided_is_visible(
        KILL, history_with_a_kill_at_2(), visible("a0", "b0", "a1", "b1", "a2", "b2")
    )
    assert passed
    assert "2 of the 2 records of t #1" in sentence
    assert "outcome info" in sentence


@pytest.mark.parametrize("values", [(), ("a1",), ("a0", "b0", "a2", "b2")])
def test_a_decided_commit_that_is_not_wholly_there_fails(values: tuple[str, ...]) -> None:
    assert not decided_is_visible(KILL, history_with_a_kill_at_2(), visible(*values))[0]


def test_a_kill_before_any_commit_proves_nothing_and_fails() -> None:
    assert not decided_is_visible(
        InjectedFault(1, 0.1, -9, "t"), history_with_a_kill_at_2(), visible("a1", "b1")
    )[0]


class BrokenCluster:
    """Never comes up."""

    bootstrap = "127.0.0.1:1"
    security = None
    nodes: tuple[object, ...] = ()
    made: ClassVar[list[BrokenCluster]] = []

    def __init__(self, *_: object, with_users: bool, **__: object) -> None:
        self.with_users = with_users
        self.clock = ManualClock()
        self.downs = 0
        self.made.append(self)

    async def up(self, _timeout_s: float) -> None:
        raise LocalClusterError("node 1 ended with exit code 1")

    def release(self) -> None: ...

    async def down(self) -> dict[int, int | None]:
        self.downs += 1
        return {}


async def test_a_run_that_cannot_begin_fails_stops_its_nodes_and_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "LocalCluster", BrokenCluster)
    outcome = await run_scenario(SCENARIOS["controller"], tmp_path / "run", 1.0)
    assert not outcome.passed
    assert BrokenCluster.made[-1].downs == 1
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdicts"][0]["detail"] == "node 1 ended with exit code 1"


def test_an_old_run_is_never_continued(tmp_path: Path) -> None:
    assert _fresh(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert _fresh(tmp_path / "run") == tmp_path / "run-3"


class TestCommand:
    def test_the_scenarios_are_listed(self) -> None:
        result = CliRunner().invoke(app, ["list", "--json"])
        assert [entry["name"] for entry in json.loads(result.stdout)] == list(SCENARIOS)

    def test_an_unknown_scenario_is_refused_in_one_line_that_names_the_known(self) -> None:
        result = CliRunner().invoke(app, ["run", "earthquake"])
        assert result.exit_code == 1
        assert "'earthquake'" in result.stderr
        assert "rolling-restart" in result.stderr

    def test_a_failed_run_has_an_exit_code(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(harness, "LocalCluster", BrokenCluster)
        result = CliRunner().invoke(
            app, ["run", "controller", "--seed", "3", "--directory", str(tmp_path), "--json"]
        )
        assert result.exit_code == 1
        assert json.loads(result.stdout)[0]["passed"] is False
        assert "--seed 3" in result.stderr

    @pytest.mark.parametrize("secured", [True, False])
    def test_a_secured_run_says_so_and_how_to_repeat_it(
        self, secured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(harness, "LocalCluster", BrokenCluster)
        options = ["--seed", "3", "--directory", str(tmp_path), "--json", *["--secured"][: int(secured)]]
        result = CliRunner().invoke(app, ["run", "controller", *options])
        (document,) = json.loads(result.stdout)
        assert BrokenCluster.made[-1].with_users == document["secured"] == secured
        assert ("--seed 3 --secured" in result.stderr) == secured
        assert Path(document["directory"]).name == f"controller-3-3{'-secured' if secured else ''}"
        assert (
            "(3 nodes, secured, seed 3)" in Path(document["directory"], "table.txt").read_text()
        ) == secured
