"""GetTelemetrySubscriptions (71): what a client is to push of its metrics, and how often (KIP-714)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...observation.client_metrics import (
    ACCEPTED_COMPRESSION,
    NO_INSTANCE,
    TELEMETRY_BYTES_MAX,
    ClientIdentity,
)
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import GetTelemetrySubscriptionsRequest


async def handle(
    broker: Broker, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> Fields:
    instance_id = request.client_instance_id or NO_INSTANCE
    if instance_id == NO_INSTANCE:
        instance_id = broker.clock.uuid()
    now_ms = int(1000 * broker.clock.monotonic())
    answer = broker.client_metrics.subscriptions(
        instance_id, identity(context), broker.state.resource_configs, now_ms
    )
    failed = answer.error != 0
    return {
        "throttle_time": 0,
        "error_code": answer.error,
        "client_instance_id": NO_INSTANCE if failed else answer.instance_id,
        "subscription_id": 0 if failed else answer.subscription.subscription_id,
        "accepted_compression_types": [] if failed else [int(each) for each in ACCEPTED_COMPRESSION],
        "push_interval": 0 if failed else answer.subscription.interval_ms,
        "telemetry_max_bytes": 0 if failed else TELEMETRY_BYTES_MAX,
        "delta_temporality": False,  # totals: a push that is lost then loses nothing
        "requested_metrics": [] if failed else list(answer.subscription.metrics),
    }


def identity(context: RequestContext) -> ClientIdentity:
    client = context.client
    return ClientIdentity(
        context.client_id, client.software_name, client.software_version, context.client_host, client.port
    )
