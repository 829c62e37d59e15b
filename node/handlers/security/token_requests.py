"""The changes of delegation tokens (KIP-48), as the controller makes them."""

from __future__ import annotations

from ....proto import controller_pb2 as pb
from ....proto import metadata_pb2
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .token_sessions import require_session

NEVER_MS = -1


async def change_token(
    broker: Broker, context: RequestContext, request: pb.ChangeDelegationTokenRequest
) -> metadata_pb2.TokenRecord:
    """The token as the controller has changed it.  Raises KafkaError."""
    request.requester = str(context.principal)
    reply = await broker.controller.change_delegation_token(request)
    await broker.topics.wait_for_metadata(reply.metadata_index)
    return reply.token


async def change_end(
    broker: Broker, context: RequestContext, request: pb.ChangeDelegationTokenRequest
) -> Fields:
    """The response to a client that moves the end of a token."""
    code, expires_at_ms = ErrorCode.NONE, NEVER_MS
    try:
        require_session(context)
        expires_at_ms = (await change_token(broker, context, request)).expires_at_ms
    except KafkaError as error:
        code = error.code
    return {"error_code": code, "expiry_timestamp": expires_at_ms, "throttle_time": 0}
