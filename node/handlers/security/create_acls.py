"""CreateAcls (30): adds ACLs, each for itself (KIP-11, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .describe_acls import NO_AUTHORIZER

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
    try:
        if not broker.permissions.is_enabled:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        broker.permissions.require(context, "cluster")
        reply = await broker.controller.change_security(wanted)
    except KafkaError as error:
        failed = {"error_code": error.code, "error_message": error.message or None}
        return {"throttle_time": 0, "results": [failed] * len(request.creations)}
    await broker.topics.wait_for_metadata(reply.metadata_index)
    results = [{"error_code": each.error, "error_message": each.message or None} for each in reply.results]
    return {"throttle_time": 0, "results": results}
