"""What tests of range connections share: ranges, what reads of them give, and a reader by hand."""

from __future__ import annotations

import socket
import struct
from typing import Final

from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.runtime.network import grpc_channel_blocking
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.wire.records import NewRecord, decode_batch, encode_batch

from .served import TOPIC_ID, ServedCluster, Step, committed

LENGTH: Final = struct.Struct(">I")


def large_steps(count: int, size: int = 700_000) -> list[Step]:
    """Batches of one record, whose value has its number."""
    records = [NewRecord(None, b"%09d" % number + bytes(size)) for number in range(count)]
    return [Step(encode_batch([record]), [record], -1) for record in records]


def whole(cluster: ServedCluster, topic: str = "flights") -> RangeRequest:
    leader = cluster.metadata.topics[topic].partitions[0].leader
    end = cluster.nodes[leader].replicas.replica(topic, 0).log.last_stable_offset
    return RangeRequest(topic, TOPIC_ID.bytes, 0, 0, end, True, True)


def read(client: DataClient, request: RangeRequest) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for chunk in fetch_range(client, request)
        for position, _ in chunk.visible
        for record in decode_batch(chunk.records, position)
    ]


def wanted(steps: list[Step]) -> list[tuple[int, bytes | None]]:
    return [(offset, record.value) for offset, record in committed(steps)]


class Reader:
    """By hand."""

    def __init__(self, cluster: ServedCluster) -> None:
        self.socket = socket.create_connection(("127.0.0.1", cluster.nodes[1].ranges.port), 10)
        self._stream = self.socket.makefile("rb")

    def send(self, frame: bytes) -> None:
        self.socket.sendall(LENGTH.pack(len(frame)) + frame)

    def receive(self) -> bytes:
        """Empty at the end."""
        try:
            prefix = self._stream.read(4)
            return self._stream.read(LENGTH.unpack(prefix)[0]) if len(prefix) == 4 else b""
        except ConnectionResetError:
            return b""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()


def ticket(cluster: ServedCluster) -> bytes:
    with grpc_channel_blocking(f"127.0.0.1:{cluster.nodes[1].port}") as channel:
        reply = data_pb2_grpc.DataStub(channel).OpenRangeConnection(pb.OpenRangeConnectionRequest())
    assert reply.port == cluster.nodes[1].ranges.port
    return reply.ticket


def all_of(cluster: ServedCluster) -> bytes:
    end = whole(cluster).end
    request = pb.ReadRangeRequest(topic="flights", partition=0, leader_epoch=-1, start=0, end=end)
    return request.SerializeToString()
