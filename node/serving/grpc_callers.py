"""The identity of the client of a gRPC call, and what the client may do.

| what the call shows | principal |
|---|---|
| `authorization: Session <token>` | of the SASL exchange that gave this connection the token |
| `authorization: Bearer <token>` | of the bearer token (OAUTHBEARER), which is checked at each call |
| a certificate of the client | as on a Kafka listener (`ssl.principal.mapping.rules`) |
| nothing | ANONYMOUS |

On a listener with SASL only the first two count: a certificate opens the connection, and proves no more.

`GrpcAccess` stands before every service of the server: a call without an identity ends before its message is
read, and a principal has so many calls at a time.  The services ask `require` for the right of the
call's method (`METHOD_RIGHTS`), at the beginning, and streams again before each chunk.

A client with SASL carries out the exchange by one call (`session_tokens.py`): both streams carry the
mechanism's tokens as they are, metadata name the mechanism, and the last word of the node, its trailing
metadata, has the session token and its lifetime.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio
from cryptography import x509

from ...runtime import logs
from ...runtime.calm_logs import RateLimitedLines
from ...security.acls import CLUSTER_NAME
from ...security.principals import ANONYMOUS, USER_TYPE, InvalidPrincipal, Principal, attribute_name
from ...security.request_rights import METHOD_RIGHTS, Right
from ...security.sasl import SaslState
from ...security.sasl_mechanisms import OAUTHBEARER, TokenRefused
from ...security.session_tokens import (
    AUTHENTICATE,
    AUTHENTICATION_SERVICE,
    LIFETIME_KEY,
    MECHANISM_KEY,
    SESSION_KEY,
    SessionTokens,
)
from ...wire.errors import ErrorCode, KafkaError
from .authentication import ListenerIdentity
from .permissions import Permissions

log = logs.get(__name__)

EXCHANGE_S_MAX: Final = 10.0
NAME_CHARACTERS_MAX: Final = 250
"""Of a name in a refusal, which travels in the metadata of a call: gRPC bounds them at 8 KiB."""
EXCHANGES_MAX: Final = 200
CALLS_PER_PRINCIPAL_MAX: Final = 1_000

Context = grpc.aio.ServicerContext[Any, Any]
OnRefused = Callable[[Principal, str, str, str, Right, str], None]


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a call."""

    principal: Principal
    host: str
    ends_at_ms: int | None = None
    """When its session or token ends; None: never."""


class GrpcAccess:
    """See the module's text.  Used on the node's loop."""

    def __init__(
        self,
        identity: ListenerIdentity,
        permissions: Permissions,
        *,
        tokens: SessionTokens | None = None,
        calls_per_principal_max: int = CALLS_PER_PRINCIPAL_MAX,
        on_refused: OnRefused = lambda *_: None,
    ) -> None:
        """`on_refused(principal, listener, address, method, right, name)`: for the audit log."""
        self._on_refused = on_refused
        self._identity = identity
        self._permissions = permissions
        self._tokens = tokens or SessionTokens()
        self._calls_max = calls_per_principal_max
        self._calls: Counter[Principal] = Counter()
        self._exchanges: dict[asyncio.Timeout, None] = {}  # the oldest first
        self._failures = RateLimitedLines(log, "authentication_failed", "authentications_failed")

    # --- identity -------------------------------------------------------------------------------------------

    def caller(self, context: Context) -> Caller:
        """The client of a call.  Raises KafkaError when it has no identity."""
        peer = context.peer()
        shown = dict(context.invocation_metadata() or ()).get("authorization")
        if shown is not None:
            return self._authorized(shown if isinstance(shown, str) else shown.decode("latin-1"), peer)
        if self._identity.security.has_sasl:
            raise _unauthenticated("authenticate first: this listener wants a session token")
        certificate = context.auth_context().get("x509_pem_cert")
        if certificate:
            return Caller(self._certified(next(iter(certificate))), _host(peer))
        return Caller(ANONYMOUS, _host(peer))

    def _authorized(self, shown: str, peer: str) -> Caller:
        scheme, _, token = shown.partition(" ")
        now_ms = self._identity.now_ms()
        if scheme == "Session":
            session = self._tokens.find(token, peer, now_ms)
            if session is None:
                raise _unauthenticated("the session has ended, or is another connection's")
            return Caller(session.principal, _host(peer), session.ends_at_ms)
        if scheme != "Bearer" or OAUTHBEARER not in self._identity.security.mechanisms:
            raise _unauthenticated("this listener does not take such an authorization")
        try:
            proved = self._identity.bearer_identity(token, now_ms)
        except TokenRefused as refused:
            self._failed(peer, str(refused))
            raise _unauthenticated("the bearer token is not accepted") from refused
        return Caller(proved.principal, _host(peer), proved.expires_at_ms)

    def _certified(self, pem: bytes) -> Principal:
        try:
            return Principal(USER_TYPE, self._identity.security.mapper.name(subject_name(pem)))
        except InvalidPrincipal as error:
            raise _unauthenticated(str(error)) from error

    # --- rights ---------------------------------------------------------------------------------------------

    def allows(self, caller: Caller, method: str, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may call this method for what it names."""
        return self._permissions.permits(caller.principal, caller.host, METHOD_RIGHTS[method], name)

    def require(self, caller: Caller, method: str, name: str = CLUSTER_NAME) -> None:
        """Raises KafkaError when the client may not, or its session has ended."""
        if caller.ends_at_ms is not None and self._identity.now_ms() >= caller.ends_at_ms:
            raise _unauthenticated("the session has ended")
        if not self.allows(caller, method, name):
            raise self.refusal(caller, method, name)

    def refusal(self, caller: Caller, method: str, name: str) -> KafkaError:
        """The answer to a client that may not, for what it has named itself; it gets a line in the audit
        log."""
        right, listener = METHOD_RIGHTS[method], self._identity.security.name
        self._on_refused(caller.principal, listener, caller.host, method, right, name)
        shown = name if len(name) <= NAME_CHARACTERS_MAX else name[:NAME_CHARACTERS_MAX] + "..."
        return KafkaError(
            right.error,
            f"{caller.principal} lacks {right.operation.name} on {right.resource_type.name} {shown}",
        )

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[None]:
        """One more call of this principal, for as long as it lasts.  Raises KafkaError at too many."""
        if self._calls[caller.principal] >= self._calls_max:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{caller.principal} has {self._calls_max} calls in progress at this node: try again",
            )
        self._calls[caller.principal] += 1
        try:
            yield
        finally:
            self._calls[caller.principal] -= 1
            if not self._calls[caller.principal]:
                del self._calls[caller.principal]

    # --- the exchange ---------------------------------------------------------------------------------------

    async def authenticate(self, _: AsyncIterator[bytes], context: Context) -> None:
        """AUTHENTICATE."""
        if len(self._exchanges) >= EXCHANGES_MAX:  # silent clients keep none out that is quick
            oldest = next(iter(self._exchanges))
            del self._exchanges[oldest]
            if not oldest.expired():
                oldest.reschedule(0)
        time_left, refusal = asyncio.timeout(EXCHANGE_S_MAX), ""
        try:
            async with time_left:
                self._exchanges[time_left] = None
                refusal = await self._exchange(context)
                if refusal:
                    await self._identity.clock.sleep(self._identity.security.failure_delay_s)
        except TimeoutError:
            late = f"the exchange took longer than {EXCHANGE_S_MAX:g} s, or {EXCHANGES_MAX} newer ones came"
            refusal = refusal or late
        finally:
            self._exchanges.pop(time_left, None)
        if refusal:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, refusal)

    async def _exchange(self, context: Context) -> str:
        """Why the client is refused; empty when it has its session."""
        session = self._identity.session()
        if session is None:
            return "this listener has no SASL"
        mechanism = str(dict(context.invocation_metadata() or ()).get(MECHANISM_KEY, ""))
        reply = session.handshake(mechanism, 1, self._identity.now_ms())
        if reply.error is not ErrorCode.NONE:
            enabled = ", ".join(self._identity.security.mechanisms)
            return f"{mechanism or 'no mechanism'} is not enabled here, but {enabled}"
        while session.state is SaslState.CHALLENGED:
            token = await context.read()
            if not isinstance(token, bytes):  # gRPC's mark of the end
                return "the exchange ended early"
            if len(token) > self._identity.security.token_bytes_max:
                return "a token of the exchange is too long"
            reply = session.authenticate(token, self._identity.now_ms())
            if reply.error is not ErrorCode.NONE:
                self._failed(context.peer(), reply.detail)
                return reply.message or reply.error.name
            await context.write(reply.token)
        assert session.principal is not None
        issued, lifetime_ms = self._tokens.issue(
            session.principal, context.peer(), self._identity.now_ms(), session.ends_at_ms
        )
        context.set_trailing_metadata(((SESSION_KEY, issued), (LIFETIME_KEY, str(lifetime_ms))))
        return ""

    def _failed(self, peer: str, reason: str) -> None:
        self._failures.line(
            self._identity.clock.monotonic(), _host(peer), listener=self._identity.security.name,
            address=_host(peer), reason=reason,
        )  # fmt: skip


class GrpcGuard(grpc.aio.ServerInterceptor):
    """Lets no call without an identity through, and none beyond its principal's share.

    To gRPC each guarded method takes a stream, whose one message the guard reads when it knows the client:
    gRPC would read a request of up to `GRPC_MESSAGE_BYTES_MAX` of any client first.
    """

    def __init__(self, access: GrpcAccess, *, unguarded: tuple[str, ...] = ()) -> None:
        """`unguarded`: prefixes of methods that know their callers in another way."""
        self._access = access
        self._unguarded = (AUTHENTICATE, *unguarded)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Adds the exchange."""
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
            self._access.authenticate
        )
        handler = grpc.method_handlers_generic_handler(AUTHENTICATION_SERVICE, {"Authenticate": method})
        server.add_generic_rpc_handlers((handler,))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(self._unguarded):
            return handler
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._guarded(handler.unary_unary), **codec)
        assert handler.unary_stream is not None, "no service takes a stream"
        return grpc.stream_stream_rpc_method_handler(self._guarded_stream(handler.unary_stream), **codec)

    def _guarded(self, behave: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        async def guarded(_: AsyncIterator[Any], context: Context) -> object:
            try:
                with self._access.counted(self._access.caller(context)):
                    return await behave(await _message(context), context)
            except KafkaError as refused:
                await _abort(context, refused)

        return guarded

    def _guarded_stream(self, behave: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        async def guarded(_: AsyncIterator[Any], context: Context) -> AsyncIterator[object]:
            try:
                with self._access.counted(self._access.caller(context)):
                    async for answer in behave(await _message(context), context):
                        yield answer
            except KafkaError as refused:
                await _abort(context, refused)

        return guarded


def subject_name(pem: bytes) -> str:
    """As `distinguished_name`, of a PEM certificate, which gRPC has verified."""
    subject = x509.load_pem_x509_certificate(pem).subject
    return subject.rfc4514_string({each.oid: attribute_name(each.oid.dotted_string) for each in subject})


async def _message(context: Context) -> object:
    """The one that a call has."""
    message: object = await context.read()
    if message is grpc.aio.EOF:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
    return message


async def _abort(context: Context, refused: KafkaError) -> NoReturn:
    unauthenticated = refused.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    status = grpc.StatusCode.UNAUTHENTICATED if unauthenticated else grpc.StatusCode.RESOURCE_EXHAUSTED
    await context.abort(status, refused.message)


def _unauthenticated(message: str) -> KafkaError:
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)


def _host(peer: str) -> str:
    """The IP address of `ipv4:10.0.0.1:4000` or `ipv6:%5B::1%5D:4000`."""
    return unquote(peer.partition(":")[2]).rpartition(":")[0].strip("[]")
