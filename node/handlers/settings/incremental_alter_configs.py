"""IncrementalAlterConfigs (44): changes single settings of topics, and the few of nodes that change while
they run (KIP-339)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .config_changes import alter

if TYPE_CHECKING:
    from ....wire.request_types import (
        IncrementalAlterConfigsRequest,
        IncrementalAlterConfigsResource,
    )

_SET: Final = 0
_DELETE: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3


async def handle(broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest) -> Fields:
    resources: Sequence[IncrementalAlterConfigsResource] = request.resources
    return {
        "throttle_time": 0,
        "responses": await alter(broker, context, resources, request.validate_only, _describe),
    }


def _describe(resource: IncrementalAlterConfigsResource, change: pb.ConfigChange) -> None:
    by_operation = {_SET: change.set, _APPEND: change.append, _SUBTRACT: change.subtract}
    for config in resource.configs:
        if config.config_operation == _DELETE:
            change.remove.append(config.name)
            continue
        target = by_operation.get(config.config_operation)
        if target is None:
            message = (
                f"{config.name}: unknown operation {config.config_operation}: 0 sets, 1 deletes, 2 "
                "appends, 3 subtracts"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"no value is given for {config.name}")
        target[config.name] = config.value
