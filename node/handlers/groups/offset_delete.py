"""OffsetDelete (47): forgets offsets of a group for topics that it does not read any more (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.group.events import DeleteOffsets
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import OffsetDeleteRequest


async def handle(broker: Broker, context: RequestContext, request: OffsetDeleteRequest) -> Fields:
    wanted = {
        (topic.name, part.partition_index): None for topic in request.topics for part in topic.partitions
    }
    codes = {key: code for key in wanted if (code := _problem(broker, context, *key)) is not ErrorCode.NONE}
    known = tuple(key for key in wanted if key not in codes)
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        broker.permissions.require(context, "group", request.group_id)
        # Asked even without a partition that exists: whether the group does is part of the answer.
        codes |= (await broker.groups.ask(request.group_id, DeleteOffsets(request.group_id, known))).errors
    except KafkaError as error:
        return {"error_code": error.code, "throttle_time": 0, "topics": []}
    topics: dict[str, list[dict[str, object]]] = {}
    for name, index in wanted:
        topics.setdefault(name, []).append({"partition_index": index, "error_code": codes[name, index]})
    return {
        "error_code": ErrorCode.NONE,
        "throttle_time": 0,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def _problem(broker: Broker, context: RequestContext, topic: str, index: int) -> ErrorCode:
    refused = broker.permissions.refusal(context, "topic", topic)
    found = broker.state.topics.get(topic)
    exists = found is not None and index in found.partitions
    return refused if refused is not ErrorCode.NONE or exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
