"""The result of one chaos run, for people and for machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ..checks.anomaly import AnomalyKind
from ..checks.checker import Report
from .node_logs import LEVELS, Counted, loud

PROMISES: Final[Mapping[str, tuple[AnomalyKind, ...]]] = {
    "0 records lost": (AnomalyKind.LOST_WRITE, AnomalyKind.UNSEEN),
    "0 records duplicated": (AnomalyKind.DUPLICATE, AnomalyKind.INCONSISTENT_OFFSETS),
    "0 records that no client wrote": (AnomalyKind.UNWRITTEN_VALUE,),
    "0 aborted or uncommitted records visible": (AnomalyKind.ABORTED_READ, AnomalyKind.PRECOMMITTED_READ),
    "0 transactions torn": (AnomalyKind.TORN_TRANSACTION,),
    "0 reads or writes out of order": (
        AnomalyKind.INTERNAL_POLL_SKIP,
        AnomalyKind.INTERNAL_NONMONOTONIC_POLL,
        AnomalyKind.POLL_SKIP,
        AnomalyKind.NONMONOTONIC_POLL,
        AnomalyKind.INTERNAL_NONMONOTONIC_SEND,
        AnomalyKind.NONMONOTONIC_SEND,
        AnomalyKind.G0,
        AnomalyKind.G0_PROCESS,
        AnomalyKind.G0_REALTIME,
        AnomalyKind.G1C,
        AnomalyKind.G1C_PROCESS,
        AnomalyKind.G1C_REALTIME,
    ),
    "offsets and outputs move together": (
        AnomalyKind.TORN_OFFSET_COMMIT,
        AnomalyKind.CONSUMED_TWICE,
        AnomalyKind.CONSUMED_NEVER,
    ),
    "0 commits of zombies acknowledged": (AnomalyKind.ZOMBIE_ACKNOWLEDGED,),
}
"""Every kind of anomaly, under the promise that it breaks."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one check."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The effect of a fault.  Seconds from the fault; None: not within the time of the wait."""

    fault: str
    node_id: int
    affected: str
    """Whose commits were affected."""
    affected_s: float | None
    """Until the next acknowledged commit of the affected."""
    any_s: float | None
    """Until the next acknowledged commit of any client."""
    back_s: float | None = None
    """From the restart of the node until it was ready."""


@dataclass(slots=True)
class RunOutcome:
    """All results of one run."""

    scenario: str
    seed: int
    seconds: float
    directory: Path
    nodes: int = 3
    secured: bool = False
    recoveries: list[Recovery] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    figures: dict[str, float | int] = field(default_factory=dict)
    anomalies: list[str] = field(default_factory=list)
    disturbances: list[str] = field(default_factory=list)
    log_lines: Counted = field(default_factory=Counter)
    """What the nodes logged, by level and event."""

    @property
    def passed(self) -> bool:
        """True when something was checked and every check passed."""
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    def require(self, name: str, passed: bool, detail: str = "") -> None:
        self.verdicts.append(Verdict(name, passed, detail))

    def judge(self, report: Report) -> None:
        """Adds the checker's verdict, one line for each promise."""
        for promise, kinds in PROMISES.items():
            found = report.count(*kinds)
            first = next((str(anomaly) for anomaly in report.anomalies if anomaly.kind in kinds), "")
            self.require(promise, found == 0, f"{found} found, the first: {first}" if found else "")
        self.anomalies = [str(anomaly) for anomaly in report.anomalies]
        self.figures |= asdict(report.counts)

    def document(self) -> dict[str, Any]:
        """The outcome as plain JSON values."""
        return {
            "scenario": self.scenario,
            "passed": self.passed,
            "seed": self.seed,
            "seconds": self.seconds,
            "nodes": self.nodes,
            "secured": self.secured,
            "directory": str(self.directory),
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "recoveries": [asdict(recovery) for recovery in self.recoveries],
            "figures": self.figures,
            "anomalies": self.anomalies,
            "disturbances": self.disturbances,
            "log_lines": {
                level: {event: count for (at, event), count in self.log_lines.most_common() if at == level}
                for level in LEVELS
            },
        }

    def write(self) -> None:
        """report.json and table.txt into the run's directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        report = json.dumps(self.document(), ensure_ascii=False, indent=1)
        (self.directory / "report.json").write_text(report + "\n", encoding="utf-8")
        (self.directory / "table.txt").write_text(self.table(), encoding="utf-8")

    def table(self) -> str:
        """The results as text for people."""
        grouped: dict[str, list[Verdict]] = {}
        for verdict in self.verdicts:
            grouped.setdefault(verdict.name, []).append(verdict)
        width = max((len(name) for name in grouped), default=0)
        lines = [
            f"{self.scenario} ({self.nodes} nodes{', secured' if self.secured else ''}, seed {self.seed}): "
            f"{'passed' if self.passed else 'FAILED'}"
        ]
        for name, verdicts in grouped.items():
            failed = [verdict.detail for verdict in verdicts if not verdict.passed]
            times = f"{len(verdicts)} times" if len(verdicts) > 1 else ""
            shown = failed or [times or verdicts[0].detail]
            lines.append(
                f"  {'FAILED' if failed else 'ok    '}  {name:<{width}}  {'; '.join(shown)}".rstrip()
            )
        lines += [f"  {_sentence(recovery)}" for recovery in self.recoveries]
        counted = ", ".join(
            f"{name.replace('_', ' ')} {_number(value)}" for name, value in self.figures.items()
        )
        lines.append(f"  {counted}")
        said = ", ".join(f"{event} {count}" for (_, event), count in loud(self.log_lines).most_common())
        lines.append(
            f"  the nodes logged {self.log_lines.total()} lines; at WARNING and above: {said or 'none'}"
        )
        return "\n".join(lines) + "\n"


def _sentence(recovery: Recovery) -> str:
    parts = [f"{recovery.affected} committed again after {_seconds(recovery.affected_s)}"]
    parts.append(f"any client after {_seconds(recovery.any_s)}")
    if recovery.back_s is not None:
        parts.append(f"the node was ready {_seconds(recovery.back_s)} after its restart")
    where = f"node {recovery.node_id}: " if recovery.node_id else ""  # 0: the fault concerns several nodes
    return f"{where}{recovery.fault}: " + ", ".join(parts)


def _seconds(value: float | None) -> str:
    return "never (while it was waited for)" if value is None else f"{value:.2f} s"


def _number(value: float | int) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
