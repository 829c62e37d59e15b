"""One connection to one broker: requests are pipelined, answers arrive in the same order.

The client connects, sends ApiVersions, waits for its answer, and then sends any number of requests, each with
its own correlation id and deadline.  An answer that is late, out of order or unreadable closes the
connection, because the client can no longer match later answers with requests; every open request then fails
with `ConnectionFailed`, and the client does *not know* whether it took effect.

The version of a request is the highest that both sides know, within the bounds the caller gives.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ... import __version__
from ...runtime import logs
from ...runtime.network import FrameConnection, connect_frames, tls_reason, why_not_connected
from ...security.client_security import AuthenticationRefused, ClientSecurity
from ...wire import codec
from ...wire.api import SUPPORTED, ApiKey
from ...wire.errors import ErrorCode, KafkaError
from .errors import ConnectionFailed, FatalError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = logs.get(__name__)

FRAME_BYTES_MAX: Final = 256 << 20
IN_FLIGHT_MAX: Final = 100
SESSION_USED: Final = 0.85
"""Of the lifetime of a session; then the client authenticates on another connection."""
CLIENT_SOFTWARE_NAME: Final = "tidegate"
UNSUPPORTED_VERSION_BYTES: Final = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")


@dataclass(slots=True)
class _Pending:
    correlation_id: int
    api_key: ApiKey
    version: int
    future: asyncio.Future[bytes]
    timer: asyncio.TimerHandle | None


class BrokerConnection:
    """See the module's text.  Made by `open`; `closed` tells whether it can still be used."""

    def __init__(self, address: str, client_id: str, request_timeout_s: float) -> None:
        self.address = address
        self.closed = False
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self.features_epoch = -1
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._transport: FrameConnection | None = None
        self._next_correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._retirement: asyncio.TimerHandle | None = None
        self.is_retiring = False

    @staticmethod
    async def open(
        host: str,
        port: int,
        *,
        client_id: str,
        connect_timeout_s: float,
        request_timeout_s: float,
        security: ClientSecurity | None = None,
    ) -> BrokerConnection:
        """Connects, negotiates versions and authenticates.  Raises ConnectionFailed, whose message gives the
        reason, and FatalError when the broker refuses the client's identity."""
        connection = BrokerConnection(f"{host}:{port}", client_id, request_timeout_s)
        try:
            connection._transport = await connect_frames(
                host,
                port,
                connection._on_frame,
                connection._on_close,
                FRAME_BYTES_MAX,
                connect_timeout_s,
                tls=None if security is None else security.tls,
            )
        except TimeoutError:
            raise ConnectionFailed(
                ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: no answer in {connect_timeout_s:g} s"
            ) from None
        except OSError as error:
            reason = tls_reason(error) if isinstance(error, ssl.SSLError) else why_not_connected(error)
            raise ConnectionFailed(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: {reason}") from error
        try:
            await connection._negotiate(connect_timeout_s)
            if security is not None and security.has_sasl:
                await connection._authenticate(security, connect_timeout_s)
        except ConnectionFailed as error:
            connection.close("negotiation failed")
            if " bytes " in error.message:  # the peer sent bytes that are not a Kafka frame
                message = f"{host}:{port}: that is no Kafka port (a node's gRPC port is another one)"
                raise ConnectionFailed(error.code, message) from error
            raise
        except BaseException:
            connection.close("negotiation failed")
            raise
        return connection

    # ---- requests ------------------------------------------------------------------------------------------

    def version_for(self, api_key: ApiKey, *, highest: int | None = None, lowest: int = 0) -> int:
        """The version to use.  Raises FatalError(UNSUPPORTED_VERSION) when client and broker have none in
        common."""
        own_low, own_high = SUPPORTED[api_key]
        if highest is not None:
            own_high = min(own_high, highest)
        own_low = max(own_low, lowest)
        low, high = self.versions.get(api_key, (0, -1))
        version = min(own_high, high)
        if version < max(own_low, low):
            raise FatalError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{api_key.name}: this client speaks versions {own_low}-{own_high}, {self.address} speaks "
                + (f"{low}-{high}" if high >= low else "none")
                + ": upgrade the older one",
            )
        return version

    async def request(
        self,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        highest: int | None = None,
        lowest: int = 0,
        timeout_s: float | None = None,
        decode: Callable[[int, bytes], Any] | None = None,
    ) -> Any:
        """Sends a request and returns the decoded answer.  `decode(version, frame)` is for answers that kio
        cannot read."""
        version = self.version_for(api_key, highest=highest, lowest=lowest)
        async with self._room:
            payload = await self.send(
                api_key, version, [codec.request(api_key, version, fields)], timeout_s=timeout_s
            )
        return self.decode(api_key, version, payload) if decode is None else decode(version, payload)

    def send(
        self, api_key: ApiKey, version: int, body: Sequence[ReadableBuffer], *, timeout_s: float | None = None
    ) -> asyncio.Future[bytes]:
        """Sends an encoded request at once; the future gives the answer's frame without its length (header
        included)."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        if self.closed or self._transport is None:
            future.set_exception(self._lost("the connection is closed"))
            return future
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        timeout = self._request_timeout_s if timeout_s is None else timeout_s
        timer = loop.call_later(timeout, self._late, api_key, timeout)
        self._pending.append(_Pending(correlation_id, api_key, version, future, timer))
        header = codec.request_header(api_key, version, correlation_id, self._client_id)
        self._transport.send(header, *body)
        return future

    def send_without_answer(self, api_key: ApiKey, version: int, body: Sequence[ReadableBuffer]) -> None:
        """For Produce with acks=0, which the broker does not answer."""
        if self.closed or self._transport is None:
            raise self._lost("the connection is closed")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        self._transport.send(codec.request_header(api_key, version, correlation_id, self._client_id), *body)

    def decode(self, api_key: ApiKey, version: int, payload: bytes) -> Any:
        """Decodes an answer; an unreadable one ends the connection."""
        try:
            _, entity = codec.decode_response(api_key, version, payload)
        except KafkaError as error:
            self.close(f"unreadable answer to {api_key.name}")
            raise FatalError(
                error.code, f"{self.address} answered {api_key.name} unreadably: {error.message}"
            ) from error
        return entity

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def close(self, reason: str = "closed by the client") -> None:
        """Ends the connection; open requests fail."""
        if self._transport is not None and not self.closed:
            self._transport.close()
        self._end(reason)

    # ---- answers -------------------------------------------------------------------------------------------

    async def _negotiate(self, timeout_s: float) -> None:
        fields = {"client_software_name": CLIENT_SOFTWARE_NAME, "client_software_version": __version__}
        version = 3
        body = codec.request(ApiKey.API_VERSIONS, version, fields)
        payload = await self.send(ApiKey.API_VERSIONS, version, [body], timeout_s=timeout_s)
        if payload[4:6] == UNSUPPORTED_VERSION_BYTES:
            # An older broker answers in version 0, whatever the version of the request.
            version = 0
            body = codec.request(ApiKey.API_VERSIONS, version, {})
            payload = await self.send(ApiKey.API_VERSIONS, version, [body], timeout_s=timeout_s)
        try:
            answer = self.decode(ApiKey.API_VERSIONS, version, payload)
        except FatalError as error:
            raise ConnectionFailed(
                error.code, f"{self.address} does not speak Kafka's protocol: is the port right?"
            ) from error
        code = ErrorCode.from_wire(int(answer.error_code))
        if code is not ErrorCode.NONE:
            raise ConnectionFailed(code, f"{self.address} refused ApiVersions: is it a Kafka listener?")
        self.versions = {
            int(entry.api_key): (int(entry.min_version), int(entry.max_version)) for entry in answer.api_keys
        }
        if version >= 3:
            self.features = {
                feature.name: int(feature.max_version_level) for feature in answer.finalized_features
            }
            self.features_epoch = int(answer.finalized_features_epoch)

    async def _authenticate(self, security: ClientSecurity, timeout_s: float) -> None:
        """KIP-43, KIP-152.  When the session has an end (KIP-368), the connection ends a little before it:
        the next request opens another one."""
        lifetime_ms = 0

        async def exchange(token: bytes) -> bytes:
            nonlocal lifetime_ms
            answer = await self.request(
                ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token}, lowest=1, timeout_s=timeout_s
            )
            self._require(ErrorCode.from_wire(int(answer.error_code)), answer.error_message)
            lifetime_ms = int(answer.session_lifetime.total_seconds() * 1000)
            return bytes(answer.auth_bytes)

        chosen = await self.request(
            ApiKey.SASL_HANDSHAKE, {"mechanism": security.mechanism}, lowest=1, timeout_s=timeout_s
        )
        enabled = ", ".join(chosen.mechanisms)
        self._require(
            ErrorCode.from_wire(int(chosen.error_code)),
            f"{security.mechanism} is not enabled there, but {enabled or 'no mechanism'}",
        )
        steps = security.exchange()
        try:
            token = next(steps)
            while True:
                token = steps.send(await exchange(token))
        except StopIteration:
            pass
        except AuthenticationRefused as refused:
            raise FatalError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{self.address}: {refused}") from refused
        if lifetime_ms:
            end_s = lifetime_ms / 1000 * SESSION_USED
            self._retirement = asyncio.get_running_loop().call_later(end_s, self.retire)

    def _require(self, code: ErrorCode, message: str | None) -> None:
        if code is not ErrorCode.NONE:
            raise FatalError(code, f"{self.address}: {message or code.name}")

    def retire(self) -> None:
        """Takes no further request; the connection closes when those that are open are answered."""
        self.is_retiring = True
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self.is_retiring and not self._pending:
            self.close("the session ends")

    def _on_frame(self, frame: memoryview) -> None:
        payload = bytes(frame)  # the buffer is the transport's
        if not self._pending or len(payload) < 4:
            self.close("an answer without a request")
            return
        pending = self._pending.popleft()
        correlation_id = int.from_bytes(payload[:4], "big")
        if pending.timer is not None:
            pending.timer.cancel()
        if correlation_id != pending.correlation_id:
            self._pending.appendleft(pending)
            self.close(f"answer {correlation_id} where {pending.correlation_id} was due")
            return
        if not pending.future.done():
            pending.future.set_result(payload)
        self._close_when_idle()

    def _on_close(self, reason: str) -> None:
        self._end(reason)

    def _late(self, api_key: ApiKey, timeout_s: float) -> None:
        self.close(f"no answer to {api_key.name} in {timeout_s:g} s")

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        if self._retirement is not None:
            self._retirement.cancel()
        pending, self._pending = self._pending, deque()
        if pending:
            log.debug("connection_lost", address=self.address, reason=reason, open_requests=len(pending))
        for entry in pending:
            if entry.timer is not None:
                entry.timer.cancel()
            if not entry.future.done():
                entry.future.set_exception(self._lost(reason))

    def _lost(self, reason: str) -> ConnectionFailed:
        return ConnectionFailed(ErrorCode.NETWORK_EXCEPTION, f"connection to {self.address} lost: {reason}")
