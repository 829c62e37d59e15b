"""The Network port: framed TCP servers and clients, gRPC servers and channels.

Sockets are opened here, and for threads that block in `connections/blocking_frames.py`.
`connections/frames.py` describes the bytes on them; here stand listening and connecting, the bound on
connections, and gRPC with the settings that every part of Tidegate shares (64 MiB messages on purpose; no
SO_REUSEPORT, by which a forgotten process would silently share the port; keepalive, so that a cut cable is
noticed).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import stat
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import grpc
import grpc.aio

from . import logs
from .clock import until_next
from .connections.frame_memory import BufferPool, ByteBudget, FrameLease
from .connections.frames import FrameConnection, FrameHandler, LogLimiter, peer_of
from .connections.grpc_tls import node_channel_credentials
from .connections.host_names import check_host
from .connections.listeners import Listener
from .connections.tls import HANDSHAKE_S_MAX, ClientTls, MutualTls, ServerTls, node_name
from .connections.unauthenticated import Unauthenticated
from .turns import LoopTurns

__all__ = [
    "GRPC_FOR_CLIENTS",
    "ByteBudget",
    "FrameConnection",
    "FrameHandler",
    "FrameLease",
    "FrameServer",
    "ListenerUnusable",
    "LogLimiter",
    "PortInUse",
    "ask_frame",
    "bind_grpc",
    "bytes_taken",
    "connect_frames",
    "free_port",
    "grpc_channel",
    "grpc_channel_blocking",
    "grpc_node_channel",
    "grpc_server",
    "opening",
    "port_is_free",
    "serve_frames",
    "share_of_descriptors",
    "why_not_connected",
]  # fmt: skip

log = logs.get(__name__)

GRPC_MESSAGE_BYTES_MAX = 64 << 20
GRPC_SHARE_OF_DESCRIPTORS = 4
"""The connections of a gRPC server take one in so many of the process's file descriptors at most: silent
clients leave the others for Kafka's connections and the logs."""
CONNECTIONS_MAX = 4096
CONNECTIONS_UNBOUNDED = 2**31 - 1
UNAUTHENTICATED_MAX = 500
"""Connections of a server whose clients have not authenticated yet; never more than half of all.  In its
handshake a TLS connection of asyncio takes 340 KiB."""
WAITING_CONNECTIONS_MAX = 512
"""Which the kernel holds until they are accepted."""
ACCEPTED_AT_ONCE = 64
"""In one turn of the loop.  When very many honest clients come at once, the handshakes of those before them
end first: they do not push each other out of `UNAUTHENTICATED_MAX`."""
AUTHENTICATION_S_MAX = 30.0
GRPC_IDLE_S = 600.0
FRAMES_IN_FLIGHT_BYTES_MAX = 512 << 20
LOOK_AFTER_S = 2.0
"""How often a server looks for connections that stand still, come too slowly or are idle."""
DELIVERY_S = 0.002
"""In one turn of the loop, for handing out the frames of all connections of a server."""
_CLOSE_GRACE_S = 2.0
ASKED_FRAME_BYTES_MAX = 4 << 20
NEXT_ADDRESS_S = 0.25
_CLOSED = "the other side closed the connection in the middle of an answer"


class PortInUse(OSError):
    """Another process listens there; the message names the port and says what to do."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            errno.EADDRINUSE,
            f"port {port} on {host} is in use: stop the process that holds it (find it by: ss -ltnp "
            f"'sport = :{port}'), "
            "or configure another port",
        )
        self.host = host
        self.port = port


class ListenerUnusable(OSError):
    """A listener's socket could not be opened; the message names the listener."""

    def __init__(self, listener: Listener, error: OSError) -> None:
        super().__init__(error.errno, f"listener {listener}: {error.strerror or error}")


@contextmanager
def opening(listener: Listener) -> Iterator[None]:
    """Names the listener in the OSError of what opens it: ListenerUnusable."""
    try:
        yield
    except OSError as error:
        raise ListenerUnusable(listener, error) from error


class FrameServer:
    """Listening sockets and their connections, with limits for all of them together."""

    def __init__(
        self,
        *,
        max_frame_bytes: int,
        max_connections: int,
        max_connections_per_address: int = 2**31,
        idle_s: float | None = None,
        budget: ByteBudget | None = None,
        pause_on_write_bytes: int = 1 << 20,
        on_refused: Callable[[str], None] | None = None,
        admits: Callable[[str], bool] = lambda _address: True,
    ) -> None:
        """`admits(address)`: whether this address may open one more connection now."""
        self.ports: list[int] = []
        """In the order in which the sockets were opened."""
        self.connections: set[FrameConnection] = set()
        self._max_connections = max_connections
        self._max_connections_per_address = max_connections_per_address
        self._address_overrides: Mapping[str, int] = {}
        self._idle_s = idle_s
        self._admitted = 0
        self._of_address: Counter[str] = Counter()
        self._handshakes: set[asyncio.Task[None]] = set()
        self.unauthenticated = Unauthenticated(
            lambda: min(UNAUTHENTICATED_MAX, self._max_connections // 2),
            AUTHENTICATION_S_MAX,
            self._not_authenticated,
        )
        """With those in a TLS handshake.  Handlers add connections whose clients must authenticate."""
        self._look_timer: asyncio.TimerHandle | None = None
        self._on_refused = on_refused
        self._admits = admits
        self._limiter = LogLimiter()
        self._max_frame_bytes = max_frame_bytes
        self._pause_on_write_bytes = pause_on_write_bytes
        self._pool = BufferPool()
        self._budget = budget or ByteBudget(max(FRAMES_IN_FLIGHT_BYTES_MAX, max_frame_bytes))
        self._turns = LoopTurns(asyncio.get_running_loop().time, DELIVERY_S)
        self._sockets: list[asyncio.Server] = []
        self._all_lost = asyncio.Event()
        self._all_lost.set()

    @property
    def port(self) -> int:
        """Of the first socket."""
        return self.ports[0]

    @property
    def open_count(self) -> int:
        """Connections, with those whose handshake is not over."""
        return self._admitted

    @property
    def is_serving(self) -> bool:
        return any(each.is_serving() for each in self._sockets)

    async def listen(
        self,
        host: str,
        port: int,
        factory: Callable[[FrameConnection], FrameHandler],
        tls: ServerTls | None = None,
        max_connections: int = CONNECTIONS_UNBOUNDED,
    ) -> None:
        """Opens one more socket and calls `factory` for every connection to it, with `tls` after the
        handshake.  `max_connections`: to this socket.  Raises PortInUse, or OSError for an address that is
        not this machine's."""
        loop, room = asyncio.get_running_loop(), _Room(self, max_connections)

        def make() -> asyncio.BaseProtocol:
            connection = FrameConnection(
                max_frame_bytes=self._max_frame_bytes,
                limiter=self._limiter,
                budget=self._budget,
                pool=self._pool,
                turns=self._turns,
                pause_on_write_bytes=self._pause_on_write_bytes,
                on_made=lambda connection: self._made(connection, factory, None if tls else room),
                on_lost=lambda connection: self._lost(connection, room),
                on_refused=self._on_refused,
            )
            return connection if tls is None else _Handshake(self, room, connection, tls)

        try:
            listener = await loop.create_server(
                make, host, port, backlog=ACCEPTED_AT_ONCE, start_serving=False
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(host, port) from error
            raise
        self._sockets.append(listener)
        self.ports.append(listener.sockets[0].getsockname()[1])
        await listener.start_serving()
        for each in listener.sockets:  # asyncio has one number for both
            with socket.fromfd(each.fileno(), each.family, each.type) as same:
                same.listen(WAITING_CONNECTIONS_MAX)
        if self._look_timer is None:
            self._keep_looking()

    def limit_connections(self, total: int, per_address: int, overrides: Mapping[str, int]) -> None:
        """From the next connection on; open connections stay.  `overrides`: address -> limit instead of
        `per_address`."""
        self._max_connections, self._max_connections_per_address = total, per_address
        self._address_overrides = overrides

    async def close(self, grace_s: float = _CLOSE_GRACE_S) -> None:
        """Stops listening, then closes the connections: unsent answers are written within `grace_s`, or
        dropped."""
        for each in self._sockets:
            each.close()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for handshake in list(self._handshakes):
            handshake.cancel()
        for connection in list(self.connections):
            connection.close("the server is closing")
        try:
            await asyncio.wait_for(self._all_lost.wait(), grace_s)
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort("the server is closing")
            await self._all_lost.wait()

    def look_after(self, now: float) -> None:
        """See `FrameConnection.look_after`; called by the server itself every `LOOK_AFTER_S`."""
        self.unauthenticated.look_after(now)
        for connection in list(self.connections):
            connection.look_after(now, self._idle_s)

    def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        self.look_after(loop.time())
        self._look_timer = loop.call_later(until_next(loop.time(), LOOK_AFTER_S), self._keep_looking)

    def _made(
        self,
        connection: FrameConnection,
        factory: Callable[[FrameConnection], FrameHandler],
        room: _Room | None,
    ) -> FrameHandler | None:
        """`room`: None when the connection has it already."""
        if room is not None and not room.admit(connection.peer):
            return None
        handler = factory(connection)
        self.connections.add(connection)
        self._all_lost.clear()
        return handler

    def _lost(self, connection: FrameConnection, room: _Room) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            room.release(connection.peer)
        if not self.connections:
            self._all_lost.set()

    # ---- room for connections ------------------------------------------------------------------------------

    def admit(self, peer: str) -> bool:
        """Whether there is room for one more connection of `peer` ("address:port"); if so, it counts until
        `release`."""
        address = peer.rpartition(":")[0]
        if self._admitted >= self._max_connections or not self.is_serving:
            self.turn_away(peer, f"{self._max_connections} connections are open already (max.connections)")
            return False
        limit = self._address_overrides.get(address.strip("[]"), self._max_connections_per_address)
        if self._of_address[address] >= limit:
            self.turn_away(
                peer, f"{limit} connections of its address are open already (max.connections.per.ip)"
            )
            return False
        if not self._admits(address.strip("[]")):
            reason = "its address opens connections above its quota (connection_creation_rate)"
            self._refused("connection_rate", "connection_refused", peer, reason)
            return False
        self._admitted += 1
        self._of_address[address] += 1
        return True

    def release(self, peer: str) -> None:
        """Ends what `admit` began."""
        address = peer.rpartition(":")[0]
        self._admitted -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def begin_handshake(self, handshake: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(handshake)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def handshake_failed(self, peer: str, reason: str) -> None:
        """Counts and reports a client whose handshake did not succeed."""
        self._refused("tls_handshake_failed", "tls_handshake_failed", peer, reason)

    def _not_authenticated(self, reason: str) -> None:
        self._refused("not_authenticated", "connection_refused", "", reason)

    def turn_away(self, peer: str, reason: str) -> None:
        """Counts and reports a client for which there is no room."""
        self._refused("too_many_connections", "connection_refused", peer, reason)

    def _refused(self, kind: str, event: str, peer: str, reason: str) -> None:
        if self._on_refused is not None:
            self._on_refused(kind)
        self._limiter.warning(asyncio.get_running_loop().time(), event, peer=peer, reason=reason)


class _Room:
    """For the connections to one socket, within the server's."""

    def __init__(self, server: FrameServer, connections_max: int) -> None:
        self._server = server
        self._connections_max = connections_max
        self._admitted = 0

    def admit(self, peer: str) -> bool:
        """See `FrameServer.admit`."""
        if self._admitted >= self._connections_max:
            self._server.turn_away(
                peer, f"{self._connections_max} connections are open already (max.connections of a listener)"
            )
            return False
        if not self._server.admit(peer):
            return False
        self._admitted += 1
        return True

    def release(self, peer: str) -> None:
        """Ends what `admit` began."""
        self._admitted -= 1
        self._server.release(peer)


class _Handshake(asyncio.Protocol):
    """A connection to a TLS listener until its handshake is over.  It counts as a connection from its
    beginning, so that peers that never finish a handshake are bounded like all others."""

    def __init__(self, server: FrameServer, room: _Room, frames: FrameConnection, tls: ServerTls) -> None:
        self._server = server
        self._room = room
        self._frames = frames
        self._tls = tls
        self._early = bytearray()  # what came between the end of the handshake and the change of protocols
        self._early_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast(asyncio.Transport, transport)
        raw.pause_reading()  # until the handshake begins
        peer = peer_of(raw)
        if self._room.admit(peer):
            now = asyncio.get_running_loop().time()
            self._server.unauthenticated.began(self, now, lambda _: raw.abort())
            self._server.begin_handshake(self._shake(raw, peer))
        else:
            raw.abort()

    def data_received(self, data: bytes) -> None:
        self._early += data

    def eof_received(self) -> bool:
        self._early_eof = True
        return False

    async def _shake(self, raw: asyncio.Transport, peer: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            encrypted = await loop.start_tls(
                raw, self, self._tls.context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S_MAX
            )
        except (OSError, ssl.SSLError) as error:
            self._server.handshake_failed(peer, tls_reason(error))
            encrypted = None
        except asyncio.CancelledError:
            raw.abort()
            self._room.release(peer)
            raise
        finally:
            self._server.unauthenticated.ended(self)
        if encrypted is None or encrypted.is_closing():
            raw.abort()
            self._room.release(peer)
            return
        frames = self._frames
        frames.connection_made(encrypted)
        encrypted.set_protocol(frames)
        early = memoryview(self._early)
        while early and frames.is_open:
            room = frames.get_buffer(len(early))
            count = min(len(room), len(early))
            room[:count] = early[:count]
            frames.buffer_updated(count)
            early = early[count:]
        if self._early_eof:
            frames.eof_received()


def tls_reason(error: OSError) -> str:
    """A failed handshake in a few words."""
    if isinstance(error, ssl.SSLError):
        detail = getattr(error, "verify_message", "")
        return f"{error.reason or error}: {detail}" if detail else str(error.reason or error)
    return str(error) or type(error).__name__


async def serve_frames(
    host: str,
    port: int,
    factory: Callable[[FrameConnection], FrameHandler],
    max_frame_bytes: int,
    *,
    max_connections: int = CONNECTIONS_MAX,
    max_connections_per_address: int = 2**31,
    idle_s: float | None = None,
    budget: ByteBudget | None = None,
    pause_on_write_bytes: int = 1 << 20,
    on_refused: Callable[[str], None] | None = None,
    tls: ServerTls | None = None,
) -> FrameServer:
    """Listens on host:port (0: any free one, see `FrameServer.port`) and calls `factory` for every
    connection.

    `budget` bounds the bytes of frames in flight and may be shared by several servers.  When the process runs
    out of file descriptors, asyncio leaves the listener alone for a second and tries again: it is never
    closed for that.  A connection on which nothing moves for `idle_s` and that is owed no answer is closed.

    The server calls `on_refused` for every connection that it closes for its frames, or does not accept, with
    one word: bad_length, cut_short, not_authenticated, stalled, tls_handshake_failed, too_slow,
    too_many_connections.

    Raises PortInUse, or OSError for an address that is not this machine's.
    """
    server = FrameServer(
        max_frame_bytes=max_frame_bytes,
        max_connections=max_connections,
        max_connections_per_address=max_connections_per_address,
        idle_s=idle_s,
        budget=budget,
        pause_on_write_bytes=pause_on_write_bytes,
        on_refused=on_refused,
    )
    await server.listen(host, port, factory, tls)
    return server


@dataclass(slots=True)
class _Callbacks:
    """A client's pair of callbacks as a handler."""

    on_frame: Callable[[memoryview], None]
    on_close: Callable[[str], None]


def why_not_connected(error: OSError) -> str:
    """A failed connection in a few words."""
    if isinstance(error, socket.gaierror):
        unknown = error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)
        return "no such host name" if unknown else f"the host name is not found now ({error.strerror})"
    return (os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)).lower()


async def connect_frames(
    host: str,
    port: int,
    on_frame: Callable[[memoryview], None],
    on_close: Callable[[str], None],
    max_frame_bytes: int,
    timeout_s: float,
    *,
    tls: ClientTls | None = None,
) -> FrameConnection:
    """Connects within `timeout_s` seconds; raises TimeoutError or another OSError.  A name is looked up anew
    each time, and all its addresses are tried, the next one also while another does not answer.

    `on_frame` gets each frame as `FrameHandler.on_frame` does; `on_close(reason)` is called once when the
    connection is gone.
    """
    check_host(host, port)
    loop = asyncio.get_running_loop()
    callbacks = _Callbacks(on_frame, on_close)

    def make() -> FrameConnection:
        return FrameConnection(
            max_frame_bytes=max_frame_bytes, limiter=LogLimiter(), on_made=lambda _: callbacks
        )

    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                make, host, port, ssl=tls.newest if tls is not None else None,
                server_hostname=None if tls is None else host if tls.check_host_name else "",
                happy_eyeballs_delay=NEXT_ADDRESS_S,
            )  # fmt: skip
    except TimeoutError as error:
        raise TimeoutError(
            errno.ETIMEDOUT, f"no connection to {host}:{port} within {timeout_s:g} s"
        ) from error
    return connection


_GRPC_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
# For those that receive small messages: by default a ping after each measures how much the connection holds.
_GRPC_NO_PROBES = ("grpc.http2.bdp_probe", 0)
# By default all channels of a process to one address share a connection, and its end.
_GRPC_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
_GRPC_SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_GRPC_OPTIONS,
    _GRPC_NO_PROBES,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE_S_MAX)),
)
_grpc_ports: set[int] = set()
"""That this process has bound for gRPC."""
_TCP_INFO_BYTES, _ACKNOWLEDGED_AT, _ACKNOWLEDGED = 192, 120, Struct("=Q")  # of Linux' struct tcp_info
GRPC_FOR_CLIENTS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_concurrent_streams", 1_000),
)
"""Of a server whose callers are clients alone: their requests are small, and a connection has so many at a
time."""
_GRPC_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_GRPC_OPTIONS,
    ("grpc.enable_http_proxy", 0),  # a proxy from the environment must not come between two brokers
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # by default 30 s: a node that came back elsewhere was not found
    ("grpc.dns_min_time_between_resolutions_ms", 500),
)


def grpc_server(
    options: Sequence[tuple[str, int | str]] = (),
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    *,
    connections_max: int = CONNECTIONS_MAX,
    idle_s: float = GRPC_IDLE_S,
) -> grpc.aio.Server:
    """An asyncio gRPC server; `options` override the common ones.  Give it a port by `bind_grpc`.

    It closes one connection more than `connections_max`, or than its share of the process's file descriptors,
    at once, and a connection without calls after `idle_s`; its client connects again for the next call."""
    bounds = (
        (
            "grpc.max_allowed_incoming_connections",
            min(connections_max, share_of_descriptors(GRPC_SHARE_OF_DESCRIPTORS)),
        ),
        ("grpc.max_connection_idle_ms", int(1000 * idle_s)),
    )
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)
    return grpc.aio.server(
        options=_overridden((*_GRPC_SERVER_OPTIONS, *bounds), options), interceptors=tuple(interceptors)
    )


def _is_news(line: logging.LogRecord) -> bool:
    """Whether to log what gRPC says: not the trace of a client that is lost while an answer is on its way."""
    return not line.getMessage().startswith("ExecuteBatchError raised in core by servicer method")


def bytes_taken(peers: Collection[str]) -> dict[str, int]:
    """How many bytes the system of each of these gRPC clients has acknowledged since it connected; without
    those that are gone.  Raises OSError."""
    taken: dict[str, int] = {}
    for peer, found in _grpc_connections(peers):
        with suppress(OSError):  # it is closed meanwhile
            info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (taken[peer],) = _ACKNOWLEDGED.unpack_from(info, _ACKNOWLEDGED_AT)
    return taken


def shut_connections_of(peers: Collection[str]) -> None:
    """Ends the gRPC connections of clients, each `ipv4:10.0.0.1:4000` as gRPC names it: their calls are lost.
    Raises OSError."""
    for _, found in _grpc_connections(peers):
        with suppress(OSError):  # it is closed meanwhile
            found.shutdown(socket.SHUT_RDWR)


def _grpc_connections(peers: Collection[str]) -> Iterator[tuple[str, socket.socket]]:
    """gRPC does not give its sockets away, and may close one meanwhile.  So this looks at copies of the
    process's descriptors, which mean the same socket until they are closed themselves."""
    wanted = {place: peer for peer in peers if (place := _place_of(peer)) is not None}
    for number in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(number))
        except OSError as error:
            if error.errno == errno.EBADF:  # the one of the list itself, or one that was closed meanwhile
                continue
            raise
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6):
                with suppress(OSError):  # it listens, or is closed
                    address, port = found.getpeername()[:2]
                    peer = wanted.get((_plain_address(address), port))
                    if peer is not None and found.getsockname()[1] in _grpc_ports:
                        yield peer, found


def _place_of(peer: str) -> tuple[IPv4Address | IPv6Address, int] | None:
    """None for one that is at no IP address."""
    family, _, place = unquote(peer).partition(":")
    host, _, port = place.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _plain_address(host.strip("[]")), int(port)


def _plain_address(text: str) -> IPv4Address | IPv6Address:
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def share_of_descriptors(one_in: int) -> int:
    """So many are one in `one_in` of those that this process may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS_UNBOUNDED if limit == resource.RLIM_INFINITY else limit // one_in


def _overridden(
    common: Sequence[tuple[str, int | str]], options: Sequence[tuple[str, int | str]]
) -> list[tuple[str, int | str]]:
    """Each option once: of two with the same name gRPC takes the first."""
    return list({**dict(common), **dict(options)}.items())


def bind_grpc(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Binds before `server.start()`; returns the port (for 0: the one that was free).  `credentials`: of TLS.
    Raises PortInUse or OSError."""
    everywhere = host or "::"  # to gRPC this is IPv4, too
    address = f"[{everywhere}]:{port}" if ":" in everywhere else f"{everywhere}:{port}"
    try:
        bound: int = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise _bind_error(host, port) from error
    if bound == 0:
        raise _bind_error(host, port)
    _grpc_ports.add(bound)
    return bound


def _bind_error(host: str, port: int) -> OSError:
    """gRPC does not say why it could not bind: binds once more by hand to find out."""
    try:
        with socket.create_server((host, port)):
            return OSError(
                errno.EADDRNOTAVAIL, f"gRPC could not listen on {host}:{port}: see its message above"
            )
    except OSError as error:
        return PortInUse(host, port) if error.errno == errno.EADDRINUSE else error


def grpc_channel(
    target: str,
    options: Sequence[tuple[str, int | str]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.aio.Channel:
    """A channel to `host:port` for the running loop, for small messages; `credentials`: of TLS."""
    merged = _overridden((*_GRPC_CHANNEL_OPTIONS, _GRPC_NO_PROBES), options)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=merged)
    return grpc.aio.secure_channel(target, credentials, options=merged)


def grpc_node_channel(target: str, node_id: int, tls: MutualTls | None) -> grpc.aio.Channel:
    """A channel to one node for the running loop.  With `tls` both ends show certificates, the newest when
    the channel is made, and only that of this very node is accepted."""
    if tls is None:
        return grpc_channel(target)
    name = ("grpc.ssl_target_name_override", node_name(node_id))
    return grpc_channel(target, (name,), node_channel_credentials(tls))


def grpc_channel_blocking(
    target: str,
    options: Sequence[tuple[str, int | str]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.Channel:
    """A channel to `host:port` for threads, for messages of any size, with a connection of its own;
    `credentials`: of TLS."""
    merged = _overridden((*_GRPC_CHANNEL_OPTIONS, _GRPC_OWN_CONNECTION), options)
    if credentials is None:
        return grpc.insecure_channel(target, options=merged)
    return grpc.secure_channel(target, credentials, options=merged)


class AnswersInHttp2(ConnectionError):
    """The other side is a server of gRPC."""


def ask_frame(host: str, port: int, request: bytes, timeout_s: float) -> bytes:
    """Sends one frame over a connection of its own and returns the answer's frame; waits, for tools that
    block.

    Raises OSError, also when the other side closes, sends more than ASKED_FRAME_BYTES_MAX, takes too long
    (TimeoutError; the bound is on each step), or speaks HTTP/2 (AnswersInHttp2)."""
    with socket.create_connection((host, port), timeout_s) as connection, connection.makefile("rb") as answer:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        begin = _exactly(answer, 4)
        size = int.from_bytes(begin, "big")
        if size > ASKED_FRAME_BYTES_MAX:
            raise ConnectionError(f"{host}:{port} answers with a frame of {size} bytes")
        frame = answer.read(size)
        if len(frame) < size and _is_http2(begin + frame):
            raise AnswersInHttp2(f"{host}:{port} is a gRPC listener")
        if len(frame) < size:
            raise ConnectionError(_CLOSED)
        return frame


def _is_http2(data: bytes) -> bool:
    """Whether a server of HTTP/2 has begun: with SETTINGS (type 4) of stream 0, without flags (RFC 9113)."""
    return data[:1] == b"\x00" and data[3:9] == b"\x04\x00\x00\x00\x00\x00"


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionError(_CLOSED)
    return data


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago, for tests and for clusters on one machine; the caller that binds it
    must cope with PortInUse."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether this port could be listened on a moment ago: for callers that choose their ports themselves."""
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False
