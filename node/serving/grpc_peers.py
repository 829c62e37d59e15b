"""Only nodes call the controller's gRPC service, and each only for itself.

The listener of that service has mutual TLS (`MutualTls`), so each connection has a verified certificate.
`NodesOnly` refuses a call of the controller's service

* whose certificate names no node: UNAUTHENTICATED;
* whose request says `node_id` for another node than those that the certificate names: PERMISSION_DENIED.

Other services on the same server are none of its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import grpc

from ...proto import controller_pb2
from ...runtime.connections.frames import LogLimiter
from ...runtime.connections.tls import named_nodes

_refusals: Final = LogLimiter()

CONTROLLER: Final = f"/{controller_pb2.DESCRIPTOR.services_by_name['Controller'].full_name}/"
ABOUT_ANOTHER_NODE: Final = frozenset({"UnregisterBroker"})
"""In these requests `node_id` is not the caller's: clients ask for them through any broker."""


class NodesOnly(grpc.aio.ServerInterceptor):
    """See the module's text."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(CONTROLLER):
            return handler
        names_caller = method.removeprefix(CONTROLLER) not in ABOUT_ANOTHER_NODE
        return _stream(handler, names_caller) if handler.response_streaming else _unary(handler, names_caller)


def _unary(handler: Any, names_caller: bool) -> grpc.RpcMethodHandler[Any, Any]:
    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await _require(request, context, names_caller)
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
        answer, handler.request_deserializer, handler.response_serializer
    )


def _stream(handler: Any, names_caller: bool) -> grpc.RpcMethodHandler[Any, Any]:
    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        await _require(request, context, names_caller)
        async for each in handler.unary_stream(request, context):
            yield each

    return grpc.unary_stream_rpc_method_handler(
        answer, handler.request_deserializer, handler.response_serializer
    )


def refusal(
    dns_names: Iterable[str], request: Any, *, names_caller: bool
) -> tuple[grpc.StatusCode, str] | None:
    """Why a call of a connection with this certificate is refused; None when it is answered."""
    nodes = named_nodes(dns_names)
    if not nodes:
        return grpc.StatusCode.UNAUTHENTICATED, "the certificate of this connection names no node"
    if names_caller and "node_id" in request.DESCRIPTOR.fields_by_name and request.node_id not in nodes:
        return (
            grpc.StatusCode.PERMISSION_DENIED,
            f"a certificate of nodes {sorted(nodes)} does not speak for node {request.node_id}",
        )
    return None


async def _require(request: Any, context: grpc.aio.ServicerContext[Any, Any], names_caller: bool) -> None:
    """Ends the call when it is refused."""
    names = [name.decode(errors="replace") for name in context.auth_context().get("peer_dns", ())]
    refused = refusal(names, request, names_caller=names_caller)
    if refused is not None:
        _refusals.warning(
            asyncio.get_running_loop().time(), "node_call_refused", peer=context.peer(), reason=refused[1]
        )
        await context.abort(*refused)
