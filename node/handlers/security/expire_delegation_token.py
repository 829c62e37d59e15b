"""ExpireDelegationToken (40): a token ends sooner, or at once (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds
from .token_requests import change_end

if TYPE_CHECKING:
    from ....wire.request_types import ExpireDelegationTokenRequest


async def handle(broker: Broker, context: RequestContext, request: ExpireDelegationTokenRequest) -> Fields:
    wanted = pb.TokenEnd(hmac=request.hmac, period_ms=milliseconds(request.expiry_time_period))
    return await change_end(broker, context, pb.ChangeDelegationTokenRequest(expire=wanted))
