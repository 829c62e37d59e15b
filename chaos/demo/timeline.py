"""What happened when, as one page: flights sent, committed, transformed and read over time, the nodes with
their kills, the producers with their commits, and the steps of Spark's part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...spark.progress.charts import (
    Chart,
    Lane,
    Lanes,
    Line,
    Mark,
    Span,
    Table,
    page,
    rate,
    running_total,
)
from .checks import Check
from .load import PRODUCERS, Journal

RATE_BIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Kill:
    """A node that was killed, when, when the producers that it hit had their next commit, and when it was
    back."""

    node: int
    what: str
    killed_at: float
    recovered_at: float
    back_at: float


@dataclass(slots=True)
class Story:
    """What the demo notes as it runs; all times are of its monotonic clock.  `begun_at` is 0 on the page."""

    begun_at: float
    nodes: Sequence[int]
    transformed: list[tuple[float, int]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    steps: list[tuple[str, float, float]] = field(default_factory=list)  # of Spark's part: name, begin, end
    read: list[tuple[float, int]] = field(default_factory=list)  # rows that Spark gave to the checks
    ended_at: float = 0.0


def timeline(story: Story, journal: Journal, checks: Sequence[Check]) -> str:
    """The page, as HTML."""

    def since(at: float) -> float:
        return at - story.begun_at

    def moved(moments: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
        return [(since(at), count) for at, count in moments]

    committed = [(since(each.acknowledged_at), float(len(each.flights))) for each in journal.committed]
    flights = Chart(
        "Flights, from the start of the load",
        "flights",
        [
            Line("sent, in any attempt", running_total(moved(journal.sent)), steps=True),
            Line("committed", running_total(committed), steps=True),
            Line("transformed and committed", running_total(moved(story.transformed)), steps=True),
            Line("read by Spark for the checks", running_total(moved(story.read)), steps=True),
        ],
    )
    speed = Chart(
        "Flights a second",
        "flights/s",
        [
            Line("committed", rate(committed, RATE_BIN_S)),
            Line("transformed and committed", rate(moved(story.transformed), RATE_BIN_S)),
        ],
    )
    said = (
        f"{len(journal.committed):,} transactions committed, "
        f"{journal.aborted_on_purpose:,} aborted on purpose, "
        f"{journal.failures:,} repeated after a kill. A commit counts when its producer has the answer."
    )
    marks = [Mark(f"kill of node {kill.node}: {kill.what}", since(kill.killed_at)) for kill in story.kills]
    verdicts = [
        (check.name, f"{check.violations:,}", f"{check.compared:,}", "ok" if check.passed else "FAILED")
        for check in checks
    ]
    return page(
        "Tidegate: what the demo did",
        said,
        [flights, speed, _actors(story, journal)],
        marks,
        [Table("What was checked", ("check", "violations", "over", ""), verdicts)],
    )


def _actors(story: Story, journal: Journal) -> Lanes:
    def span(name: str, begin: float, end: float) -> Span:
        return Span(name, begin - story.begun_at, end - story.begun_at)

    lanes: list[Lane] = []
    for node in story.nodes:
        spans, up_since = [], story.begun_at
        for kill in story.kills:
            if kill.node == node:
                spans += [span("up", up_since, kill.killed_at), span("down", kill.killed_at, kill.back_at)]
                up_since = kill.back_at
        lanes.append(Lane(f"node {node}", [*spans, span("up", up_since, story.ended_at)]))
    recovering = [span("kill to next commit of those hit", k.killed_at, k.recovered_at) for k in story.kills]
    lanes.append(Lane("recovery", recovering))
    for number in range(PRODUCERS):
        commits = [t.acknowledged_at - story.begun_at for t in journal.committed if t.producer == number]
        lanes.append(Lane(f"producer {number}", ticks=commits))
    lanes.append(Lane("transform", ticks=[at - story.begun_at for at, _ in story.transformed]))
    lanes.append(Lane("Spark", [span(f"Spark: {name}", begin, end) for name, begin, end in story.steps]))
    return Lanes("Who did what", lanes, tick="a commit")
