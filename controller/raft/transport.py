"""The quorum's own network: one connection between each pair of voters, bounded frames of a fixed schema, an
identity hello.

* The voter with the higher id dials the lower one, so there is one connection a pair; a newer connection of
  the same pair replaces the older one, and frames of a replaced connection are ignored.
* The first frame in both directions is a `Hello`: node id, cluster id, the set of voters; the dialer speaks
  first.  The listener rejects a stranger, a voter of another cluster, and one with other
  `controller.quorum.voters` (two majorities could form), with one log line.
* With mutual TLS both sides show a certificate of the quorum's authority, and the hello's node id must be one
  that it names.
* A frame that is not exactly a message of the schema closes its connection, is counted, and never reaches
  Raft.
* The transport pings a silent connection, and closes it after `SILENCE_S_MAX`: the kernel notices a lost
  network only after minutes.  Time in which this process itself was paused does not count: it has not read
  the frames of that time yet.

All of it runs on one event loop, that of the Raft thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...runtime import logs, network
from ...runtime.calm_logs import Outage
from ...runtime.connections.tls import MutualTls, certified_nodes
from ...runtime.tasks import OnFailure, spawn
from .messages import FRAME_BYTES_MAX, Hello, MalformedMessage, Message, Ping, decode, encode

if TYPE_CHECKING:
    from ...runtime.clock import Clock

log = logs.get(__name__)

HELLO_S_MAX = 5.0
DIAL_S_MAX = 2.0
REDIAL_S = 0.2
"""The pause between two attempts to connect to a voter, however long it is away.  A voter with a lower id
cannot dial: until its peers dial again it takes part in no election, though its node may be ready."""
PING_S = 1.0
SILENCE_S_MAX = 3.5
BACKLOG_BYTES_MAX = 64 << 20
CONNECTIONS_MAX = 64
HELLO_BYTES_MAX = 1024


@dataclass(slots=True, frozen=True)
class PeerUp:
    node_id: int
    link: int


@dataclass(slots=True, frozen=True)
class PeerDown:
    node_id: int
    link: int


@dataclass(slots=True, frozen=True)
class Received:
    node_id: int
    link: int
    message: Message


PeerEvent = PeerUp | PeerDown | Received


class Inbox(Protocol):
    """Takes events; thread-safe and never blocking.  False: full, the transport closes the connection of the
    event."""

    def __call__(self, event: PeerEvent) -> bool: ...


class QuorumTransport:
    """The connections of one voter."""

    def __init__(
        self,
        *,
        node_id: int,
        cluster_id: str,
        voters: Mapping[int, tuple[str, int]],
        listen: tuple[str, int],
        clock: Clock,
        inbox: Inbox,
        on_failure: OnFailure,
        tls: MutualTls | None = None,
    ) -> None:
        """`on_failure(error)`, on the thread: a defect ended a task; a voter would stay unreached."""
        self._on_failure = on_failure
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.voters = dict(voters)
        self.malformed_frames = 0
        self.port = 0
        self._tls = tls
        self._listen = listen
        self.clock = clock
        self._inbox = inbox
        self._links: dict[int, _Link] = {}
        self._next_link = 0
        self._server: network.FrameServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._warned: dict[object, str] = {}
        self._limiter = network.LogLimiter()
        self._unreached = {peer: Outage(log, "quorum_peer_unreachable") for peer in voters}

    async def start(self) -> None:
        """Listens (raises PortInUse) and begins to dial."""
        if len(self.voters) > 1:
            host, port = self._listen
            self._server = await network.serve_frames(
                host,
                port,
                self._accept,
                FRAME_BYTES_MAX,
                max_connections=CONNECTIONS_MAX,
                tls=None if self._tls is None else self._tls.server,
            )
            self.port = self._server.port
            self._tasks = [
                spawn(self._dial(peer), f"dial-{peer}", self._on_failure)
                for peer in self.voters
                if peer < self.node_id
            ]
            self._tasks.append(spawn(self._keep_alive(), "keep-alive", self._on_failure))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._links.values()):
            link.connection.close("the node is stopping")
        if self._server is not None:
            await self._server.close()

    def send(self, node_id: int, message: Message) -> None:
        """Without a connection the message is dropped."""
        link = self._links.get(node_id)
        if link is None:
            return
        link.connection.send(encode(message))
        link.sent_at = self.clock.monotonic()
        if link.connection.write_backlog > BACKLOG_BYTES_MAX:
            link.connection.abort("the peer does not take what is sent to it")

    # ---- connections ---------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(self.node_id, self.cluster_id, tuple(sorted(self.voters)))

    def _accept(self, connection: network.FrameConnection) -> _Link:
        link = self._make_link(connection, dialed=None)
        self.clock.call_later(HELLO_S_MAX, link.close_when_unnamed)
        return link

    def _make_link(self, connection: network.FrameConnection, dialed: int | None) -> _Link:
        self._next_link += 1
        connection.limit_frames(HELLO_BYTES_MAX)
        return _Link(self, connection, self._next_link, dialed)

    async def _dial(self, peer: int) -> None:
        """Keeps a connection to a voter with a lower id."""
        host, port = self.voters[peer]
        while True:
            try:
                closed = await self._dial_once(peer, host, port)
                await closed
            except OSError as error:
                self._not_reached(peer, str(error))
            await self.clock.sleep(REDIAL_S * (0.5 + self.clock.random()))

    def _not_reached(self, peer: int, reason: str) -> None:
        host, port = self.voters[peer]
        self._unreached[peer].failed(
            self.clock.monotonic(), news=reason, peer=peer, host=host, port=port, reason=reason
        )

    async def _dial_once(self, peer: int, host: str, port: int) -> asyncio.Future[None]:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        made: list[_Link] = []

        def on_frame(frame: memoryview) -> None:
            if made:  # a frame before our hello is no answer to it
                made[0].on_frame(frame)

        def on_close(reason: str) -> None:
            if made:
                # it hung up on us, or its hello was refused: its own log says why, ours says that
                if not made[0].is_named:
                    self._not_reached(peer, reason)
                made[0].on_close(reason)
            if not closed.done():
                closed.set_result(None)

        connection = await network.connect_frames(
            host,
            port,
            on_frame,
            on_close,
            FRAME_BYTES_MAX,
            DIAL_S_MAX,
            tls=None if self._tls is None else self._tls.client,
        )
        link = self._make_link(connection, dialed=peer)
        made.append(link)
        connection.send(encode(self.hello()))
        self.clock.call_later(HELLO_S_MAX, link.close_when_unnamed)
        return closed

    def refusal(self, hello: Hello, dialed: int | None, certificate: Mapping[str, Any] | None) -> str | None:
        """Why a connection that begins with this hello is rejected; None when it is accepted."""
        peer = hello.node_id
        if peer not in self.voters or peer == self.node_id:
            return f"node {peer} is not another voter of this quorum {sorted(self.voters)}"
        if self._tls is not None and peer not in certified_nodes(certificate):
            return f"node {peer} has shown a certificate of nodes {sorted(certified_nodes(certificate))}"
        if dialed is None and peer < self.node_id:
            return f"node {peer} must be dialed by node {self.node_id}, not the other way round"
        if dialed is not None and peer != dialed:
            return f"node {peer} answers at the address configured for node {dialed}"
        if hello.cluster_id and self.cluster_id and hello.cluster_id != self.cluster_id:
            return f"node {peer} belongs to cluster {hello.cluster_id}, this node to {self.cluster_id}"
        if sorted(hello.voters) != sorted(self.voters):
            return (
                f"node {peer} is configured with the voters {sorted(hello.voters)}, this node with "
                f"{sorted(self.voters)}"
            )
        return None

    def link_up(self, link: _Link, peer: int) -> None:
        old = self._links.get(peer)
        self._links[peer] = link
        self._warned.clear()
        if peer in self._unreached:
            self._unreached[peer].over(self.clock.monotonic(), peer=peer)
        if old is not None:
            old.connection.close("replaced by a newer connection")
        self._inbox(PeerUp(peer, link.number))

    def link_down(self, link: _Link, peer: int) -> None:
        if self._links.get(peer) is link:
            del self._links[peer]
        self._inbox(PeerDown(peer, link.number))

    def deliver(self, link: _Link, peer: int, message: Message) -> None:
        if not self._inbox(Received(peer, link.number, message)):
            link.connection.abort("more messages than the Raft thread can take")

    def warn_refused(self, key: object, reason: str, peer: str) -> None:
        """One line when something begins to be wrong, not one an attempt; and few lines of a stranger that
        says something else each time."""
        if self._warned.get(key) != reason:
            if len(self._warned) > 256:
                self._warned.clear()
            self._warned[key] = reason
            self._limiter.warning(self.clock.monotonic(), "quorum_peer_refused", peer=peer, reason=reason)

    async def _keep_alive(self) -> None:
        ping = encode(Ping())
        looked_at = self.clock.monotonic()
        while True:
            await self.clock.sleep(PING_S)
            now = self.clock.monotonic()
            late_s, looked_at = max(0.0, now - looked_at - PING_S), now
            for link in list(self._links.values()):
                link.heard_at = min(now, link.heard_at + late_s)
                if now - link.heard_at > SILENCE_S_MAX:
                    link.connection.abort(f"no frame for {SILENCE_S_MAX:g} s")
                elif now - link.sent_at >= PING_S:
                    link.connection.send(ping)
                    link.sent_at = now


class _Link:
    """One connection: unnamed until its hello was accepted."""

    __slots__ = ("_dialed", "_peer", "_transport", "connection", "heard_at", "number", "sent_at")

    def __init__(
        self, transport: QuorumTransport, connection: network.FrameConnection, number: int, dialed: int | None
    ) -> None:
        self.connection = connection
        self.number = number
        self.heard_at = self.sent_at = transport.clock.monotonic()
        self._transport = transport
        self._dialed = dialed
        self._peer: int | None = None

    @property
    def is_named(self) -> bool:
        """Whether its hello was accepted."""
        return self._peer is not None

    def on_frame(self, view: memoryview) -> None:
        try:
            frame = decode(bytes(view))
        except MalformedMessage as error:
            self._transport.malformed_frames += 1
            self._refuse(str(error))
            return
        self.heard_at = self._transport.clock.monotonic()
        if self._peer is None:
            self._greet(frame)
        elif isinstance(frame, Hello):
            self._refuse("a second hello on one connection")
        elif not isinstance(frame, Ping):
            self._transport.deliver(self, self._peer, frame)

    def _greet(self, frame: object) -> None:
        if not isinstance(frame, Hello):
            self._transport.malformed_frames += 1
            self._refuse(f"a {type(frame).__name__} before the hello")
            return
        problem = self._transport.refusal(frame, self._dialed, self.connection.certificate)
        if problem is not None:
            self._refuse(problem)
            return
        self._peer = frame.node_id
        self.connection.limit_frames(None)
        if self._dialed is None:
            self.connection.send(encode(self._transport.hello()))
        self._transport.link_up(self, frame.node_id)

    def _refuse(self, problem: str) -> None:
        where = self.connection.peer.rpartition(":")[0]
        self._transport.warn_refused((where, self._dialed), problem, self.connection.peer)
        self.connection.abort(problem)

    def close_when_unnamed(self) -> None:
        if self._peer is None:
            self.connection.abort(f"no hello within {HELLO_S_MAX:g} s")

    def on_close(self, reason: str) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            log.info("quorum_peer_lost", peer=peer, reason=reason)
            self._transport.link_down(self, peer)
