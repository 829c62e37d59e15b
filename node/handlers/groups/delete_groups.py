"""DeleteGroups (42): forgets groups without members, and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.group.events import DeleteGroup
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import DeleteGroupsRequest


async def handle(broker: Broker, context: RequestContext, request: DeleteGroupsRequest) -> Fields:
    results, turns = [], CooperativeYield(context)
    for group_id in dict.fromkeys(request.groups_names):
        await turns.before_next()
        code = ErrorCode.NONE
        try:
            broker.permissions.require(context, "group", group_id)
            await broker.groups.ask(group_id, DeleteGroup(group_id))
        except KafkaError as error:
            code = error.code
        results.append({"group_id": group_id, "error_code": code})
    return {"throttle_time": 0, "results": results}
