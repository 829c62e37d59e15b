"""What a person sees of a stream: its rows and lag while it runs, and its page afterwards."""

from __future__ import annotations

import json
import re
import threading
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from tidegate.spark.progress import bars
from tidegate.spark.progress.stream_page import stream_page

SVG = "{http://www.w3.org/2000/svg}"


def report(batch: int, rows: int, behind: dict[str, int], second: int = 0, **steps: int) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "timestamp": f"2026-11-23T10:00:{second:02}.000Z",
        "durationMs": {**steps, "triggerExecution": sum(steps.values())},
        "sources": [{"latestOffset": {"offsetsBehindLatest": {"flights": behind}}}],
    }


REPORTS = [
    report(0, 100, {"0": 150, "1": 50}, 0, latestOffset=100, addBatch=800, commitOffsets=100),
    report(1, 200, {"0": 0, "1": 0}, 2, addBatch=1900, commitOffsets=100),
]


class Query:
    """A stream that reports one micro-batch more at each look, and ends with the last."""

    def __init__(self, reports: list[dict[str, Any]], failure: BaseException | None = None) -> None:
        self._reports, self._failure = reports, failure
        self.looks = 0
        self.is_stopped = False

    def awaitTermination(self, seconds: float) -> bool:
        self.looks += 1
        if self.looks == len(self._reports) and self._failure is not None:
            raise self._failure
        return self.looks == len(self._reports)

    @property
    def recentProgress(self) -> list[Any]:
        return [SimpleNamespace(json=json.dumps(each)) for each in self._reports[: self.looks]]

    def stop(self) -> None:
        self.is_stopped = True


def test_a_stream_is_watched_until_it_ends() -> None:
    query: Any = Query(REPORTS)
    assert bars.watch(query) == REPORTS
    assert query.looks == 2


def test_an_error_of_the_stream_is_raised() -> None:
    query: Any = Query(REPORTS, RuntimeError("lost"))
    with pytest.raises(RuntimeError, match="lost"):
        bars.watch(query)


def test_an_interrupt_stops_the_stream_and_keeps_what_it_reported() -> None:
    query: Any = Query(REPORTS, KeyboardInterrupt())
    assert bars.watch(query) == REPORTS
    assert query.is_stopped


def test_the_report_of_an_empty_trigger_does_not_replace_that_of_its_micro_batch() -> None:
    idle = {**REPORTS[1], "numInputRows": 0}
    query: Any = Query([*REPORTS, idle])
    assert bars.watch(query) == REPORTS


def test_over_spark_connect_the_sources_alone_have_the_rows() -> None:
    """Of a join of two streams."""
    joined: dict[str, Any] = {name: value for name, value in REPORTS[1].items() if name != "numInputRows"}
    joined["sources"] = [source | {"numInputRows": 100} for source in 2 * joined["sources"]]
    query: Any = Query([REPORTS[0], joined])
    assert [report["numInputRows"] for report in bars.watch(query)] == [100, 200]


def test_lag_is_the_sum_over_partitions_and_is_0_where_a_source_reports_none() -> None:
    assert bars.behind(REPORTS[0]) == 200
    assert bars.behind({"sources": [{"latestOffset": None}, {}]}) == 0
    text = json.dumps({"offsetsBehindLatest": {"t": {"0": 7}}})
    assert bars.behind({"sources": [{"latestOffset": text}]}) == 7


def test_tasks_are_followed_to_their_end() -> None:
    ended = threading.Event()
    updates: list[dict[str, Any]] = []
    stages = {1: (2, 4), 2: (0, 3)}

    def info(stage: int) -> Any:
        done, tasks = stages[stage]
        return SimpleNamespace(numCompletedTasks=done, numTasks=tasks)

    tracker = SimpleNamespace(getActiveStageIds=lambda: [1, 2], getStageInfo=info)

    def update(bar: int, **values: Any) -> None:
        updates.append(values)
        stages.update({1: (4, 4), 2: (3, 3)})
        ended.set()

    progress: Any = SimpleNamespace(update=update)
    bars._follow(tracker, progress, 0, ended)
    assert updates[-1] == {"completed": 7, "total": 7}


class Bar:
    """Takes the place of the terminal's."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        """Draws nothing."""

    def add_task(self, title: str, total: int | None) -> str:
        return title

    def update(self, bar: str, **values: Any) -> None:
        self.updates.append(values)


@pytest.fixture
def bar(monkeypatch: pytest.MonkeyPatch) -> Bar:
    bar = Bar()
    monkeypatch.setattr(bars, "_progress", lambda: bar)
    return bar


def test_the_bar_of_a_stream_shows_its_rows_and_its_lag(bar: Bar) -> None:
    class Late(Query):
        """Has nothing to report at the first look."""

        def awaitTermination(self, seconds: float) -> bool:
            self.looks += 1
            return self.looks > len(self._reports)

        @property
        def recentProgress(self) -> list[Any]:
            return [SimpleNamespace(json=json.dumps(each)) for each in self._reports[: self.looks - 1]]

    query: Any = Late(REPORTS)
    bars.watch(query)
    assert bar.updates == [
        {"completed": 0, "total": None},
        {"completed": 100, "total": 300},
        {"completed": 300, "total": 300},
    ]


def test_the_bar_of_a_job_follows_its_tasks_and_ends_with_it(bar: Bar) -> None:
    stages = {1: SimpleNamespace(numCompletedTasks=3, numTasks=4), 2: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: stages, getStageInfo=stages.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    before = set(threading.enumerate())
    with pytest.raises(RuntimeError, match="of the job"), bars.tasks_bar(spark):
        assert set(threading.enumerate()) > before
        raise RuntimeError("of the job")
    assert set(threading.enumerate()) == before
    assert bar.updates[-1] == {"completed": 3, "total": 4}


def test_a_job_over_spark_connect_has_a_bar_without_tasks(bar: Bar) -> None:
    class Connect:
        @property
        def sparkContext(self) -> Any:
            raise RuntimeError("JVM_ATTRIBUTE_NOT_SUPPORTED")

    spark: Any = Connect()
    before = set(threading.enumerate())
    with bars.tasks_bar(spark):
        assert set(threading.enumerate()) == before
    assert bar.updates == []


def test_a_report_may_come_as_spark_connect_gives_it() -> None:
    class Dictionaries(Query):
        @property
        def recentProgress(self) -> list[Any]:
            return self._reports[: self.looks]

    query: Any = Dictionaries(REPORTS)
    assert bars.watch(query) == REPORTS


def test_a_trigger_without_rows_has_a_report_until_it_has_some() -> None:
    idle = {**REPORTS[1], "numInputRows": 0}
    query: Any = Query([REPORTS[0], idle, REPORTS[1]])
    assert bars.watch(query) == REPORTS
    query = Query([REPORTS[0], idle])
    assert bars.watch(query) == [REPORTS[0], idle]


def test_a_micro_batch_of_no_time_has_a_speed() -> None:
    html = stream_page("flights", [report(0, 5, {"0": 0}), report(1, 7, {"0": 0})])
    assert "12 rows in 2 micro-batches" in html


def test_the_page_has_lag_speed_steps_and_commits() -> None:
    html = stream_page("flights", REPORTS)
    assert "300 rows in 2 micro-batches" in html
    lag, _speed, work = (
        ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    )
    assert "200" in ["".join(text.itertext()) for text in lag.iter(f"{SVG}text")]
    spans = [span.findtext(f"{SVG}title") for span in work.iter(f"{SVG}rect")]
    assert spans == [
        "asks what there is: 0.00 to 0.10 s",
        "reads and writes: 0.10 to 0.90 s",
        "notes that it is done: 0.90 to 1.00 s",
        "reads and writes: 2.00 to 3.90 s",
        "notes that it is done: 3.90 to 4.00 s",
    ]
    (ticks,) = work.iter(f"{SVG}path")
    assert ticks.get("d", "").count("M") == 2


def test_a_stream_without_micro_batches_has_a_page() -> None:
    assert "0 rows in 0 micro-batches" in stream_page("flights", [])
