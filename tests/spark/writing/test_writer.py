"""What the driver makes of its tasks' results, without Spark and without a coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark import TaskContext
from tidegate.proto import jobs_pb2 as pb
from tidegate.spark.writing import stream_writer, writer
from tidegate.spark.writing.options import WriteOptions, parse_write_options
from tidegate.spark.writing.results import Attempt, TaskResult, WriteError
from tidegate.spark.writing.rows import Layout
from tidegate.spark.writing.writer import Sink, TidegateWriter
from tidegate.wire.errors import ErrorCode

ATTEMPT = Attempt("0-0-abc", 7, 1)


class Jobs:
    """A coordinator whose answer is this."""

    def __init__(self, reply: pb.JobReply) -> None:
        self.reply = reply
        self.rows: list[int] = []
        self.asked: list[str] = []
        self.is_closed = False

    def commit(self, winners: Sequence[Attempt], rows: int) -> pb.JobReply:
        self.rows.append(rows)
        self.asked.append(f"commit {len(winners)}")
        return self.reply

    def abort(self, run: str | None) -> pb.JobReply:
        self.asked.append(f"abort {run}")
        return self.reply

    def close(self) -> None:
        self.is_closed = True


def options(**more: str) -> WriteOptions:
    return parse_write_options({"bootstrap": "a:1", "topic": "flights"} | more)


LAYOUT = Layout(("value",), "flights")


def sink(
    monkeypatch: pytest.MonkeyPatch,
    outcome: pb.JobState.ValueType,
    *,
    is_yours: bool = True,
    rows: int | None = None,
    **more: str,
) -> tuple[Sink, Jobs]:
    jobs = Jobs(pb.JobReply(outcome=outcome, is_yours=is_yours, rows=rows))
    monkeypatch.setattr(Sink, "client", lambda *_: jobs)
    return Sink(options(**more), LAYOUT), jobs


def test_a_job_without_rows_was_never_opened_and_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, jobs = sink(monkeypatch, pb.COMMITTED)
    made.commit([TaskResult("etl", "3", 0)], "3")
    made.commit([], "3")
    assert jobs.asked == []


def test_a_decision_other_than_a_commit_ends_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    made, jobs = sink(monkeypatch, pb.ABORTED)
    with pytest.raises(WriteError, match="job etl/3 is aborted, not committed"):
        made.commit([TaskResult("etl", "3", 5, ATTEMPT)], "3")
    assert jobs.asked == ["commit 1"]


def test_a_task_without_a_result_keeps_the_job_from_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    made, jobs = sink(monkeypatch, pb.COMMITTED)
    with pytest.raises(WriteError, match="1 of 2 tasks of batch 3 have no result"):
        made.commit([TaskResult("etl", "3", 5, ATTEMPT), None], "3")
    assert jobs.asked == []


@pytest.mark.parametrize(
    ("is_yours", "is_replay", "told"),
    [
        (True, False, []),
        (False, False, ["another_run_committed_the_batch"]),
        (True, True, ["batch_was_committed_before"]),
    ],
)
def test_rows_that_another_run_has_written_are_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_yours: bool,
    is_replay: bool,
    told: list[str],
) -> None:
    made, jobs = sink(monkeypatch, pb.COMMITTED, is_yours=is_yours)
    made.commit([TaskResult("etl", "3", 5, ATTEMPT), TaskResult("etl", "3", 7, is_replay=is_replay)], "3")
    assert jobs.is_closed
    assert [record.getMessage().split()[0] for record in caplog.records] == told


def test_the_commit_says_how_many_rows_the_winners_have(monkeypatch: pytest.MonkeyPatch) -> None:
    made, jobs = sink(monkeypatch, pb.COMMITTED)
    other = Attempt("1-0-abc", 8, 0)
    made.commit([TaskResult("etl", "3", 5, ATTEMPT), TaskResult("etl", "3", 7, other)], "3")
    assert jobs.rows == [12]


REPLAYED = TaskResult("etl", "3", 7, is_replay=True)
MISMATCH = "batch 3 of sink etl was committed with 1,000 rows before, and has {} now"


@pytest.mark.parametrize(
    ("results", "committed", "now"),
    [
        ([replace(REPLAYED, rows_committed=1_000)], None, 7),
        ([replace(REPLAYED, rows_committed=1_000), TaskResult("etl", "3", 0)], None, 7),
        ([REPLAYED, replace(REPLAYED, rows_committed=1_000)], None, 14),
        # a task had opened its attempt when another run committed
        ([replace(REPLAYED, rows_committed=1_000), TaskResult("etl", "3", 5, ATTEMPT)], None, 12),
        ([TaskResult("etl", "3", 5, ATTEMPT)], 1_000, 5),
        ([REPLAYED, TaskResult("etl", "3", 5, ATTEMPT)], 1_000, 12),
    ],
)
def test_a_batch_that_was_committed_with_other_rows_fails(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    results: list[TaskResult],
    committed: int | None,
    now: int,
) -> None:
    """Its rows would be nowhere, without a word."""
    made, jobs = sink(monkeypatch, pb.COMMITTED, is_yours=False, rows=committed)
    with pytest.raises(WriteError, match=MISMATCH.format(now)) as failed:
        made.commit(results, "3")
    assert failed.value.code is ErrorCode.INVALID_REQUEST
    assert jobs.is_closed or not jobs.asked
    accepting, _ = sink(
        monkeypatch, pb.COMMITTED, is_yours=False, rows=committed, failOnReplayMismatch="false"
    )
    accepting.commit(results, "3")
    assert writer.REPLAY_IS_KNOWN not in caplog.text
    assert f"batch_had_other_rows sink=etl batch=3 rows={now} committed=1000" in caplog.text


@pytest.mark.parametrize(
    ("result", "committed", "told"),
    [
        (replace(REPLAYED, rows_committed=7), None, writer.REPLAY_IS_KNOWN),
        (REPLAYED, None, writer.REPLAY_IS_UNKNOWN),
        (TaskResult("etl", "3", 5, ATTEMPT), 5, "its records count"),
        (TaskResult("etl", "3", 5, ATTEMPT), None, "its records count"),
    ],
)
def test_as_many_rows_as_before_are_taken_for_the_same_ones(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    result: TaskResult,
    committed: int | None,
    told: str,
) -> None:
    made, _ = sink(monkeypatch, pb.COMMITTED, is_yours=False, rows=committed)
    made.commit([result], "3")
    assert told in caplog.text


def test_a_job_that_no_task_names_is_aborted_if_its_sink_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may have opened it, and failed."""
    made, jobs = sink(monkeypatch, pb.ABORTED, sinkId="etl")
    made.abort([None], "3")
    assert jobs.asked == ["abort None"]
    made, jobs = sink(monkeypatch, pb.ABORTED)
    batch = TidegateWriter(options(), LAYOUT)
    batch.abort([None])
    assert jobs.asked == [f"abort {batch._sink.run}"]
    assert jobs.is_closed


class Task:
    """What Spark says in a task of a stream."""

    def __init__(self, query: str | None, batch: str | None) -> None:
        self._said = {stream_writer.QUERY_ID: query, stream_writer.BATCH_ID: batch}

    def getLocalProperty(self, name: str) -> str | None:
        return self._said[name]

    def partitionId(self) -> int:
        return 3

    def taskAttemptId(self) -> int:
        return 14


@pytest.mark.parametrize(
    ("given", "query", "batch", "job"),
    [
        ({}, "q", "7", "q/7"),
        ({"sinkId": "etl"}, "q", "7", "etl/7"),
        ({}, None, "7", None),
        ({}, "q", None, None),
    ],
)
def test_a_micro_batch_is_a_job_of_the_named_sink_or_the_query(
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    query: str | None,
    batch: str | None,
    job: str | None,
) -> None:
    jobs: list[str] = []

    def write(_: Sink, job: pb.Job, attempt: str, batches: object) -> TaskResult:
        jobs.append(f"{job.sink}/{job.batch}")
        return TaskResult(job.sink, job.batch, 0)

    monkeypatch.setattr(Sink, "write", write)
    monkeypatch.setattr(TaskContext, "get", lambda: Task(query, batch))
    made = stream_writer.TidegateStreamWriter(options(**given), LAYOUT)
    if job is None:
        with pytest.raises(WriteError, match=r"this Spark does not say sql\.streaming\.queryId"):
            made.write(iter(()))
    else:
        made.write(iter(()))
    assert jobs == ([] if job is None else [job])


def test_a_job_that_no_task_names_is_left_to_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    made, jobs = sink(monkeypatch, pb.ABORTED)
    made.abort([None], "3")
    assert jobs.asked == []
    made.abort([None, TaskResult("etl", "3", 0, run="r")], "3")
    assert jobs.asked == ["abort r"]


def test_what_a_task_says_names_its_run_and_so_does_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    made, jobs = sink(monkeypatch, pb.ABORTED)
    names: list[str] = []

    def write(_batches: object, _layout: Layout, job: pb.Job, name: str, *_: object) -> TaskResult:
        names.append(name)
        return TaskResult(job.sink, job.batch, 0)

    monkeypatch.setattr(writer, "write_attempt", write)
    said = made.write(pb.Job(sink="etl", batch="3"), "3-14-abc", iter(()))
    assert names == [f"3-14-abc-{said.run}"]
    assert jobs.is_closed
    other, _ = sink(monkeypatch, pb.ABORTED)
    assert other.write(pb.Job(sink="etl", batch="3"), "3-14-abc", iter(())).run not in (said.run, None)


def test_an_abort_without_an_answer_does_not_hide_what_has_failed_the_write(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would show both errors in one trace of 178 lines."""
    made, jobs = sink(monkeypatch, pb.ABORTED)

    def unanswered(run: str | None) -> pb.JobReply:
        raise WriteError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is there")

    monkeypatch.setattr(jobs, "abort", unanswered)
    made.abort([None, TaskResult("etl", "3", 0, run="r")], "3")
    assert "abort_not_confirmed" in caplog.text
