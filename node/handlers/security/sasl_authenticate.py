"""SaslAuthenticate (36): the next token of the client's exchange (KIP-152, KIP-368).

The answer to a failure waits (`connection.failed.authentication.delay.ms`), so that passwords cannot be tried
quickly; after it the listener closes the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import SaslAuthenticateRequest

_WITHOUT_SASL = "SaslAuthenticate request received after successful authentication"


async def handle(broker: Broker, context: RequestContext, request: SaslAuthenticateRequest) -> Fields:
    authentication = context.authentication
    reply = None if authentication is None else authentication.authenticate(request.auth_bytes)
    if authentication is None or reply is None:
        return {
            "error_code": ErrorCode.ILLEGAL_SASL_STATE, "error_message": _WITHOUT_SASL, "auth_bytes": b"",
            "session_lifetime": 0,
        }  # fmt: skip
    if authentication.failure:
        await broker.clock.sleep(authentication.listener.security.failure_delay_s)
    return {
        "error_code": reply.error,
        "error_message": reply.message,
        "auth_bytes": reply.token,
        "session_lifetime": reply.session_lifetime_ms,
    }
