"""`verify` looks at logs that move between data folders (KIP-113): at every step of a move it has no false
finding, and it finds real damage."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.storage.moves_history import MovesHistory
from tidegate.storage.directory.move_state import REPLICA_MOVE, MoveState, write_move_state
from tidegate.storage.inspection.directory import DataFolder, VerificationOptions, verify
from tidegate.storage.inspection.findings import Finding, Severity
from tidegate.storage.moving.future_replica import FutureReplica

from .test_move_hazards import ready
from .test_moves import A, B, C, drive, opened, with_log
from .workload import NOW_MS, append, batch

FIRST_SEED = int(os.environ.get("TIDEGATE_STORAGE_SEED", "0"))
HISTORIES = int(os.environ.get("TIDEGATE_INSPECTED_HISTORIES", "200")) // 4


def look(disk: object, *paths: Path, running: bool = False) -> list[Finding]:
    reports = list(verify(disk, paths or (A, B, C), VerificationOptions(NOW_MS, lambda _path: running)))  # type: ignore[arg-type]
    return [finding for report in reports for finding in report.findings]


def kinds(disk: LyingDisk, *paths: Path, running: bool = False) -> list[str]:
    return [finding.kind for finding in look(disk, *paths, running=running)]


class InspectedMoves(MovesHistory):
    """A history that is looked at from outside, after every step and before every start."""

    looks = 0
    futures = 0

    def violations(self, *, running: bool) -> list[Finding]:
        try:
            if not all(self.disk.exists(path / "meta.properties") for path in self.paths):
                return []
            found = look(self.disk, *self.paths, running=running)
        except OSError:
            return []  # of a disk that died
        self.looks += 1
        self.futures += any(finding.kind == "future-replica" for finding in found)
        # Each partition of these histories has a topic id of its own.
        excused = {"topic-id-differs", "topic-id-shared"}
        return [each for each in found if each.severity is Severity.VIOLATION and each.kind not in excused]

    def _step(self, name: str, a: int, b: int) -> None:
        super()._step(name, a, b)
        if not self.folders.offline_folders and not any(life.log.is_offline for life in self.lives.values()):
            assert self.violations(running=True) == []

    def _open(self, random: Random) -> None:
        assert self.violations(running=False) == []
        super()._open(random)


def test_no_history_of_moves_is_accused() -> None:
    looks = futures = 0
    for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
        history = InspectedMoves(seed, length=40)
        history.run()
        looks, futures = looks + history.looks, futures + history.futures
    assert looks > 10 * HISTORIES
    assert futures > HISTORIES


@pytest.mark.parametrize(
    ("cut_short", "seed"), [("deletion", 77), ("creation", 83), ("deletion", 112), ("deletion", 193)]
)
def test_what_a_crash_cut_short_is_no_fault(cut_short: str, seed: int) -> None:
    InspectedMoves(seed, length=40).run()


def half_way() -> LyingDisk:
    disk, folders, _log = with_log()
    drive(folders.move_to("t", 0, B), turns=6)
    folders.write_checkpoints()
    return disk


def test_a_future_replica_is_named_and_is_no_fault_after_any_stop() -> None:
    disk, folders, log = with_log()
    ready(folders)
    append(log, batch(1))
    assert kinds(disk, running=True) == ["future-replica"]
    folders.write_checkpoints()
    assert kinds(disk) == ["future-replica"]
    assert kinds(disk, B) == ["future-replica"]
    folders.close(clean=True, broker_epoch=1)
    assert kinds(disk) == ["future-replica"]


def test_damage_of_the_log_is_found_while_it_moves() -> None:
    disk = half_way()
    disk.flip_bit(next(path for path in disk.files() if path.suffix == ".log" and path.is_relative_to(A)), 70)
    found = [(each.kind, each.file.is_relative_to(A), each.severity) for each in look(disk)]
    assert found == [("batch-damaged", True, Severity.VIOLATION), ("future-replica", False, Severity.NOTE)]


def test_damage_of_the_copy_is_a_tail_that_is_copied_again() -> None:
    disk = half_way()
    disk.flip_bit(next(path for path in disk.files() if path.suffix == ".log" and path.is_relative_to(B)), 70)
    assert set(kinds(disk)) == {"torn-tail", "future-replica"}
    disk.kill()
    again = opened(disk)
    drive(again.futures["t", 0])
    assert again.logs["t", 0].log_end_offset == 30
    assert again.logs["t", 0].directory == B / "t-0"
    assert kinds(disk, running=True) == []


@pytest.mark.parametrize("step", ["decided", "left"])
def test_a_swap_that_was_cut_short_leaves_no_fault(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    disk, folders, _log = with_log()
    folders.write_checkpoints()
    future = ready(folders)

    class Cut(Exception):
        pass

    def cut(*_arguments: object) -> None:
        raise Cut

    if step == "decided":
        monkeypatch.setattr(FutureReplica, "_leave", cut)
    else:
        monkeypatch.setattr(folders.folders[0].notes, "forget_if_room", cut)
    with pytest.raises(Cut):
        drive(future)
    assert kinds(disk) == (["displaced-replica"] if step == "decided" else ["leftover"])
    disk.kill()
    assert opened(disk).logs["t", 0].directory == B / "t-0"


def test_two_logs_that_both_claim_to_be_the_log_are_a_fault() -> None:
    disk = half_way()
    write_move_state(disk, B / "t-0", MoveState.CURRENT)
    assert kinds(disk) == ["partition-twice"]
    assert "partition-twice" in kinds(disk, running=True)


def test_a_word_that_cannot_be_read_is_a_fault() -> None:
    disk = half_way()
    disk.write_atomic(B / "t-0" / REPLICA_MOVE, b"nobody knows")
    assert kinds(disk) == ["move-word-damaged"]


def test_a_move_that_is_settled_between_two_looks_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, folders, _log = with_log()
    future = ready(folders)
    steps = verify(disk, [A, B, C], VerificationOptions(NOW_MS, lambda _path: True))
    found = [each.findings for each in (next(steps), next(steps))]
    drive(future)
    reports = [*steps]
    assert [
        finding.severity
        for each in reports
        for finding in each.findings
        if finding.severity is Severity.VIOLATION
    ] == []
    assert found == [[], []]
    assert isinstance(reports[0], DataFolder)
