"""Job transactions, as their coordinators know them (docs/transactions.md): the gRPC requests behind the
methods of `Admin` of the same names."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from ...proto import jobs_pb2 as pb
from ...proto import jobs_pb2_grpc
from ..connecting.cluster import Backoff, Cluster, CoordinatorKind
from ..connecting.errors import ConnectionFailed
from .descriptions import JobAttempt, JobDescription, JobListing
from .grpc_calls import ask_node
from .transaction_admin import JOB_PREFIX

STATES: Final = {"open": pb.OPEN, "committed": pb.COMMITTED, "aborted": pb.ABORTED}
_NAMES: Final = {number: name for name, number in STATES.items()}


async def list_jobs(
    cluster: Cluster, states: Collection[str], sink: str, timeout_s: float
) -> list[JobListing]:
    """The jobs of all coordinators, optionally only those in certain states (`STATES`), or of one sink."""
    await cluster.refresh()
    request = pb.ListJobsRequest(states=[STATES[state] for state in states], sink=sink)
    found: list[JobListing] = []
    for node_id in sorted(cluster.view.brokers):
        reply = await _ask(cluster, node_id, timeout_s, lambda stub, **how: stub.ListJobs(request, **how))
        found += [_listing(each) for each in reply.jobs]
    return sorted(found, key=lambda job: (job.sink, job.batch))


async def describe_job(cluster: Cluster, sink: str, batch: str, timeout_s: float) -> JobDescription:
    """Raises RequestError when no coordinator knows the job."""
    request = pb.DescribeJobRequest(job=pb.Job(sink=sink, batch=batch))
    reply = await _ask_coordinator(
        cluster, sink, timeout_s, lambda stub, **how: stub.DescribeJob(request, **how)
    )
    attempts = [
        JobAttempt(
            each.attempt, each.producer_id, each.producer_epoch, each.state,
            {topic.topic: list(topic.partitions) for topic in each.topics},
        )
        for each in reply.attempts
    ]  # fmt: skip
    return JobDescription(_listing(reply.job), tuple(each.attempt for each in reply.winners), attempts)


async def abort_job(cluster: Cluster, sink: str, batch: str, timeout_s: float) -> str:
    """The first decision, which may be `committed`; `unknown` where there is no such job."""
    request = pb.AbortJobRequest(job=pb.Job(sink=sink, batch=batch))
    reply = await _ask_coordinator(
        cluster, sink, timeout_s, lambda stub, **how: stub.AbortJob(request, **how)
    )
    return _NAMES.get(reply.outcome, "unknown")


def _listing(job: Any) -> JobListing:
    return JobListing(
        job.job.sink, job.job.batch, _NAMES[job.state], job.attempts, job.winners, job.deadline_ms,
        job.decided_ms, job.rows if job.HasField("rows") else None,
    )  # fmt: skip


async def _ask_coordinator(cluster: Cluster, sink: str, timeout_s: float, call: Callable[..., Any]) -> Any:
    """Follows a coordinator that moves, until the time is up."""
    deadline_s = cluster.clock.monotonic() + timeout_s
    backoff, key = Backoff(cluster.clock), f"{JOB_PREFIX}{sink}/any/any"
    while True:
        node_id = await cluster.coordinator(CoordinatorKind.TRANSACTION, key, deadline_s)
        try:
            return await _ask(cluster, node_id, timeout_s, call)
        except ConnectionFailed as error:
            cluster.forget_coordinator(CoordinatorKind.TRANSACTION, key)
            await cluster.pause(backoff, deadline_s, error.code, f"jobs of {sink!r}", error.message)


async def _ask(cluster: Cluster, node_id: int, timeout_s: float, call: Callable[..., Any]) -> Any:
    return await ask_node(
        cluster,
        node_id,
        timeout_s,
        pb.JobError.FromString,
        lambda channel, **how: call(jobs_pb2_grpc.JobsStub(channel), **how),
    )
