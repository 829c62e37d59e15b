"""ExpireDelegationToken (40): a token ends sooner, or at once (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds
from .token_requests import NEVER_MS, change_token
from .token_sessions import require_session

if TYPE_CHECKING:
    from ....wire.request_types import ExpireDelegationTokenRequest


async def handle(broker: Broker, context: RequestContext, request: ExpireDelegationTokenRequest) -> Fields:
    wanted = pb.TokenEnd(hmac=request.hmac, period_ms=milliseconds(request.expiry_time_period))
    try:
        require_session(context)
        token = await change_token(broker, context, pb.ChangeDelegationTokenRequest(expire=wanted))
    except KafkaError as error:
        return {"error_code": error.code, "expiry_timestamp": NEVER_MS, "throttle_time": 0}
    return {"error_code": ErrorCode.NONE, "expiry_timestamp": token.expires_at_ms, "throttle_time": 0}
