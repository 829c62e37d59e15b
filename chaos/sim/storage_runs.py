"""Many storage histories in a row, by their seeds: what the command line and long runs use."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from .storage_history import Broken, StorageHistory

BROKEN_MAX = 20
"""A run ends when so many histories are broken: more would tell nothing new."""


@dataclass(slots=True)
class RunsReport:
    """What a run found: `broken` are (seed, what does not hold)."""

    first_seed: int
    histories: int = 0
    crashes: int = 0
    cpu_seconds: float = 0.0
    broken: list[tuple[int, str]] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        return {
            "first_seed": self.first_seed, "histories": self.histories, "crashes": self.crashes,
            "cpu_seconds": round(self.cpu_seconds, 1), "broken": [{"seed": seed, "what": what} for seed, what in self.broken],
        }  # fmt: skip

    def describe(self) -> str:
        lines = [
            f"{self.histories} histories from seed {self.first_seed}, {self.crashes} crashes, {self.cpu_seconds:.1f} s of CPU: "
            f"{len(self.broken)} broken"
        ]
        return "\n".join([*lines, *(what for _seed, what in self.broken)])


def run_histories(first: int, count: int, length: int) -> RunsReport:
    """Runs the histories of seeds first, first + 1, ...; logs are silent meanwhile."""
    report = RunsReport(first)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    begun = time.process_time()
    try:
        for seed in range(first, first + count):
            history = StorageHistory(seed, length=length)
            try:
                history.run()
            except Broken as broken:
                report.broken.append((seed, str(broken)))
            report.histories += 1
            report.crashes += history.crashes
            if len(report.broken) >= BROKEN_MAX:
                break
    finally:
        logging.disable(disabled)
        report.cpu_seconds = time.process_time() - begun
    return report
