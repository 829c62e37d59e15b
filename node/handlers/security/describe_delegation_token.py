"""DescribeDelegationToken (41): the tokens that the client may know, with their HMACs (KIP-48, KIP-373)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....security.delegation_tokens import DelegationToken, token_hmac
from ....security.principals import Principal
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .token_sessions import require_session

if TYPE_CHECKING:
    from ....wire.request_types import DescribeDelegationTokenRequest


async def handle(broker: Broker, context: RequestContext, request: DescribeDelegationTokenRequest) -> Fields:
    secret = broker.configuration.token_settings().secret
    try:
        require_session(context)
        if not secret:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "set delegation.token.secret.key")
    except KafkaError as error:
        return {"error_code": error.code, "tokens": [], "throttle_time": 0}
    owners = None
    if request.owners is not None:
        owners = [Principal(each.principal_type, each.principal_name) for each in request.owners]
    tokens = [
        _described(token, secret)
        for token in broker.state.security.tokens.values()
        if (owners is None or any(token.is_known_to(owner) for owner in owners))
        and _may_know(broker, context, token)
    ]
    return {"error_code": ErrorCode.NONE, "tokens": tokens, "throttle_time": 0}


def _may_know(broker: Broker, context: RequestContext, token: DelegationToken) -> bool:
    return (
        token.is_known_to(context.principal)
        or broker.permissions.allows(context, "token", token.token_id)
        or broker.permissions.allows(context, "owner", str(token.owner))
    )


def _described(token: DelegationToken, secret: bytes) -> dict[str, object]:
    return {
        "principal_type": token.owner.principal_type,
        "principal_name": token.owner.name,
        "token_requester_principal_type": token.requester.principal_type,
        "token_requester_principal_name": token.requester.name,
        "issue_timestamp": token.issued_at_ms,
        "expiry_timestamp": token.expires_at_ms,
        "max_timestamp": token.ends_at_ms,
        "token_id": token.token_id,
        "hmac": token_hmac(secret, token.token_id),
        "renewers": [
            {"principal_type": each.principal_type, "principal_name": each.name} for each in token.renewers
        ],
    }
