"""ListGroups (16): the groups that this node coordinates."""

from __future__ import annotations

from typing import Any

from ...coordinator.group.events import ListGroups
from ...coordinator.group.state import GroupState
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..requests import Fields, RequestContext

_STATES = {state.value.lower(): state.value for state in GroupState}  # whatever the case


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    states = frozenset(_STATES.get(name.lower(), name) for name in getattr(request, "states_filter", ()))
    try:
        replies = await broker.groups.ask_all(ListGroups(states))
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code, "groups": []}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "groups": [
            {"group_id": group.group_id, "protocol_type": group.protocol_type, "group_state": group.state.value}
            for reply in replies
            for group in reply.groups
        ],
    }
