"""The interface between the listener and the request handlers: what a handler receives and what it returns.

A new request is a module in `handlers/` with `async def handle(broker, context, request)`, and a line in
`HANDLERS`.  `request` is the decoded message.  What the handler returns says how the connection goes on:

| the request waits | returns | the connection's next request begins |
|---|---|---|
| not, or for one answer, of the controller, a shard, a thread: nearly all | the fields | after the answer |
| for what other clients do: Fetch, JoinGroup, SyncGroup | `Deferred` | at once |
| for the commit of what it has appended: Produce (acks=all), WriteTxnMarkers | `Deferred` | at once |
| while other producers use its connection: AddPartitionsToTxn (from version 4 on) | `Deferred` | at once |

Responses leave in the order of their requests in any case, so a handler that waits for long without
`Deferred` holds up its connection, and no other one.  What must happen before the connection's next request
(an append) happens before the handler returns its `Deferred`.

Produce and Fetch, which carry nearly all bytes, have another form, `begin(broker, context, body) -> Staged`:
`begin` parses the undecoded body without an `await`, `verify` asks other nodes, side by side with those of
other requests, and `execute` runs in the order of the requests, and returns what a handler does.

**Errors.**  Every handler builds the answer for the errors that it meets: it catches the KafkaError of what
it calls (the controller, a shard, the replica manager) and puts the code where this response has it, at the
top or at each partition.  A KafkaError that leaves a handler, or its `Deferred`, closes the connection, and
the client cannot see why: only an acks=0 produce, which has no response, does that on purpose.
`tests/node/test_handler_errors.py` tries every handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ...runtime.turns import Account
from ...security.principals import ANONYMOUS, Principal
from ...wire.errors import ErrorCode

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

    from .authentication import Authentication

Fields = Mapping[str, object]
"""Of a response, by their names in the schema; the listener encodes them for the version of the request."""


NO_NODES: Final[frozenset[int]] = frozenset()


async def _next_round() -> None:
    await asyncio.sleep(0)


@dataclass(slots=True)
class ClientSoftware:
    """The name and version that the client of a connection sent in ApiVersions (KIP-511), and its port."""

    software_name: str = ""
    software_version: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The client and the version of a request.  `client_host` is an IP address as text.  A handler with much
    to do awaits `yield_loop` from time to time: other connections run, and it returns when it is this
    connection's turn again."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    client_host: str
    yield_loop: Callable[[], Awaitable[None]] = _next_round
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Fetch reads within `async with context.turn()`: one append wakes very many fetches, which would all
    read in one round of the loop.  Other `Deferred` answers have little left to do when their wait ends."""
    client: ClientSoftware = field(default_factory=ClientSoftware)
    authentication: Authentication | None = None
    """Of the connection; None: the client is anonymous."""
    listener_name: str = "PLAINTEXT"
    """The listener on which the request came: the response has addresses of brokers on the same one."""
    account: Account | None = None
    """The time on the node's loop that the connection has used."""

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes that the client's certificate names, on the brokers' listener; none for other clients."""
        return NO_NODES if self.authentication is None else self.authentication.nodes

    @property
    def principal(self) -> Principal:
        """The client."""
        return ANONYMOUS if self.authentication is None else self.authentication.principal


@dataclass(frozen=True, slots=True)
class Encoded:
    """A response whose body the handler has encoded (hot messages): buffers that the listener sends without a
    copy.  `outcome` is the most severe error in it, for the metrics."""

    buffers: Sequence[Buffer]
    outcome: ErrorCode = ErrorCode.NONE
    throttle_ms: int = 0
    """So long the connection is muted after the response (`throttling.py`).  Without buffers there is no
    response."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A response that comes later; the connection's next request begins before it (see the module's text)."""

    answer: Awaitable[Encoded | Fields | None]


@dataclass(frozen=True, slots=True)
class Staged:
    """A request that is decoded and not executed.  `verify` asks other nodes (None: there is nothing to ask)
    and may run at the same time as that of other requests; `execute` runs after it, and after `execute` of
    all earlier requests of the connection."""

    verify: Callable[[], Awaitable[None]] | None
    execute: Callable[[], Awaitable[Encoded | Fields | Deferred | None]]
    unanswered: bool = False
    """The client expects no response (acks=0): the listener executes the request also after the connection is
    closed."""


def most_severe_error(codes: Iterable[ErrorCode]) -> ErrorCode:
    """The first code that is not retriable, else the first error; NONE when there is no error."""
    worst = ErrorCode.NONE
    for code in codes:
        if code is not ErrorCode.NONE and (
            worst is ErrorCode.NONE or (worst.retriable and not code.retriable)
        ):
            worst = code
    return worst


def worst_error(fields: Fields) -> ErrorCode:
    """The most severe error code anywhere in a response."""
    return most_severe_error(_error_codes(fields))


def _error_codes(fields: Fields) -> Iterator[ErrorCode]:
    pending: list[Fields] = [fields]
    while pending:
        for name, value in pending.pop().items():
            if type(value) is list:
                if value and isinstance(value[0], Mapping):
                    pending.extend(value)
            elif value and name.endswith("error_code"):
                assert isinstance(value, int)
                yield ErrorCode.from_wire(value)


def milliseconds(value: timedelta) -> int:
    """Milliseconds of a timeout, which kio decodes as a timedelta."""
    return int(value.total_seconds() * 1000)


def for_version(code: ErrorCode, *, fenced_known: bool = True, abortable_known: bool = True) -> ErrorCode:
    """The code for a client whose version of the request does not have `code`: INVALID_PRODUCER_EPOCH for
    PRODUCER_FENCED (KIP-588), INVALID_TXN_STATE for TRANSACTION_ABORTABLE (KIP-890)."""
    if code is ErrorCode.PRODUCER_FENCED and not fenced_known:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not abortable_known:
        return ErrorCode.INVALID_TXN_STATE
    return code


class CooperativeYield:
    """Lets other connections run within a long request, each time after `ENTRIES` entries or `BYTES` bytes of
    records.

    Only for handlers that read the state anew for each entry: it may change whenever they yield.
    """

    __slots__ = ("_bytes", "_entries", "_yield_loop")
    ENTRIES = 250
    BYTES = 1 << 20

    def __init__(self, context: RequestContext) -> None:
        self._yield_loop = context.yield_loop
        self._entries = self._bytes = 0

    async def before_next(self, work_bytes: int = 0) -> None:
        """Called before each entry, with the bytes that working on it will go through."""
        if self._entries >= self.ENTRIES or self._bytes >= self.BYTES:
            self._entries = self._bytes = 0
            await self._yield_loop()
        self._entries += 1
        self._bytes += work_bytes
