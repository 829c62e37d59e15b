"""LeaveGroup (13): members go at once instead of by their session timeout; several at a time since version
3."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ....coordinator.group.classic.events import LeaveGroup, LeavingMember
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import LeaveGroupRequest, LeaveGroupRequestV0, LeaveGroupRequestV5


async def handle(broker: Broker, context: RequestContext, request: LeaveGroupRequest) -> Fields:
    single = context.api_version < 3
    if single:
        members: tuple[LeavingMember, ...] = (LeavingMember(cast("LeaveGroupRequestV0", request).member_id),)
    else:
        members = tuple(
            LeavingMember(member.member_id, member.group_instance_id)
            for member in cast("LeaveGroupRequestV5", request).members
        )
    try:
        broker.permissions.require(context, "group", request.group_id)
        reply = await broker.groups.ask(request.group_id, LeaveGroup(request.group_id, members))
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code, "members": []}
    if single:
        return {"throttle_time": 0, "error_code": reply.results[0][1]}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": code}
            for member, code in reply.results
        ],
    }
