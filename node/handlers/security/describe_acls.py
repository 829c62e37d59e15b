"""DescribeAcls (29): the ACLs that a filter finds (KIP-11, KIP-290)."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ....security.acls import AclFilter, AclOperation, PatternType, PermissionType, ResourceType
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .security_changes import require_authorizer

if TYPE_CHECKING:
    from ....wire.request_types import DescribeAclsRequest


async def handle(broker: Broker, context: RequestContext, request: DescribeAclsRequest) -> Fields:
    answer: dict[str, object] = {"throttle_time": 0, "error_message": None, "resources": []}
    try:
        require_authorizer(broker)
        broker.permissions.require(context, "cluster")
        wanted = _filter(request)
    except KafkaError as error:
        return answer | {"error_code": error.code, "error_message": error.message}
    found = sorted(acl for acl in broker.state.security.acls if wanted.matches(acl))
    resources = [
        {
            "resource_type": pattern.resource_type,
            "resource_name": pattern.name,
            "pattern_type": pattern.pattern_type,
            "acls": [
                {
                    "principal": acl.principal,
                    "host": acl.host,
                    "operation": acl.operation,
                    "permission_type": acl.permission,
                }
                for acl in acls
            ],
        }
        for pattern, acls in groupby(found, key=lambda acl: acl.pattern)
    ]
    return answer | {"error_code": ErrorCode.NONE, "resources": resources}


def _filter(request: DescribeAclsRequest) -> AclFilter:
    """Raises KafkaError."""
    try:
        return AclFilter(
            ResourceType(request.resource_type_filter),
            request.resource_name_filter,
            PatternType(request.pattern_type_filter),
            request.principal_filter,
            request.host_filter,
            AclOperation(request.operation),
            PermissionType(request.permission_type),
        )
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the filter has an unknown number: {error}") from error
