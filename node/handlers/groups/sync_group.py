"""SyncGroup (14): the leader brings the assignments, every member gets its own; the answer comes when the
leader has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.group.classic.events import SyncGroup
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Deferred, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import SyncGroupRequest


async def handle(broker: Broker, context: RequestContext, request: SyncGroupRequest) -> Deferred | Fields:
    protocol_type = getattr(request, "protocol_type", None)
    protocol_name = getattr(request, "protocol_name", None)
    # KIP-559
    if context.api_version >= 5 and (protocol_type is None or protocol_name is None):
        return {"throttle_time": 0, "error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "assignment": b""}
    event = SyncGroup(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=tuple((entry.member_id, bytes(entry.assignment)) for entry in request.assignments),
    )
    return Deferred(_sync(broker, context, event))


async def _sync(broker: Broker, context: RequestContext, event: SyncGroup) -> Fields:
    try:
        broker.permissions.require(context, "group", event.group_id)
        reply = await broker.groups.ask(event.group_id, event)
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code, "assignment": b""}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }
