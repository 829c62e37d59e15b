"""ListGroups (16): the groups that this node coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.group.events import ListGroups
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import ListGroupsRequest


async def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> Fields:
    states = frozenset(name.lower() for name in getattr(request, "states_filter", ()))
    types = frozenset(name.lower() for name in getattr(request, "types_filter", ()))
    sees_all = broker.permissions.allows(context, "cluster")
    try:
        replies = await broker.groups.ask_all(ListGroups(states, types))
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code, "groups": []}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state.value,
                "group_type": group.type.value,
            }
            for reply in replies
            for group in reply.groups
            if sees_all or broker.permissions.allows(context, "group", group.group_id)
        ],
    }
