"""Which clients may ask about delegation tokens (KIP-48)."""

from __future__ import annotations

from ....runtime.connections.listeners import SecurityProtocol
from ....security.principals import ANONYMOUS
from ....wire.errors import ErrorCode, KafkaError
from ...serving.requests import RequestContext


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
