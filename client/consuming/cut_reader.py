"""The records of a transaction-consistent cut: partition by partition, from the leaders' gRPC listeners.

    async for record in read_cut("127.0.0.1:9092", cut):
        ...

Kafka's Fetch knows no cuts: read_committed ends at the last stable offset, and read_uncommitted comes without
the aborted transactions.  So the records come as Spark gets them (docs/spark.md), by ReadRange with AT_CUT.

For every chunk, in this order: it continues exactly where the last one ended; every batch in it has a valid
CRC; the filter knows the aborted transactions of the range and what the cut leaves out; only then records are
delivered.  A stream that breaks, or whose leader moves, is opened again at the position, with a new filter.
Each leader is asked over one channel, also for many partitions: a login over TLS may take longer than a read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from ...processes.local_ports import grpc_client
from ...proto import data_pb2 as pb
from ...proto.range_chunks import READ_RANGE, RecordsChunk, parse
from ...runtime.clock import SystemClock
from ...security.client_security import ClientSecurity
from ...security.grpc_session import Metadata
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import decode_batch
from ..administration.grpc_calls import error_of, grpc_address
from ..connecting.cluster import Backoff, Cluster
from ..connecting.errors import ConnectionFailed, RequestError, RetriableError
from ..connecting.metadata import NO_LEADER
from .chunk_check import visible_batches
from .cut import Cut, CutPartition
from .fetched import ConsumerRecord, shown
from .visibility import VisibilityFilter

CLIENT_ID: Final = "tidegate-cut-reader"
SILENCE_S: Final = 30.0
"""How long a read waits without progress; a node at whose queue the read stands gives signs of life."""
UNKNOWN_S: Final = 5.0
"""A topic of the cut that no node has known for so long was deleted: a node that has just started lags."""
_FINAL: Final = frozenset({ErrorCode.INCONSISTENT_TOPIC_ID})  # other clients may ask for the metadata again


async def read_cut(
    bootstrap: str,
    cut: Cut,
    topics: Collection[str] | None = None,
    *,
    security: ClientSecurity | None = None,
    silence_s: float = SILENCE_S,
) -> AsyncGenerator[ConsumerRecord]:
    """The records of a cut, or of some of its topics, by offset within each partition.

    Raises RequestError: OFFSET_OUT_OF_RANGE for records that are gone, SNAPSHOT_NOT_FOUND for a topic that
    was compacted since, INCONSISTENT_TOPIC_ID for one that was made again, UNKNOWN_TOPIC_OR_PARTITION for one
    that was deleted."""
    if missing := sorted(set(topics or ()) - set(cut.topics)):
        raise RequestError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {missing[0]!r} is not in the cut, which has {', '.join(sorted(cut.topics))}",
        )
    cluster = Cluster(bootstrap, client_id=CLIENT_ID, clock=SystemClock(), security=security)
    channels = _Channels(cluster, silence_s)
    try:
        await cluster.start()
        for (topic, number), part in cut.partitions.items():
            if topics is None or topic in topics:
                topic_id = cut.topics[topic].topic_id
                reader = _PartitionReader(cluster, channels, topic, topic_id, number, part, silence_s)
                async with aclosing(reader.records()) as records:
                    async for record in records:
                        yield record
    finally:
        await channels.close()
        await cluster.close()


@dataclass(frozen=True, slots=True)
class _Channel:
    address: str
    channel: grpc.aio.Channel
    shown: Metadata
    """What its calls show."""
    stack: AsyncExitStack


class _Channels:
    """One to each node that leads, until the read is over or a call over it fails."""

    def __init__(self, cluster: Cluster, silence_s: float) -> None:
        self._cluster = cluster
        self._silence_s = silence_s
        self._open: dict[int, _Channel] = {}

    async def to(self, node_id: int) -> _Channel:
        """Raises ConnectionFailed, or RequestError."""
        if node_id not in self._open:
            address = await grpc_address(self._cluster, node_id)
            client = grpc_client(address, self._cluster.security, self._silence_s)
            try:
                async with AsyncExitStack() as stack:
                    channel, shown = await stack.enter_async_context(client)
                    self._open[node_id] = _Channel(address, channel, shown, stack.pop_all())
            except grpc.aio.AioRpcError as failure:
                raise error_of(failure, address, pb.ErrorDetail.FromString) from failure
        return self._open[node_id]

    async def drop(self, node_id: int) -> None:
        if (found := self._open.pop(node_id, None)) is not None:
            await found.stack.aclose()

    async def close(self) -> None:
        for node_id in list(self._open):
            await self.drop(node_id)


class _PartitionReader:
    def __init__(
        self,
        cluster: Cluster,
        channels: _Channels,
        topic: str,
        topic_id: bytes,
        partition: int,
        part: CutPartition,
        silence_s: float,
    ) -> None:
        self._cluster = cluster
        self._channels = channels
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._part = part
        self._silence_s = silence_s
        self._position = part.start

    async def records(self) -> AsyncGenerator[ConsumerRecord]:
        clock, backoff, end = self._cluster.clock, Backoff(self._cluster.clock), self._part.end
        deadline_s = clock.monotonic() + self._silence_s
        while self._position < end:
            try:
                async with aclosing(self._chunks()) as chunks:
                    visibility: VisibilityFilter | None = None
                    async for chunk in chunks:
                        if not chunk.fields.waiting:
                            visibility = visibility or self._filter(chunk)
                            for record in self._shown(chunk, visibility):
                                yield record
                            self._position = chunk.fields.next_offset
                            if self._position >= end:
                                return
                        backoff.reset()
                        deadline_s = clock.monotonic() + self._silence_s
            except ConnectionFailed as error:
                what = f"{self._topic}-{self._partition}"
                await self._cluster.pause(backoff, deadline_s, error.code, what, error.message)
                await self._cluster.refresh([self._topic])

    def _filter(self, first: RecordsChunk) -> VisibilityFilter:
        if not first.fields.at_cut:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self._topic}-{self._partition}: the leader is of a version that knows no cuts",
            )
        aborted = [(each.producer_id, each.first_offset) for each in first.fields.aborted_transactions]
        return VisibilityFilter(aborted, self._part.shown(self._position, self._part.end))

    def _shown(self, chunk: RecordsChunk, visibility: VisibilityFilter) -> Iterator[ConsumerRecord]:
        place = f"{self._topic}-{self._partition}"
        try:
            visible = list(visible_batches(place, chunk, self._position, visibility))
        except KafkaError as error:
            raise RequestError(error.code, error.message) from None
        view = memoryview(chunk.records)
        for at, header in visible:
            for record in decode_batch(view, at):
                if self._position <= record.offset < self._part.end:
                    yield shown(self._topic, self._partition, record, header.partition_leader_epoch)

    async def _chunks(self) -> AsyncGenerator[RecordsChunk]:
        """One stream, from the present leader.  Raises ConnectionFailed for what may pass."""
        cluster, key = self._cluster, (self._topic, self._partition)
        await self._find_topic()
        leader = cluster.view.leader(*key)
        if leader == NO_LEADER:
            raise ConnectionFailed(ErrorCode.LEADER_NOT_AVAILABLE, "it has no leader at present")
        try:
            async with aclosing(self._stream(leader)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except (ConnectionFailed, RequestError):
            await self._channels.drop(leader)
            raise

    async def _find_topic(self) -> None:
        try:
            await self._cluster.topic(self._topic, min(UNKNOWN_S, self._silence_s))
        except RetriableError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                message = f"topic {self._topic!r} was deleted, and what the cut has of it with it"
                raise RequestError(error.code, message) from None
            raise ConnectionFailed(error.code, error.message) from None

    async def _stream(self, leader: int) -> AsyncGenerator[RecordsChunk]:
        to = await self._channels.to(leader)
        address = to.address
        read_range = to.channel.unary_stream(READ_RANGE, pb.ReadRangeRequest.SerializeToString, parse)
        call = read_range(self._request(), metadata=to.shown)
        try:
            while (chunk := await self._next(call)) is not None:
                yield chunk
        except TimeoutError:
            raise ConnectionFailed(
                ErrorCode.REQUEST_TIMED_OUT, f"{address} was silent for {self._silence_s:g} s"
            ) from None
        except grpc.aio.AioRpcError as failure:
            error = error_of(failure, address, pb.ErrorDetail.FromString)
            if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:  # the session is over: log in again
                raise ConnectionFailed(error.code, error.message) from failure
            raise RequestError(error.code, error.message) if error.code in _FINAL else error from failure
        finally:
            call.cancel()
        raise ConnectionFailed(ErrorCode.NETWORK_EXCEPTION, f"{address}: the stream ended too early")

    def _request(self) -> pb.ReadRangeRequest:
        return pb.ReadRangeRequest(
            topic=self._topic,
            topic_id=self._topic_id,
            partition=self._partition,
            leader_epoch=-1,
            start=self._position,
            end=self._part.end,
            isolation=pb.AT_CUT,
            accepts_waiting=True,
            settled_end=self._part.shown(self._position, self._part.end).settled_end,
        )

    async def _next(self, call: Any) -> RecordsChunk | None:
        async with asyncio.timeout(self._silence_s):
            chunk = await call.read()
        return None if chunk is grpc.aio.EOF else chunk
