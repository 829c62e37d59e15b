"""A reader of gRPC above its quota waits, and gets every record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.runtime.network import grpc_channel_blocking
from tidegate.security.quotas import QuotaEntity, QuotaKind

from .served import ServedCluster, history

RATE = 20_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path, nodes=1) as served:
        served.fill("flights", 0, history(0, 400), leader=1)
        yield served


def chunks(cluster: ServedCluster, end: int) -> Iterator[pb.RangeChunk]:
    stub = data_pb2_grpc.DataStub(grpc_channel_blocking(f"127.0.0.1:{cluster.nodes[1].port}"))
    request = pb.ReadRangeRequest(
        topic="flights", partition=0, leader_epoch=-1, start=0, end=end, chunk_bytes=RATE // 4
    )  # fmt: skip
    return iter(stub.ReadRange(request))


def test_a_reader_above_its_quota_waits(cluster: ServedCluster) -> None:
    cluster.limits[QuotaEntity.of({"user": "ANONYMOUS"}), QuotaKind.FETCH] = RATE
    began_s = time.monotonic()
    received = [(time.monotonic() - began_s, len(each.records)) for each in chunks(cluster, 500)]
    total = sum(size for _, size in received)
    assert total > 2 * RATE
    for index, (at_s, _) in enumerate(received):
        before = sum(size for _, size in received[:index])
        assert before <= RATE * (at_s + 1) + received[index - 1][1]
    assert received[-1][0] < 1.5 * total / RATE
