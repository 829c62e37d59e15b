"""What AlterConfigs and IncrementalAlterConfigs have in common: one answer a resource, and the question to the controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ...proto import controller_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from .describe_configs import BROKER, TOPIC


async def alter(
    broker: Broker, resources: Iterable[Any], validate_only: bool, describe: Callable[[Any, pb.ConfigChange], None]
) -> list[dict[str, Any]]:
    """`describe` writes a resource's changes down; it raises KafkaError for what cannot be.  A resource that is in the request
    twice is refused, as nobody could say which change counts."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    answers = []
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        answer: dict[str, Any] = {"resource_type": key[0], "resource_name": key[1]}
        try:
            if times[key] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "this resource is in the request more than once")
            await _ask(broker, resource, validate_only, describe)
        except KafkaError as error:
            answer |= {"error_code": error.code, "error_message": error.message or None}
        else:
            answer |= {"error_code": ErrorCode.NONE, "error_message": None}
        answers.append(answer)
    return answers


async def _ask(broker: Broker, resource: Any, validate_only: bool, describe: Callable[[Any, pb.ConfigChange], None]) -> None:
    if resource.resource_type not in (TOPIC, BROKER):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "unknown resource type: 2 is a topic, 4 a broker")
    twice = [name for name, count in Counter(config.name for config in resource.configs).items() if count > 1]
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the request changes {', '.join(twice)} more than once")
    wanted = pb.AlterConfigsRequest(validate_only=validate_only)
    changes = wanted.topics if resource.resource_type == TOPIC else wanted.nodes
    describe(resource, changes.add(name=resource.resource_name))
    reply = await broker.controller.alter_configs(wanted)
    result = reply.topics[0]
    if result.error != ErrorCode.NONE:
        raise KafkaError(ErrorCode(result.error), result.message)
    if not validate_only:
        await broker.wait_for_metadata(reply.metadata_index)
