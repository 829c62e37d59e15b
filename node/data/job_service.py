"""The gRPC service of job transactions (`coordinator/transaction/jobs.py`, docs/semantics.md T31 to T38).

Rights are those on the transactional id `tidegate.job/<sink>`: WRITE to write and decide, DESCRIBE to look.
Produce asks for WRITE on the attempt's whole id, so a prefixed ACL on `tidegate.job/<sink>` gives both.  An
answer leaves when its record is committed (A7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ...coordinator.transaction import job_events as events
from ...coordinator.transaction.jobs import (
    PREFIX,
    WINNERS_MAX,
    Job,
    JobId,
    JobState,
    Winner,
    attempt_of,
    check_attempt,
    check_job,
    check_rows,
    check_run,
    transactional_id,
)
from ...proto import jobs_pb2 as pb
from ...proto import jobs_pb2_grpc
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.internal_topics import TRANSACTION_STATE
from ..cluster.topic_creation import TopicCreation
from ..coordinators.transaction_coordination import TransactionCoordination
from ..serving.grpc_callers import Caller, GrpcAccess
from .coordinator_calls import Context, CoordinatorCalls, Reply

OPEN_PATIENCE_S: Final = 5.0
"""How long OpenAttempt waits for the end of what the attempt, or the last run of its job, has left."""
OPEN_PAUSE_S: Final = 0.02
OPEN_PAUSE_S_MAX: Final = 0.5
"""A marker may take long, and many tasks wait for it."""
DESCRIBED_AT_ONCE: Final = 100
"""Attempts, between two turns of the loop."""
_STATES: Final = {
    JobState.OPEN: pb.OPEN, JobState.COMMITTED: pb.COMMITTED, JobState.ABORTED: pb.ABORTED
}  # fmt: skip


class JobService(jobs_pb2_grpc.JobsServicer):
    """See the module's text."""

    def __init__(
        self,
        topics: TopicCreation,
        transactions: TransactionCoordination,
        access: GrpcAccess,
        calls: CoordinatorCalls,
    ) -> None:
        self._topics = topics
        self._transactions = transactions
        self._access = access
        self._calls = calls

    async def OpenAttempt(self, request: pb.OpenAttemptRequest, context: Context) -> pb.OpenAttemptReply:
        async def call(job: JobId, _: Caller) -> pb.OpenAttemptReply:
            check_attempt(request.attempt)
            await self._topics.ensure_internal_topic(TRANSACTION_STATE)  # as FindCoordinator does
            event = events.OpenAttempt(job, request.attempt, request.timeout_ms)
            found = await self._ask_patiently(job, event)
            return pb.OpenAttemptReply(
                state=_STATES[found.state],
                transactional_id=event.transactional_id if found.producer_id >= 0 else "",
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                rows=found.rows,
            )

        return await self._answer(context, request.job, "OpenAttempt", call)

    async def PrepareAttempt(
        self, request: pb.PrepareAttemptRequest, context: Context
    ) -> pb.PrepareAttemptReply:
        async def call(job: JobId, _: Caller) -> pb.PrepareAttemptReply:
            check_attempt(request.attempt)
            event = events.PrepareAttempt(
                job, request.attempt, request.producer_id, request.producer_epoch, request.timeout_ms
            )
            return pb.PrepareAttemptReply(has_written=(await self._ask(job, event)).has_written)

        return await self._answer(context, request.job, "PrepareAttempt", call)

    async def RenewJob(self, request: pb.RenewJobRequest, context: Context) -> pb.RenewJobReply:
        async def call(job: JobId, _: Caller) -> pb.RenewJobReply:
            found = await self._ask(job, events.RenewJob(job, request.timeout_ms))
            return pb.RenewJobReply(state=_STATES[found.state], deadline_ms=found.deadline_ms)

        return await self._answer(context, request.job, "RenewJob", call)

    async def CommitJob(self, request: pb.CommitJobRequest, context: Context) -> pb.JobReply:
        async def call(job: JobId, _: Caller) -> pb.JobReply:
            if len(request.winners) > WINNERS_MAX:  # before they are looked at
                message = f"job {job}: {len(request.winners)} winners, at most {WINNERS_MAX} are possible"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            winners = tuple(
                Winner(each.attempt, each.producer_id, each.producer_epoch) for each in request.winners
            )
            rows = request.rows if request.HasField("rows") else None
            check_rows(rows)
            return _decision(await self._ask(job, events.CommitJob(job, winners, rows)))

        return await self._answer(context, request.job, "CommitJob", call)

    async def AbortJob(self, request: pb.AbortJobRequest, context: Context) -> pb.JobReply:
        async def call(job: JobId, _: Caller) -> pb.JobReply:
            run = request.run if request.HasField("run") else None
            if run is not None:
                check_run(run)
            return _decision(await self._ask(job, events.AbortJob(job, run)))

        return await self._answer(context, request.job, "AbortJob", call)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsReply:
        async def call() -> pb.ListJobsReply:
            caller = self._access.caller(context)
            if request.sink:
                self._access.require(caller, "ListJobs", PREFIX + request.sink)
            states = frozenset(state for state, wanted in _STATES.items() if wanted in request.states)
            replies = await self._transactions.ask_all(events.ListJobs(states, request.sink))
            listed = [
                _listed(job, attempts)
                for reply in replies
                for job, attempts in reply.jobs
                if self._access.allows(caller, "ListJobs", PREFIX + job.id.sink)
            ]
            return pb.ListJobsReply(jobs=listed)

        return await self._calls.answer(context, PREFIX, call())

    async def DescribeJob(self, request: pb.DescribeJobRequest, context: Context) -> pb.DescribeJobReply:
        async def call(job: JobId, caller: Caller) -> pb.DescribeJobReply:
            found: events.JobDescription = await self._ask(job, events.DescribeJob(job))
            reply = pb.DescribeJobReply(
                job=_listed(found.job, len(found.attempts)), winners=_winners(found.job.winners)
            )
            may_see: dict[str, bool] = {}
            for number, entry in enumerate(found.attempts):
                if number and number % DESCRIBED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                named = attempt_of(entry.transactional_id)
                assert named is not None
                described = reply.attempts.add(
                    attempt=named[1],
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    state=entry.state.display_name,
                )
                topics: dict[str, list[int]] = {}
                for partition in entry.partitions:
                    topics.setdefault(partition.topic, []).append(partition.partition)
                for topic, partitions in sorted(topics.items()):
                    if topic not in may_see:
                        may_see[topic] = self._access.allows(caller, "DescribeTopics", topic)
                    if may_see[topic]:
                        described.topics.add(topic=topic, partitions=sorted(partitions))
            return reply

        return await self._answer(context, request.job, "DescribeJob", call)

    # --- asking the coordinator -----------------------------------------------------------------------------

    async def _answer(
        self,
        context: Context,
        named: pb.Job,
        method: str,
        call: Callable[[JobId, Caller], Coroutine[Any, Any, Reply]],
    ) -> Reply:
        job = JobId(named.sink, named.batch)

        async def checked() -> Reply:
            caller = self._access.caller(context)
            check_job(job)
            self._access.require(caller, method, PREFIX + job.sink)
            return await call(job, caller)

        return await self._calls.answer(context, _key(job), checked())

    async def _ask(self, job: JobId, event: events.JobEvent) -> Any:
        return await self._transactions.ask(_key(job), event)

    async def _ask_patiently(self, job: JobId, event: events.OpenAttempt) -> Any:
        loop = asyncio.get_running_loop()
        deadline_s, pause_s = loop.time() + OPEN_PATIENCE_S, OPEN_PAUSE_S
        while True:
            try:
                return await self._ask(job, event)
            except KafkaError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or loop.time() > deadline_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, OPEN_PAUSE_S_MAX)


def _key(job: JobId) -> str:
    """All ids of a sink have one coordinator."""
    return transactional_id(job, "any")


def _decision(found: events.DecisionReply) -> pb.JobReply:
    return pb.JobReply(
        outcome=pb.UNKNOWN if found.outcome is None else _STATES[found.outcome],
        winners=_winners(found.winners),
        is_yours=found.is_yours,
        decided_ms=found.decided_ms,
        rows=found.rows,
    )


def _winners(winners: tuple[Winner, ...]) -> list[pb.Winner]:
    return [
        pb.Winner(attempt=each.attempt, producer_id=each.producer_id, producer_epoch=each.producer_epoch)
        for each in winners
    ]


def _listed(job: Job, attempts: int) -> pb.ListedJob:
    return pb.ListedJob(
        job=pb.Job(sink=job.id.sink, batch=job.id.batch),
        state=_STATES[job.state],
        attempts=attempts,
        winners=len(job.winners),
        deadline_ms=job.deadline_ms,
        decided_ms=job.decided_ms,
        rows=job.rows,
    )
