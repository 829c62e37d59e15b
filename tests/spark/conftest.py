"""A scripted data service for what no healthy node does: leaders that move, streams that break, chunks that
lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import grpc
import pytest
from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.runtime.clock import SystemClock
from tidegate.tests.spark.kernel_builds import WARNINGS, build_kernel, load_kernel
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import NewRecord, encode_batch, parse_header

TOPIC_ID = b"t" * 16


@dataclass
class Partition:
    """One partition's batches, and its leader."""

    batches: list[bytes]
    leader: int = 0
    leader_epoch: int = 0
    log_start: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).next_offset


@dataclass
class Script:
    """The cluster: nodes by number, their endpoints, one topic `flights`, and what is to go wrong."""

    partitions: dict[int, Partition]
    endpoints: dict[int, str] = field(default_factory=dict)
    # (node, start) of every ReadRange that was accepted
    reads: list[tuple[int, int]] = field(default_factory=list)
    before_chunk: Callable[[int, int, pb.RangeChunk], pb.RangeChunk | None] = lambda node, number, chunk: (
        chunk
    )
    stop: Callable[[int], None] = lambda node: None
    deleted: bool = False  # the topic
    hidden: bool = False  # the client has no right to DESCRIBE the topic
    described: int = 0  # how often a node was asked for topics
    lock: threading.Lock = field(default_factory=threading.Lock)


class ScriptedNode(data_pb2_grpc.DataServicer):
    """One node of the script; a chunk a batch."""

    def __init__(self, node: int, script: Script) -> None:
        self._node = node
        self._script = script

    def _leader(self, number: int) -> pb.Leader:
        partition = self._script.partitions[number]
        return pb.Leader(
            node_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            endpoint=self._script.endpoints[partition.leader],
        )

    def DescribeTopics(self, request: Any, context: Any) -> pb.DescribeTopicsReply:
        reply = pb.DescribeTopicsReply(endpoints=self._script.endpoints.values())
        self._script.described += 1
        for name in request.topics or ["flights"]:
            if self._script.hidden:
                if request.topics:
                    reply.topics.add(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            if name != "flights" or self._script.deleted:
                reply.topics.add(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            topic = reply.topics.add(name=name, topic_id=TOPIC_ID)
            for number in self._script.partitions:
                topic.partitions.add(partition=number, leader=self._leader(number))
        return reply

    def Offsets(self, request: Any, context: Any) -> pb.OffsetsReply:
        reply = pb.OffsetsReply()
        for query in request.queries:
            partition = self._script.partitions[query.partition]
            if partition.leader != self._node:
                reply.offsets.add(
                    partition=query.partition,
                    error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    leader=self._leader(query.partition),
                )
                continue
            end = partition.end
            reply.offsets.add(
                partition=query.partition,
                offset=end,
                log_start_offset=0,
                last_stable_offset=end,
                high_watermark=end,
            )
        return reply

    def PlanRanges(self, request: Any, context: Any) -> pb.PlanRangesReply:
        self._require_leader(request, context)
        return pb.PlanRangesReply(ranges=[pb.Range(start=request.start, end=request.end, bytes_estimated=1)])

    def ReadRange(self, request: Any, context: Any) -> Iterator[pb.RangeChunk]:
        self._require_leader(request, context)
        partition = self._script.partitions[request.partition]
        if request.start < partition.log_start:
            self._abort(context, request, ErrorCode.OFFSET_OUT_OF_RANGE, partition.log_start)
        with self._script.lock:
            self._script.reads.append((self._node, request.start))
        position, number = request.start, 0
        for data in partition.batches:
            header = parse_header(data)
            if header.next_offset <= request.start or header.base_offset >= request.end:
                continue
            chunk = pb.RangeChunk(records=data, start_offset=position, next_offset=header.next_offset)
            if number == 0:
                for producer_id, first in partition.aborted:
                    chunk.aborted_transactions.add(producer_id=producer_id, first_offset=first)
            position = header.next_offset
            changed = self._script.before_chunk(self._node, number, chunk)
            if changed is None:
                self._require_leader(request, context)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the script says so")
            yield changed  # type: ignore[misc]
            number += 1

    def _require_leader(self, request: Any, context: Any) -> None:
        if self._script.deleted:
            self._abort(context, request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self._script.partitions[request.partition].leader != self._node:
            self._abort(context, request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _abort(self, context: Any, request: Any, code: ErrorCode, log_start: int = -1) -> None:
        detail = pb.ErrorDetail(
            error_code=code,
            message=code.name,
            leader=self._leader(request.partition),
            log_start_offset=log_start,
        )
        context.set_trailing_metadata((("tidegate-error-bin", detail.SerializeToString()),))
        context.abort(grpc.StatusCode.UNAVAILABLE, code.name)


class LeapingClock(SystemClock):
    """The real clock, and leaps that a test makes."""

    def __init__(self) -> None:
        self.leapt_s = 0.0
        super().__init__()

    def monotonic(self) -> float:
        return super().monotonic() + self.leapt_s


def numbered_batches(count: int, records: int = 3) -> list[bytes]:
    """Batches whose values are their offsets."""
    return [
        encode_batch([NewRecord(None, str(base + n).encode()) for n in range(records)], base_offset=base)
        for base in range(0, count * records, records)
    ]


@pytest.fixture
def scripted() -> Iterator[Script]:
    """Two nodes; partition 0 of `flights` has the offsets 0 to 29 in ten batches and is led by node 0."""
    script = Script({0: Partition(numbered_batches(10))})
    servers: dict[int, grpc.Server] = {}
    for node in (0, 1):
        servers[node] = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        data_pb2_grpc.add_DataServicer_to_server(ScriptedNode(node, script), servers[node])  # type: ignore[abstract]
        script.endpoints[node] = f"127.0.0.1:{servers[node].add_insecure_port('127.0.0.1:0')}"
        servers[node].start()
    script.stop = lambda node: servers[node].stop(0)  # type: ignore[assignment]
    yield script
    for server in servers.values():
        server.stop(0)


@pytest.fixture(scope="session")
def built_kernel(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The decode kernel of the present source, whatever this installation has."""
    return load_kernel(build_kernel(tmp_path_factory.mktemp("kernel"), "-O3", *WARNINGS))
