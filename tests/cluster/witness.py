"""What must stay true whatever else is done to a cluster: it serves, and no acknowledged record is lost.

`Witness` keeps one topic and remembers every record that was acknowledged in it.  `raw_*` talk to a node
without the manners of a client: they send exactly the given request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.connecting.connection import BrokerConnection
from tidegate.client.consuming.consumer import Consumer
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode
from tidegate.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponsePartition,
    encode_fetch_request,
    parse_fetch_response,
)
from tidegate.wire.produce import ProduceResponsePartition, encode_produce_request, parse_produce_response
from tidegate.wire.records import NewRecord, encode_batch

PRODUCE_VERSION = 11
FETCH_VERSION = 12
FRAME_BYTES_MAX = 100 << 20


@contextmanager
def kept_up(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """For fixtures of several tests: the cluster is up, and at the end every node stops cleanly, whatever was
    done to it."""
    with asyncio.Runner() as runner:
        runner.run(cluster.up())
        try:
            yield cluster
        finally:
            codes = runner.run(cluster.down())
    assert set(codes.values()) == {0}, codes
    assert not any(node.running for node in cluster.nodes)


@dataclass
class Witness:
    """See the module's text."""

    bootstrap: str
    topic: str = "witness"
    acknowledged: list[bytes] = field(default_factory=list)

    async def create(self, replicas: int = 1, partitions: int = 1) -> None:
        async with Admin(self.bootstrap) as admin:
            config = {"min.insync.replicas": str(min(2, replicas))}
            await admin.create_topics([NewTopic(self.topic, partitions, replicas, config)])

    async def write(self, count: int = 1, size: int = 0) -> None:
        """Writes records and remembers those that were acknowledged."""
        async with Producer(self.bootstrap, delivery_timeout_s=30) as producer:
            for _ in range(count):
                value = f"record-{len(self.acknowledged)}".encode().ljust(size, b".")
                await producer.send_and_wait(self.topic, value, partition=0)
                self.acknowledged.append(value)

    async def read(self) -> list[bytes]:
        """Everything that a reader gets from the topic's first partition now."""
        async with Consumer(self.bootstrap, auto_offset_reset="earliest") as consumer:
            key = (self.topic, 0)
            consumer.assign([key])
            end = (await consumer.end_offsets([key]))[key]
            found: list[bytes] = []
            deadline = time.monotonic() + 30
            while await consumer.position(key) < end:
                assert time.monotonic() < deadline, f"read {len(found)} records up to {end} in 30 s"
                found += [record.value or b"" for record in await consumer.poll(timeout_s=1.0)]
            return found

    async def still_serves(self) -> None:
        """A record goes in and comes out again, behind all that were acknowledged before."""
        await self.write()
        assert await self.read() == self.acknowledged


@asynccontextmanager
async def raw_connection(address: str, timeout_s: float = 20.0) -> AsyncIterator[BrokerConnection]:
    host, _, port = address.rpartition(":")
    connection = await BrokerConnection.open(
        host, int(port), client_id="raw", connect_timeout_s=5, request_timeout_s=timeout_s
    )
    try:
        yield connection
    finally:
        connection.close()


def batch(values: Sequence[bytes], **identity: int | bool) -> bytes:
    """One batch; `identity` are encode_batch's producer fields."""
    records = [NewRecord(None, value, (), int(time.time() * 1000)) for value in values]
    return encode_batch(records, **identity)  # type: ignore[arg-type]


async def raw_produce(
    address: str,
    topic: str,
    records: bytes,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceResponsePartition:
    """Sends these very bytes as a partition's records; its part of the answer."""
    async with raw_connection(address) as connection:
        body = encode_produce_request(
            PRODUCE_VERSION,
            [(topic, [(partition, records)])],
            acks=acks,
            timeout_ms=10_000,
            transactional_id=transactional_id,
        )
        payload = await connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, body)
        _, position = codec.parse_response_header(ApiKey.PRODUCE, PRODUCE_VERSION, payload)
        ((_, (answer,)),) = parse_produce_response(PRODUCE_VERSION, memoryview(payload), position).topics
        return answer


async def raw_fetch(
    address: str, topic: str, offset: int, *, partition: int = 0, **fields: Any
) -> FetchResponsePartition:
    async with raw_connection(address) as connection:
        request = FetchRequest(topics=[(topic, [FetchPartition(partition, offset, 1 << 20, **fields)])])
        payload = await connection.send(
            ApiKey.FETCH, FETCH_VERSION, [encode_fetch_request(FETCH_VERSION, request)]
        )
        _, position = codec.parse_response_header(ApiKey.FETCH, FETCH_VERSION, payload)
        response = parse_fetch_response(FETCH_VERSION, memoryview(payload), position)
        assert response.error is ErrorCode.NONE, response.error
        ((_, (answer,)),) = response.topics
        return answer


async def raw_bytes(address: str, data: bytes, timeout_s: float = 20.0, *, half_close: bool = False) -> bytes:
    """Sends bytes and reads until the node closes the connection; what it answered.  TimeoutError when it
    does not close."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(timeout_s):
            writer.write(data)
            await writer.drain()
            if half_close:
                writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def log_of(cluster: LocalCluster, node_id: int = 1) -> str:
    return cluster.node(node_id).log_path.read_text(errors="replace")
