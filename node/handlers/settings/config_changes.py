"""What AlterConfigs and IncrementalAlterConfigs have in common: one answer a resource, and the question to
the controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ....controller.state.features import require_level
from ....controller.state.model import RESOURCES_LEVEL
from ....controller.state.resource_settings import SETTINGS_OF, ResourceType
from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import RequestContext
from .broker_loggers import alter_loggers
from .describe_configs import BROKER, TOPIC, name_of, subject_of

if TYPE_CHECKING:
    from ....wire.request_types import AlterConfigsResource, IncrementalAlterConfigsResource

R = TypeVar("R", "AlterConfigsResource", "IncrementalAlterConfigsResource")


async def alter(
    broker: Broker,
    context: RequestContext,
    resources: Sequence[R],
    validate_only: bool,
    describe: Callable[[R, pb.ConfigChange], None],
) -> list[dict[str, object]]:
    """`describe` writes a resource's changes down; it raises KafkaError for what cannot be.  A resource that
    is in the request twice is refused, because the request does not say which change counts."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    answers = []
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        answer: dict[str, object] = {"resource_type": key[0], "resource_name": key[1]}
        try:
            if times[key] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "this resource is in the request more than once")
            subject = subject_of(resource.resource_type)
            broker.permissions.require(context, subject, name_of(subject, resource.resource_name))
            await _ask(broker, resource, validate_only, describe)
        except KafkaError as error:
            answer |= {"error_code": error.code, "error_message": error.message or None}
        else:
            answer |= {"error_code": ErrorCode.NONE, "error_message": None}
        answers.append(answer)
    return answers


async def _ask(
    broker: Broker, resource: R, validate_only: bool, describe: Callable[[R, pb.ConfigChange], None]
) -> None:
    kind = int(resource.resource_type)
    if kind not in (TOPIC, BROKER, ResourceType.BROKER_LOGGER, *SETTINGS_OF):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")
    twice = [name for name, count in Counter(config.name for config in resource.configs).items() if count > 1]
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the request changes {', '.join(twice)} more than once")
    if kind == ResourceType.BROKER_LOGGER:
        levels = pb.ConfigChange(name=resource.resource_name)
        describe(resource, levels)
        alter_loggers(broker, levels, validate_only)
        return
    wanted = pb.AlterConfigsRequest(validate_only=validate_only)
    if kind in SETTINGS_OF:
        require_level(broker.state.features, RESOURCES_LEVEL)  # or no controller might know what is asked
        change = wanted.resources.add(resource_type=kind).change
    else:
        change = (wanted.topics if kind == TOPIC else wanted.nodes).add()
    change.name = resource.resource_name
    describe(resource, change)
    reply = await broker.controller.alter_configs(wanted)
    result = reply.topics[0]
    if result.error != ErrorCode.NONE:
        raise KafkaError(ErrorCode(result.error), result.message)
    if not validate_only:
        await broker.topics.wait_for_metadata(reply.metadata_index)
