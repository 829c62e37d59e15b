"""The data service over real logs: what it gives out, what it refuses, and what happens when leadership ends
in the middle."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import grpc
import pytest
from tidegate.node.data import data_service
from tidegate.node.data.range_turns import STILL_S, Looks, RangeTurns, Turn
from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.proto.range_chunks import RecordsChunk
from tidegate.runtime.disk import RealDisk
from tidegate.runtime.network import bytes_taken, grpc_channel_blocking
from tidegate.spark.connecting.answers import LeaderView
from tidegate.spark.connecting.data_client import DataClient, offset_query
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.storage.cleaning.cleaner import CleaningResult, clean_now
from tidegate.storage.log.lookup import OffsetRange, split_range
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import ControlType, NewRecord, decode_batch, encode_batch, encode_marker

from .conftest import LeapingClock
from .served import FIRST_TIMESTAMP_MS, TOPIC_ID, ServedCluster, Step, committed, history


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path_factory.mktemp("nodes")) as served:
        for partition in (0, 1):
            served.fill("flights", partition, history(partition, 400), leader=1 + partition)
        served.fill("open", 0, history(5, 120, leave_open=True), leader=1)
        yield served


Carrier = Callable[[ServedCluster], AbstractContextManager[None]]


@pytest.fixture(params=["frames", "gRPC"])
def carrier(request: pytest.FixtureRequest) -> Carrier:
    """How chunks reach readers."""
    return ServedCluster.over_grpc if request.param == "gRPC" else lambda _: nullcontext()


@pytest.fixture
def client(cluster: ServedCluster, carrier: Carrier) -> Iterator[DataClient]:
    client = DataClient([cluster.bootstrap.split(",")[0]], retry_timeout_ms=5_000)
    with carrier(cluster):
        yield client
    client.close()


def stub_of(cluster: ServedCluster, node: int) -> data_pb2_grpc.DataStub:
    return data_pb2_grpc.DataStub(grpc_channel_blocking(f"127.0.0.1:{cluster.nodes[node].port}"))


def detail_of(failure: grpc.RpcError) -> pb.ErrorDetail:
    found: dict[str, Any] = dict(failure.trailing_metadata())["tidegate-error-bin"]  # type: ignore[arg-type, index]
    return pb.ErrorDetail.FromString(found)  # type: ignore[arg-type]


def read(
    client: DataClient, partition: int, start: int, end: int, *, topic: str = "flights"
) -> list[tuple[int, bytes | None]]:
    request = RangeRequest(topic, TOPIC_ID.bytes, partition, start, end, True, True)
    return [
        (record.offset, record.value)
        for chunk in fetch_range(client, request)
        for position, _ in chunk.visible
        for record in decode_batch(chunk.records, position)
        if start <= record.offset < end
    ]


def wanted(steps: list[Step], start: int = 0, end: int = 1 << 60) -> list[tuple[int, bytes | None]]:
    return [(offset, record.value) for offset, record in committed(steps) if start <= offset < end]


def test_every_method_of_the_service_is_served_with_its_types(cluster: ServedCluster) -> None:
    """They are registered by hand: a method that is missing here would be UNIMPLEMENTED."""

    class Server:
        def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
            (self.served,) = handlers

    class Details(NamedTuple):
        method: str
        invocation_metadata: tuple[()] = ()

    server: Any = Server()
    cluster.nodes[1].service.add_to_server(server, cluster.nodes[1].ranges.invite)
    for method in pb.DESCRIPTOR.services_by_name["Data"].methods:
        handler = server.served.service(Details(f"/{pb.DESCRIPTOR.package}.Data/{method.name}"))
        assert handler is not None, method.name
        assert handler.response_streaming is method.server_streaming
        request = getattr(pb, method.input_type.name)()
        assert handler.request_deserializer(request.SerializeToString()) == request
        reply = getattr(pb, method.output_type.name)
        wrapped = RecordsChunk(reply()) if reply is pb.RangeChunk else reply()
        assert handler.response_serializer(wrapped) == b""


@pytest.mark.parametrize("partition", [0, 1])
def test_exactly_the_committed_records_are_read(client: DataClient, partition: int) -> None:
    topic = client.describe(["flights"])["flights"]
    end = client.offsets(topic, [offset_query(partition)], read_committed=True)[partition].offset
    assert read(client, partition, 0, end) == wanted(history(partition, 400))


def test_any_range_has_its_committed_records_with_earlier_transactions(client: DataClient) -> None:
    steps = history(0, 400)
    for start, end in [(1, 2), (17, 800), (333, 334), (1500, 3000), (2999, 4000)]:
        assert read(client, 0, start, end) == wanted(steps, start, end)


def test_splits_adjoin_and_together_give_the_whole(client: DataClient) -> None:
    topic = client.describe(["flights"])["flights"]
    end = client.offsets(topic, [offset_query(1)], read_committed=True)[1].offset
    ranges = client.plan_ranges(topic, 1, 5, end, 20_000)
    assert len(ranges) > 5
    assert (ranges[0].start, ranges[-1].end) == (5, end)
    assert all(10_000 < part.bytes_estimated < 40_000 for part in ranges[:-1])
    parts = [record for part in ranges for record in read(client, 1, part.start, part.end)]
    assert parts == wanted(history(1, 400), start=5)


def test_an_open_transaction_ends_what_is_committed(cluster: ServedCluster, client: DataClient) -> None:
    topic = client.describe(["open"])["open"]
    answer = client.offsets(topic, [offset_query(0)], read_committed=True)[0]
    assert answer.offset == answer.last_stable_offset < answer.high_watermark
    assert client.offsets(topic, [offset_query(0)], read_committed=False)[0].offset == answer.high_watermark
    assert read(client, 0, 0, answer.offset, topic="open") == wanted(history(5, 120, leave_open=True))
    request = pb.ReadRangeRequest(
        topic="open", partition=0, leader_epoch=-1, start=0, end=answer.last_stable_offset + 1
    )
    with pytest.raises(grpc.RpcError) as caught:
        list(stub_of(cluster, 1).ReadRange(request))
    assert detail_of(caught.value).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


def test_offsets_by_timestamp(client: DataClient) -> None:
    topic = client.describe(["flights"])["flights"]
    first = client.offsets(topic, [offset_query(0, timestamp_ms=FIRST_TIMESTAMP_MS)], read_committed=True)[0]
    never = client.offsets(
        topic, [offset_query(0, timestamp_ms=FIRST_TIMESTAMP_MS * 2)], read_committed=True
    )[0]
    assert (first.offset, never.offset) == (0, -1)
    records = [pair for step in history(0, 400) for pair in step.records]
    middle = records[len(records) // 2].timestamp_ms
    found = client.offsets(topic, [offset_query(0, timestamp_ms=middle)], read_committed=True)[0].offset
    every: dict[Any, Any] = {}
    offset = 0
    for step in history(0, 400):
        every |= {offset + n: record.timestamp_ms for n, record in enumerate(step.records)}
        offset += len(step.records) or 1
    assert found == min(number for number, time in every.items() if time >= middle)


def test_a_node_that_does_not_lead_names_the_leader(cluster: ServedCluster) -> None:
    other = stub_of(cluster, 2)
    with pytest.raises(grpc.RpcError) as caught:
        list(
            other.ReadRange(
                pb.ReadRangeRequest(topic="flights", partition=0, leader_epoch=-1, start=0, end=5)
            )
        )
    detail = detail_of(caught.value)
    assert (detail.error_code, detail.leader.node_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
    assert detail.leader.endpoint == f"127.0.0.1:{cluster.nodes[1].port}"
    answer = other.Offsets(
        pb.OffsetsRequest(topic="flights", queries=[pb.OffsetQuery(partition=0, leader_epoch=-1)])
    ).offsets[0]
    assert (answer.error_code, answer.leader.node_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"leader_epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 99}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"topic_id": UUID(int=9).bytes}, ErrorCode.INCONSISTENT_TOPIC_ID),
        ({"topic_id": b"short"}, ErrorCode.INCONSISTENT_TOPIC_ID),
        ({"topic": "nosuch"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"start": 7, "end": 5}, ErrorCode.INVALID_REQUEST),
        ({"start": -1}, ErrorCode.INVALID_REQUEST),
        ({"end": 1 << 40}, ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
def test_what_cannot_be_answered_is_refused_with_its_code(
    cluster: ServedCluster, change: dict[str, object], code: ErrorCode
) -> None:
    fields: dict[str, Any] = {
        "topic": "flights",
        "partition": 0,
        "leader_epoch": -1,
        "start": 0,
        "end": 5,
    } | change
    for call in (pb.ReadRangeRequest, pb.PlanRangesRequest):
        with pytest.raises(grpc.RpcError) as caught:
            if call is pb.ReadRangeRequest:
                list(stub_of(cluster, 1).ReadRange(pb.ReadRangeRequest(**fields)))
            else:
                stub_of(cluster, 1).PlanRanges(pb.PlanRangesRequest(**fields))
        assert detail_of(caught.value).error_code == code


def test_unknown_topics_are_named_not_left_out(cluster: ServedCluster) -> None:
    reply = stub_of(cluster, 1).DescribeTopics(pb.DescribeTopicsRequest(topics=["nosuch", "flights"]))
    assert [topic.error_code for topic in reply.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert [partition.leader.node_id for partition in reply.topics[1].partitions] == [1, 2]
    assert len(reply.endpoints) == 2
    everything = stub_of(cluster, 1).DescribeTopics(pb.DescribeTopicsRequest())
    assert [topic.name for topic in everything.topics] == ["flights", "open"]


def test_a_topic_that_is_named_many_times_is_described_once(cluster: ServedCluster) -> None:
    reply = stub_of(cluster, 1).DescribeTopics(pb.DescribeTopicsRequest(topics=["flights", "x", "flights"]))
    assert [topic.name for topic in reply.topics] == ["flights", "x"]


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("DescribeTopics", lambda count: pb.DescribeTopicsRequest(topics=[""] * count)),
        ("Offsets", lambda count: pb.OffsetsRequest(topic="flights", queries=[pb.OffsetQuery()] * count)),
        (
            "PlanManyRanges",
            lambda count: pb.PlanManyRangesRequest(
                partitions=[pb.PlanRangesRequest(partition=number) for number in range(count)]
            ),
        ),
    ],
)
def test_a_request_that_claims_too_many_entries_is_refused(
    cluster: ServedCluster, method: str, request_of: Callable[[int], Any]
) -> None:
    call = getattr(stub_of(cluster, 1), method)
    call(request_of(data_service.ENTRIES_MAX))
    with pytest.raises(grpc.RpcError, match="at most 10000") as caught:
        call(request_of(data_service.ENTRIES_MAX + 1))
    assert detail_of(caught.value).error_code == ErrorCode.INVALID_REQUEST


def plan_of(topic: str, partition: int, end: int, target_bytes: int = 0) -> pb.PlanRangesRequest:
    return pb.PlanRangesRequest(
        topic=topic, partition=partition, leader_epoch=-1, end=end, target_bytes=target_bytes
    )


def test_a_partition_that_is_named_twice_is_refused(cluster: ServedCluster) -> None:
    stub, (one, other) = stub_of(cluster, 1), (plan_of(topic, 0, 10) for topic in ("flights", "open"))
    assert len(stub.PlanManyRanges(pb.PlanManyRangesRequest(partitions=[one, other])).partitions) == 2
    again = plan_of("flights", 0, 20, target_bytes=1 << 20)
    with pytest.raises(grpc.RpcError, match="flights-0 is named twice") as caught:
        stub.PlanManyRanges(pb.PlanManyRangesRequest(partitions=[one, other, again]))
    assert detail_of(caught.value).error_code == ErrorCode.INVALID_REQUEST


def test_a_split_into_too_many_ranges_ends_early_and_counts(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*asked: Any) -> Iterator[list[OffsetRange]]:
        for pieces in split_range(*asked):
            made.append(len(pieces))
            yield pieces

    monkeypatch.setattr(data_service, "split_range", counted)
    wanted = [plan_of("flights", 0, cluster.end("flights", 0)), plan_of("open", 0, 10)]
    stub = stub_of(cluster, 1)
    whole = len(stub.PlanRanges(wanted[0]).ranges)
    most, of_segment = 10, max(made)
    assert whole == sum(made) > 3 * (most + of_segment)
    monkeypatch.setattr(data_service, "RANGES_MAX", most)
    made.clear()
    with pytest.raises(grpc.RpcError, match="more than 10 ranges: ask for larger") as caught:
        stub.PlanRanges(wanted[0])
    assert detail_of(caught.value).error_code == ErrorCode.INVALID_REQUEST
    assert most < sum(made) <= most + of_segment
    (refused,) = stub.PlanManyRanges(pb.PlanManyRangesRequest(partitions=wanted)).partitions
    assert (refused.error_code, len(refused.ranges)) == (ErrorCode.INVALID_REQUEST, 0)


@pytest.mark.parametrize(
    ("change", "code"),
    [("moves", ErrorCode.NOT_LEADER_OR_FOLLOWER), ("begins later", ErrorCode.OFFSET_OUT_OF_RANGE)],
)
def test_a_plan_gives_way_and_looks_again_whether_it_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, code: ErrorCode
) -> None:
    with ServedCluster(tmp_path) as cluster:
        cluster.fill("flights", 0, history(3, 300), leader=1)
        log = cluster.nodes[1].replicas.replica("flights", 0).log

        async def others() -> None:
            if change == "moves":
                await cluster._apply_leader("flights", TOPIC_ID, 0, 2, 3)
            else:
                log.advance_log_start(20)

        def meanwhile(*asked: Any) -> Iterator[list[OffsetRange]]:
            for number, pieces in enumerate(split_range(*asked)):
                if number == 1:
                    tasks.append(asyncio.create_task(others()))  # runs when the plan gives way
                yield pieces

        tasks: list[asyncio.Task[None]] = []
        request, stub = plan_of("flights", 0, cluster.end("flights", 0)), stub_of(cluster, 1)
        at_once = stub.PlanRanges(request)
        monkeypatch.setattr(data_service, "PLANNING_S", 0.0)
        assert stub.PlanRanges(request) == at_once
        monkeypatch.setattr(data_service, "split_range", meanwhile)
        with pytest.raises(grpc.RpcError) as caught:
            stub.PlanRanges(request)
    assert detail_of(caught.value).error_code == code


@pytest.mark.parametrize("codec", list(Compression))
def test_splits_know_how_much_their_records_are_when_decompressed(tmp_path: Path, codec: Compression) -> None:
    records = [NewRecord(b"k", bytes(1_000))] * 100
    with ServedCluster(tmp_path, nodes=1) as cluster:
        cluster.fill(
            "flights", 0, [Step(encode_batch(records, compression=codec), records, -1)] * 5, leader=1
        )
        client = DataClient([cluster.bootstrap], retry_timeout_ms=5_000)
        topics, wanted = client.describe(["flights"]), {("flights", 0): (0, 500)}
        (found,) = client.plan_many_ranges(topics, wanted, 1 << 20, estimate_decompressed=True)["flights", 0]
        (unknown,) = client.plan_many_ranges(topics, wanted, 1 << 20)["flights", 0]
        client.close()
    assert unknown.decompressed_estimated == 0
    assert 500_000 < found.decompressed_estimated < 520_000
    assert codec is Compression.NONE or found.bytes_estimated < 50_000


def test_a_batch_larger_than_a_chunk_travels_whole(tmp_path: Path, carrier: Carrier) -> None:
    big = NewRecord(b"big", b"x" * 6_000_000)
    steps = [
        Step(encode_batch([record]), [record], -1)
        for record in (NewRecord(b"a", b"1"), big, NewRecord(b"z", b"2"))
    ]
    with (
        ServedCluster(
            tmp_path, nodes=1, **{"max.message.bytes": "8000000", "segment.bytes": "10000000"}
        ) as cluster,
        carrier(cluster),
    ):
        cluster.fill("flights", 0, steps, leader=1)
        client = DataClient([cluster.bootstrap], retry_timeout_ms=5_000)
        assert read(client, 0, 0, 3) == [(0, b"1"), (1, big.value), (2, b"2")]
        client.close()


def test_a_stream_ends_when_leadership_does_and_resumes_at_the_new_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: Carrier
) -> None:
    monkeypatch.setattr(data_service, "CHUNK_BYTES_DEFAULT", 2_000)
    monkeypatch.setattr(data_service, "FILE_CHUNK_BYTES", 2_000)
    steps = history(3, 300)
    with ServedCluster(tmp_path) as cluster, carrier(cluster):
        cluster.fill("flights", 0, steps, leader=1)
        client = DataClient([cluster.bootstrap.split(",")[1]], retry_timeout_ms=10_000)
        topic = client.describe(["flights"])["flights"]
        end = client.offsets(topic, [offset_query(0)], read_committed=True)[0].offset
        request = RangeRequest("flights", TOPIC_ID.bytes, 0, 0, end, True, True)
        seen: list[tuple[int, bytes | None]] = []
        for number, chunk in enumerate(fetch_range(client, request)):
            for position, _ in chunk.visible:
                seen += [(record.offset, record.value) for record in decode_batch(chunk.records, position)]
            if number == 2:
                cluster.move("flights", 0, 2)
            elif number == 20:
                cluster.move("flights", 0, 1)
            elif number == 40:
                cluster.kill_server(1)
                cluster.move("flights", 0, 2)
        assert seen == wanted(steps)
        client.close()


def test_a_marker_that_the_cleaner_removes_during_a_read_hides_no_later_record(
    tmp_path: Path, carrier: Carrier
) -> None:
    """The reader was told of the aborted transaction, and would wait for its end."""
    at_ms, horizon_ms = FIRST_TIMESTAMP_MS, 1_000
    others = [
        [NewRecord(b"%d" % key, bytes(1_000), (), at_ms) for key in range(first, first + 30)]
        for first in range(0, 9_000, 30)
    ]

    def transaction(value: bytes, sequence: int, kind: ControlType) -> list[Step]:
        records = [NewRecord(value, value, (), at_ms)]
        data = encode_batch(
            records, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        return [Step(data, records, 7), Step(encode_marker(kind, 7, 0, 0, at_ms), [], 7, kind)]

    steps = [Step(encode_batch(records), records, -1) for records in others]
    steps[-40:-40] = transaction(b"aborted", 0, ControlType.ABORT)
    steps[-30:-30] = transaction(b"committed", 1, ControlType.COMMIT)
    configs = {
        "cleanup.policy": "compact",
        "delete.retention.ms": str(horizon_ms),
        "min.cleanable.dirty.ratio": "0",
        "segment.bytes": "500000",
    }
    with ServedCluster(tmp_path, nodes=1, **configs) as cluster, carrier(cluster):
        cluster.fill("flights", 0, steps, leader=1)
        log = cluster.nodes[1].replicas.replica("flights", 0).log

        async def clean(now_ms: int, horizon_ms: int | None) -> CleaningResult | None:
            log.flush_now()  # what is not durable is not cleaned
            return clean_now(log, RealDisk(), now_ms, horizon_ms=horizon_ms)

        first = cluster.run(clean(at_ms, None))
        client = DataClient([cluster.bootstrap], retry_timeout_ms=5_000)
        request = RangeRequest("flights", TOPIC_ID.bytes, 0, 0, log.last_stable_offset, True, True)
        seen: list[bytes | None] = []
        for number, chunk in enumerate(fetch_range(client, request)):
            if number == 0:
                second = cluster.run(clean(at_ms + 2 * horizon_ms, first.next_horizon_ms))
                assert second.counts.batches_changed == 1
            for position, _ in chunk.visible:
                seen += [record.key for record in decode_batch(chunk.records, position)]
        written = [record.key for step in steps for record in step.records]
        assert seen == [key for key in written if key != b"aborted"]
        client.close()


def test_records_below_the_log_start_are_out_of_range(tmp_path: Path, carrier: Carrier) -> None:
    with ServedCluster(tmp_path, nodes=1) as cluster, carrier(cluster):
        cluster.fill("flights", 0, history(4, 200), leader=1)

        async def cut() -> None:
            cluster.nodes[1].replicas.replica("flights", 0).log.advance_log_start(900)

        cluster.run(cut())
        client = DataClient([cluster.bootstrap], retry_timeout_ms=3_000)
        with pytest.raises(ReadError) as caught:
            read(client, 0, 100, 1200)
        assert (caught.value.code, caught.value.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 900)
        assert read(client, 0, 900, 1200) == wanted(history(4, 200), 900, 1200)
        client.close()


def set_turns(cluster: ServedCluster, turns: RangeTurns, still_s: float = STILL_S) -> None:
    service = cluster.nodes[1].service
    service._turns, service._looks = turns, Looks(still_s)


def hold_turn(cluster: ServedCluster, turns: RangeTurns) -> Turn:
    async def enter() -> Turn:
        return turns.enter(lambda: None, "held", asyncio.get_running_loop().time())

    found: Turn = cluster.run(enter())
    return found


def release(cluster: ServedCluster, turns: RangeTurns, turn: Turn) -> None:
    async def leave() -> None:
        turns.leave(turn, asyncio.get_running_loop().time())

    cluster.run(leave())


@pytest.fixture
def turns(cluster: ServedCluster) -> Iterator[RangeTurns]:
    """Node 1 serves one read at a time."""
    turns, before = RangeTurns(active_max=1), cluster.nodes[1].service._turns
    set_turns(cluster, turns)
    yield turns
    set_turns(cluster, before)


def first_records(**more: Any) -> pb.ReadRangeRequest:
    return pb.ReadRangeRequest(topic="flights", partition=0, leader_epoch=-1, start=0, end=5, **more)


def test_a_reader_without_a_turn_waits_and_hears_of_the_node(
    cluster: ServedCluster, turns: RangeTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_service, "WAITING_NOTE_S", 0.02)
    held = hold_turn(cluster, turns)
    new = stub_of(cluster, 1).ReadRange(first_records(accepts_waiting=True))
    note = next(new)
    assert note.waiting
    assert not note.records
    assert (note.start_offset, note.next_offset) == (0, 0)
    old = stub_of(cluster, 1).ReadRange(first_records())  # of a version that would take a note for nonsense
    release(cluster, turns, held)
    assert sum(len(chunk.records) for chunk in new) > 0
    assert all(chunk.records for chunk in old)


def test_only_a_queue_in_which_nothing_moves_is_given_up(
    cluster: ServedCluster, turns: RangeTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_service, "WAITING_NOTE_S", 0.02)
    held = hold_turn(cluster, turns)
    waiting = stub_of(cluster, 1).ReadRange(first_records(accepts_waiting=True))
    for _ in range(5):
        assert next(waiting).waiting
    monkeypatch.setattr(data_service, "QUEUE_STALL_S", 0.0)
    with pytest.raises(grpc.RpcError) as caught:
        list(waiting)
    assert detail_of(caught.value).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    release(cluster, turns, held)


def test_many_more_readers_than_turns_all_read_everything(
    cluster: ServedCluster, turns: RangeTurns, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the reader's own client, without one interruption."""
    steps = history(0, 400)
    end = max(offset for offset, _ in committed(steps)) + 1
    client = DataClient(cluster.bootstrap.split(","), retry_timeout_ms=120_000)
    client.describe(["flights"])
    leader = client.leaders.known("flights", 0)
    assert leader is not None
    client.close()

    def read_all(_: int) -> list[tuple[int, bytes | None]]:
        client = DataClient(cluster.bootstrap.split(","), retry_timeout_ms=120_000)
        client.leaders.begin_with("flights", 0, leader)
        try:
            return read(client, 0, 0, end)
        finally:
            client.close()

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(24) as pool:
        assert all(found == wanted(steps) for found in pool.map(read_all, range(24)))
    assert [line for line in caplog.messages if "interrupted" in line] == []


def test_a_reader_that_pauses_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carrier: Carrier
) -> None:
    monkeypatch.setattr(data_service, "PARK_AFTER_S", 0.02)
    steps = [Step(encode_batch([record]), [record], -1) for record in [NewRecord(b"k", bytes(700_000))] * 24]
    with ServedCluster(tmp_path, nodes=1, **{"segment.bytes": "10000000"}) as cluster, carrier(cluster):
        cluster.fill("flights", 0, steps, leader=1)
        set_turns(cluster, RangeTurns(active_max=1))
        client = DataClient([cluster.bootstrap], retry_timeout_ms=5_000)
        request = RangeRequest("flights", TOPIC_ID.bytes, 0, 0, 24, True, True)
        paused = fetch_range(client, request)
        rows = len(next(paused).visible)
        assert len(read(client, 0, 0, 24)) == 24
        assert rows + sum(len(chunk.visible) for chunk in paused) == 24
        client.close()


def paused_and_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: RangeTurns, steps: list[Step]
) -> list[int]:
    """The rows of a range whose reader pauses for an hour after its first chunk, while others read."""
    monkeypatch.setattr(data_service, "PARK_AFTER_S", 0.02)
    monkeypatch.setattr(data_service, "LOOK_S", 0.01)
    with ServedCluster(tmp_path, nodes=1, **{"segment.bytes": "10000000"}) as cluster, cluster.over_grpc():
        cluster.fill("flights", 0, steps, leader=1)
        set_turns(cluster, turns, still_s=0.05)
        clock = LeapingClock()
        slow = DataClient([cluster.bootstrap], retry_timeout_ms=5_000, clock=clock)
        paused = fetch_range(slow, RangeRequest("flights", TOPIC_ID.bytes, 0, 0, len(steps), True, True))
        first = next(paused)
        other = DataClient([cluster.bootstrap], retry_timeout_ms=5_000)
        for _ in range(3):
            assert len(read(other, 0, 0, len(steps))) == len(steps)
        clock.leapt_s += 3_600
        found = [
            record.offset
            for chunk in (first, *paused)
            for position, _ in chunk.visible
            for record in decode_batch(chunk.records, position)
        ]
        other.close()
        slow.close()
    return found


def test_a_reader_that_pauses_at_the_bound_is_ended_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    steps = [Step(encode_batch([record]), [record], -1) for record in [NewRecord(b"k", bytes(700_000))] * 48]
    with caplog.at_level(logging.INFO):
        found = paused_and_others(tmp_path, monkeypatch, RangeTurns(held_bytes_max=1_000_000), steps)
    assert found == list(range(48))
    assert len([line for line in caplog.messages if "range_reader_ended" in line]) == 1
    (interrupted,) = (line for line in caplog.messages if "range_read_interrupted" in line)
    assert "position=1 " in interrupted, "the other reader has a connection of its own"


def test_a_look_that_fails_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process may have no descriptor for it."""
    look, failures = bytes_taken, [OSError(errno.EMFILE, "Too many open files")] * 3

    def fails_at_first(peers: Any) -> dict[str, int]:
        if failures:
            raise failures.pop()
        return look(peers)

    monkeypatch.setattr(data_service, "bytes_taken", fails_at_first)
    steps = [Step(encode_batch([record]), [record], -1) for record in [NewRecord(b"k", bytes(700_000))] * 48]
    with caplog.at_level(logging.INFO):
        found = paused_and_others(tmp_path, monkeypatch, RangeTurns(held_bytes_max=1_000_000), steps)
    assert (found, failures) == (list(range(48)), [])
    assert "range_read_room_failed" in caplog.text


@contextmanager
def slow_link(address: str, bytes_a_step: int, step_s: float) -> Iterator[str]:
    """The address behind which answers of this one come at a limited speed to each connection."""
    host, port = address.rsplit(":", 1)
    listening = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = [listening]

    def carry(source: socket.socket, target: socket.socket, size: int, pause_s: float) -> None:
        with suppress(OSError):
            while data := source.recv(size):
                target.sendall(data)
                time.sleep(pause_s)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client = listening.accept()[0]
                with socket.socket() as server:
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                    server.connect((host, int(port)))
                    opened.extend((client, server.dup()))
                up, down = (client, opened[-1], 1 << 16, 0.0), (opened[-1], client, bytes_a_step, step_s)
                for ends in (up, down):
                    threads.append(threading.Thread(target=carry, args=ends))
                    threads[-1].start()

    threads = [threading.Thread(target=serve)]
    threads[0].start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in opened:
            each.close()


def test_readers_that_take_their_chunks_slowly_do_not_end_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two chunks have room, four readers want one, and each takes several looks for one."""
    monkeypatch.setattr(data_service, "PARK_AFTER_S", 0.02)
    monkeypatch.setattr(data_service, "LOOK_S", 0.02)
    steps = [
        Step(encode_batch([record]), [record], -1) for record in [NewRecord(b"k", bytes(12_000_000))] * 2
    ]
    with (
        ServedCluster(tmp_path, nodes=1, **{"max.message.bytes": "20000000"}) as cluster,
        cluster.over_grpc(),
    ):
        cluster.fill("flights", 0, steps, leader=1)
        set_turns(cluster, RangeTurns(held_bytes_max=25_000_000), still_s=0.1)
        with slow_link(cluster.bootstrap, 1 << 16, 0.002) as address:
            leader = LeaderView(1, -1, address)

            def read_all(_: int) -> int:
                client = DataClient([address], retry_timeout_ms=60_000)
                client.leaders.begin_with("flights", 0, leader)
                try:
                    return len(read(client, 0, 0, len(steps)))
                finally:
                    client.close()

            with caplog.at_level(logging.INFO), ThreadPoolExecutor(4) as pool:
                assert list(pool.map(read_all, range(4))) == [len(steps)] * 4
    assert [line for line in caplog.messages if "interrupted" in line or "range_reader_ended" in line] == []


def test_a_stream_that_waits_for_room_keeps_nothing_that_it_has_sent(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_service, "WAITING_NOTE_S", 0.0)
    turns, before = RangeTurns(held_bytes_max=1), cluster.nodes[1].service._turns
    context = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", invocation_metadata=tuple, auth_context=dict)
    request = first_records(accepts_waiting=True, chunk_bytes=1)
    request.end = 1_000

    async def run() -> None:
        stream: Any = cluster.nodes[1].service.ReadRange(request, context)  # type: ignore[arg-type]
        sent = await anext(stream)
        records = sent.records
        assert records
        holding = turns.enter(lambda: None, "other", 0)
        assert not turns.hold(holding, 1_000), "it gets its room when the stream goes on"
        assert (await anext(stream)).fields.waiting
        assert sys.getrefcount(records) == 2, "this variable, and the call"
        await stream.aclose()
        turns.leave(holding, 0)

    set_turns(cluster, turns)
    try:
        cluster.run(run())
    finally:
        set_turns(cluster, before)


def test_readers_whose_chunks_have_no_room_together_all_read_everything(
    cluster: ServedCluster, turns: RangeTurns
) -> None:
    """Each chunk is above the bound: it is not read until no other is there."""
    without_room: list[int] = []

    class Watched(RangeTurns):
        def sent(self, turn: Turn, sent_bytes: int, now: float) -> None:
            if sent_bytes > turn.held_bytes and not turn.is_parked:
                without_room.append(sent_bytes)
            super().sent(turn, sent_bytes, now)

    set_turns(cluster, Watched(held_bytes_max=1))

    def read_all(_: int) -> list[tuple[int, bytes | None]]:
        client = DataClient(cluster.bootstrap.split(","), retry_timeout_ms=120_000)
        try:
            return read(client, 0, 0, 2000)
        finally:
            client.close()

    with cluster.over_grpc(), ThreadPoolExecutor(8) as pool:
        assert all(found == wanted(history(0, 400), 0, 2000) for found in pool.map(read_all, range(8)))
    assert without_room == []


def test_a_reader_that_does_not_take_a_note_keeps_no_turn(
    cluster: ServedCluster, turns: RangeTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client decides how many bytes it takes, also none.  The turn comes after the note."""
    monkeypatch.setattr(data_service, "WAITING_NOTE_S", 0.0)
    monkeypatch.setattr(data_service, "PARK_AFTER_S", 0.0)
    held = hold_turn(cluster, turns)
    context = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", invocation_metadata=tuple, auth_context=dict)

    async def begin() -> Any:
        stream = cluster.nodes[1].service.ReadRange(first_records(accepts_waiting=True), context)  # type: ignore[arg-type]
        assert (await anext(stream)).fields.waiting
        return stream

    silent = cluster.run(begin())
    release(cluster, turns, held)
    client = DataClient([cluster.bootstrap.split(",")[0]], retry_timeout_ms=5_000)
    assert read(client, 0, 0, 5) == wanted(history(0, 400), 0, 5)
    client.close()

    async def take() -> None:
        assert any([bool(chunk.records) async for chunk in silent])

    cluster.run(take())
    assert (turns.active, turns.waiting, turns.held_bytes) == (0, 0, 0)


def test_many_partitions_are_planned_by_one_question_to_each_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    original = data_service.DataService.PlanManyRanges

    async def count(self: Any, request: pb.PlanManyRangesRequest, context: Any) -> pb.PlanManyRangesReply:
        asked.append(len(request.partitions))
        return await original(self, request, context)

    monkeypatch.setattr(data_service.DataService, "PlanManyRanges", count)
    steps = history(2, 20)
    with ServedCluster(tmp_path) as cluster:
        for partition in range(12):
            cluster.fill("flights", partition, steps, leader=1 + partition % 2)
        client = DataClient(cluster.bootstrap.split(","), retry_timeout_ms=5_000)
        topics = client.describe(["flights"])
        cluster.move("flights", 3, 1)  # is found
        found = client.plan_many_ranges(topics, {("flights", n): (0, 100) for n in range(12)}, 1 << 20)
        assert [[(part.start, part.end) for part in parts] for parts in found.values()] == [[(0, 100)]] * 12
        assert sorted(asked) == [1, 6, 6]
        with pytest.raises(ReadError, match="OFFSET_OUT_OF_RANGE: flights-7"):
            replica = cluster.nodes[2].replicas.replica("flights", 7)

            async def cut() -> None:
                replica.log.advance_log_start(50)

            cluster.run(cut())
            client.plan_many_ranges(topics, {("flights", n): (0, 100) for n in (6, 7)}, 1 << 20)
        client.close()


def test_a_partition_that_is_deleted_meanwhile_fails_alone(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = data_service.DataService._plan_ranges

    async def deleted_meanwhile(self: Any, request: pb.PlanRangesRequest, answer: Any) -> None:
        if request.topic == "gone":
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "its records are gone")
        await original(self, request, answer)

    monkeypatch.setattr(data_service.DataService, "_plan_ranges", deleted_meanwhile)
    wanted = [
        pb.PlanRangesRequest(topic=topic, leader_epoch=-1, start=0, end=10) for topic in ("gone", "flights")
    ]
    stub = stub_of(cluster, 1)
    gone, there = stub.PlanManyRanges(pb.PlanManyRangesRequest(partitions=wanted)).partitions
    assert (gone.error_code, gone.log_start_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert there.error_code == ErrorCode.NONE
    assert len(there.ranges) > 0
    with pytest.raises(grpc.RpcError) as caught:
        stub.PlanRanges(wanted[0])
    assert detail_of(caught.value).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_without_the_second_look_a_read_of_a_lost_leadership_would_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation, and the rule: leadership is lost while the thread reads; what was read must not be
    sent."""
    with ServedCluster(tmp_path) as cluster:
        cluster.fill("flights", 0, history(6, 50), leader=1)

        def lose_leadership(read: object) -> tuple[bytes, int]:
            monkeypatch.setattr(data_service.begin_bulk_read.__globals__["BulkRead"], "run", original)  # type: ignore[attr-defined]
            cluster.move("flights", 0, 2)
            return original(read)

        bulk_read = data_service.begin_bulk_read.__globals__["BulkRead"]  # type: ignore[attr-defined]
        original = bulk_read.run
        request = pb.ReadRangeRequest(topic="flights", partition=0, leader_epoch=-1, start=0, end=20)
        monkeypatch.setattr(bulk_read, "run", lose_leadership)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub_of(cluster, 1).ReadRange(request))
        assert detail_of(caught.value).error_code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        )
        cluster.move("flights", 0, 1)
        monkeypatch.setattr(bulk_read, "run", lose_leadership)
        monkeypatch.setattr(data_service.DataService, "_require_still_pinned", lambda *_: None)
        assert list(stub_of(cluster, 1).ReadRange(request))


def test_a_truncated_file_takes_only_that_replica_offline(tmp_path: Path) -> None:
    with ServedCluster(tmp_path) as cluster:
        for topic in ("short", "whole"):
            cluster.fill(topic, 0, history(3, 60), leader=1)
        replica = cluster.nodes[1].replicas.replica("short", 0)
        path, end = replica.log.segments.active.path("log"), replica.log.high_watermark
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - 10)
        short = pb.ReadRangeRequest(topic="short", partition=0, leader_epoch=-1, start=0, end=end)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub_of(cluster, 1).ReadRange(short))
        assert detail_of(caught.value).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert replica.log.is_offline
        assert ("short", 0) in cluster.nodes[1].directory.damaged
        whole = pb.ReadRangeRequest(topic="whole", partition=0, leader_epoch=-1, start=0, end=end)
        assert list(stub_of(cluster, 1).ReadRange(whole))
