"""Bars in the terminal for what Spark does: `watch` follows a stream by its progress reports, `tasks_bar` a
batch job by its tasks.

A bar draws only where there is a terminal; `watch` returns the reports everywhere, for `stream_page`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S: Final = 1  # between two looks at what is done
Report = dict[str, Any]


def watch(query: StreamingQuery, title: str = "rows") -> list[Report]:
    """Shows the rows of a stream and its lag until the query ends, and returns the progress reports of all
    micro-batches.  Raises what ended the query, when that was an error.

    A query that runs for ever is watched until Ctrl-C, which stops it.
    """
    reports: dict[int, Report] = {}
    with _progress() as progress:
        bar = progress.add_task(title, total=None)
        ended = False
        try:
            while not ended:
                ended = bool(query.awaitTermination(LOOK_S))
                _collect(query, reports)
                done = sum(report["numInputRows"] for report in reports.values())
                last = reports[max(reports)] if reports else None
                progress.update(bar, completed=done, total=None if last is None else done + behind(last))
        except KeyboardInterrupt:
            query.stop()
            _collect(query, reports)
    return [reports[number] for number in sorted(reports)]


def behind(report: Report) -> int:
    """The offsets that the stream has not read, as its sources report them after a micro-batch."""
    found = 0
    for source in report["sources"]:
        latest = source.get("latestOffset")
        if isinstance(latest, str):  # as Spark gives the JSON of another source
            latest = json.loads(latest)
        for partitions in (latest or {}).get("offsetsBehindLatest", {}).values():
            found += sum(partitions.values())
    return found


@contextmanager
def tasks_bar(spark: SparkSession, title: str = "tasks") -> Iterator[None]:
    """Shows how many tasks of the jobs within are done.  Over Spark Connect, which has no status tracker, it
    shows the time alone."""
    ended = threading.Event()
    with _progress() as progress:
        bar = progress.add_task(title, total=None)
        try:
            tracker = spark.sparkContext.statusTracker()
        except Exception:  # of Spark Connect: each of its attributes that is missing raises its own error
            tracker = None
        watching = threading.Thread(target=_follow, args=(tracker, progress, bar, ended), daemon=True)
        if tracker is not None:
            watching.start()
        try:
            yield
        finally:
            ended.set()
            if tracker is not None:
                watching.join()


def _follow(tracker: Any, progress: Progress, bar: Any, ended: threading.Event) -> None:
    known: dict[int, tuple[int, int]] = {}  # by stage: tasks done, tasks
    while True:
        is_last = ended.wait(LOOK_S)
        for stage in {*known, *tracker.getActiveStageIds()}:
            info = tracker.getStageInfo(stage)
            if info is not None:
                known[stage] = info.numCompletedTasks, info.numTasks
        done, total = (sum(column) for column in zip(*known.values(), strict=True)) if known else (0, 0)
        progress.update(bar, completed=done, total=total or None)
        if is_last:
            return


def _collect(query: StreamingQuery, reports: dict[int, Report]) -> None:
    """Spark keeps the last hundred: a look a second misses none."""
    for progress in query.recentProgress:
        report = json.loads(progress.json) if hasattr(progress, "json") else dict(progress)
        if "numInputRows" not in report:  # over Spark Connect the sources alone have it
            report["numInputRows"] = sum(source["numInputRows"] for source in report["sources"])
        if report["numInputRows"] or report["batchId"] not in reports:
            reports[report["batchId"]] = report


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:>20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
