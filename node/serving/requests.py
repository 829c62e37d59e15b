"""What a request handler is given and what it gives back.

A handler is `async def handle(broker, context, request) -> Fields`, one module a request in `handlers/`.  `request` is the
decoded message, `Fields` the response's fields, encoded for the version the client asked for.  Requests of one connection are
handled one after another, in order; a handler that has done its work but must wait for others (an acks=all produce) returns a
`Deferred` instead: the next request of the connection starts at once, while the answers still leave in order.

A request that has to ask another node before it may do its work is `Staged`: the questions of requests that follow each other are
asked together, and the work is still done in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ...wire.errors import ErrorCode

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

Fields = Mapping[str, Any]


async def _next_round() -> None:
    await asyncio.sleep(0)


@dataclass(slots=True)
class ClientSoftware:
    """What a connection's client has said of itself (ApiVersions, KIP-511), and its port."""

    software_name: str = ""
    software_version: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and in which version.  `client_host` is an IP address as text.  With `give_way` a long request lets others go
    first from time to time; it returns when it is this connection's turn again."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    client_host: str
    give_way: Callable[[], Awaitable[None]] = _next_round
    turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """What a `Deferred` answer does after it has waited belongs into `async with context.turn()`: otherwise all that wait for the
    same event would be answered at once, in one round of the loop."""
    client: ClientSoftware = field(default_factory=ClientSoftware)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A response whose body was encoded by hand (hot messages): buffers that are sent without being copied.  `outcome` is the
    worst error in it, for the metrics."""

    buffers: Sequence[Buffer]
    outcome: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Deferred:
    """A response that is still to come; the connection goes on with its next request meanwhile."""

    answer: Awaitable[Encoded | Fields | None]


@dataclass(frozen=True, slots=True)
class Staged:
    """A request of which nothing is done yet.  `asked` (None: nothing to ask) may run beside those of others; `work` follows it,
    after the work of all earlier requests of the connection."""

    asked: Callable[[], Awaitable[None]] | None
    work: Callable[[], Awaitable[Encoded | Fields | Deferred | None]]
    unanswered: bool = False
    """Nobody waits for an answer: it is done also when the connection is gone."""


def most_severe_error(codes: Iterable[ErrorCode]) -> ErrorCode:
    """One that no retry mends before one that a retry may mend; NONE when nothing went wrong."""
    worst = ErrorCode.NONE
    for code in codes:
        if code is not ErrorCode.NONE and (worst is ErrorCode.NONE or (worst.retriable and not code.retriable)):
            worst = code
    return worst


def worst_error(fields: Fields) -> ErrorCode:
    """The most_severe_error error code anywhere in an answer."""
    return most_severe_error(_error_codes(fields))


def _error_codes(fields: Fields) -> Iterator[ErrorCode]:
    pending: list[Any] = [fields]
    while pending:
        for name, value in pending.pop().items():
            if type(value) is list:
                if value and isinstance(value[0], Mapping):
                    pending.extend(value)
            elif value and name.endswith("error_code"):
                yield ErrorCode.from_wire(value)


def milliseconds(value: timedelta) -> int:
    """kio decodes timeouts to timedelta; the broker counts in milliseconds."""
    return int(value.total_seconds() * 1000)


def for_version(code: ErrorCode, *, fenced_known: bool = True, abortable_known: bool = True) -> ErrorCode:
    """Codes that came later, as older versions of a request know the same thing: PRODUCER_FENCED (KIP-588) was
    INVALID_PRODUCER_EPOCH, TRANSACTION_ABORTABLE (KIP-890) was INVALID_TXN_STATE."""
    if code is ErrorCode.PRODUCER_FENCED and not fenced_known:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not abortable_known:
        return ErrorCode.INVALID_TXN_STATE
    return code


class CooperativeYield:
    """Shares the loop within a long request: others get their turn after so many entries, or bytes of records.

    For handlers whose work on one entry does not rest on what they saw before it: anything may happen in between.
    """

    __slots__ = ("_bytes", "_entries", "_give_way")
    ENTRIES = 250
    BYTES = 1 << 20

    def __init__(self, context: RequestContext) -> None:
        self._give_way = context.give_way
        self._entries = self._bytes = 0

    async def before_next(self, work_bytes: int = 0) -> None:
        """Called before each entry, with the bytes that working on it will go through."""
        if self._entries >= self.ENTRIES or self._bytes >= self.BYTES:
            self._entries = self._bytes = 0
            await self._give_way()
        self._entries += 1
        self._bytes += work_bytes
