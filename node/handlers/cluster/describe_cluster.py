"""DescribeCluster (60): the cluster's id, its brokers and one that administration may be sent to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....security.acls import ResourceType
from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .authorized_operations import NOT_ASKED_FOR, authorized_operations
from .metadata import some_broker

if TYPE_CHECKING:
    from ....wire.request_types import DescribeClusterRequest

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


async def handle(broker: Broker, context: RequestContext, request: DescribeClusterRequest) -> Fields:
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        message = "this is a broker's endpoint: controllers have none that clients speak to"
        return _failed(ErrorCode.MISMATCHED_ENDPOINT_TYPE, message)
    if endpoint_type != _BROKERS:
        return _failed(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"unknown endpoint type {endpoint_type}: 1 is brokers, 2 controllers",
        )
    state = broker.state
    operations = NOT_ASKED_FOR
    if request.include_cluster_authorized_operations:
        allowed = broker.permissions.allows(context, "cluster")
        operations = authorized_operations(broker, context, ResourceType.CLUSTER) if allowed else 0
    all_brokers = getattr(request, "include_fenced_brokers", False)
    found = state.registered_brokers() if all_brokers else state.unfenced_brokers()
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": state.cluster_id,
        "controller_id": some_broker(state, broker.cluster.controller_id, context.listener_name),
        "brokers": [
            {
                "broker_id": b.node_id,
                "host": at.host,
                "port": at.port,
                "rack": b.rack or None,
                "is_fenced": b.fenced,
            }
            for b in found
            if (at := b.endpoint(context.listener_name)) is not None
        ],
        "cluster_authorized_operations": operations,
    }


def _failed(code: ErrorCode, message: str) -> Fields:
    return {
        "throttle_time": 0,
        "error_code": code,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": [],
        "cluster_authorized_operations": NOT_ASKED_FOR,
    }
