"""The changes of delegation tokens (KIP-48), as the controller makes them."""

from __future__ import annotations

from ....proto import controller_pb2 as pb
from ....proto import metadata_pb2
from ...serving.broker import Broker
from ...serving.requests import RequestContext

NEVER_MS = -1


async def change_token(
    broker: Broker, context: RequestContext, request: pb.ChangeDelegationTokenRequest
) -> metadata_pb2.TokenRecord:
    """The token as the controller has changed it.  Raises KafkaError."""
    request.requester = str(context.principal)
    reply = await broker.controller.change_delegation_token(request)
    await broker.topics.wait_for_metadata(reply.metadata_index)
    return reply.token
