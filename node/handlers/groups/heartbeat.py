"""Heartbeat (12): a member of a group says that it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.coordinator.group.classic.events import Heartbeat
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.requests import Fields, RequestContext
from tidegate.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidegate.wire.request_types import HeartbeatRequest


async def handle(broker: Broker, context: RequestContext, request: HeartbeatRequest) -> Fields:
    event = Heartbeat(
        request.group_id,
        request.generation_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
    )
    try:
        await broker.groups.ask(request.group_id, event)
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code}
    return {"throttle_time": 0, "error_code": ErrorCode.NONE}
