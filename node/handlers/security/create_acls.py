"""CreateAcls (30): adds ACLs, each for itself (KIP-11, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .security_changes import change_security

if TYPE_CHECKING:
    from ....wire.request_types import CreateAclsRequest


async def handle(broker: Broker, context: RequestContext, request: CreateAclsRequest) -> Fields:
    wanted = pb.ChangeSecurityRequest()
    for each in request.creations:
        wanted.create_acls.add(
            resource_type=each.resource_type,
            pattern_type=each.resource_pattern_type,
            name=each.resource_name,
            principal=each.principal,
            host=each.host,
            operation=each.operation,
            permission=each.permission_type,
        )
    made = await change_security(broker, context, wanted, len(request.creations), needs_authorizer=True)
    results = [{"error_code": each.error, "error_message": each.message or None} for each in made]
    return {"throttle_time": 0, "results": results}
