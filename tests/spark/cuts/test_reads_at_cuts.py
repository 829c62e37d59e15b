"""Reads and counts at cuts over gRPC, on logs whose transactions were decided later, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import grpc
import pytest
from tidegate.client.consuming.cut import CutPartition
from tidegate.client.consuming.visibility import AtCut
from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.runtime.network import grpc_channel_blocking
from tidegate.spark.connecting import data_client
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.reading.counting import count_range
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import ControlType, decode_batch

from ..served import TOPIC_ID, ServedCluster, Step, history

STEPS = {0: history(3, 400), 1: history(5, 300, leave_open=True)}


@dataclass(frozen=True)
class Taken:
    """A cut of one partition at the end of a prefix of its steps, and the offsets inside."""

    part: CutPartition
    inside: list[int]
    late: list[int]  # of the transactions that it leaves out and that were committed since


def taken(steps: list[Step], count: int, rng: Random) -> Taken:
    """Commits of later steps may be decided before the cut."""
    open_now: dict[int, list[int]] = {}
    inside: list[int] = []
    offset = 0
    for step in steps[:count]:
        offsets = list(range(offset, offset + len(step.records)))
        offset += len(offsets) or 1
        if step.ends is not None:
            written = open_now.pop(step.producer_id, [])
            inside += written if step.ends is ControlType.COMMIT else []
        elif step.producer_id >= 0:
            open_now.setdefault(step.producer_id, []).extend(offsets)
        else:
            inside += offsets
    undecided: dict[int, int] = {}
    late: list[int] = []
    for producer_id, written in open_now.items():
        ending = [
            each.ends for each in steps[count:] if each.producer_id == producer_id and each.ends is not None
        ]
        if ending[:1] == [ControlType.COMMIT] and rng.random() < 0.4:
            inside += written
        else:
            undecided[producer_id] = written[0]
            late += written if ending[:1] == [ControlType.COMMIT] else []
    return Taken(CutPartition(0, offset, undecided), sorted(inside), sorted(late))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path_factory.mktemp("nodes"), nodes=1) as served:
        for partition, steps in STEPS.items():
            served.fill("flights", partition, steps, leader=1)
        yield served


@pytest.fixture
def client(cluster: ServedCluster) -> Iterator[DataClient]:
    client = DataClient([cluster.bootstrap], retry_timeout_ms=2_000)
    yield client
    client.close()


def asked(partition: int, start: int, end: int, at_cut: AtCut) -> RangeRequest:
    return RangeRequest("flights", TOPIC_ID.bytes, partition, start, end, False, True, at_cut)


def read(client: DataClient, request: RangeRequest) -> list[int]:
    return [
        record.offset
        for chunk in fetch_range(client, request)
        for position, _ in chunk.visible
        for record in decode_batch(chunk.records, position)
        if request.start <= record.offset < request.end
    ]


@pytest.mark.parametrize("partition", [0, 1])
def test_reads_and_counts_at_any_cut_have_exactly_its_records(client: DataClient, partition: int) -> None:
    """Some of these cuts lie between the records of an aborted transaction and its marker."""
    rng, steps = Random(partition), STEPS[partition]
    for count in range(5, len(steps), 23):
        cut = taken(steps, count, rng)
        end = cut.part.end
        for start in {0, rng.randrange(end), rng.randrange(end)}:
            request = asked(partition, start, end, cut.part.shown(start, end))
            wanted = [offset for offset in cut.inside if offset >= start]
            assert read(client, request) == wanted
            assert count_range(client, request) == len(wanted)
        if cut.part.undecided:
            decided = AtCut(tuple(cut.part.undecided.items()), only=True)
            request = asked(partition, min(cut.part.undecided.values()), end, decided)
            assert read(client, request) == cut.late
            assert count_range(client, request) == len(cut.late)


def test_committed_records_above_an_open_transaction_are_read(client: DataClient) -> None:
    """A read_committed reader ends at the last stable offset."""
    steps = STEPS[1]
    cut = taken(steps, len(steps), Random(0))
    view = client.describe(["flights"])["flights"]
    query = pb.OffsetQuery(partition=1, kind=pb.OffsetQuery.LATEST)
    stable = client.offsets(view, [query], read_committed=True)[1].offset
    found = read(client, asked(1, 0, cut.part.end, cut.part.shown(0, cut.part.end)))
    assert found == cut.inside
    assert sum(offset >= stable for offset in found) > 0


def test_the_records_above_the_high_watermark_are_waited_for(client: DataClient) -> None:
    with pytest.raises(ReadError) as refused:
        read(client, asked(0, 0, 1 << 40, AtCut()))
    assert refused.value.code == ErrorCode.OFFSET_NOT_AVAILABLE


def test_a_node_that_knows_no_cuts_is_noticed(client: DataClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the isolation for READ_UNCOMMITTED, and would show aborted records."""
    monkeypatch.setattr(data_client, "_isolation", lambda read_committed, at_cut=None: pb.READ_UNCOMMITTED)
    for ask in (read, count_range):
        with pytest.raises(ReadError) as refused:
            ask(client, asked(0, 0, 10, AtCut()))
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_an_isolation_that_a_node_does_not_know_is_refused(cluster: ServedCluster) -> None:
    stub = data_pb2_grpc.DataStub(grpc_channel_blocking(cluster.bootstrap))
    request = pb.ReadRangeRequest(topic="flights", partition=0, leader_epoch=-1, start=0, end=5)
    request.isolation = 9  # type: ignore[assignment]
    with pytest.raises(grpc.RpcError) as refused:
        list(stub.ReadRange(request))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_count_of_the_records_of_no_transaction_is_refused(cluster: ServedCluster) -> None:
    stub = data_pb2_grpc.DataStub(grpc_channel_blocking(cluster.bootstrap))
    request = pb.CountRecordsRequest(
        topic="flights", partition=0, leader_epoch=-1, start=0, end=5, isolation=pb.AT_CUT, only=True
    )
    with pytest.raises(grpc.RpcError) as refused:
        stub.CountRecords(request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
