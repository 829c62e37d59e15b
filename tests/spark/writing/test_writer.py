"""What the driver makes of its tasks' results, without Spark and without a coordinator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tidegate.proto import jobs_pb2 as pb
from tidegate.spark.writing import writer
from tidegate.spark.writing.options import parse_write_options
from tidegate.spark.writing.results import Attempt, TaskResult, WriteError
from tidegate.spark.writing.rows import Layout
from tidegate.spark.writing.writer import Sink
from tidegate.wire.errors import ErrorCode

ATTEMPT = Attempt("0-0-abc", 7, 1)


class Jobs:
    """A coordinator whose answer is this."""

    def __init__(self, reply: pb.JobReply) -> None:
        self.reply = reply
        self.asked: list[str] = []

    def commit(self, winners: Sequence[Attempt]) -> pb.JobReply:
        self.asked.append(f"commit {len(winners)}")
        return self.reply

    def abort(self, run: str | None) -> pb.JobReply:
        self.asked.append(f"abort {run}")
        return self.reply

    def close(self) -> None:
        """Has nothing open."""


def sink(monkeypatch: pytest.MonkeyPatch, outcome: pb.JobState.ValueType) -> tuple[Sink, Jobs]:
    jobs = Jobs(pb.JobReply(outcome=outcome, is_yours=True))
    monkeypatch.setattr(Sink, "client", lambda *_: jobs)
    return Sink(
        parse_write_options({"bootstrap": "a:1", "topic": "flights"}), Layout(("value",), "flights")
    ), jobs


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


def test_a_job_that_no_task_names_is_left_to_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    made, jobs = sink(monkeypatch, pb.ABORTED)
    made.abort([None], "3")
    assert jobs.asked == []
    made.abort([None, TaskResult("etl", "3", 0, run="r")], "3")
    assert jobs.asked == ["abort r"]


def test_what_a_task_says_names_its_run_and_so_does_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = sink(monkeypatch, pb.ABORTED)
    names: list[str] = []

    def write(_batches: object, _layout: Layout, job: pb.Job, name: str, *_: object) -> TaskResult:
        names.append(name)
        return TaskResult(job.sink, job.batch, 0)

    monkeypatch.setattr(writer, "write_attempt", write)
    said = made.write(pb.Job(sink="etl", batch="3"), "3-14-abc", iter(()))
    assert names == [f"3-14-abc-{said.run}"]
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
