"""After every history of a log on a disk that lies, `verify` has no finding in a folder that kept every
promise.

The histories of `chaos/sim/storage/log_history.py`, with a look at the folder after every step, as of a
running node, and before every opening, as of one that was killed, lost its power, or was closed cleanly.
"""

from __future__ import annotations

import os

import pytest
from tidegate.chaos.sim.runs import Step
from tidegate.chaos.sim.storage.log_history import ROOT, StorageHistory
from tidegate.chaos.sim.storage.steps import NOW_MS
from tidegate.storage.inspection.directory import NotInspectable, VerificationOptions, verify
from tidegate.storage.inspection.findings import Finding, Severity

FIRST_SEED = int(os.environ.get("TIDEGATE_STORAGE_SEED", "0"))
HISTORIES = int(os.environ.get("TIDEGATE_INSPECTED_HISTORIES", "200"))
SHARES = 4


class Inspected(StorageHistory):
    """A history that is looked at from outside."""

    def __init__(self, seed: int, *, length: int = 14, steps: list[Step] | None = None) -> None:
        self.looks = 0
        super().__init__(seed, length=length, steps=steps)

    def look(self, *, running: bool) -> list[Finding]:
        try:
            self.disk.list_names(ROOT)
        except OSError:
            return []  # there is no folder yet
        try:
            reports = list(verify(self.disk, [ROOT], VerificationOptions(NOW_MS, lambda _path: running)))
        except NotInspectable:
            return []  # nothing is in it
        self.looks += 1
        return [
            finding
            for report in reports
            for finding in report.findings
            if finding.severity is Severity.VIOLATION
        ]

    def _open(self, *, clean: bool, full: bool = False) -> None:
        assert self.look(running=False) == []
        super()._open(clean=clean, full=full)

    def _learn(self) -> None:
        super()._learn()
        if not self.log.is_offline:
            assert self.look(running=True) == []


@pytest.mark.parametrize("share", range(SHARES))
def test_no_history_is_accused(share: int) -> None:
    each, looks = HISTORIES // SHARES, 0
    for seed in range(FIRST_SEED + share * each, FIRST_SEED + (share + 1) * each):
        history = Inspected(seed)
        history.run()
        looks += history.looks
    assert looks > 10 * each


def test_a_history_with_damage_is_accused() -> None:
    """The looks above see what there is to see: one flipped bit in flushed data turns them red."""
    steps: list[Step] = [("append", 5, 5), ("append", 7, 9), ("flush", 0, 0), ("checkpoint", 0, 0)]
    history = Inspected(3, steps=steps)
    for step in steps:
        history._step(*step)
    segment = next(path for path in history.disk.files() if path.suffix == ".log")
    history.disk.flip_bit(segment, 70)
    assert [finding.kind for finding in history.look(running=False)] == ["batch-damaged"]
