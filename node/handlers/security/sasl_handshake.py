"""SaslHandshake (17): the client chooses a mechanism (KIP-43).  A listener without SASL refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import SaslHandshakeRequest


async def handle(broker: Broker, context: RequestContext, request: SaslHandshakeRequest) -> Fields:
    authentication = context.authentication
    reply = (
        None if authentication is None else authentication.handshake(request.mechanism, context.api_version)
    )
    if authentication is None or reply is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
    return {"error_code": reply.error, "mechanisms": list(authentication.listener.security.mechanisms)}
