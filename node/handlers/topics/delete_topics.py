"""DeleteTopics (20): by name, or by id since version 6; answers in the request's order, when this node has
forgotten them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast
from uuid import UUID

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds
from .mutation_quota import EXCEEDED, charge_mutations

if TYPE_CHECKING:
    from ....wire.request_types import DeleteTopicsRequest, DeleteTopicsRequestV1, DeleteTopicsRequestV6

Key = tuple[str | None, UUID | None]


async def handle(broker: Broker, context: RequestContext, request: DeleteTopicsRequest) -> Fields:
    if context.api_version >= 6:
        topics = cast("DeleteTopicsRequestV6", request).topics
        asked: list[Key] = [(topic.name, topic.topic_id) for topic in topics]
    else:
        asked = [(name, None) for name in cast("DeleteTopicsRequestV1", request).topic_names]
    answers: dict[Key, dict[str, object]] = {}
    wanted: list[Key] = []
    times = Counter(_names_what(broker, key) for key in asked)
    for key in dict.fromkeys(asked):
        problem = _problem(key, times[_names_what(broker, key)])
        refused = ErrorCode.NONE if problem is not None else _refusal(broker, context, key)
        if problem is not None:
            answers[key] = _answer(*key, ErrorCode.INVALID_REQUEST, problem)
        elif refused is not ErrorCode.NONE:
            answers[key] = _answer(_shown_name(broker, context, key), key[1], refused, "")
        else:
            wanted.append(key)
    admitted, throttle_ms = len(wanted), 0
    try:
        admitted, throttle_ms = await charge_mutations(
            broker, context, [_size(broker, key) for key in wanted]
        )
    except KafkaError as error:
        answers |= {key: _answer(*key, error.code, error.message) for key in wanted}
        admitted = 0
    else:
        exceeded = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        answers |= {key: _answer(*key, exceeded, EXCEEDED) for key in wanted[admitted:]}
    if admitted:
        timeout_s = max(1.0, milliseconds(request.timeout) / 1000)
        answers |= await _delete(broker, wanted[:admitted], timeout_s)
    return {"throttle_time": throttle_ms, "responses": [answers[key] for key in asked]}


def _names_what(broker: Broker, key: Key) -> str | UUID | None:
    """A name and an id may mean the same topic."""
    name, topic_id = key
    found = None if topic_id is None else broker.state.topic_by_id(topic_id)
    return name if topic_id is None else topic_id if found is None else found.name


def _size(broker: Broker, key: Key) -> int:
    name = _names_what(broker, key)
    found = broker.state.topics.get(name) if isinstance(name, str) else None
    return 0 if found is None else len(found.partitions)


def _refusal(broker: Broker, context: RequestContext, key: Key) -> ErrorCode:
    """A client that names a topic needs DESCRIBE and DELETE; for one that gives the id DELETE is enough."""
    name, topic_id = key
    found = broker.state.topics.get(name) if name is not None else None
    if topic_id is not None:
        found = broker.state.topic_by_id(topic_id)
    if (found is None and name is None) or broker.permissions.allows(context, "cluster"):
        return ErrorCode.NONE
    if name is not None and not broker.permissions.allows(context, "name", name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if found is None:
        return ErrorCode.NONE  # the controller says that there is none
    return broker.permissions.refusal(context, "topic", found.name)


def _shown_name(broker: Broker, context: RequestContext, key: Key) -> str | None:
    name, topic_id = key
    found = None if topic_id is None else broker.state.topic_by_id(topic_id)
    if found is not None and broker.permissions.allows(context, "name", found.name):
        return found.name
    return name


def _problem(key: Key, times: int) -> str | None:
    if key == (None, None):
        return "neither a name nor an id is given"
    if None not in key:
        return "give either the topic's name or its id"
    return "this topic is in the request more than once" if times > 1 else None


async def _delete(broker: Broker, wanted: list[Key], timeout_s: float) -> dict[Key, dict[str, object]]:
    by_name = [key for key in wanted if key[0] is not None]
    by_id = [key for key in wanted if key[0] is None]
    ids = [topic_id.bytes for _, topic_id in by_id if topic_id is not None]
    request = pb.DeleteTopicsRequest(names=[name for name, _ in by_name if name is not None], topic_ids=ids)
    try:
        reply = await broker.controller.delete_topics(request, timeout_s)
    except KafkaError as error:
        return {key: _answer(*key, error.code, error.message) for key in wanted}
    await broker.topics.wait_for_metadata(reply.metadata_index)
    found = {}
    for key, answer in zip([*by_name, *by_id], reply.topics, strict=True):
        name = answer.name or key[0]
        topic_id = UUID(bytes=answer.topic_id) if answer.topic_id else key[1]
        found[key] = _answer(name, topic_id, ErrorCode(answer.error), answer.message)
    return found


def _answer(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str) -> dict[str, object]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message or None}
