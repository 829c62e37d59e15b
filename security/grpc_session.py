"""A client's side of authentication over gRPC: the exchange, and what it shows with each call
(`session_tokens.py`).  Blocks; the caller opens the channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

import grpc
import grpc.aio

from .client_security import AuthenticationRefused, ClientSecurity
from .sasl_mechanisms import OAUTHBEARER
from .session_tokens import AUTHENTICATE, LIFETIME_KEY, MECHANISM_KEY, SESSION_KEY

EXCHANGE_S_MAX: Final = 10.0

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GrpcSession:
    """What a connection shows with each call."""

    metadata: Metadata = field(default=(), repr=False)
    lifetime_s: float | None = None
    """None: it does not end."""


def authenticate(channel: grpc.Channel, security: ClientSecurity) -> GrpcSession:
    """Raises AuthenticationRefused, SecurityError; grpc.RpcError when the node cannot be reached."""
    if not security.has_sasl:
        return GrpcSession()
    if security.mechanism == OAUTHBEARER:
        assert security.bearer_token is not None
        return GrpcSession((("authorization", f"Bearer {security.bearer_token()}"),), 0.0)
    outgoing: SimpleQueue[bytes | None] = SimpleQueue()
    steps = security.exchange()
    outgoing.put(next(steps))
    method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(AUTHENTICATE)
    call = method(
        iter(outgoing.get, None), metadata=((MECHANISM_KEY, security.mechanism),), timeout=EXCHANGE_S_MAX
    )
    is_over = False
    try:
        for answer in call:
            try:
                outgoing.put(steps.send(answer))
            except StopIteration:
                is_over = True
    except grpc.RpcError as failure:
        assert isinstance(failure, grpc.Call)
        if failure.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise AuthenticationRefused(failure.details()) from None
        raise
    finally:
        outgoing.put(None)
        call.cancel()
    given = {key: str(value) for key, value in call.trailing_metadata() or ()}
    if not is_over or SESSION_KEY not in given:
        raise AuthenticationRefused("the node ended the exchange early")
    return GrpcSession(
        (("authorization", f"Session {given[SESSION_KEY]}"),), int(given.get(LIFETIME_KEY, "0")) / 1000
    )


async def authenticated(
    channel: grpc.aio.Channel, security: ClientSecurity, timeout_s: float = EXCHANGE_S_MAX
) -> Metadata:
    """The same on the running loop, for a channel that lives for a few calls: what they show.  Raises
    AuthenticationRefused, SecurityError; grpc.aio.AioRpcError when the node refuses, or cannot be reached."""
    steps = security.exchange()
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(AUTHENTICATE)
    call = method(metadata=((MECHANISM_KEY, security.mechanism),), timeout=timeout_s)
    token, is_over = next(steps), False
    while not is_over:
        await call.write(token)
        answer = await call.read()
        if not isinstance(answer, bytes):
            raise AuthenticationRefused("the node ended the exchange early")
        try:
            token = steps.send(answer)
        except StopIteration:
            is_over = True
    await call.read()  # the end, with which the token comes
    given = {key: str(value) for key, value in await call.trailing_metadata()}
    if SESSION_KEY not in given:
        raise AuthenticationRefused("the node ended the exchange early")
    return (("authorization", f"Session {given[SESSION_KEY]}"),)
