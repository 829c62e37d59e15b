"""CreateTopics (19): asks the controller, and answers when this node knows the topics."""

from __future__ import annotations

from typing import Any

from ...proto import controller_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..internal_topics import INTERNAL_TOPICS
from ..requests import Fields, RequestContext, milliseconds


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    wanted = pb.CreateTopicsRequest(validate_only=request.validate_only)
    results: dict[str, dict[str, Any]] = {}
    for topic in request.topics:
        if topic.name in INTERNAL_TOPICS:
            results[topic.name] = _result(topic.name, ErrorCode.INVALID_TOPIC_EXCEPTION, "this name is the cluster's own")
            continue
        new = wanted.topics.add(
            name=topic.name,
            partitions=_or_default(topic.num_partitions, topic.assignments, broker.configuration.integer("num.partitions")),
            replication_factor=_or_default(
                topic.replication_factor, topic.assignments, broker.configuration.integer("default.replication.factor")
            ),
            config=broker.configuration.new_topic_config({e.name: e.value for e in topic.configs if e.value is not None}),
        )
        for assignment in sorted(topic.assignments, key=lambda a: a.partition_index):
            new.assignments.add(replicas=assignment.broker_ids)
    if wanted.topics:
        await _create(broker, wanted, milliseconds(request.timeout) / 1000, results)
    return {"throttle_time": 0, "topics": [results[topic.name] for topic in request.topics]}


def _or_default(value: int, assignments: Any, default: int) -> int:
    return default if value == -1 and not assignments else value


async def _create(broker: Broker, wanted: pb.CreateTopicsRequest, timeout_s: float, results: dict[str, dict[str, Any]]) -> None:
    try:
        reply = await broker.create_topics(wanted, max(1.0, timeout_s))
    except KafkaError as error:
        for topic in wanted.topics:
            results[topic.name] = _result(topic.name, error.code, str(error))
        return
    for answer in reply.topics:
        code = ErrorCode(answer.error)
        results[answer.name] = _result(answer.name, code, answer.message or None)
        found = broker.state.topics.get(answer.name)
        if code is ErrorCode.NONE and found is not None and not wanted.validate_only:
            results[answer.name]["topic_id"] = found.topic_id
            results[answer.name]["num_partitions"] = answer.partitions
            results[answer.name]["replication_factor"] = answer.replication_factor


def _result(name: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code,
        "error_message": message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],  # KAFKA-WIRE: clients of version 5 and later trip over null
    }
