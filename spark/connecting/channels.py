"""Open gRPC channels by endpoint.

A Spark worker keeps one `Channels` from task to task: a new connection for every task would cost more than a
small task itself, and two hundred tasks would be two hundred connections.  Above the limit, it closes the
least recently used channel.

Beside its channel an endpoint may have range connections (`range_connections.py`).

With `ClientSecurity` the channels speak TLS, and `authorization` has what each call on a channel shows: a
session token, which the node gave this very connection, or a bearer token.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import grpc

from ...runtime.clock import Clock, SystemClock
from ...runtime.connections.grpc_tls import channel_credentials
from ...runtime.network import grpc_channel_blocking
from ...security.client_security import ClientSecurity
from ...security.grpc_session import GrpcSession, Metadata, authenticate
from .range_connections import RangeConnections

# How long one attempt to connect may take (gRPC's name is misleading).  The brokers' 100 ms among themselves
# are too short here: Spark starts its workers all at once, and a node that shares the machine with them
# answers later than that.
CONNECT_TIMEOUT_MS = 5_000
CHANNELS_MAX: Final = 64
SESSION_USED: Final = 0.9  # of its lifetime; then the client authenticates again
# In what gRPC says of a connection: TLS has refused it, and it may be that, or a node that ended just then.
_TLS_REFUSED: Final = ("Tls handshake failed", "missing selected ALPN")
_PROTOCOL_UNCLEAR: Final = (
    "Handshake read failed",
    "failed to connect to all addresses; last error: UNAVAILABLE",
)
_CLOSED_AT_ONCE: Final = "Socket closed"
_ADVICE: Final = (
    ". The listener speaks another protocol than kafka.security.protocol says, or no authority of "
    "kafka.ssl.truststore.location has signed its certificate, or it is no gRPC listener (with "
    "kafka.security.protocol a Kafka listener does not lead there; `tidegate dev` and `tidegate cluster up`: "
    "the Kafka port + 100)"
)


def has_failed_by_tls(said: str) -> bool:
    """Whether gRPC says that TLS does not work with this listener: trying again does not help."""
    return any(sign in said for sign in _TLS_REFUSED)


def protocol_advice(said: str) -> str:
    """What to add to an error of gRPC's that may come from the wrong protocol or port; empty for others."""
    closed = _CLOSED_AT_ONCE in said and any(sign in said for sign in _PROTOCOL_UNCLEAR)
    return _ADVICE if closed or has_failed_by_tls(said) else ""


class Channels:
    """Channels to nodes, each opened when it is first needed; for any thread."""

    def __init__(
        self,
        channels_max: int = CHANNELS_MAX,
        security: ClientSecurity | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Raises TlsError when the files of `security` cannot be used."""
        self._channels_max = channels_max
        self._security = security
        self._credentials = (
            None if security is None or security.tls is None else channel_credentials(security.tls.files)
        )
        self._clock = clock or SystemClock()
        self._sessions: dict[str, tuple[GrpcSession, float]] = {}
        self._lock = threading.Lock()
        self._open: dict[str, grpc.Channel] = {}
        self._process = os.getpid()
        self.opened = 0
        self.ranges = RangeConnections(self._clock)

    def to(self, endpoint: str) -> grpc.Channel:
        """A channel to this endpoint; it waits for a busy node, and fails at once for a node that has
        ended."""
        with self._lock:
            if self._process != os.getpid():  # a channel does not survive a fork
                self._open, self._sessions, self._process = {}, {}, os.getpid()
            channel = self._open.pop(endpoint, None)
            if channel is None:
                channel = grpc_channel_blocking(
                    endpoint, [("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS)], self._credentials
                )
                self.opened += 1
            self._open[endpoint] = channel
            oldest = next(iter(self._open))
            surplus = self._open.pop(oldest) if len(self._open) > self._channels_max else None
            if surplus is not None:
                self._sessions.pop(oldest, None)
        if surplus is not None:
            surplus.close()
        return channel

    def authorization(self, endpoint: str) -> Metadata:
        """The metadata that each call to this endpoint shows.  Raises AuthenticationRefused, SecurityError;
        grpc.RpcError when the node cannot be reached."""
        if self._security is None or not self._security.has_sasl:
            return ()
        channel = self.to(endpoint)
        with self._lock:
            found = self._sessions.get(endpoint)
        if found is not None and self._clock.monotonic() < found[1]:
            return found[0].metadata
        session = authenticate(channel, self._security)
        ends_at_s = self._clock.monotonic() + SESSION_USED * (session.lifetime_s or 0.0)
        with self._lock:
            self._sessions[endpoint] = session, ends_at_s
        return session.metadata

    def forget_session(self, endpoint: str) -> bool:
        """The node does not know the session (any more): the next call authenticates again.  Whether there
        was one."""
        with self._lock:
            found = self._sessions.pop(endpoint, None)
        return found is not None and found[0].lifetime_s != 0.0

    def drop(self, endpoint: str) -> None:
        """Closes the channel to this endpoint; the next use opens another."""
        with self._lock:
            channel = self._open.pop(endpoint, None)
            self._sessions.pop(endpoint, None)
        self.ranges.drop(endpoint)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Closes all; calls in progress end."""
        with self._lock:
            channels, self._open, self._sessions = list(self._open.values()), {}, {}
        self.ranges.close()
        for channel in channels:
            channel.close()
