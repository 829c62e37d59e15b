"""DeleteAcls (31): removes the ACLs that filters find, and names them (KIP-11, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .security_changes import change_security

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
    removed = await change_security(broker, context, wanted, len(request.filters), needs_authorizer=True)
    return {"throttle_time": 0, "filter_results": [_result(each) for each in removed]}


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
