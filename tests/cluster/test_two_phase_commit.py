"""Two-phase commit on real nodes (KIP-939, docs/semantics.md T28 to T30): a prepared transaction outlives its
producer and its coordinator, and the next instance of the program ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.connecting.cluster import Cluster, CoordinatorKind, top_level_code
from tidegate.client.connecting.errors import ProducerFenced
from tidegate.client.producing.producer import Producer
from tidegate.node.data.coordinator_calls import ERROR_KEY
from tidegate.processes.local_cluster import LocalCluster
from tidegate.processes.local_ports import grpc_client
from tidegate.proto import jobs_pb2 as pb
from tidegate.proto import jobs_pb2_grpc
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .committed import committed
from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("two-phase-commit"), pytest.mark.timeout(120)]

ENABLED = {"transaction.two.phase.commit.enable": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with kept_up(LocalCluster(tmp_path_factory.mktemp("phases"), nodes=3, settings=ENABLED)) as cluster:
        yield cluster


@asynccontextmanager
async def connected(bootstrap: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(bootstrap)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


async def prepare(address: str, name: str, identity: tuple[int, int]) -> tuple[int, int]:
    async with grpc_client(address, None, 10) as (channel, shown):
        stub: Any = jobs_pb2_grpc.TwoPhaseCommitStub(channel)
        request = pb.PrepareTransactionRequest(
            transactional_id=name, producer_id=identity[0], producer_epoch=identity[1]
        )
        reply = await stub.PrepareTransaction(request, timeout=10, metadata=shown)
        return reply.producer_id, reply.producer_epoch


async def ask(cluster: Cluster, name: str, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
    return await cluster.ask_coordinator(
        CoordinatorKind.TRANSACTION, name, key, {"transactional_id": name, **fields},
        deadline_s=cluster.clock.monotonic() + 30, code_of=top_level_code, highest=version, lowest=version,
        retry=frozenset({ErrorCode.CONCURRENT_TRANSACTIONS}),
    )  # fmt: skip


async def keep(cluster: Cluster, name: str) -> Any:
    fields = {
        "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1, "enable2_pc": True,
        "keep_prepared_txn": True,
    }  # fmt: skip
    return await ask(cluster, name, ApiKey.INIT_PRODUCER_ID, 6, fields)


async def write(producer: Producer, topic: str) -> tuple[int, int]:
    """Opens a transaction with four records."""
    await producer.begin()
    for number in range(4):
        await producer.send(topic, b"%d" % number, partition=number % 2)
    await producer.flush()
    return producer.identity.producer_id, producer.identity.producer_epoch


@pytest.mark.parametrize("commit", [True, False])
async def test_the_next_instance_ends_what_was_prepared(served: LocalCluster, commit: bool) -> None:
    name = topic = f"phases-{commit}".lower()
    async with (
        Admin(served.bootstrap) as admin,
        connected(served.bootstrap) as cluster,
        Producer(served.bootstrap, transactional_id=name, linger_ms=0) as producer,
    ):
        await admin.create_topics([NewTopic(topic, 2, 3, {"min.insync.replicas": "2"})])
        identity = await write(producer, topic)
        coordinator = (await admin.describe_transaction(name)).coordinator
        other = next(node for node in served.nodes if node.id != coordinator)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await prepare(other.grpc_address, name, identity)
        error = pb.JobError.FromString(dict(refused.value.trailing_metadata() or ())[ERROR_KEY])
        assert (error.error_code, error.coordinator_id) == (ErrorCode.NOT_COORDINATOR, coordinator)
        assert error.endpoint == served.node(coordinator).grpc_address
        assert await prepare(error.endpoint, name, identity) == identity
        served.node(coordinator).kill()
        await served.node(coordinator).wait_exit(30)
        kept = await keep(cluster, name)
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == identity
        assert kept.error_code == 0
        assert (await admin.describe_transaction(name)).state == "Prepared"
        fields = {"producer_id": kept.producer_id, "producer_epoch": kept.producer_epoch, "committed": commit}
        assert (await ask(cluster, name, ApiKey.END_TXN, 5, fields)).error_code == 0
        assert await committed(served, topic, 2) == ([b"0", b"1", b"2", b"3"] if commit else [])
        with pytest.raises(ProducerFenced):
            await producer.commit()
    await served.node(coordinator).start()
    await served.node(coordinator).wait_ready(30)


async def test_an_administrator_aborts_a_prepared_transaction(served: LocalCluster) -> None:
    name = topic = "terminated"
    async with (
        Admin(served.bootstrap) as admin,
        Producer(served.bootstrap, transactional_id=name, linger_ms=0) as producer,
    ):
        await admin.create_topics([NewTopic(topic, 2, 3)])
        identity = await write(producer, topic)
        coordinator = served.node((await admin.describe_transaction(name)).coordinator)
        await prepare(coordinator.grpc_address, name, identity)
        assert [each.transactional_id for each in await admin.list_transactions(["Prepared"])] == [name]
        await admin.abort_transaction(name)
        assert await committed(served, topic, 2) == []
        with pytest.raises(ProducerFenced):
            await producer.commit()
