"""ListConfigResources (74): what has settings (KIP-1142).  Version 0 asks for the subscriptions to clients'
metrics alone, under the request's former name (KIP-1000)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from ....controller.state.resource_settings import ResourceType
from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import ListConfigResourcesRequest, ListConfigResourcesRequestV1


async def handle(broker: Broker, context: RequestContext, request: ListConfigResourcesRequest) -> Fields:
    wanted = [int(ResourceType.CLIENT_METRICS)]
    if context.api_version >= 1:
        wanted = list(cast("ListConfigResourcesRequestV1", request).resource_types)
    known = [int(kind) for kind in ResourceType]
    wanted = list(dict.fromkeys(wanted)) or known
    if not set(wanted) <= set(known):
        return {"throttle_time": 0, "error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
    refused = broker.permissions.refusal(context, "cluster")
    if refused is not ErrorCode.NONE:
        return {"throttle_time": 0, "error_code": refused, "config_resources": []}
    resources = [
        {"resource_name": name, "resource_type": kind}
        for kind in wanted
        for name in _names(broker, ResourceType(kind))
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "config_resources": resources}


def _names(broker: Broker, kind: ResourceType) -> Iterable[str]:
    match kind:
        case ResourceType.TOPIC:
            return list(broker.state.topics)
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return [str(node_id) for node_id in sorted(broker.state.brokers)]
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            return sorted(name for present, name in broker.state.resource_configs if present == kind)
