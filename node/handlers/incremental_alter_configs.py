"""IncrementalAlterConfigs (44): sets and removes single settings of topics; a node's own settings are in its file."""

from __future__ import annotations

from typing import Any, Final

from ...proto import controller_pb2 as pb
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..requests import Fields, RequestContext
from .describe_configs import TOPIC

_SET: Final = 0
_DELETE: Final = 1


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    return {
        "throttle_time": 0,
        "responses": [await _alter(broker, resource, request.validate_only) for resource in request.resources],
    }


async def _alter(broker: Broker, resource: Any, validate_only: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        await _ask(broker, resource, validate_only)
    except KafkaError as error:
        return answer | {"error_code": error.code, "error_message": str(error)}
    return answer | {"error_code": ErrorCode.NONE, "error_message": None}


async def _ask(broker: Broker, resource: Any, validate_only: bool) -> None:
    if resource.resource_type != TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "only topics can be changed at run time: a node's settings are in its file")
    wanted = pb.AlterConfigsRequest(validate_only=validate_only)
    change = wanted.topics.add(name=resource.resource_name)
    for config in resource.configs:
        if config.config_operation == _SET and config.value is not None:
            change.set[config.name] = config.value
        elif config.config_operation == _DELETE:
            change.remove.append(config.name)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{config.name}: only set and delete are served, not append or subtract")
    reply = await broker.controller.alter_configs(wanted)
    result = reply.topics[0]
    if result.error != ErrorCode.NONE:
        raise KafkaError(ErrorCode(result.error), result.message)
    if not validate_only:
        await broker.wait_for_metadata(reply.metadata_index)
