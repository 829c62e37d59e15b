"""Many simulated histories in a row, by their seeds: the one way in which the command line and long runs
drive every simulator.

A history is a function of its seed.  It returns its counts, and raises `Broken` when a promise does not hold.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

BROKEN_MAX = 20
"""A run ends when so many histories are broken: more would tell nothing new."""

Step = tuple[str, int, int]
"""Of a history that is a list of steps: an operation, and two numbers that choose sizes, offsets, places and
fates."""


class Broken(AssertionError):
    """A promise does not hold; the message says how to repeat the run."""


@dataclass(slots=True)
class RunsReport:
    """The result of a run: `counts` by event, `broken` are (seed, broken promise)."""

    first_seed: int
    histories: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    broken: list[tuple[int, str]] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        return {
            "first_seed": self.first_seed, "histories": self.histories, **self.counts,
            "cpu_seconds": round(self.cpu_seconds, 1),
            "broken": [{"seed": seed, "what": what} for seed, what in self.broken],
        }  # fmt: skip

    def describe(self) -> str:
        counted = "".join(f"{count} {name}, " for name, count in self.counts.items())
        lines = [
            f"{self.histories} histories from seed {self.first_seed}, "
            f"{counted}{self.cpu_seconds:.1f} s of CPU: "
            f"{len(self.broken)} broken"
        ]
        return "\n".join([*lines, *(what for _seed, what in self.broken)])


def run_seeds(first: int, count: int, history: Callable[[int], Mapping[str, int]]) -> RunsReport:
    """Runs the histories of seeds first, first + 1, ...; logs are silent meanwhile."""
    report = RunsReport(first)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    begun = time.process_time()
    try:
        for seed in range(first, first + count):
            try:
                report.counts.update(history(seed))
            except Broken as broken:
                report.broken.append((seed, str(broken)))
            report.histories += 1
            if len(report.broken) >= BROKEN_MAX:
                break
    finally:
        logging.disable(disabled)
        report.cpu_seconds = time.process_time() - begun
    return report
