"""AlterUserScramCredentials (51): sets and removes SCRAM credentials (KIP-554).

The client sends the salted password; the metadata get what proves it, and cannot be logged in with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....controller.state.security_commands import scram_record
from ....proto import controller_pb2 as pb
from ....security.scram import ScramMechanism, credential_of
from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .security_changes import change_security

if TYPE_CHECKING:
    from ....wire.request_types import AlterUserScramCredentialsRequest

_MECHANISMS = {mechanism.code: mechanism for mechanism in ScramMechanism}


async def handle(
    broker: Broker, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Fields:
    wanted = pb.ChangeSecurityRequest()
    for each in request.upsertions:
        mechanism = _MECHANISMS.get(each.mechanism)
        if mechanism is None:
            wanted.set_scram.add(user=each.name, mechanism=each.mechanism)
            continue
        credential = credential_of(mechanism, each.salted_password, each.salt, each.iterations)
        wanted.set_scram.append(scram_record(each.name, mechanism, credential))
    for gone in request.deletions:
        wanted.remove_scram.add(user=gone.name, mechanism=gone.mechanism)
    users = [each.user for each in (*wanted.set_scram, *wanted.remove_scram)]
    changed = await change_security(broker, context, wanted, len(users))
    results = dict(zip(users, changed, strict=True))  # a user that comes twice is refused as one
    return {
        "throttle_time": 0,
        "results": [
            {"user": user, "error_code": ErrorCode(each.error), "error_message": each.message or None}
            for user, each in results.items()
        ],
    }
