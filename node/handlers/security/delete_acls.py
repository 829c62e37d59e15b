"""DeleteAcls (31): removes the ACLs that filters find, and names them (KIP-11, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .describe_acls import NO_AUTHORIZER

if TYPE_CHECKING:
    from ....wire.request_types import DeleteAclsRequest


async def handle(broker: Broker, context: RequestContext, request: DeleteAclsRequest) -> Fields:
    wanted = pb.ChangeSecurityRequest()
    for each in request.filters:
        wanted.delete_acls.add(
            resource_type=each.resource_type_filter,
            name=each.resource_name_filter,
            pattern_type=each.pattern_type_filter,
            principal=each.principal_filter,
            host=each.host_filter,
            operation=each.operation,
            permission=each.permission_type,
        )
    try:
        if not broker.permissions.is_enabled:
            raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)
        broker.permissions.require(context, "cluster")
        reply = await broker.controller.change_security(wanted)
    except KafkaError as error:
        failed = pb.SecurityResult(error=int(error.code), message=error.message)
        return {"throttle_time": 0, "filter_results": [_result(failed) for _ in request.filters]}
    await broker.topics.wait_for_metadata(reply.metadata_index)
    return {"throttle_time": 0, "filter_results": [_result(each) for each in reply.results]}


def _result(result: pb.SecurityResult) -> dict[str, object]:
    return {
        "error_code": result.error,
        "error_message": result.message or None,
        "matching_acls": [
            {
                "error_code": ErrorCode.NONE,
                "error_message": None,
                "resource_type": acl.resource_type,
                "resource_name": acl.name,
                "pattern_type": acl.pattern_type,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
            for acl in result.acls
        ],
    }
