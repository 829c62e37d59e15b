"""DescribeCluster (60): the cluster's id, its live brokers and one that administration may be sent to."""

from __future__ import annotations

from typing import Any

from ..broker import Broker
from ..requests import Fields, RequestContext
from .metadata import OPERATIONS_UNKNOWN, some_broker


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    state = broker.state
    return {
        "throttle_time": 0,
        "error_code": 0,
        "error_message": None,
        "endpoint_type": 1,
        "cluster_id": state.cluster_id,
        "controller_id": some_broker(state, broker.controller_id),
        "brokers": [
            {"broker_id": b.node_id, "host": b.kafka_host, "port": b.kafka_port, "rack": b.rack or None}
            for b in state.active_brokers()
        ],
        "cluster_authorized_operations": OPERATIONS_UNKNOWN,
    }
