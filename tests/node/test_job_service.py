"""The service of jobs at a node: rights on the sink, bad input, and how long OpenAttempt waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.coordinator.transaction import job_events as events
from tidegate.coordinator.transaction.jobs import Job, JobId, JobState, transactional_id
from tidegate.coordinator.transaction.state import (
    TransactionMetadata,
    TransactionPartition,
    TransactionState,
)
from tidegate.node.cluster.topic_creation import TopicCreation
from tidegate.node.coordinators.transaction_coordination import TransactionCoordination
from tidegate.node.data import job_service
from tidegate.node.data.coordinator_calls import ERROR_KEY, CoordinatorCalls
from tidegate.node.data.job_service import JobService
from tidegate.node.serving.grpc_callers import GrpcAccess
from tidegate.proto import jobs_pb2 as pb
from tidegate.wire.errors import ErrorCode, KafkaError

JOB = pb.Job(sink="a/sink", batch="7")
REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
BUSY = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "retry")


class Aborted(Exception):
    """As gRPC ends a call."""


class Served:
    """The service, with rights and a coordinator that the test sets."""

    def __init__(self, may: Callable[[str, str], bool] = lambda _method, _name: True) -> None:
        self.may = may
        self.replies: list[Any] = []
        self.asked: list[tuple[str, Any]] = []
        cluster = SimpleNamespace(state=SimpleNamespace(topics={}, brokers={}), node_id=1)
        access = SimpleNamespace(
            caller=lambda _: "someone",
            require=self._require,
            allows=lambda _, method, name: may(method, name),
        )
        transactions = SimpleNamespace(ask=self._ask, ask_all=self._ask_all)
        topics = SimpleNamespace(ensure_internal_topic=self._ensure)
        self.service = JobService(
            cast(TopicCreation, topics),
            cast(TransactionCoordination, transactions),
            cast(GrpcAccess, access),
            CoordinatorCalls(cast(Any, cluster)),
        )

    def _require(self, _caller: str, method: str, name: str) -> None:
        if not self.may(method, name):
            raise KafkaError(REFUSED, f"{method} {name}")

    async def _ensure(self, _name: str) -> None:
        pass

    async def _ask(self, key: str, event: Any) -> Any:
        self.asked.append((key, event))
        reply = self.replies.pop(0)
        if isinstance(reply, KafkaError):
            raise reply
        return reply

    async def _ask_all(self, event: Any) -> Any:
        return [await self._ask("", event)]

    async def code_of(self, call: Coroutine[Any, Any, Any]) -> ErrorCode:
        try:
            await call
        except Aborted as ended:
            return ErrorCode.from_wire(pb.JobError.FromString(ended.args[0]).error_code)
        return ErrorCode.NONE

    async def abort(self, _status: Any, _details: str, trailing: Any) -> None:
        raise Aborted(dict(trailing)[ERROR_KEY])


REQUESTS: dict[str, Any] = {
    "OpenAttempt": pb.OpenAttemptRequest(job=JOB, attempt="a", timeout_ms=1),
    "PrepareAttempt": pb.PrepareAttemptRequest(job=JOB, attempt="a"),
    "RenewJob": pb.RenewJobRequest(job=JOB, timeout_ms=1),
    "CommitJob": pb.CommitJobRequest(job=JOB),
    "AbortJob": pb.AbortJobRequest(job=JOB),
    "ListJobs": pb.ListJobsRequest(sink="a/sink"),
    "DescribeJob": pb.DescribeJobRequest(job=JOB),
}


@pytest.mark.parametrize("method", REQUESTS)
async def test_each_call_needs_the_right_on_its_sink(method: str) -> None:
    served = Served(lambda named, name: (named, name) != (method, "tidegate.job/a/sink"))
    call = getattr(served.service, method)(REQUESTS[method], served)
    assert await served.code_of(call) is REFUSED
    assert served.asked == [], "the coordinator is not asked"


async def test_a_list_leaves_out_what_the_caller_may_not_see() -> None:
    served = Served(lambda _method, name: not name.endswith("secret"))
    jobs = tuple((Job(JobId(sink, "1"), JobState.OPEN, 5), 0) for sink in ("open", "secret"))
    served.replies = [events.JobsReply(jobs)]
    listed = await served.service.ListJobs(pb.ListJobsRequest(), cast(Any, served))
    assert [each.job.sink for each in listed.jobs] == ["open"]


@pytest.mark.parametrize(
    ("method", "bad"),
    [
        ("OpenAttempt", pb.OpenAttemptRequest(job=JOB, attempt="a/b", timeout_ms=1)),
        ("OpenAttempt", pb.OpenAttemptRequest(attempt="a", timeout_ms=1)),
        ("PrepareAttempt", pb.PrepareAttemptRequest(job=JOB)),
        ("AbortJob", pb.AbortJobRequest(job=JOB, run="")),
        ("AbortJob", pb.AbortJobRequest(job=JOB, run="r" * 65)),
        ("CommitJob", pb.CommitJobRequest(job=pb.Job(sink="s", batch="1/2"))),
        ("CommitJob", pb.CommitJobRequest(job=JOB, rows=-1)),
        ("CommitJob", pb.CommitJobRequest(job=JOB, winners=[pb.Winner(attempt="a")] * 10_001)),
    ],
)
async def test_bad_input_is_refused_before_the_coordinator_is_asked(method: str, bad: Any) -> None:
    served = Served()
    assert await served.code_of(getattr(served.service, method)(bad, served)) is ErrorCode.INVALID_REQUEST
    assert served.asked == []


async def test_an_attempt_waits_for_the_end_of_what_is_left_of_it() -> None:
    served = Served()
    served.replies = [BUSY, BUSY, events.AttemptReply(JobState.OPEN, 7, 2)]
    async with asyncio.timeout(10):
        opened = await served.service.OpenAttempt(REQUESTS["OpenAttempt"], cast(Any, served))
    assert (opened.transactional_id, opened.producer_id) == ("tidegate.job/a/sink/7/a", 7)
    assert {key for key, _ in served.asked} == {"tidegate.job/a/sink/7/any"}
    served.replies = [events.AttemptReply(JobState.COMMITTED)]
    replayed = await served.service.OpenAttempt(REQUESTS["OpenAttempt"], cast(Any, served))
    assert (replayed.state, replayed.transactional_id) == (pb.COMMITTED, "")
    assert not replayed.HasField("rows")


async def test_the_rows_of_a_job_are_said_where_they_are_known() -> None:
    served, committed = Served(), JobState.COMMITTED
    for rows in (0, 7):
        served.replies = [
            events.AttemptReply(committed, rows=rows),
            events.DecisionReply(committed, (), True, 1, rows),
            events.JobDescription(Job(JobId("a/sink", "7"), committed, 5, rows=rows), ()),
        ]
        counted = pb.CommitJobRequest(job=JOB, rows=rows)
        assert (await served.service.OpenAttempt(REQUESTS["OpenAttempt"], cast(Any, served))).rows == rows
        assert (await served.service.CommitJob(counted, cast(Any, served))).rows == rows
        described = await served.service.DescribeJob(REQUESTS["DescribeJob"], cast(Any, served))
        assert described.job.rows == rows
        assert served.asked[-2][1] == events.CommitJob(JobId("a/sink", "7"), (), rows)
    served.replies = [events.DecisionReply(committed, (), True, 1)]
    older = await served.service.CommitJob(REQUESTS["CommitJob"], cast(Any, served))
    assert not older.HasField("rows")
    assert served.asked[-1][1] == events.CommitJob(JobId("a/sink", "7"), ())


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those of the service, which take no time."""
    found: list[float] = []

    async def pause(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr("tidegate.node.data.job_service.asyncio.sleep", pause)
    return found


async def test_many_tasks_that_wait_long_ask_seldom(pauses: list[float]) -> None:
    served = Served()
    served.replies = [*[BUSY] * 8, events.AttemptReply(JobState.OPEN, 7, 2)]
    await served.service.OpenAttempt(REQUESTS["OpenAttempt"], cast(Any, served))
    first, longest = job_service.OPEN_PAUSE_S, job_service.OPEN_PAUSE_S_MAX
    assert pauses == [min(first * 2**number, longest) for number in range(8)]
    assert pauses[-1] == longest


async def test_a_description_of_many_attempts_lets_others_run_and_asks_once_for_each_topic(
    pauses: list[float],
) -> None:
    asked: list[str] = []

    def may(method: str, name: str) -> bool:
        asked.extend([name] if method == "DescribeTopics" else [])
        return name != "secret"

    served, job = Served(may), JobId("a/sink", "7")
    places = frozenset(
        TransactionPartition(topic, number) for topic in ("open", "secret") for number in (1, 0)
    )
    attempts = tuple(
        TransactionMetadata(
            transactional_id(job, f"a{number}"), number, 0, 1, TransactionState.PREPARED, 1, partitions=places
        )
        for number in range(2 * job_service.DESCRIBED_AT_ONCE + 1)
    )
    served.replies = [events.JobDescription(Job(job, JobState.OPEN, 5), attempts)]
    described = await served.service.DescribeJob(REQUESTS["DescribeJob"], cast(Any, served))
    seen = {tuple((topic.topic, *topic.partitions) for topic in each.topics) for each in described.attempts}
    assert seen == {(("open", 0, 1),)}
    assert (sorted(asked), pauses) == (["open", "secret"], [0, 0])


async def test_an_abort_names_its_run_where_the_client_does() -> None:
    served = Served()
    for request in (pb.AbortJobRequest(job=JOB, run="r"), REQUESTS["AbortJob"]):  # older clients have no runs
        served.replies = [events.DecisionReply(JobState.OPEN, (), False, -1)]
        assert (await served.service.AbortJob(request, cast(Any, served))).outcome == pb.OPEN
    job = JobId("a/sink", "7")
    assert [event for _, event in served.asked] == [events.AbortJob(job, "r"), events.AbortJob(job)]


async def test_an_outcome_that_is_not_known_has_its_own_number() -> None:
    served = Served()
    served.replies = [events.DecisionReply(None, (), False, -1)]
    assert (await served.service.AbortJob(REQUESTS["AbortJob"], cast(Any, served))).outcome == pb.UNKNOWN
