"""Heartbeat (12): a member of a group says that it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.group.classic.events import Heartbeat
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import HeartbeatRequest


async def handle(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> Fields:
    event = Heartbeat(
        request.group_id,
        request.generation_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
    )
    try:
        broker.permissions.require(context, "group", request.group_id)
        await broker.groups.ask(request.group_id, event)
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code}
    return {"throttle_time": 0, "error_code": ErrorCode.NONE}
