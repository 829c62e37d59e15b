"""What the reader of a cut makes of the streams of a partition, whatever its leaders send; without a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

import pytest
from tidegate.client.connecting.cluster import Backoff
from tidegate.client.connecting.errors import ConnectionFailed, RequestError
from tidegate.client.consuming import cut_reader
from tidegate.client.consuming.cut import Cut, CutPartition, CutTopic
from tidegate.client.consuming.cut_reader import _PartitionReader
from tidegate.client.consuming.visibility import Transaction
from tidegate.proto import data_pb2 as pb
from tidegate.proto.range_chunks import RecordsChunk
from tidegate.runtime.clock import ManualClock
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import ControlType, NewRecord, assign_in_place, encode_batch, encode_marker

SILENCE_S = 30.0


class Nodes:
    """The reader's view of a cluster, on a clock of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.happened: list[str] = []

    async def pause(
        self, backoff: Backoff, deadline_s: float, code: ErrorCode, what: str, said: str = ""
    ) -> None:
        self.happened.append("pause")
        if self.clock.monotonic() >= deadline_s:
            raise RequestError(code, f"{what}: {said}")

    async def refresh(self, topics: Iterable[str]) -> None:
        self.happened.append(f"refresh {', '.join(topics)}")


def at(offset: int, data: bytes) -> bytes:
    batch = bytearray(data)
    assign_in_place(memoryview(batch), 0, offset, 0)
    return bytes(batch)


def written(offset: int, count: int = 3, producer_id: int = -1) -> bytes:
    records = [NewRecord(None, b"v")] * count
    epoch = 0 if producer_id >= 0 else -1
    made = encode_batch(
        records, producer_id=producer_id, producer_epoch=epoch, transactional=producer_id >= 0
    )
    return at(offset, made)


def chunk(start: int, end: int, *batches: bytes, aborted: Iterable[Transaction] = ()) -> RecordsChunk:
    fields = pb.RangeChunk(start_offset=start, next_offset=end, at_cut=True)
    for producer_id, first_offset in aborted:
        fields.aborted_transactions.add(producer_id=producer_id, first_offset=first_offset)
    return RecordsChunk(fields, memoryview(b"".join(batches)))


def note(position: int) -> RecordsChunk:
    return RecordsChunk(pb.RangeChunk(start_offset=position, next_offset=position, waiting=True), b"")


Streams = Sequence[Sequence[RecordsChunk | Exception]]
LOST = ConnectionFailed(ErrorCode.NETWORK_EXCEPTION, "the stream ended too early")


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def reader(
    nodes: Any, part: CutPartition, channels: Any = None, silence_s: float = SILENCE_S
) -> _PartitionReader:
    return _PartitionReader(nodes, channels, "flights", bytes(16), 0, part, silence_s)


async def offsets(
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    streams: Streams,
    part: CutPartition,
    *,
    leap_s: float = 0.0,
) -> list[int]:
    """What is read of these streams, one after the other; `leap_s` passes before each chunk."""
    left = list(streams)

    async def chunks(_: _PartitionReader) -> AsyncGenerator[RecordsChunk]:
        for said in left.pop(0):
            nodes.clock.advance(leap_s)
            if isinstance(said, Exception):
                raise said
            yield said

    monkeypatch.setattr(_PartitionReader, "_chunks", chunks)
    found = [record.offset async for record in reader(nodes, part).records()]
    assert left == []
    return found


async def test_each_stream_has_a_filter_of_its_own(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cleaner has removed the marker for which the filter of the first one waits."""
    aborted = chunk(0, 3, written(0, producer_id=7), aborted=[(7, 0)])
    later = chunk(3, 8, written(4, producer_id=7), at(7, encode_marker(ControlType.COMMIT, 7, 0, 0, 0)))
    found = await offsets(nodes, monkeypatch, [[aborted, LOST], [later]], CutPartition(0, 8, {}))
    assert found == [4, 5, 6]
    assert nodes.happened == ["pause", "refresh flights"], "the leader may have moved"


async def test_what_a_cut_leaves_out_is_left_out_after_a_break(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: Streams = [[chunk(0, 3, written(0)), LOST], [chunk(3, 9, written(3, producer_id=7), written(6))]]
    assert await offsets(nodes, monkeypatch, streams, CutPartition(0, 9, {7: 3})) == [0, 1, 2, 6, 7, 8]


async def test_records_outside_of_the_cut_are_left_out(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range may begin and end inside of a batch."""
    streams: Streams = [[chunk(1, 3, written(0)), LOST], [chunk(3, 9, written(3), written(6))]]
    assert await offsets(nodes, monkeypatch, streams, CutPartition(1, 8, {})) == [1, 2, 3, 4, 5, 6, 7]


async def test_a_batch_that_is_damaged_is_no_answer(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = written(0)[:-1] + b"?"
    with pytest.raises(KafkaError, match="CRC"):
        await offsets(nodes, monkeypatch, [[chunk(0, 3, damaged)]], CutPartition(0, 3, {}))


@pytest.mark.parametrize(
    "batches", [(written(0), written(0)), (written(0), written(9)), (written(3), written(0))]
)
async def test_a_chunk_whose_batches_are_out_of_place_gives_no_record(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, batches: tuple[bytes, ...]
) -> None:
    """No record is given twice, whatever a node sends."""
    got: list[int] = []

    async def chunks(_: _PartitionReader) -> AsyncGenerator[RecordsChunk]:
        yield chunk(0, 9, *batches)

    monkeypatch.setattr(_PartitionReader, "_chunks", chunks)
    with pytest.raises(RequestError, match="out of place"):
        got += [record.offset async for record in reader(nodes, CutPartition(0, 9, {})).records()]
    assert got == []


async def test_the_time_of_who_gets_the_records_is_no_silence(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has ended the stream meanwhile, to make room for others."""
    streams: list[list[RecordsChunk | Exception]] = [
        [chunk(0, 3, written(0)), LOST],
        [chunk(3, 6, written(3))],
    ]

    async def chunks(_: _PartitionReader) -> AsyncGenerator[RecordsChunk]:
        for said in streams.pop(0):
            if isinstance(said, Exception):
                raise said
            yield said

    monkeypatch.setattr(_PartitionReader, "_chunks", chunks)
    found = []
    async for record in reader(nodes, CutPartition(0, 6, {})).records():
        found.append(record.offset)
        nodes.clock.advance(100 * SILENCE_S)
    assert found == [0, 1, 2, 3, 4, 5]


async def test_signs_of_life_are_waited_for_and_have_no_records(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they take longer than the patience, which begins anew with each of them."""
    notes = [note(0)] * 3
    streams: Streams = [
        [*notes, chunk(0, 3, written(0)), note(3), LOST],
        [note(3), LOST],
        [chunk(3, 6, written(3))],
    ]
    found = await offsets(nodes, monkeypatch, streams, CutPartition(0, 6, {}), leap_s=0.9 * SILENCE_S)
    assert found == [0, 1, 2, 3, 4, 5]


async def test_the_patience_begins_anew_with_each_chunk(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: Streams = [
        [chunk(0, 3, written(0)), LOST],
        [chunk(3, 6, written(3)), LOST],
        [chunk(6, 9, written(6))],
    ]
    found = await offsets(nodes, monkeypatch, streams, CutPartition(0, 9, {}), leap_s=0.9 * SILENCE_S)
    assert found == list(range(9))
    with pytest.raises(KafkaError, match="flights-0: the stream ended too early"):
        await offsets(nodes, monkeypatch, [[LOST]] * 9, CutPartition(0, 9, {}), leap_s=0.9 * SILENCE_S)


def test_a_leader_is_asked_for_all_that_the_read_needs(nodes: Nodes) -> None:
    """Signs of life, and a refusal where the cleaner may have taken a record of the cut."""
    request = reader(nodes, CutPartition(2, 9, {7: 5}))._request()
    assert (request.start, request.end, request.isolation) == (2, 9, pb.AT_CUT)
    assert request.accepts_waiting
    assert (request.HasField("settled_end"), request.settled_end) == (True, 5)


class Call:
    """A stream whose node is silent."""

    cancelled = False

    async def read(self) -> RecordsChunk:
        await asyncio.Event().wait()
        raise AssertionError

    def cancel(self) -> None:
        self.cancelled = True


async def test_a_node_that_is_silent_is_left(nodes: Nodes) -> None:
    call = Call()

    class Leader:
        address, shown = "a:1", ()

        @property
        def channel(self) -> Leader:
            return self

        def unary_stream(self, *_: object) -> Any:
            return lambda *_, **__: call

    class Channels:
        async def to(self, node_id: int) -> Leader:
            return Leader()

    impatient = reader(nodes, CutPartition(0, 3, {}), Channels(), 0.01)
    with pytest.raises(ConnectionFailed, match="a:1 was silent"):
        async with asyncio.timeout(10):
            [said async for said in impatient._stream(1)]
    assert call.cancelled


async def test_a_read_that_is_over_keeps_no_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has failed."""
    closed: list[str] = []

    async def address(_: object, node_id: int) -> str:
        return f"a:{node_id}"

    class Client:
        def __init__(self, address: str, *_: object) -> None:
            self._address = address

        async def __aenter__(self) -> tuple[object, tuple[()]]:
            return object(), ()

        async def __aexit__(self, *_: object) -> None:
            closed.append(self._address)

    class Away(Nodes):
        security = None

        async def start(self) -> None:
            channels = opened[0]
            assert await channels.to(1) is await channels.to(1)
            await channels.to(2)
            raise LOST

        async def close(self) -> None:
            closed.append("cluster")

    opened: list[cut_reader._Channels] = []
    make = cut_reader._Channels
    monkeypatch.setattr(cut_reader, "grpc_address", address)
    monkeypatch.setattr(cut_reader, "grpc_client", Client)
    monkeypatch.setattr(cut_reader, "Cluster", lambda *_, **__: Away())
    monkeypatch.setattr(cut_reader, "_Channels", lambda *given: opened.append(make(*given)) or opened[0])
    with pytest.raises(ConnectionFailed):
        [record async for record in cut_reader.read_cut("a:1", Cut({"flights": CutTopic(bytes(16), {})}))]
    assert closed == ["a:1", "a:2", "cluster"]
