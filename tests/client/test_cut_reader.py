"""The client reads a cut from a real node, by gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from tidegate.client import Admin, Cut, LocalCluster, NewTopic, Producer, RequestError, read_cut
from tidegate.client.command_line import build
from tidegate.client.connecting.cluster import Cluster
from tidegate.client.connecting.errors import RetriableError
from tidegate.client.connecting.metadata import NO_LEADER, ClusterView
from tidegate.client.consuming import cut_reader
from tidegate.client.consuming.cut import CutPartition, CutTopic
from tidegate.processes.local_ports import grpc_client
from tidegate.proto import data_pb2 as pb
from tidegate.proto.range_chunks import RecordsChunk
from tidegate.runtime.clock import SystemClock
from tidegate.tests.started import started
from tidegate.wire.errors import ErrorCode, KafkaError
from typer.testing import CliRunner

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
    cluster = LocalCluster(tmp_path_factory.mktemp("node"), 1, settings)
    with started(cluster):
        yield cluster.bootstrap


async def at_rest(bootstrap: str, topic: str) -> Cut:
    """A cut of a topic while no producer writes to it: each open transaction is left out."""
    async with Admin(bootstrap) as admin:
        partitions = [(topic, 0), (topic, 1)]
        ends, producers = await admin.end_offsets(partitions), await admin.describe_producers(partitions)
    cluster = Cluster(bootstrap, client_id="test", clock=SystemClock())
    await cluster.start()
    topic_id = (await cluster.topic(topic, 5.0)).topic_id
    await cluster.close()
    assert topic_id is not None
    undecided: dict[int, dict[int, int]] = {0: {}, 1: {}}
    for each in producers:
        if each.open_since_offset >= 0:
            undecided[each.partition][each.producer_id] = each.open_since_offset
    parts = {number: CutPartition(0, ends[topic, number], undecided[number]) for number in (0, 1)}
    return Cut({topic: CutTopic(topic_id.bytes, parts)})


@pytest.fixture
async def written(bootstrap: str) -> AsyncIterator[tuple[str, Cut, Producer]]:
    """A topic, a cut of it, and the producer of the transaction that is open at the cut."""
    topic = f"t-{uuid4().hex[:8]}"
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, 2, 1)])
    async with (
        Producer(bootstrap, transactional_id=f"{topic}-open") as opened,
        Producer(bootstrap, transactional_id=f"{topic}-done") as done,
    ):
        await opened.begin()
        for number in (0, 1):
            await (await opened.send(topic, b"open %d" % number, partition=number))
        async with done.transaction():
            for number in (0, 1):
                await (await done.send(topic, b"done %d" % number, partition=number))
        await done.begin()
        await (await done.send(topic, b"aborted", partition=0))
        await done.abort()
        cut = await at_rest(bootstrap, topic)
        assert cut.partitions[topic, 0].undecided
        yield topic, cut, opened


async def values(bootstrap: str, cut: Cut) -> list[tuple[int, bytes | None]]:
    return [(record.partition, record.value) async for record in read_cut(bootstrap, cut)]


DONE = [(0, b"done 0"), (1, b"done 1")]


async def test_a_cut_has_what_was_committed_above_an_open_transaction(
    bootstrap: str, written: tuple[str, Cut, Producer]
) -> None:
    _, cut, opened = written
    assert await values(bootstrap, cut) == DONE
    await opened.commit()
    assert await values(bootstrap, cut) == DONE


async def test_a_stream_that_breaks_goes_on_where_it_was(
    bootstrap: str, written: tuple[str, Cut, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _, opened = written
    await opened.commit()
    async with Producer(bootstrap) as producer:
        for number in range(40):
            await (await producer.send(topic, b"%5000d" % number, partition=1))
    cut = await at_rest(bootstrap, topic)
    whole = await values(bootstrap, cut)
    assert len(whole) == 4 + 40
    opened_at: list[int] = []
    request = cut_reader._PartitionReader._request

    def small(self: cut_reader._PartitionReader) -> pb.ReadRangeRequest:
        made = request(self)
        made.chunk_bytes = 1  # one batch
        opened_at.append(made.start)
        return made

    read, count = cut_reader._PartitionReader._next, 0

    async def breaks(self: cut_reader._PartitionReader, call: Any) -> RecordsChunk | None:
        nonlocal count
        count += 1
        return None if count % 5 == 0 else await read(self, call)

    monkeypatch.setattr(cut_reader._PartitionReader, "_request", small)
    monkeypatch.setattr(cut_reader._PartitionReader, "_next", breaks)
    assert await values(bootstrap, cut) == whole
    assert len(set(opened_at)) > 5


async def test_each_leader_is_asked_over_one_channel_until_a_call_fails(
    bootstrap: str, written: tuple[str, Cut, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cut, _ = written
    read, opened, breaks = cut_reader._PartitionReader._next, [], False

    def counted(address: str, *more: Any) -> Any:
        opened.append(address)
        return grpc_client(address, *more)

    async def once(self: cut_reader._PartitionReader, call: Any) -> RecordsChunk | None:
        nonlocal breaks
        breaks, now = False, breaks
        return None if now else await read(self, call)

    monkeypatch.setattr(cut_reader, "grpc_client", counted)
    monkeypatch.setattr(cut_reader._PartitionReader, "_next", once)
    assert await values(bootstrap, cut) == DONE
    assert len(opened) == 1
    breaks = True
    assert await values(bootstrap, cut) == DONE
    assert len(opened) == 1 + 2


async def test_a_session_that_ends_during_a_read_is_followed_by_another_one(
    bootstrap: str, written: tuple[str, Cut, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cut, _ = written
    read, is_over = cut_reader._PartitionReader._next, [False, True, False]
    detail = pb.ErrorDetail(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, message="the session has ended")
    said = grpc.aio.Metadata(("tidegate-error-bin", detail.SerializeToString()))

    async def over_once(self: cut_reader._PartitionReader, call: Any) -> RecordsChunk | None:
        if is_over and is_over.pop():
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, grpc.aio.Metadata(), said)
        return await read(self, call)

    monkeypatch.setattr(cut_reader._PartitionReader, "_next", over_once)
    assert await values(bootstrap, cut) == DONE
    assert not is_over


@pytest.mark.parametrize(("start", "next_"), [(1, 0), (-1, 0), (0, -100)])
async def test_a_chunk_that_does_not_continue_is_no_answer(
    bootstrap: str,
    written: tuple[str, Cut, Producer],
    monkeypatch: pytest.MonkeyPatch,
    start: int,
    next_: int,
) -> None:
    _, cut, _ = written
    read = cut_reader._PartitionReader._next

    async def moved(self: cut_reader._PartitionReader, call: Any) -> RecordsChunk | None:
        chunk = await read(self, call)
        if chunk is not None:
            chunk.fields.start_offset += start
            chunk.fields.next_offset += next_
        return chunk

    monkeypatch.setattr(cut_reader._PartitionReader, "_next", moved)
    with pytest.raises(RequestError, match="expected a chunk that continues at offset 0") as refused:
        await values(bootstrap, cut)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


async def test_a_partition_without_a_leader_is_read_when_it_has_one(
    bootstrap: str, written: tuple[str, Cut, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cut, _ = written
    leader, asked, without = ClusterView.leader, 0, 1

    def none_at_first(self: ClusterView, topic: str, partition: int) -> int:
        nonlocal asked
        asked += 1
        return NO_LEADER if asked <= without else leader(self, topic, partition)

    monkeypatch.setattr(ClusterView, "leader", none_at_first)
    assert await values(bootstrap, cut) == DONE
    without = 1_000
    with pytest.raises(KafkaError, match="it has no leader at present"):
        [record async for record in read_cut(bootstrap, cut, silence_s=0.3)]


async def test_a_topic_that_is_not_found_for_another_reason_is_asked_for_again(
    bootstrap: str, written: tuple[str, Cut, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cut, _ = written
    found, failures = Cluster.topic, [RetriableError(ErrorCode.BROKER_NOT_AVAILABLE, "it starts")]

    async def late(self: Cluster, name: str, timeout_s: float) -> Any:
        if failures:
            raise failures.pop()
        return await found(self, name, timeout_s)

    monkeypatch.setattr(Cluster, "topic", late)
    assert await values(bootstrap, cut) == DONE
    assert failures == []


async def test_what_cannot_be_read_is_one_clear_error(
    bootstrap: str, written: tuple[str, Cut, Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, cut, _ = written
    parts = cut.topics[topic].partitions
    with pytest.raises(RequestError, match="'others' is not in the cut"):
        [record async for record in read_cut(bootstrap, cut, ["others"])]
    again = Cut({topic: CutTopic(UUID(int=1).bytes, parts)})
    with pytest.raises(RequestError, match="deleted and made again"):
        await values(bootstrap, again)
    gone_topic = Cut({"never-made": CutTopic(UUID(int=1).bytes, parts)})
    with pytest.raises(RequestError, match="'never-made' was deleted, and what the cut has of it"):
        [record async for record in read_cut(bootstrap, gone_topic, silence_s=0.3)]
    async with Admin(bootstrap) as admin:
        await admin.delete_records({(topic, 1): 2})
    with pytest.raises(RequestError) as gone:
        await values(bootstrap, cut)
    assert gone.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    monkeypatch.setattr(pb, "AT_CUT", pb.READ_UNCOMMITTED)  # as a former version takes it
    with pytest.raises(RequestError) as former:
        await values(bootstrap, cut)
    assert former.value.code == ErrorCode.UNSUPPORTED_VERSION


async def test_consume_reads_a_cut_from_a_file(
    bootstrap: str, written: tuple[str, Cut, Producer], tmp_path: Path
) -> None:
    topic, cut, _ = written
    file = tmp_path / "cut.json"
    file.write_text(cut.to_json())

    async def consume(*more: str) -> tuple[int, str, str]:
        """How the command ends, what it prints and what it says beside that: gRPC logs there that the loops
        of two threads woke up for one event, which is true of this test alone."""
        arguments = ["consume", topic, "--bootstrap", bootstrap, "--cut", str(file), *more]
        done = await asyncio.to_thread(CliRunner().invoke, build(arguments), arguments)
        return done.exit_code, done.stdout, done.stderr

    code, printed, _ = await consume()
    assert (code, printed) == (0, "done 0\ndone 1\n")
    code, printed, _ = await consume("--json", "--max", "1")
    assert (code, json.loads(printed)["value"]) == (0, "done 0")
    for option, value in (("--group", "g"), ("--isolation", "read_committed"), ("--idle", "1")):
        code, _, said = await consume(option, value)
        assert code == 2
        assert f"leave {option} out" in said
    file.write_text("{}")
    code, _, said = await consume()
    assert code == 1
    assert "version None" in said
