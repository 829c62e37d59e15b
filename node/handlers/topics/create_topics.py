"""CreateTopics (19): asks the controller, and answers when this node knows the topics.

With `validate_only` the answer is the one that a creation would get, counts and settings included; only the
topic id is missing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING
from uuid import UUID

from ....proto import controller_pb2 as pb
from ....storage.topic_config import parsed_topic_config
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.described_settings import DescribedSettings
from ...serving.requests import Fields, RequestContext, milliseconds
from .mutation_quota import EXCEEDED, charge_mutations

if TYPE_CHECKING:
    from ....wire.request_types import CreatableTopic, CreateTopicsRequest


async def handle(broker: Broker, context: RequestContext, request: CreateTopicsRequest) -> Fields:
    wanted = pb.CreateTopicsRequest(validate_only=request.validate_only)
    results: dict[str, dict[str, object]] = {}
    for topic in request.topics:
        try:
            if not broker.permissions.allows(context, "cluster"):
                broker.permissions.require(context, "topic", topic.name)
            _check(topic)
        except KafkaError as error:
            results[topic.name] = _failed(topic.name, error.code, error.message)
            continue
        new = wanted.topics.add(
            name=topic.name,
            partitions=_or_default(
                topic.num_partitions, topic.assignments, broker.configuration.integer("num.partitions")
            ),
            replication_factor=_or_default(
                topic.replication_factor,
                topic.assignments,
                broker.configuration.integer("default.replication.factor"),
            ),
            config=broker.topics.new_topic_config(
                {entry.name: entry.value for entry in topic.configs if entry.value is not None}
            ),
        )
        replicas = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
        for index in sorted(replicas):
            new.assignments.add(replicas=replicas[index])
    throttle_ms = 0
    if wanted.topics:
        throttle_ms = await _create(broker, context, wanted, milliseconds(request.timeout) / 1000, results)
    return {
        "throttle_time": throttle_ms,
        "topics": [results[name] for name in dict.fromkeys(topic.name for topic in request.topics)],
    }


def _check(topic: CreatableTopic) -> None:
    """What is lost when the controller is asked."""
    nulls = [entry.name for entry in topic.configs if entry.value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"no value is given for {', '.join(nulls)}")
    indexes = sorted(assignment.partition_index for assignment in topic.assignments)
    if indexes != list(range(len(indexes))):
        message = (
            f"the partitions that are assigned must be numbered from 0 on without a gap, not {indexes[:10]}"
        )
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _or_default(value: int, assignments: Collection[object], default: int) -> int:
    return default if value == -1 and not assignments else value


async def _create(
    broker: Broker,
    context: RequestContext,
    wanted: pb.CreateTopicsRequest,
    timeout_s: float,
    results: dict[str, dict[str, object]],
) -> int:
    """Milliseconds that the client pauses."""
    throttle_ms = 0
    try:
        sizes = [len(topic.assignments) or topic.partitions for topic in wanted.topics]
        admitted, throttle_ms = await charge_mutations(broker, context, [max(0, size) for size in sizes])
        over = {topic.name for topic in wanted.topics[admitted:]}
        for name in over:
            results[name] = _failed(name, ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)
        kept = [topic for topic in wanted.topics if topic.name not in over]
        wanted = pb.CreateTopicsRequest(validate_only=wanted.validate_only, topics=kept)
        if not wanted.topics:
            return throttle_ms
        reply = await broker.topics.create(wanted, max(1.0, timeout_s))
    except KafkaError as error:
        for topic in wanted.topics:
            results[topic.name] = _failed(topic.name, error.code, error.message)
        return throttle_ms
    described = DescribedSettings(broker.configuration, broker.state.node_configs)
    for topic, answer in zip(wanted.topics, reply.topics, strict=True):
        code = ErrorCode(answer.error)
        if code is not ErrorCode.NONE:
            results[topic.name] = _failed(topic.name, code, answer.message)
            continue
        made: dict[str, object] = {
            "name": topic.name,
            "topic_id": None if wanted.validate_only else UUID(bytes=answer.topic_id),
            "error_code": ErrorCode.NONE,
            "error_message": None,
        }
        unseen = broker.permissions.refusal(context, "settings", topic.name)
        if unseen is not ErrorCode.NONE:  # KIP-525
            hidden = {"num_partitions": -1, "replication_factor": -1, "configs": []}
            results[topic.name] = made | hidden | {"topic_config_error_code": unseen}
            continue
        results[topic.name] = made | {
            "num_partitions": answer.partitions,
            "replication_factor": answer.replication_factor,
            "configs": [
                {
                    "name": setting.name,
                    "value": setting.value,
                    "read_only": False,
                    "config_source": setting.source,
                    "is_sensitive": False,
                }
                for setting in described.of_new_topic(topic.name, parsed_topic_config(topic.config))
            ],
        }
    return throttle_ms


def _failed(name: str, code: ErrorCode, message: str) -> dict[str, object]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code,
        "error_message": message or None,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],  # clients of version 5 and later trip over null
    }
