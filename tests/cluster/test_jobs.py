"""Job transactions on real nodes (docs/semantics.md T31 to T38): what readers of committed records see, what
the command line does, and that a decision outlives its coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.connecting.cluster import Cluster
from tidegate.client.connecting.errors import RequestError
from tidegate.node.data.coordinator_calls import ERROR_KEY
from tidegate.processes.local_cluster import LocalCluster
from tidegate.processes.local_ports import grpc_client
from tidegate.proto import jobs_pb2 as pb
from tidegate.proto import jobs_pb2_grpc
from tidegate.runtime.clock import SystemClock
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import NewRecord, encode_batch

from .committed import committed
from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("jobs"), pytest.mark.timeout(180)]

PARTITIONS = 4
MOVED = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with kept_up(LocalCluster(tmp_path_factory.mktemp("jobs"), nodes=3)) as cluster:
        yield cluster


class Engine:
    """Drives jobs of one sink as a batch engine does."""

    def __init__(self, served: LocalCluster, cluster: Cluster, topic: str) -> None:
        self._served, self._cluster, self._topic = served, cluster, topic
        self._address = served.nodes[0].grpc_address

    async def ask(self, method: str, request: Any) -> Any:
        """Follows the coordinator.  Raises what the node refuses."""
        for _ in range(200):
            try:
                async with grpc_client(self._address, None, 10) as (channel, shown):
                    call = getattr(jobs_pb2_grpc.JobsStub(channel), method)
                    return await call(request, timeout=10, metadata=shown)
            except grpc.aio.AioRpcError as failure:
                detail = dict(failure.trailing_metadata() or ()).get(ERROR_KEY)
                error = pb.JobError.FromString(detail) if isinstance(detail, bytes) else pb.JobError()
                if error.error_code and error.error_code not in MOVED:
                    raise
                running = [node.grpc_address for node in self._served.nodes if node.running]
                following = (
                    running[(running.index(self._address) + 1) % len(running)]
                    if (self._address in running)
                    else running[0]
                )
                self._address = error.endpoint or following
            await SystemClock().sleep(0.1)
        raise AssertionError(f"{method}: no coordinator was found")

    async def write(self, job: pb.Job, attempt: str, values: list[bytes]) -> pb.Winner | None:
        """Opens, produces, prepares; None when the job is committed already."""
        opened = await self.ask(
            "OpenAttempt", pb.OpenAttemptRequest(job=job, attempt=attempt, timeout_ms=60_000)
        )
        if opened.state == pb.COMMITTED:
            return None
        identity = {"producer_id": opened.producer_id, "producer_epoch": opened.producer_epoch}
        for index in range(PARTITIONS):
            records = [NewRecord(None, value, (), 1_700_000_000_000) for value in values]
            batch = encode_batch(records, base_sequence=0, transactional=True, **identity)
            fields = {
                "transactional_id": opened.transactional_id, "acks": -1, "timeout": 10_000,
                "topic_data": [
                    {"name": self._topic, "partition_data": [{"index": index, "records": batch}]}
                ],
            }  # fmt: skip
            leader = self._cluster.view.leader(self._topic, index)
            answer = await self._cluster.ask(leader, ApiKey.PRODUCE, fields, highest=12, lowest=12)
            ((said,),) = [topic.partition_responses for topic in answer.responses]
            assert said.error_code == ErrorCode.NONE, said
        prepare = pb.PrepareAttemptRequest(job=job, attempt=attempt, **identity)
        assert (await self.ask("PrepareAttempt", prepare)).has_written
        return pb.Winner(attempt=attempt, **identity)

    async def commit(self, job: pb.Job, *winners: pb.Winner, rows: int | None = None) -> Any:
        return await self.ask("CommitJob", pb.CommitJobRequest(job=job, winners=winners, rows=rows))


@asynccontextmanager
async def engine(served: LocalCluster, topic: str) -> AsyncIterator[Engine]:
    cluster = Cluster(served.bootstrap)
    await cluster.start()
    try:
        async with Admin(served.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, PARTITIONS, 3, {"min.insync.replicas": "2"})])
        await cluster.topic(topic, 30)
        yield Engine(served, cluster, topic)
    finally:
        await cluster.close()


async def metric(served: LocalCluster, name: str) -> float:
    """The sum over the nodes."""
    found = 0.0
    for node in served.nodes:
        page = await asyncio.to_thread(urlopen, f"http://{node.metrics_address}/metrics", timeout=10)
        with page:
            (line,) = (
                line for line in page.read().decode().splitlines() if line.startswith(f"tidegate_{name} ")
            )
        found += float(line.split()[1])
    return found


async def test_winners_are_read_and_losers_never_and_a_replay_writes_nothing(served: LocalCluster) -> None:
    topic = "winners"
    async with engine(served, topic) as tasks, Admin(served.bootstrap) as admin:
        job = pb.Job(sink="spark/winners", batch="0")
        won = [await tasks.write(job, f"{task}-0", [b"%d" % task]) for task in range(2)]
        lost = await tasks.write(job, "1-1", [b"lost"])
        assert lost is not None
        (listed,) = await admin.list_jobs(["open"], sink="spark/winners")
        assert (listed.batch, listed.attempts) == ("0", 3)
        described = await admin.describe_job("spark/winners", "0")
        assert {each.state for each in described.attempts} == {"Prepared"}
        assert described.attempts[0].partitions == {topic: list(range(PARTITIONS))}
        assert await metric(served, "open_jobs") == 1
        assert await metric(served, "oldest_open_job_seconds") > 0
        decided = await metric(served, "jobs_committed_total")
        winners = [winner for winner in won if winner is not None]
        for _ in range(2):
            said = await tasks.commit(job, *winners, rows=6)
            assert (said.outcome, said.is_yours, len(said.winners)) == (pb.COMMITTED, True, 2)
        contradicting = await tasks.commit(job, lost, rows=3)
        assert (contradicting.outcome, contradicting.is_yours, contradicting.rows) == (pb.COMMITTED, False, 6)
        assert (await admin.describe_job("spark/winners", "0")).job.rows == 6
        assert await admin.abort_job("spark/winners", "0") == "committed"
        assert await metric(served, "jobs_committed_total") == decided + 1
        assert await metric(served, "open_jobs") == 0
        assert await committed(served, topic, PARTITIONS) == sorted([b"0", b"1"] * PARTITIONS)
        assert await metric(served, "oldest_open_job_seconds") == 0
        assert await tasks.write(job, "0-7", [b"again"]) is None
        assert await committed(served, topic, PARTITIONS) == sorted([b"0", b"1"] * PARTITIONS)


async def test_a_decision_outlives_its_coordinator(served: LocalCluster) -> None:
    topic = "outlives"
    async with engine(served, topic) as tasks, Admin(served.bootstrap) as admin:
        job = pb.Job(sink="outlives", batch="one")
        winner = await tasks.write(job, "a", [b"kept"])
        await tasks.write(job, "b", [b"lost"])
        assert winner is not None
        name = "tidegate.job/outlives/one/a"
        found = await admin.describe_transaction(name)
        assert (found.state, found.timeout_ms) == ("Prepared", 2**31 - 1)
        for step in ("prepared", "decided"):
            coordinator = served.node((await admin.describe_transaction(name)).coordinator)
            if step == "decided":
                assert (await tasks.commit(job, winner)).is_yours
            coordinator.kill()
            await coordinator.wait_exit(30)
            if step == "prepared":
                assert (
                    await tasks.ask("RenewJob", pb.RenewJobRequest(job=job, timeout_ms=60_000))
                ).state == pb.OPEN
            else:
                assert await committed(served, topic, PARTITIONS) == [b"kept"] * PARTITIONS
                assert (await tasks.commit(job, winner)).is_yours
            await coordinator.start()
            await coordinator.wait_ready(60)


async def test_the_command_line_aborts_a_job_with_all_of_its_attempts(served: LocalCluster) -> None:
    topic = "given-up"
    async with engine(served, topic) as tasks, Admin(served.bootstrap) as admin:
        job = pb.Job(sink="given/up", batch="3")
        winner = await tasks.write(job, "a", [b"lost"])
        assert winner is not None
        with pytest.raises(RequestError, match="tidegate jobs abort"):
            await admin.abort_transaction("tidegate.job/given/up/3/a")
        assert await admin.abort_job("given/up", "3") == "aborted"
        assert await admin.abort_job("given/up", "4") == "unknown"
        assert await committed(served, topic, PARTITIONS) == []
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await tasks.commit(job, winner)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(RequestError, match="never opened"):
            await admin.describe_job("given/up", "4")
        again = await tasks.write(job, "a", [b"kept"])
        assert again is not None
        assert (await tasks.commit(job, again)).is_yours
        assert await committed(served, topic, PARTITIONS) == [b"kept"] * PARTITIONS
