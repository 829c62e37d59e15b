"""One task attempt keeps the order that makes a write exactly-once, and the driver's part follows from its
messages."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tidegate.client.requests.transaction_requests import Identity
from tidegate.coordinator.transaction.jobs import UNNAMED
from tidegate.proto import jobs_pb2 as pb
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.writing.attempt import Renewal, attempt_name, job_name, random_name, write_attempt
from tidegate.spark.writing.jobs_client import JobsClient
from tidegate.spark.writing.options import WriteOptions
from tidegate.spark.writing.results import Attempt, Outcome, TaskResult, WriteError, outcome_of
from tidegate.spark.writing.rows import Layout, Rows
from tidegate.spark.writing.writer import Sink
from tidegate.wire.errors import ErrorCode

JOB = pb.Job(sink="etl", batch="3")
LAYOUT = Layout(("value",), "t")


class Told(JobsClient):
    """Answers as a coordinator, and keeps what happened in which order."""

    def __init__(self, state: pb.JobState.ValueType = pb.OPEN, *, has_written: bool = True) -> None:
        super().__init__(JOB, [], [], Channels(), 0)
        self.state, self.has_written = state, has_written
        self.rows: int | None = None
        self.happened: list[str] = []
        self.renewed = threading.Semaphore(0)

    def open_attempt(self, attempt: str, timeout_ms: int) -> pb.OpenAttemptReply:
        self.happened.append("open")
        if self.state == pb.COMMITTED:
            return pb.OpenAttemptReply(state=pb.COMMITTED, rows=self.rows)
        return pb.OpenAttemptReply(state=self.state, transactional_id="id", producer_id=7, producer_epoch=1)

    def prepare_attempt(self, attempt: Attempt, timeout_ms: int) -> pb.PrepareAttemptReply:
        self.happened.append("prepare")
        return pb.PrepareAttemptReply(has_written=self.has_written)

    def renew(self, timeout_ms: int) -> pb.RenewJobReply:
        self.renewed.release()
        return pb.RenewJobReply(state=self.state)


class Written:
    """A producer that writes nothing, and fails where it is said to."""

    def __init__(self, jobs: Told, fails_at: str = "") -> None:
        self._jobs, self._fails_at = jobs, fails_at

    def _step(self, name: str) -> None:
        self._jobs.happened.append(name)
        if name == self._fails_at:
            raise WriteError(ErrorCode.NETWORK_EXCEPTION, f"{name} fails")

    def start(self) -> None:
        self._step("start")

    def send(self, rows: Rows) -> None:
        self._step("send")

    def finish(self) -> None:
        self._step("finish")

    def close(self) -> None:
        self._step("close")


def batches(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array([b"v"] * size, pa.binary())], ["value"]) for size in sizes]


def attempt(jobs: Told, *sizes: int, fails_at: str = "") -> TaskResult:
    def make(transactional_id: str, identity: Identity) -> Written:
        assert (transactional_id, identity) == ("id", Identity(7, 1))
        return Written(jobs, fails_at)

    return write_attempt(batches(*sizes), LAYOUT, JOB, "0-1-abc", jobs, make, 60_000)


def test_it_is_prepared_after_every_acknowledgement() -> None:
    jobs = Told()
    assert attempt(jobs, 0, 2, 0, 3) == TaskResult("etl", "3", 5, Attempt("0-1-abc", 7, 1))
    assert jobs.happened == ["open", "start", "send", "send", "finish", "close", "prepare"]


def test_the_job_is_checked_before_each_send_and_before_the_prepare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = Told()

    def check(renewal: Renewal) -> None:
        assert renewal.attempt_is_open
        jobs.happened.append("check")

    monkeypatch.setattr(Renewal, "check", check)
    attempt(jobs, 2, 3)
    sent = ["check", "send"]
    assert jobs.happened == ["open", "start", *sent, *sent, "finish", "check", "close", "prepare"]


@pytest.mark.parametrize("fails_at", ["start", "send", "finish"])
def test_one_that_fails_is_not_prepared_and_keeps_no_thread(fails_at: str) -> None:
    jobs = Told()
    with pytest.raises(WriteError, match=f"{fails_at} fails"):
        attempt(jobs, 2, fails_at=fails_at)
    assert "prepare" not in jobs.happened
    assert jobs.happened[-1] == "close"


def test_a_job_that_is_committed_is_only_counted() -> None:
    jobs = Told(pb.COMMITTED)
    assert attempt(jobs, 0, 2, 3) == TaskResult("etl", "3", 5, is_replay=True)
    assert jobs.happened == ["open"]
    for jobs.rows in (0, 7):  # of the run that counts
        assert attempt(jobs, 2) == TaskResult("etl", "3", 2, is_replay=True, rows_committed=jobs.rows)


def test_without_rows_nothing_is_opened() -> None:
    jobs = Told()
    assert attempt(jobs, 0, 0) == TaskResult("etl", "3", 0)
    assert jobs.happened == []


def test_an_attempt_that_enlisted_nothing_is_no_winner() -> None:
    with pytest.raises(WriteError, match="knows of no record"):
        attempt(Told(has_written=False), 2)


def test_no_two_runs_share_a_name() -> None:
    names = {f"{attempt_name(2**31 - 1, 2**63 - 1)}-{random_name()}" for _ in range(100)}
    assert len(names) == 100
    assert max(map(len, names)) <= 64


def test_a_job_that_the_user_does_not_name_is_one_that_the_coordinator_forgets_sooner() -> None:
    assert job_name().startswith(UNNAMED)
    assert job_name() != job_name()


@pytest.mark.parametrize("state", [pb.ABORTED, pb.COMMITTED])
def test_a_job_that_ends_while_a_task_writes_stops_the_task(state: pb.JobState.ValueType) -> None:
    jobs = Told()
    renewal = Renewal(jobs, 30)
    renewal.attempt_is_open = True
    with renewal:
        assert jobs.renewed.acquire(timeout=30)
        renewal.check()
        jobs.state = state
        renewal.join(30)
    with pytest.raises(WriteError, match=f"the job is {pb.JobState.Name(state).lower()}, while this task"):
        renewal.check()


def test_an_attempt_that_opens_during_a_renewal_is_not_ended_by_the_answer() -> None:
    """The answer may be about a former run."""

    class Opening(Told):
        def renew(self, timeout_ms: int) -> pb.RenewJobReply:
            state = pb.OPEN if renewal.attempt_is_open else pb.ABORTED
            renewal.attempt_is_open = True
            self.renewed.release()
            return pb.RenewJobReply(state=state)

    jobs = Opening()
    renewal = Renewal(jobs, 30)
    with renewal:
        for _ in range(2):
            assert jobs.renewed.acquire(timeout=30)
    renewal.join(30)
    assert not renewal._thread.is_alive()
    renewal.check()


def test_a_task_without_rows_yet_renews_for_those_that_are_prepared() -> None:
    jobs = Told()
    jobs.state = pb.ABORTED  # of a former run, which does not concern it

    def slow() -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            assert jobs.renewed.acquire(timeout=30)
        jobs.state = pb.OPEN
        yield from batches(2)

    written = write_attempt(slow(), LAYOUT, JOB, "0-1-abc", jobs, lambda *_: Written(jobs), 30)
    assert written.rows == 2


def result(
    attempt: str | None = None, rows: int = 1, sink: str = "etl", is_replay: bool = False
) -> TaskResult:
    return TaskResult(sink, "3", rows, Attempt(attempt, 1, 0) if attempt else None, is_replay)


@pytest.mark.parametrize(
    ("messages", "outcome"),
    [
        ([], Outcome(None, (), 0, 0)),
        ([None], Outcome(None, (), 0, 0)),
        ([result(rows=0), None], Outcome("etl", (), 0, 0)),
        ([None, TaskResult("etl", "3", 0, run="r")], Outcome("etl", (), 0, 0, "r")),
        (
            [result("a"), result(rows=0), result("b", 4)],
            Outcome("etl", (Attempt("a", 1, 0), Attempt("b", 1, 0)), 5, 0),
        ),
        (
            [result("a"), result(rows=7, is_replay=True)],
            Outcome("etl", (Attempt("a", 1, 0),), 1, 7),
        ),
        (
            [result(rows=0), result(rows=7, is_replay=True), TaskResult("etl", "3", 1, None, True, None, 0)],
            Outcome("etl", (), 0, 8, rows_committed=0),
        ),
    ],
)
def test_what_the_driver_makes_of_its_tasks(messages: list[TaskResult | None], outcome: Outcome) -> None:
    assert outcome_of(messages, "3") == outcome
    assert outcome_of(pickle.loads(pickle.dumps(messages)), "3") == outcome


def test_messages_of_another_job_are_refused() -> None:
    for messages, batch in (([result("a"), result("b", sink="other")], "3"), ([result("a")], "4")):
        with pytest.raises(WriteError, match="wrote for other jobs: etl/3"):
            outcome_of(messages, batch)


def test_a_commit_without_the_result_of_a_task_is_refused() -> None:
    sink = Sink(WriteOptions(("h:1",)), LAYOUT)
    with pytest.raises(WriteError, match="1 of 2 tasks of batch 3 have no result"):
        sink.commit([result("a"), None], "3")


class Refused(Told):
    def renew(self, timeout_ms: int) -> pb.RenewJobReply:
        self.renewed.release()
        raise WriteError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "no such job")


def test_a_renewal_that_is_refused_stops_a_task_whose_attempt_is_open() -> None:
    renewal = Renewal(Refused(), 30)
    renewal.attempt_is_open = True
    with renewal:
        renewal.join(30)
    with pytest.raises(WriteError, match="no such job"):
        renewal.check()


def test_a_refused_renewal_of_a_job_that_none_has_opened_is_repeated() -> None:
    jobs = Refused()
    with Renewal(jobs, 30) as renewal:
        for _ in range(2):
            assert jobs.renewed.acquire(timeout=30)
        renewal.check()


def test_a_job_is_renewed_twice_before_its_deadline() -> None:
    """A renewal that is late or lost is no end of the job."""

    class Over(threading.Event):
        waited_s: float | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.waited_s = timeout
            return True

    renewal = Renewal(Told(), 60_000)
    renewal._ended = over = Over()
    with renewal:
        renewal.join(30)
    assert over.waited_s is not None
    assert 2 * over.waited_s < 60


def test_a_renewal_that_fails_by_a_defect_stops_the_task() -> None:
    class Broken(Told):
        def renew(self, timeout_ms: int) -> pb.RenewJobReply:
            raise RuntimeError("a defect")

    with Renewal(Broken(), 30) as renewal:
        renewal.join(30)
    with pytest.raises(WriteError, match="the renewal failed: RuntimeError"):
        renewal.check()


def test_an_error_reaches_the_driver_whole() -> None:
    error = pickle.loads(pickle.dumps(WriteError(ErrorCode.INVALID_TXN_STATE, "why")))
    assert (type(error), error.code, str(error)) == (
        WriteError,
        ErrorCode.INVALID_TXN_STATE,
        "INVALID_TXN_STATE: why",
    )
