"""What the requests for delegation tokens (KIP-48) have in common."""

from __future__ import annotations

from ....proto import controller_pb2 as pb
from ....proto import metadata_pb2
from ....runtime.listeners import SecurityProtocol
from ....security.principals import ANONYMOUS
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import RequestContext

NEVER_MS = -1


def require_session(context: RequestContext) -> None:
    """Raises KafkaError for a client that has not proved who it is, or only by a token."""
    authentication = context.authentication
    protocol = (
        SecurityProtocol.PLAINTEXT if authentication is None else authentication.listener.security.protocol
    )
    is_anonymous = protocol is SecurityProtocol.SSL and context.principal == ANONYMOUS
    if context.principal.token_authenticated or protocol is SecurityProtocol.PLAINTEXT or is_anonymous:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
            "a client gets tokens over SASL or with a certificate, and not by a token",
        )


async def change_token(
    broker: Broker, context: RequestContext, request: pb.ChangeDelegationTokenRequest
) -> metadata_pb2.TokenRecord:
    """The token as the controller has changed it.  Raises KafkaError."""
    request.requester = str(context.principal)
    reply = await broker.controller.change_delegation_token(request)
    await broker.topics.wait_for_metadata(reply.metadata_index)
    return reply.token
