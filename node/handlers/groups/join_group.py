"""JoinGroup (11): a member enters its group's next generation; the answer comes when the rebalance does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.group.classic.events import JoinGroup
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Deferred, Fields, RequestContext, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import JoinGroupRequest


async def handle(broker: Broker, context: RequestContext, request: JoinGroupRequest) -> Deferred:
    version = context.api_version
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = milliseconds(getattr(request, "rebalance_timeout", request.session_timeout))
    instance_id = getattr(request, "group_instance_id", None)
    event = JoinGroup(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=instance_id,
        client_id=context.client_id,
        client_host=f"/{context.client_host}",  # as Kafka writes it
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        new_member_id=f"{instance_id or context.client_id}-{broker.clock.uuid()}",
        require_known_member_id=version >= 4,
        supports_skipping_assignment=version >= 9,
    )
    return Deferred(_join(broker, context, event))


async def _join(broker: Broker, context: RequestContext, event: JoinGroup) -> Fields:
    version = context.api_version
    try:
        broker.permissions.require(context, "group", event.group_id)
        reply = await broker.groups.ask(event.group_id, event)
    except KafkaError as error:
        return {
            "throttle_time": 0,
            "error_code": error.code,
            "generation_id": -1,
            "protocol_type": None,
            "protocol_name": None if version >= 7 else "",
            "leader": "",
            "member_id": event.member_id,
            "members": [],
        }
    return {
        "throttle_time": 0,
        "error_code": reply.error,
        "generation_id": reply.generation,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name if reply.protocol_name is not None or version >= 7 else "",
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {"member_id": m.member_id, "group_instance_id": m.group_instance_id, "metadata": m.metadata}
            for m in reply.members
        ]
        if reply.error is ErrorCode.NONE
        else [],
    }
