"""AlterConfigs (33): replaces all settings of topics.  What is not in the request goes back to its default:
the reason why IncrementalAlterConfigs came (KIP-339), and why clients that mean one setting should use
that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .config_changes import alter

if TYPE_CHECKING:
    from ....wire.request_types import AlterConfigsRequest, AlterConfigsResource


async def handle(broker: Broker, context: RequestContext, request: AlterConfigsRequest) -> Fields:
    resources: Sequence[AlterConfigsResource] = request.resources
    return {
        "throttle_time": 0,
        "responses": await alter(broker, context, resources, request.validate_only, _describe),
    }


def _describe(resource: AlterConfigsResource, change: pb.ConfigChange) -> None:
    change.replace_all = True
    for config in resource.configs:
        if config.value is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"no value is given for {config.name}: leave it out to take its default",
            )
        change.set[config.name] = config.value
