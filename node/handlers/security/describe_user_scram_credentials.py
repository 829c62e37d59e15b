"""DescribeUserScramCredentials (50): which users have which SCRAM credentials; nothing secret (KIP-554)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import DescribeUserScramCredentialsRequest


async def handle(
    broker: Broker, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> Fields:
    refused = broker.permissions.refusal(context, "cluster")
    if refused is not ErrorCode.NONE:
        unseen: dict[str, object] = {"error_code": refused, "error_message": None, "credential_infos": []}
        return {
            "throttle_time": 0,
            "error_code": refused,
            "error_message": None,
            "results": [{"user": user.name, **unseen} for user in request.users or ()],
        }
    infos: dict[str, list[dict[str, int]]] = {}
    for (user, mechanism), credential in broker.state.security.scram.items():
        infos.setdefault(user, []).append({"mechanism": mechanism.code, "iterations": credential.iterations})
    asked = [user.name for user in request.users] if request.users else sorted(infos)
    times = Counter(asked)
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "results": [_result(name, times[name], infos) for name in dict.fromkeys(asked)],
    }


def _result(name: str, times: int, infos: Mapping[str, list[dict[str, int]]]) -> dict[str, object]:
    code, message = ErrorCode.NONE, None
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif name not in infos:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {name}"
    found = [] if message else sorted(infos[name], key=lambda info: info["mechanism"])
    return {"user": name, "error_code": code, "error_message": message, "credential_infos": found}
