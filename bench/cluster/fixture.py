"""What all parts share: raw loops, one-request clients, and readers of the nodes' logs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.connecting.connection import BrokerConnection
from tidegate.client.connecting.errors import ConnectionFailed
from tidegate.client.connecting.metadata import ClusterView
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.proto.admin_pb2 import StatusReply
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode
from tidegate.wire.produce import encode_produce_request, parse_produce_response

READY_S = 300.0
METADATA_VERSION = 12


class RawFile:
    """The raw loop for comparison: a file that grows by appends, each synced or not."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR)

    def append(self, data: bytes | bytearray, *, sync: bool) -> float:
        """Seconds of one append."""
        begin = time.perf_counter()
        os.write(self._fd, data)
        if sync:
            os.fdatasync(self._fd)
        return time.perf_counter() - begin

    def close(self) -> None:
        os.close(self._fd)


@asynccontextmanager
async def running(
    directory: Path, nodes: int, settings: dict[str, object] | None = None
) -> AsyncIterator[LocalCluster]:
    """A cluster of real processes, all ready; stops all of them afterwards."""
    cluster = LocalCluster(directory, nodes=nodes, settings=settings)
    try:
        await cluster.up(READY_S)
        yield cluster
    finally:
        await cluster.down(READY_S)


async def make_topic(cluster: LocalCluster, topic: NewTopic) -> None:
    """Every partition has its leader and all its replicas in sync when this returns."""
    async with Admin(cluster.bootstrap, timeout_s=READY_S) as admin:
        await admin.create_topics([topic], wait=False)
        # Requests the nodes' counts, not lists of ten thousand partitions, which would themselves be a load.
        while True:
            said = await statuses(cluster.nodes)
            all_there = len(said) == len(cluster.nodes) and not any(
                status.under_replicated for status in said
            )
            if all_there and sum(status.leaders for status in said) >= topic.partitions:
                return
            await asyncio.sleep(0.02)


async def statuses(nodes: list[LocalNode]) -> list[StatusReply]:
    """The status of the nodes that answer."""
    answers = await asyncio.gather(*(node.status(READY_S) for node in nodes), return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, StatusReply)]


async def connect(node: LocalNode, timeout_s: float = 5.0) -> BrokerConnection:
    host, _, port = node.kafka_address.rpartition(":")
    return await BrokerConnection.open(
        host, int(port), client_id="bench", connect_timeout_s=timeout_s, request_timeout_s=60.0
    )


class Partition:
    """Writes to one partition over one connection, request by request, with acks=all."""

    def __init__(
        self, connection: BrokerConnection, topic: str, partition: int, batch: bytes | bytearray
    ) -> None:
        self.connection = connection
        self._version = connection.version_for(ApiKey.PRODUCE, highest=9)
        self._body = encode_produce_request(
            self._version, [(topic, [(partition, bytes(batch))])], acks=-1, timeout_ms=60_000
        )  # fmt: skip

    async def write(self) -> ErrorCode:
        """Raises ConnectionFailed."""
        frame = await self.connection.send(ApiKey.PRODUCE, self._version, self._body)
        _, position = codec.parse_response_header(ApiKey.PRODUCE, self._version, frame)
        return parse_produce_response(self._version, frame, position).topics[0][1][0].error


async def leaders_of(connection: BrokerConnection, topic: str) -> dict[int, int]:
    """Leader by partition (-1: none), as the asked node knows it.  Raises ConnectionFailed."""
    fields = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    answer = await connection.request(ApiKey.METADATA, fields, highest=METADATA_VERSION)
    found = ClusterView().merged(answer, all_topics=False).topics[topic]
    return {number: view.leader for number, view in found.partitions.items()}


async def next_write(
    cluster: LocalCluster, survivors: list[LocalNode], topic: str, partition: int, batch: bytearray
) -> float:
    """Repeats one write with acks=all at the leader that a survivor names; `time.time()` of its
    acknowledgement."""
    asked = await connect(survivors[0])
    connections: dict[int, Partition] = {}
    try:
        while True:
            leader = (await leaders_of(asked, topic))[partition]
            if leader in {node.id for node in survivors}:
                if leader not in connections:
                    connections[leader] = Partition(
                        await connect(cluster.node(leader)), topic, partition, batch
                    )
                try:
                    if await connections[leader].write() is ErrorCode.NONE:
                        return time.time()
                except ConnectionFailed:
                    connections.pop(leader, None)
            await asyncio.sleep(0.005)
    finally:
        asked.close()
        for each in connections.values():
            each.connection.close()


class NodeLogs:
    """The nodes' log lines since `mark`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._paths = {node.id: node.log_path for node in cluster.nodes}
        self._from: dict[int, int] = {}
        self.mark()

    def mark(self) -> None:
        self._from = {node_id: path.stat().st_size for node_id, path in self._paths.items()}

    def first(self, event: str, wanted: Callable[[str], bool] = lambda _line: True) -> tuple[float, str]:
        """Unix time and text of the earliest line with this event.  Raises LookupError."""
        found = []
        for node_id, path in self._paths.items():
            with path.open() as lines:
                lines.seek(self._from[node_id])
                for line in lines:
                    words = line.split(" ", 5)
                    if f" {event} " in line and wanted(line):
                        found.append((datetime.fromisoformat(words[0]).timestamp(), line))
                        break
        if not found:
            raise LookupError(f"no node has logged {event}")
        return min(found)


def number_in(line: str, key: str) -> float:
    """The number that a line of the log has after `key=`."""
    return float(next(word for word in line.split() if word.startswith(f"{key}=")).partition("=")[2])
