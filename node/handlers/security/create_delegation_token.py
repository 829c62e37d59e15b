"""CreateDelegationToken (38): a token by which programs act as a user for a while (KIP-48, KIP-373)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....security.delegation_tokens import token_hmac
from ....security.principals import Principal
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds
from .token_requests import NEVER_MS, change_token
from .token_sessions import require_session

if TYPE_CHECKING:
    from ....wire.request_types import CreateDelegationTokenRequest


async def handle(broker: Broker, context: RequestContext, request: CreateDelegationTokenRequest) -> Fields:
    owner = requester = context.principal
    name = getattr(request, "owner_principal_name", None)
    if name:
        owner = Principal(getattr(request, "owner_principal_type", None) or "", name)
    answer: dict[str, object] = {
        "principal_type": owner.principal_type,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.principal_type,
        "token_requester_principal_name": requester.name,
        "throttle_time": 0,
    }
    wanted = pb.TokenToCreate(
        token_id=_new_id(broker),
        owner=str(owner),
        renewers=[f"{each.principal_type}:{each.principal_name}" for each in request.renewers],
        max_lifetime_ms=milliseconds(request.max_lifetime),
    )
    try:
        require_session(context)
        if owner != requester:
            broker.permissions.require(context, "owner", str(owner))
        token = await change_token(broker, context, pb.ChangeDelegationTokenRequest(create=wanted))
    except KafkaError as error:
        return answer | {
            "error_code": error.code, "issue_timestamp": NEVER_MS, "expiry_timestamp": NEVER_MS,
            "max_timestamp": NEVER_MS, "token_id": "", "hmac": b"",
        }  # fmt: skip
    return answer | {
        "error_code": ErrorCode.NONE,
        "issue_timestamp": token.issued_at_ms,
        "expiry_timestamp": token.expires_at_ms,
        "max_timestamp": token.ends_at_ms,
        "token_id": token.token_id,
        "hmac": token_hmac(broker.configuration.token_settings().secret, token.token_id),
    }


def _new_id(broker: Broker) -> str:
    """As Kafka writes ids: not beginning with a dash, which tools would take for an option."""
    while True:
        token_id = urlsafe_b64encode(broker.clock.uuid().bytes).decode().rstrip("=")
        if not token_id.startswith("-"):
            return token_id
