"""Requests from this broker to others over the framed Kafka protocol: fetches, transaction markers,
enlistments.

There is one connection for each peer and purpose, made on first use and again after a failure.  It carries
many requests at a time; responses come in order.  A request without a response raises NETWORK_EXCEPTION or
REQUEST_TIMED_OUT: the caller cannot know whether the peer executed it, and may repeat every request that is
sent this way.

With certificates (`tls`) a connection is used only when the other end has shown that of the very broker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ...controller.state.model import BrokerState
from ...runtime.connections.tls import MutualTls
from ...runtime.network import FrameConnection, connect_frames
from ...wire import codec, fetch
from ...wire.api import ApiKey, NodeRequest
from ...wire.errors import ErrorCode, KafkaError
from ...wire.fetch import FetchRequest, FetchResponse
from .node_certificates import require_node

# Finds (host, port) of a node's Kafka listener; raises KafkaError BROKER_NOT_AVAILABLE.
Resolve = Callable[[int], tuple[str, int]]

CONNECT_TIMEOUT_S = 3.0
IN_FLIGHT_MAX = 1000
FETCH_VERSION = 12


class Peer:
    """A connection to one broker."""

    def __init__(
        self,
        node_id: int,
        resolve: Resolve,
        *,
        client_id: str,
        max_frame_bytes: int,
        tls: MutualTls | None = None,
    ) -> None:
        self.node_id = node_id
        self._resolve = resolve
        self._tls = tls
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._connection: FrameConnection | None = None
        self._connecting = asyncio.Lock()
        self._correlation_id = 0
        self._waiting: deque[tuple[int, Callable[[memoryview], Any], asyncio.Future[Any]]] = deque()

    async def request(
        self, api_key: ApiKey, version: int, fields: Mapping[str, Any], timeout_s: float
    ) -> Any:
        """Sends a message and returns the decoded response.  Raises KafkaError."""
        return await self.exchange(
            api_key,
            version,
            [codec.request(api_key, version, fields)],
            lambda frame: codec.decode_response(api_key, version, bytes(frame))[1],
            timeout_s,
        )

    async def exchange(
        self,
        api_key: ApiKey | NodeRequest,
        version: int,
        body: list[bytes | memoryview],
        decode: Callable[[memoryview], Any],
        timeout_s: float,
    ) -> Any:
        """Sends an encoded body; `decode` gets the response frame (header included), which is only valid
        during the call."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        try:
            connection = self._connection
            if connection is None or not connection.is_open:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self._connected()
            if len(self._waiting) >= IN_FLIGHT_MAX:
                raise KafkaError(
                    ErrorCode.NETWORK_EXCEPTION, f"too many requests wait for node {self.node_id}"
                )
            self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
            future: asyncio.Future[Any] = loop.create_future()
            self._waiting.append((self._correlation_id, decode, future))
            header = codec.request_header(api_key, version, self._correlation_id, self._client_id)
            if not connection.send(header, *body):
                self._fail("the connection is closing")
            # half the cost of asyncio.timeout, on every fetch
            timer = loop.call_at(deadline_s, _expire, future)
            try:
                return await future
            finally:
                timer.cancel()
        except TimeoutError as error:
            # Responses come in order, so after a request that timed out the connection is of no use for the
            # later ones.
            self.close()
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"node {self.node_id} did not answer in {timeout_s:g} s"
            ) from error
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"node {self.node_id}: {error}") from error

    async def _connected(self) -> FrameConnection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                host, port = self._resolve(self.node_id)
                self._fail("replaced by a new connection")
                connection = await connect_frames(
                    host, port, self._on_frame, self._on_close, self._max_frame_bytes, CONNECT_TIMEOUT_S,
                    tls=None if self._tls is None else self._tls.client,
                )  # fmt: skip
                if self._tls is not None:
                    require_node(connection, self.node_id)
                self._connection = connection
            return self._connection

    def _on_frame(self, frame: memoryview) -> None:
        if not self._waiting:
            self.close()
            return
        correlation_id, decode, future = self._waiting.popleft()
        if int.from_bytes(frame[:4], "big", signed=True) != correlation_id:
            self._waiting.appendleft((correlation_id, decode, future))
            self._fail("answers out of order")
            self.close()
            return
        if future.done():
            return
        try:
            future.set_result(decode(frame))
        except KafkaError as error:
            future.set_exception(error)
        except Exception as error:
            # An error in decoding the response must reach the caller, not the event loop.
            future.set_exception(
                KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"answer of node {self.node_id}: {error!r}")
            )

    def _on_close(self, reason: str) -> None:
        self._connection = None
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(
                    KafkaError(ErrorCode.NETWORK_EXCEPTION, f"node {self.node_id}: {reason}")
                )

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort("closed by this node")
        self._fail("the connection was closed")


class Peers:
    """Connections for coordination, one for each broker; replication has its own, so that a large fetch does
    not delay a marker."""

    def __init__(
        self, resolve: Resolve, *, client_id: str, max_frame_bytes: int, tls: MutualTls | None = None
    ) -> None:
        self._resolve = resolve
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._tls = tls
        self._peers: dict[int, Peer] = {}

    def peer(self, node_id: int) -> Peer:
        found = self._peers.get(node_id)
        if found is None:
            found = Peer(
                node_id, self._resolve,
                client_id=self._client_id, max_frame_bytes=self._max_frame_bytes, tls=self._tls,
            )  # fmt: skip
            self._peers[node_id] = found
        return found

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()


class PeerFetchTransport:
    """The `FetchTransport` of replication: Fetch v12 on a connection of its own."""

    def __init__(self, peer: Peer, answer_timeout_s: float) -> None:
        self._peer = peer
        self._answer_timeout_s = answer_timeout_s

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        body = fetch.encode_fetch_request(FETCH_VERSION, request)
        answer: FetchResponse = await self._peer.exchange(
            ApiKey.FETCH,
            FETCH_VERSION,
            [body],
            _decode_fetch,
            self._answer_timeout_s + request.max_wait_ms / 1000,
        )
        return answer

    def close(self) -> None:
        self._peer.close()


async def confirm_identity(
    broker: BrokerState, client_id: str, max_frame_bytes: int, timeout_s: float, tls: MutualTls | None
) -> bool:
    """Asks over a connection of its own; False when another broker answers at the address.  Raises
    KafkaError."""
    address = broker.kafka_host, broker.kafka_port
    peer = Peer(
        broker.node_id, lambda _: address, client_id=client_id, max_frame_bytes=max_frame_bytes, tls=tls
    )
    try:
        answer = await peer.request(ApiKey.API_VERSIONS, 0, {}, timeout_s)
        return bool(answer.error_code == ErrorCode.NONE)
    finally:
        peer.close()


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _decode_fetch(frame: memoryview) -> FetchResponse:
    """Copies the frame once: the records outlive it, for they are appended after the reading turn."""
    copy = memoryview(bytearray(frame))
    _, position = codec.parse_response_header(ApiKey.FETCH, FETCH_VERSION, copy)
    return fetch.parse_fetch_response(FETCH_VERSION, copy[position:])
