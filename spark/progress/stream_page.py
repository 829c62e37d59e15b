"""A stream's progress reports as one page: lag, rows a second, and when each micro-batch was committed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from .bars import Report, behind
from .charts import Chart, Lane, Lanes, Line, Span, page

STEPS: Final = {
    "latestOffset": "asks what there is",
    "queryPlanning": "plans",
    "walCommit": "notes what it will read",
    "addBatch": "reads and writes",
    "commitOffsets": "notes that it is done",
}
"""Of a micro-batch, by Spark's names in `durationMs`, in their order."""


def stream_page(title: str, reports: Sequence[Report]) -> str:
    """HTML, from what `watch` returned.  0 is where the first micro-batch began."""
    begins = [datetime.fromisoformat(report["timestamp"]).timestamp() for report in reports]
    first = min(begins, default=0.0)
    spans: list[Span] = []
    ends: list[float] = []
    for report, began in zip(reports, begins, strict=True):
        at = began - first
        for step, said in STEPS.items():
            took = report["durationMs"].get(step, 0) / 1000
            if took:
                spans.append(Span(said, at, at + took))
            at += took
        ends.append(began - first + report["durationMs"].get("triggerExecution", 0) / 1000)
    rows = [report["numInputRows"] for report in reports]
    seconds = [max(0.001, end + first - began) for began, end in zip(begins, ends, strict=True)]
    speed = [(end, count / took) for end, count, took in zip(ends, rows, seconds, strict=True)]
    lag = [(end, float(behind(report))) for report, end in zip(reports, ends, strict=True)]
    said = f"{sum(rows):,} rows in {len(reports):,} micro-batches."
    charts: list[Chart | Lanes] = [
        Chart("Lag after each micro-batch", "offsets", [Line("behind latest", lag)]),
        Chart("Rows a second, of each micro-batch", "rows/s", [Line("read", speed)]),
        Lanes("Micro-batches", [Lane("steps", spans), Lane("commits", ticks=ends)], tick="a commit"),
    ]
    return page(title, said, charts)
