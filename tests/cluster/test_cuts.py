"""Transaction-consistent cuts on real nodes (docs/semantics.md, chapter K): a bank under load, of which each
node dies once.  A larger one, beside transactions that stay open: `tidegate chaos run bank`."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count

import grpc
import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.consuming.cut import Cut, CutPartition
from tidegate.client.consuming.visibility import VisibilityFilter
from tidegate.client.producing.producer import Producer
from tidegate.node.cuts.cut_service import ERROR_KEY
from tidegate.processes.local_cluster import LocalCluster
from tidegate.processes.local_ports import grpc_client
from tidegate.proto import cuts_pb2 as pb
from tidegate.proto import cuts_pb2_grpc, data_pb2, data_pb2_grpc
from tidegate.runtime.clock import SystemClock
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import decode_batch, iterate_headers

from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cuts"), pytest.mark.timeout(180)]

PARTITIONS = 12


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with kept_up(LocalCluster(tmp_path_factory.mktemp("cuts"), nodes=3)) as cluster:
        yield cluster


async def take(served: LocalCluster, *topics: str, node: int = 0) -> pb.Cut:
    async with grpc_client(served.nodes[node].grpc_address, None, 15) as (channel, shown):
        request = pb.TakeCutRequest(topics=topics, timeout_ms=10_000)
        found: pb.Cut = await cuts_pb2_grpc.CutsStub(channel).TakeCut(request, timeout=15, metadata=shown)
        return found


async def refusal(call: Awaitable[object]) -> ErrorCode:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    detail = dict(failure.value.trailing_metadata() or ())[ERROR_KEY]
    assert isinstance(detail, bytes)
    return ErrorCode.from_wire(pb.CutError.FromString(detail).error_code)


async def read(served: LocalCluster, cut: pb.Cut) -> list[bytes]:
    """The values inside, from whichever nodes lead now."""
    found: list[bytes] = []
    for name, topic in Cut.from_proto(cut).topics.items():
        for number, part in sorted(topic.partitions.items()):
            if part.start < part.end:
                found += await _from_leader(served, name, number, part)
    return found


async def _from_leader(served: LocalCluster, name: str, number: int, part: CutPartition) -> list[bytes]:
    request = data_pb2.ReadRangeRequest(
        topic=name, partition=number, leader_epoch=-1, start=part.start, end=part.end,
        isolation=data_pb2.AT_CUT,
    )  # fmt: skip
    for _ in range(100):
        for node in served.nodes:
            with suppress(grpc.aio.AioRpcError):  # another one leads
                return await _from_node(node.grpc_address, request, part)
        await SystemClock().sleep(0.1)
    raise AssertionError(f"{name}-{number} was not read")


async def _from_node(address: str, request: data_pb2.ReadRangeRequest, part: CutPartition) -> list[bytes]:
    values: list[bytes] = []
    async with grpc_client(address, None, 15) as (channel, shown):
        aborted: list[tuple[int, int]] = []
        visible: VisibilityFilter | None = None
        async for chunk in data_pb2_grpc.DataStub(channel).ReadRange(request, timeout=15, metadata=shown):
            aborted += [(each.producer_id, each.first_offset) for each in chunk.aborted_transactions]
            visible = visible or VisibilityFilter(aborted, part.shown(part.start, part.end))
            for position, header in iterate_headers(chunk.records):
                if visible.shows(header, memoryview(chunk.records), position):
                    values += [each.value or b"" for each in decode_batch(chunk.records, position)]
    return [bytes(value) for value in values]


class Bank:
    """Producers that move money between the partitions, one transfer a transaction; some abort.  In the
    middle of a transfer the sum over all partitions is not 0."""

    def __init__(self, served: LocalCluster, topic: str) -> None:
        self._served, self._topic = served, topic
        self._random = random.Random(7)
        self._is_open = True
        self.committed: list[int] = []
        """The numbers of the transfers that were acknowledged, in that order."""
        self._numbers = count()

    async def run(self, teller: int) -> None:
        async with Producer(self._served.bootstrap, transactional_id=f"{self._topic}-{teller}") as producer:
            while self._is_open:
                number, amount = next(self._numbers), self._random.randint(1, 100)
                first, second = self._random.sample(range(PARTITIONS), 2)
                await producer.begin()
                for place, change in ((first, -amount), (second, amount)):
                    await producer.send(self._topic, f"{number} {change}", partition=place)
                if self._random.random() < 0.2:
                    await producer.abort()
                else:
                    await producer.commit()
                    self.committed.append(number)

    @asynccontextmanager
    async def at_work(self, tellers: int = 3) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for teller in range(tellers):
                group.create_task(self.run(teller))
            yield
            self._is_open = False


def check(values: list[bytes], known: list[int]) -> None:
    """The books balance, every transfer is whole, and what was acknowledged before is there."""
    transfers: dict[int, list[int]] = defaultdict(list)
    for value in values:
        number, change = value.split()
        transfers[int(number)].append(int(change))
    assert {
        number: changes for number, changes in transfers.items() if sum(changes) or len(changes) != 2
    } == {}
    assert set(known) <= transfers.keys()


@asynccontextmanager
async def topic_of(served: LocalCluster, name: str, partitions: int = PARTITIONS) -> AsyncIterator[Admin]:
    async with Admin(served.bootstrap) as admin:
        await admin.create_topics([NewTopic(name, partitions, 3, {"min.insync.replicas": "2"})])
        yield admin


async def test_a_cut_outlives_the_coordinator_and_the_leaders_that_answered(served: LocalCluster) -> None:
    bank = Bank(served, "failover")
    async with topic_of(served, "failover"), bank.at_work():
        cuts: list[tuple[pb.Cut, list[int]]] = []
        for number in range(3):
            killed = served.nodes[number]
            killed.kill()
            for _ in range(3):
                known = list(bank.committed)
                cuts.append((await take(served, "failover", node=(number + 1) % 3), known))
            first = [await read(served, cut) for cut, _ in cuts]
            await killed.start()
            await killed.wait_ready(60)
    for (cut, known), values in zip(cuts, first, strict=True):
        assert await read(served, cut) == values
        check(values, known)


async def test_what_no_cut_can_have_is_refused_by_one_clear_error(served: LocalCluster) -> None:
    assert await refusal(take(served, "nowhere")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await refusal(take(served)) is ErrorCode.INVALID_REQUEST
    assert await refusal(take(served, "a", "a")) is ErrorCode.INVALID_REQUEST
    assert await refusal(take(served, "__transaction_state")) is ErrorCode.INVALID_TOPIC_EXCEPTION
