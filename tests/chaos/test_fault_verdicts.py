"""The scenarios' own verdicts can fail: each is given a cluster that does what it must not, and one that does
as it should."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tidegate.chaos.checks.history import History, Partition
from tidegate.chaos.load.processes import Plan
from tidegate.chaos.load.progress import Progress
from tidegate.chaos.load.workload import unequal_reads
from tidegate.chaos.machine.undo import MissingRight
from tidegate.chaos.run import harness, targets
from tidegate.chaos.run.harness import Run, run_scenario
from tidegate.chaos.run.outcome import Recovery, RunOutcome
from tidegate.chaos.run.targets import Target
from tidegate.chaos.run.timed_kills import InjectedFault
from tidegate.chaos.scenarios import disk_faults, network_scenarios, restart_elsewhere, starved
from tidegate.chaos.scenarios.table import SCENARIOS

emptied: list[Path] = []
A, B = ("topic", 0), ("topic", 1)


class FakeLab:
    """Cuts nothing, and remembers what was asked of it."""

    nodes = range(1, 4)

    def __init__(self) -> None:
        self.cuts: list[tuple[int, int]] = []
        self.heals = 0

    def cut(self, pairs: Any) -> None:
        self.cuts += pairs

    def heal(self) -> None:
        self.heals += 1


@dataclass
class FakeNode:
    id: int
    running: bool = True
    exit_code: int | None = 70
    directory: Path = Path("/nowhere")
    data_path: Path = field(default_factory=lambda: Path("/nowhere/data"))

    async def arm_fault(self, *_: object, **__: object) -> None: ...

    async def wait_exit(self, _timeout_s: float) -> int | None:
        if self.exit_code is None:
            raise TimeoutError
        return self.exit_code

    async def terminate(self) -> int | None:
        return 0


class FakeCluster:
    settings: ClassVar = {"broker.session.timeout.ms": 1000}
    bootstrap = "127.0.0.1:1"
    clock = None
    security = None

    def __init__(self) -> None:
        self.nodes = [FakeNode(1), FakeNode(2), FakeNode(3)]

    def node(self, number: int) -> FakeNode:
        return self.nodes[number - 1]


class FakeWorkload:
    """Readable, and accepts records, unless the arguments say otherwise."""

    plan = Plan()

    def __init__(self) -> None:
        self.progress = Progress()
        self.refusal = ""
        self.incomplete: list[Partition] = []

    async def unreadable(self) -> list[Partition]:
        return self.incomplete

    async def write_one(self, *_: object) -> str:
        return self.refusal


class FakeRun(Run):
    """Time goes on only by `load`."""

    time = 0.0
    led: dict[Partition, int] = {A: 2, B: 3}  # noqa: RUF012 no test changes it
    broken_during_load: Exception | None = None

    def now(self) -> float:
        return self.time

    async def load(self, seconds: float) -> None:
        self.time += max(0.0, seconds)
        if self.broken_during_load is not None and self.time > 2:
            raise self.broken_during_load

    async def leaders(self) -> dict[Partition, int]:
        return self.led

    async def recovery(self, *_: object, **__: object) -> Recovery:
        return Recovery("fault", 1, "every client", 0.1, 0.1)

    async def restart(self, _node: object) -> float:
        return 0.1

    async def wait_ready(self) -> None: ...


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    outcome = RunOutcome("test", 1, 1.0, tmp_path)
    found = FakeRun(
        FakeCluster(),  # type: ignore[arg-type]
        FakeWorkload(),  # type: ignore[arg-type]
        History(lambda: 0.0),
        outcome,
        random.Random(1),
        lambda _: None,
    )
    found.lab = FakeLab()  # type: ignore[assignment]

    async def pick(_: Run) -> Target:
        return targets.leading(found.led, found.cluster.nodes[1], "leader")

    monkeypatch.setattr(targets, "leader", pick)
    monkeypatch.setattr(targets, "controller", pick)

    emptied.clear()
    changing(monkeypatch, 3)
    monkeypatch.setattr(disk_faults, "fill", lambda folder: None)
    monkeypatch.setattr(disk_faults, "empty", lambda folder: emptied.append(folder))
    says(monkeypatch, True)
    return found


def changing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    async def changed(run: Run, seconds: float) -> int:
        await run.load(seconds)
        return times

    monkeypatch.setattr(disk_faults, "_change_metadata", changed)


def says(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    async def fake(*_: object) -> bool:
        return answer

    monkeypatch.setattr(disk_faults, "_says", fake)


def failed(run: Run) -> list[str]:
    return [verdict.name for verdict in run.outcome.verdicts if not verdict.passed]


async def test_an_acknowledgement_while_no_two_nodes_meet_fails_the_run(run: FakeRun) -> None:
    await network_scenarios.all_apart(run)
    assert failed(run) == []
    assert run.outcome.passed
    run.time = 0.0
    run.workload.progress.acknowledged("plain-0/1", 1.6, 2.5)
    await network_scenarios.all_apart(run)
    assert failed(run) == ["nothing is acknowledged while no two nodes meet"]


async def test_what_was_on_its_way_when_the_network_was_cut_may_be_acknowledged(run: FakeRun) -> None:
    run.workload.progress.acknowledged("plain-0/1", 1.1, 1.6)
    await network_scenarios.all_apart(run)
    assert failed(run) == []


CUTTING = [name for name, scenario in SCENARIOS.items() if scenario.cuts_network and not scenario.names_lag_s]


@pytest.mark.parametrize("name", CUTTING)
async def test_a_cut_is_healed_also_when_the_scenario_fails(
    run: FakeRun, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(*_: object) -> FakeNode:
        return run.cluster.nodes[0]  # type: ignore[return-value]

    monkeypatch.setattr(FakeCluster, "active_controller", first, raising=False)
    monkeypatch.setattr(targets, "wait_coordinator", first)
    monkeypatch.setattr(targets, "Admin", lambda *_, **__: nullcontext())
    run.broken_during_load = ConnectionError("the harness lost its way")
    run.rounds = 1
    scenario = SCENARIOS[name]
    if name == "cut-coordinator":
        monkeypatch.setattr(run.workload, "writer_ids", ["writer"], raising=False)
    with pytest.raises(ConnectionError):
        await scenario.inject(run)
    assert run.lab.cuts
    assert run.lab.heals == 1  # type: ignore[attr-defined]


async def test_a_lost_session_or_a_long_gap_of_starved_nodes_fails_the_run(run: FakeRun) -> None:
    for at in (1.0, 2.5, 4.0):
        run.workload.progress.acknowledged("plain-0/1", 0.0, at)
    starved.judge(run, "WARNING node.membership heartbeat_failed", 0.0, 5.0)
    assert failed(run) == []
    starved.judge(run, "INFO controller.office broker_session_expired node=1", 0.0, 7.0)
    assert failed(run) == [
        "no session is lost with 20 ms of CPU a second",
        "no gap of more than 2 s between two acknowledgements"
    ]  # fmt: skip


async def test_a_slow_delivery_fails_the_restart_with_names_that_lag(run: FakeRun) -> None:
    for at in (1.0, 2.5, 4.0):
        run.workload.progress.acknowledged("plain-0/1", at - 0.5, at)
    restart_elsewhere.judge(run, 0.0, 5.0)
    assert failed(run) == []
    run.workload.progress.acknowledged("plain-1/1", 1.0, 4.5)
    restart_elsewhere.judge(run, 0.0, 5.0)
    assert failed(run) == ["no delivery takes more than 3 s"]


async def test_acknowledgements_on_full_disks_fail_the_run(run: FakeRun) -> None:
    run.workload.refusal = "TimeoutError()"  # type: ignore[attr-defined]
    await disk_faults.majority_full(run)
    assert failed(run) == []
    assert len(emptied) == 2
    run.workload.refusal = ""  # type: ignore[attr-defined]
    await disk_faults.majority_full(run)
    assert failed(run) == ["nothing that needs room is acknowledged while the disks of a majority are full"]


async def test_a_full_disk_that_blocks_others_or_reads_or_is_silent_fails(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    await disk_faults.disk_full(run)
    assert failed(run) == []
    run.workload.refusal = "TimeoutError()"  # type: ignore[attr-defined]
    run.workload.incomplete = [A]  # type: ignore[attr-defined]
    says(monkeypatch, False)
    changing(monkeypatch, 0)
    await disk_faults.disk_full(run)
    assert failed(run) == [
        "the metadata can be changed while disks are full",
        "a node with a full disk says so and lives",
        "what was written can be read while disks are full",
        "partitions that are led elsewhere take records while one disk is full",
        "a node with room again is ready by itself",
    ]


async def test_a_folder_that_fails_silently_or_keeps_leaderships_fails_the_run(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def chosen(_: Run) -> tuple[Target, list[Partition]]:
        return targets.leading({A: 2}, run.cluster.nodes[1], "leader"), [A]

    monkeypatch.setattr(disk_faults, "_leader_in_second_folder", chosen)
    says(monkeypatch, False)
    await disk_faults.sync_fails(run)
    assert failed(run) == [
        "the node says that its folder is offline, and lives",
        "others lead what was in the folder",
    ]
    run.outcome.verdicts.clear()
    run.led = {A: 1, B: 3}
    says(monkeypatch, True)
    await disk_faults.sync_fails(run)
    assert failed(run) == []


@pytest.mark.parametrize(("code", "passed"), [(70, True), (0, False), (-9, False), (None, False)])
async def test_only_a_fail_stop_passes_when_a_journal_cannot_be_flushed(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch, code: int | None, passed: bool
) -> None:
    for node in run.cluster.nodes:
        node.exit_code = code  # type: ignore[attr-defined]
    await disk_faults.journal_sync_fails(run)
    assert (failed(run) == []) is passed


def test_a_replica_that_gives_its_readers_something_else_is_named() -> None:
    read = {A: [(0, "a"), (1, "b")], B: [(0, "c")]}
    assert unequal_reads("rack-2", read, {A: [(0, "a"), (1, "b")], B: [(0, "c")]}) == []
    assert unequal_reads("rack-2", read, {A: [(0, "a")], B: [(0, "c")]}) == [
        "topic-0: a reader near rack-2 got 1 records, others 2"
    ]
    assert unequal_reads("rack-2", read, {A: [(0, "a"), (1, "B")]}) == [
        "topic-0: a reader near rack-2 got 2 records, others 2",
        "topic-1: a reader near rack-2 got 0 records, others 1",
    ]


@pytest.mark.parametrize(("name", "tool"), [("cut-all", "NetworkLab"), ("disk-full", "SmallDisks")])
async def test_a_missing_right_on_the_machine_fails_the_run_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tool: str
) -> None:
    def refused(*_: object) -> None:
        raise MissingRight("THE NETWORK CANNOT BE CUT HERE, so nothing was tried: run as root")

    monkeypatch.setattr(getattr(harness, tool), "__enter__", refused)
    outcome = await run_scenario(SCENARIOS[name], tmp_path / "run", 1.0)
    assert not outcome.passed
    assert "CANNOT BE CUT HERE" in outcome.table()
    assert (tmp_path / "run" / "report.json").exists()


def test_a_pause_ends_with_the_affected_only() -> None:
    """A commit that began before the fault, or did not need the target, proves nothing."""
    from tidegate.chaos.load.progress import Commit

    target = targets.leading({A: 2, B: 3}, FakeNode(2), "leader")  # type: ignore[arg-type]
    is_affected = target.affected(InjectedFault(2, 5.0, None))
    assert is_affected(Commit("p", "t", frozenset({A}), 5.1, 6.0))
    assert not is_affected(Commit("p", "t", frozenset({A}), 4.9, 6.0))
    assert not is_affected(Commit("p", "t", frozenset({B}), 5.1, 6.0))
