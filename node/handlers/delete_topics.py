"""DeleteTopics (20): by name, or by id since version 6; answers when this node has forgotten them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ...proto import controller_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..internal_topics import INTERNAL_TOPICS
from ..requests import Fields, RequestContext, milliseconds


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    if context.api_version >= 6:
        names = [topic.name for topic in request.topics if topic.name is not None]
        ids = [topic.topic_id for topic in request.topics if topic.name is None and topic.topic_id is not None]
    else:
        names, ids = list(request.topic_names), []
    refused = [name for name in names if name in INTERNAL_TOPICS]
    responses = [_answer(name, None, ErrorCode.INVALID_TOPIC_EXCEPTION, "this topic is the cluster's own") for name in refused]
    names = [name for name in names if name not in INTERNAL_TOPICS]
    if names or ids:
        responses += await _delete(broker, names, ids, max(1.0, milliseconds(request.timeout) / 1000))
    return {"throttle_time": 0, "responses": responses}


async def _delete(broker: Broker, names: list[str], ids: list[UUID], timeout_s: float) -> list[dict[str, Any]]:
    wanted = pb.DeleteTopicsRequest(names=names, topic_ids=[topic_id.bytes for topic_id in ids])
    try:
        reply = await broker.controller.delete_topics(wanted, timeout_s)
    except KafkaError as error:
        return [_answer(name, None, error.code, str(error)) for name in names] + [
            _answer(None, topic_id, error.code, str(error)) for topic_id in ids
        ]
    await broker.wait_for_metadata(reply.metadata_index)
    return [
        _answer(
            answer.name or None,
            UUID(bytes=answer.topic_id) if answer.topic_id else None,
            ErrorCode(answer.error),
            answer.message or None,
        )
        for answer in reply.topics
    ]


def _answer(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
