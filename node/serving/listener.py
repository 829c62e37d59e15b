"""The Kafka listeners: they pass the frames of a connection to the request handlers, and send their responses
in order.

All connections share the loop's time (`runtime/turns.py`): a request begins when its connection has its turn.
However many requests other clients have sent, a connection that has used little time goes first, and every
few milliseconds the loop reads sockets and runs timers.

Per connection the listener handles one frame after another; a handler returns before the next frame begins,
with the exceptions that `requests.py` names, `Deferred` and `Staged`.  Responses leave in the order of their
requests, as every client expects.  A connection has at most `REQUESTS_IN_WORK_MAX` requests in work: above,
the listener stops reading from it.

When a connection closes, the listener drops its frames and cancels its requests, because the client cannot
get a response. Only a produce with acks=0, which has no response, is still executed: a client may send it and
close.

A frame that is not a request of this protocol (garbage, an unknown key, a version that is not supported)
closes its connection with one log line that says why; other connections are not affected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from ...runtime import logs
from ...runtime.calm_logs import RateLimitedLines
from ...runtime.connections.unauthenticated import Unauthenticated
from ...runtime.network import (
    ByteBudget,
    FrameConnection,
    FrameLease,
    FrameServer,
    ListenerUnusable,
    LogLimiter,
    opening,
)
from ...runtime.tasks import spawn
from ...runtime.turns import LoopTurns, Turn
from ...wire import api, codec, produce
from ...wire.api import ApiKey, NodeRequest
from ...wire.codec import RequestHeader
from ...wire.errors import ErrorCode, KafkaError
from ...wire.primitives import RequestTooLarge
from .audit import AUDITED
from .authentication import Authentication, ListenerIdentity
from .broker import Broker
from .requests import ClientSoftware, Deferred, Encoded, Fields, RequestContext, Staged, worst_error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

log = logs.get(__name__)

REQUESTS_IN_WORK_MAX: Final = 64
# Requests with acks=0 of closed connections that are still to be executed, over all connections.
UNANSWERED_MAX: Final = 1000
# A request that has waited for this long when its connection closes gets a line in the log.
SLOW_S: Final = 1.0
_NAMES: Final = {int(key): key.name.lower() for key in (*ApiKey, *NodeRequest)}
# These requests wait by design, for records or for other members of a group: no line when the client closes
# meanwhile.
_LONG_POLLS: Final = frozenset(_NAMES[key] for key in (ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))
# Smaller frames are copied: that costs less than giving the connection a new buffer.
COPY_BYTES_MAX: Final = 16 * 1024

Answer = Encoded | Fields | None
# Any: each handler takes the request of its own (wire/request_types.py).
Handler = Callable[[Broker, RequestContext, Any], Awaitable[Answer | Deferred]]
Order = asyncio.Future[None]
StagedHandler = Callable[[Broker, RequestContext, memoryview], Staged]
NodeHandler = Callable[[Broker, RequestContext, memoryview], Deferred]


@dataclass(frozen=True, slots=True)
class Handlers:
    """`decoded` get the message as kio's entity, `staged` the body's bytes: see `requests.py`.  `of_nodes`
    are no requests of the Kafka protocol (`NodeRequest`), and get the bytes, too."""

    decoded: Mapping[int, Handler]
    staged: Mapping[int, StagedHandler]
    of_nodes: Mapping[int, NodeHandler] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[int]:
        return frozenset(self.decoded) | frozenset(self.staged)


@dataclass(slots=True)
class Shared:
    """The state that all connections of a listener share."""

    limiter: LogLimiter
    turns: LoopTurns
    abandoned: RateLimitedLines
    """The client decides how long these requests wait."""
    unauthenticated: Unauthenticated
    unanswered: int = 0
    """Requests of closed connections that are still to be executed."""


class _Slot:
    """The place of one response in the connection's order."""

    __slots__ = ("buffers", "done", "lease", "name", "started", "throttle_ms")

    def __init__(self, name: str, started: float, lease: FrameLease | None) -> None:
        self.name = name
        self.started = started
        self.lease = lease
        self.buffers: Sequence[Buffer] = ()
        self.done = False
        self.throttle_ms = 0


class ClientConnection:
    """One client's connection: a `FrameHandler`."""

    def __init__(
        self,
        connection: FrameConnection,
        broker: Broker,
        handlers: Handlers,
        shared: Shared,
        identity: ListenerIdentity,
    ) -> None:
        self._connection = connection
        self._authentication = Authentication(identity, connection.certificate)
        self._listener_name = identity.security.name
        self._shared = shared
        self._turns = shared.turns
        self._account = shared.turns.account()
        self._limiter = shared.limiter
        self._broker = broker
        self._handlers = handlers
        self._served = handlers.keys
        self._frames: deque[tuple[memoryview, FrameLease | None, float]] = deque()
        self._slots: deque[_Slot] = deque()
        self._arrived = asyncio.Event()
        self._aside: set[asyncio.Task[None]] = set()
        self._in_work_max = REQUESTS_IN_WORK_MAX
        self._unanswered = False  # the request in work has no response
        self._is_lost = False
        self._last_turn: Order | None = None
        """Done when every staged request so far is executed; None when there is none."""
        self._host, _, port = connection.peer.rpartition(":")
        self._client = ClientSoftware(port=int(port) if port.isdigit() else 0)
        self._must_authenticate = not self._authentication.is_over
        if self._must_authenticate:
            shared.unauthenticated.began(self, broker.clock.monotonic(), connection.abort)
            connection.limit_frames(self._authentication.frame_bytes_max)
        self._worker = self._start_worker()

    # --- FrameHandler ---------------------------------------------------------------------------------------

    def on_frame(self, frame: memoryview) -> None:
        if not self._broker.cluster.serving:
            self._broker.metrics.frame_rejected("starting")
            self._connection.close("the node is still starting")  # clients connect again, or ask another node
            return
        if not self._authentication.is_over and len(frame) > self._authentication.frame_bytes_max:
            self._broker.metrics.frame_rejected("unauthenticated")
            self._connection.close("a client that has not authenticated sent a large request")
            return
        lease: FrameLease | None = None
        if len(frame) > COPY_BYTES_MAX:
            lease = self._connection.detach()
            frame = lease.view
        else:
            frame = memoryview(bytearray(frame))
        self._frames.append((frame, lease, self._broker.clock.monotonic()))
        self._connection.owes_answer = True
        if len(self._frames) + len(self._slots) >= self._in_work_max:
            self._connection.pause()
        self._arrived.set()

    def on_close(self, reason: str) -> None:
        now = self._broker.clock.monotonic()
        undone = (slot for slot in self._slots if not slot.done and slot.name not in _LONG_POLLS)
        slow = [f"{slot.name} {now - slot.started:.1f}s" for slot in undone if now - slot.started > SLOW_S]
        if slow:
            self._shared.abandoned.line(
                now, "connections", peer=self._connection.peer, reason=reason, unanswered=slow
            )
        self._is_lost = True
        self._shared.unauthenticated.ended(self)
        for task in self._aside:
            task.cancel()
        for slot in self._slots:
            _release(slot.lease)
        self._slots.clear()
        asked = list(self._frames)
        self._frames.clear()
        for waiting in asked:
            if self._shared.unanswered < UNANSWERED_MAX and _asks_no_answer(waiting[0]):
                self._shared.unanswered += 1
                self._frames.append(waiting)
            else:
                _release(waiting[1])
        if self._unanswered:
            return  # the worker finishes what it does, takes what is left, and ends
        self._worker.cancel()
        if self._frames:
            self._worker = self._start_worker()

    # --- requests -------------------------------------------------------------------------------------------

    def _start_worker(self) -> asyncio.Task[None]:
        return spawn(self._work(), f"connection {self._connection.peer}", self._worker_failed)

    def _worker_failed(self, error: BaseException) -> None:
        """A defect outside of a request: without a worker the connection would answer nothing more."""
        log.failure("connection_failed", error, peer=self._connection.peer)
        self._connection.close("internal error")

    async def _work(self) -> None:
        turns, account = self._turns, self._account
        while not self._is_lost or self._frames:
            if not self._frames:
                await self._arrived.wait()
                self._arrived.clear()
            while self._frames:
                if not turns.admits():
                    await turns.wait(account)
                    if not self._frames:
                        break
                frame, lease, started = self._frames.popleft()
                if self._is_lost:
                    self._shared.unanswered -= 1
                try:
                    await turns.metered(account, self._serve(frame, lease, started))
                except asyncio.CancelledError:
                    _release(lease)
                    raise
                except Exception as error:
                    self._failed(error, lease)
                if self._is_lost:
                    _release(lease)  # no slot has it
                self._unanswered = False

    def _turn(self) -> Turn:
        return Turn(self._turns, self._account)

    async def _yield_loop(self) -> None:
        """Awaited within a long request: returns when it is the connection's turn again."""
        await self._turns.wait(self._account)

    def _failed(self, error: Exception, lease: FrameLease | None) -> None:
        """What left a handler instead of an answer closes the connection."""
        if isinstance(error, KafkaError):
            too_large = isinstance(error, RequestTooLarge)
            self._refuse("request_too_large" if too_large else error.code.name.lower(), str(error), lease)
        else:
            # A defect of the node: it closes this connection, and the others are not affected.
            log.failure("request_failed", error, peer=self._connection.peer)
            self._refuse("internal_error", "internal error", lease)

    async def _serve(self, frame: memoryview, lease: FrameLease | None, started: float) -> None:
        if self._authentication.takes_raw_tokens:
            await self._take_raw_token(bytes(frame), _Slot("sasl_authenticate", started, lease))
            return
        header, position = codec.parse_request_header(frame)
        refusal = self._authentication.refuses(header.api_key)
        if refusal is not None:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE, refusal)
        name = _NAMES.get(header.api_key, str(header.api_key))
        slot = _Slot(name, started, lease)
        of_nodes = self._handlers.of_nodes.get(header.api_key)
        is_served = api.is_supported(header.api_key, header.api_version) and header.api_key in self._served
        if of_nodes is None and not is_served:
            self._unsupported(header, slot, frame, position)
            return
        sender = (
            header.client_id or "",
            self._host,
            self._yield_loop,
            self._turn,
            self._client,
            self._authentication,
            self._listener_name,
            self._account,
        )
        context = RequestContext(header.api_key, header.api_version, header.correlation_id, *sender)
        if not self._is_lost:  # a closed connection sends no responses
            self._slots.append(slot)
        staged = self._handlers.staged.get(header.api_key)
        if staged is not None:
            request = staged(self._broker, context, frame[position:])
            # executed here, in order: the tasks of earlier staged requests are cancelled and set no `mine`
            if self._is_lost:
                if request.verify is not None:
                    await request.verify()
            elif request.verify is not None or self._last_turn is not None:
                self._take_turn(context, slot, request)
                return
            self._unanswered = request.unanswered
            outcome = await request.execute()
        elif of_nodes is not None:
            outcome = of_nodes(self._broker, context, frame[position:])
        else:
            if self._last_turn is not None:
                await self._last_turn
            message = codec.decode_request_body(context.api_key, context.api_version, frame, position)
            outcome = await self._handlers.decoded[context.api_key](self._broker, context, message)
            if context.api_key in AUDITED:
                self._broker.audit.answered(context, message, cast(Fields, outcome))
        if isinstance(outcome, Deferred):
            self._spawn(self._await_aside, context, slot, outcome.answer)
        else:
            self._finish(context, slot, outcome)

    async def _take_raw_token(self, token: bytes, slot: _Slot) -> None:
        """After SaslHandshake of version 0 tokens come, and go, without headers."""
        self._slots.append(slot)
        reply = self._authentication.authenticate(token)
        if reply is None or self._authentication.failure:
            await self._broker.clock.sleep(self._authentication.listener.security.failure_delay_s)
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, self._authentication.failure)
        slot.buffers, slot.done = [reply.token], True
        self._flush()

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        task = asyncio.create_task(self._metered(work, *arguments))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _metered(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        await self._turns.metered(self._account, work(*arguments))

    def _take_turn(self, context: RequestContext, slot: _Slot, request: Staged) -> None:
        before, mine = self._last_turn, cast(Order, asyncio.get_running_loop().create_future())
        self._last_turn = mine
        self._spawn(self._in_turn, context, slot, request, before, mine)

    async def _in_turn(
        self, context: RequestContext, slot: _Slot, request: Staged, before: Order | None, mine: Order
    ) -> None:
        try:
            if request.verify is not None:
                await request.verify()
            if before is not None:
                await before
            async with self._turn():
                outcome = await request.execute()
        except Exception as error:
            self._failed(error, None)  # the slot has the lease
            return  # `mine` stays open: no later request executes, and the connection closes
        mine.set_result(None)
        if self._last_turn is mine:
            self._last_turn = None
        if isinstance(outcome, Deferred):
            await self._await_aside(context, slot, outcome.answer)
        else:
            self._finish(context, slot, outcome)

    async def _await_aside(self, context: RequestContext, slot: _Slot, answer: Awaitable[Answer]) -> None:
        try:
            self._finish(context, slot, await answer)
        except Exception as error:
            self._failed(error, None)  # the slot has the lease

    def _finish(self, context: RequestContext, slot: _Slot, answer: Answer) -> None:
        outcome = ErrorCode.NONE
        if answer is None:
            slot.buffers = ()
        elif isinstance(answer, Encoded):
            if answer.buffers:
                slot.buffers = [
                    codec.response_header(context.api_key, context.api_version, context.correlation_id),
                    *answer.buffers,
                ]
            slot.throttle_ms = answer.throttle_ms
            outcome = answer.outcome
        else:
            outcome = worst_error(answer)
            answer = self._throttled(context, slot, answer)
            body = codec.response(context.api_key, context.api_version, answer)
            slot.buffers = [
                codec.response_header(context.api_key, context.api_version, context.correlation_id),
                body,
            ]
        slot.done = True
        self._broker.metrics.request_done(slot.name, outcome, self._broker.clock.monotonic() - slot.started)
        self._flush()

    def _throttled(self, context: RequestContext, slot: _Slot, answer: Fields) -> Fields:
        """The answer with the time for which the client pauses, where the message has a field for it."""
        told = answer.get("throttle_time", 0)
        assert isinstance(told, int)
        slot.throttle_ms = max(told, self._broker.throttling.charge_time(context))
        if slot.throttle_ms > told and "throttle_time" in answer:
            return {**answer, "throttle_time": slot.throttle_ms}
        return answer

    def _flush(self) -> None:
        """Sends the responses that are ready, up to the first that is not.

        After the response to a client that has used more than its quota nothing is read for the time that it
        names, and from then on one request at a time: requests that came already are served."""
        if self._must_authenticate and self._authentication.is_over:
            self._must_authenticate = False
            self._shared.unauthenticated.ended(self)
            self._connection.limit_frames(None)
        while self._slots and self._slots[0].done:
            slot = self._slots.popleft()
            _release(slot.lease)
            if slot.buffers:
                self._connection.send(*slot.buffers)
            self._in_work_max = 1 if slot.throttle_ms else REQUESTS_IN_WORK_MAX
            if slot.throttle_ms:
                self._connection.mute(slot.throttle_ms / 1000)
        if self._authentication.failure and not self._slots:
            self._refuse("authentication_failed", self._authentication.failure, None)
        in_work = len(self._frames) + len(self._slots)
        self._connection.owes_answer = in_work > 0
        if in_work < self._in_work_max:
            self._connection.resume()

    def _unsupported(self, header: RequestHeader, slot: _Slot, frame: memoryview, position: int) -> None:
        """Answers UNSUPPORTED_VERSION to the two requests whose clients understand it; any other request
        closes the connection."""
        answer: bytes | None = None
        if header.api_key == ApiKey.API_VERSIONS:
            answer = codec.unsupported_api_versions(header.correlation_id, self._broker.announced_versions)
        elif header.api_key == ApiKey.PRODUCE and 0 <= header.api_version < produce.VERSION_LOW:
            body = produce.refuse_old_produce(header.api_version, frame, position)
            if body is not None:
                answer = codec.encode_response_frame(
                    header.correlation_id, header.api_key, header.api_version, body
                )
        if answer is not None:
            slot.buffers = [answer]
            slot.done = True
            spent_s = self._broker.clock.monotonic() - slot.started
            self._broker.metrics.request_done(slot.name, ErrorCode.UNSUPPORTED_VERSION, spent_s)
            self._slots.append(slot)
            self._flush()
            return
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"request {slot.name} in version {header.api_version} is not served: see ApiVersions",
        )

    def _refuse(self, kind: str, reason: str, lease: FrameLease | None) -> None:
        now = self._broker.clock.monotonic()
        self._limiter.warning(now, "request_refused", peer=self._connection.peer, reason=reason)
        self._broker.metrics.frame_rejected(kind)
        _release(lease)
        self._connection.close(reason)


def _asks_no_answer(frame: memoryview) -> bool:
    try:
        header, position = codec.parse_request_header(frame)
        if header.api_key != ApiKey.PRODUCE or not api.is_supported(header.api_key, header.api_version):
            return False
        return produce.asks_no_answer(header.api_version, frame[position:])
    except KafkaError:
        return False


def _release(lease: FrameLease | None) -> None:
    if lease is not None:
        lease.release()


async def listen(
    broker: Broker, handlers: Handlers, identities: Mapping[str, ListenerIdentity]
) -> FrameServer:
    """Opens the Kafka listeners, which share their limits.  `identities`: by the listeners' names.  Raises
    ListenerUnusable."""
    configuration = broker.configuration
    abandoned = RateLimitedLines(log, "requests_abandoned", "more_requests_abandoned")
    server = FrameServer(
        max_frame_bytes=configuration.integer("socket.request.max.bytes"),
        max_connections=configuration.integer("max.connections"),
        max_connections_per_address=configuration.integer("max.connections.per.ip"),
        idle_s=configuration.integer("connections.max.idle.ms") / 1000,
        budget=ByteBudget(configuration.integer("queued.max.request.bytes")),
        on_refused=broker.metrics.frame_rejected,
        admits=broker.throttling.admits_connection,
    )
    shared = Shared(LogLimiter(), LoopTurns(broker.clock.monotonic), abandoned, server.unauthenticated)
    for listener in configuration.listeners.kafka:
        identity = identities[listener.name]

        def serve(connection: FrameConnection, identity: ListenerIdentity = identity) -> ClientConnection:
            return ClientConnection(connection, broker, handlers, shared, identity)

        try:
            with opening(listener):
                await server.listen(
                    listener.host, listener.port, serve, identity.tls, identity.security.connections_max
                )
        except ListenerUnusable:
            await server.close()
            raise
    return server
