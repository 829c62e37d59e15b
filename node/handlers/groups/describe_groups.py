"""DescribeGroups (15): state, protocol and members of classic groups; one that there is not is Dead, and
since version 6 an error with a reason (KIP-1043)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.group.events import DescribeGroup
from ....security.acls import ResourceType
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext
from ..cluster.authorized_operations import NOT_ASKED_FOR, authorized_operations

if TYPE_CHECKING:
    from ....wire.request_types import DescribeGroupsRequest


async def handle(broker: Broker, context: RequestContext, request: DescribeGroupsRequest) -> Fields:
    with_operations = getattr(request, "include_authorized_operations", False)
    described, turns = [], CooperativeYield(context)
    for group_id in request.groups:
        await turns.before_next()
        described.append(await _describe(broker, context, group_id, with_operations))
    return {"throttle_time": 0, "groups": described}


async def _describe(
    broker: Broker, context: RequestContext, group_id: str, with_operations: bool
) -> dict[str, object]:
    try:
        broker.permissions.require(context, "group", group_id)
        found = await broker.groups.ask(group_id, DescribeGroup(group_id))
    except KafkaError as error:
        empty = {
            "error_message": error.message,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
        return {
            "error_code": error.code,
            "group_id": group_id,
            **empty,
            "authorized_operations": NOT_ASKED_FOR,
        }
    missing = bool(found.problem) and context.api_version >= 6
    operations = NOT_ASKED_FOR
    if with_operations and not missing:
        operations = authorized_operations(broker, context, ResourceType.GROUP, group_id)
    return {
        "error_code": ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE,
        "error_message": found.problem or None,
        "group_id": group_id,
        "group_state": found.state.value,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol_name,
        "members": [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "member_metadata": m.metadata,
                "member_assignment": m.assignment,
            }
            for m in found.members
        ],
        "authorized_operations": operations,
    }
