"""PushTelemetry (72): a client's metrics, as OTLP (KIP-714).  Large pushes are unfolded and read in a
thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ....runtime import logs
from ....wire.errors import ErrorCode, KafkaError
from ...observation.client_metrics import NO_INSTANCE, decoded_points
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .get_telemetry_subscriptions import identity

if TYPE_CHECKING:
    from ....wire.request_types import PushTelemetryRequest

log = logs.get(__name__)

READ_ON_THE_LOOP_BYTES_MAX: Final = 4096


async def handle(broker: Broker, context: RequestContext, request: PushTelemetryRequest) -> Fields:
    instance_id, data = request.client_instance_id or NO_INSTANCE, bytes(request.metrics or b"")
    try:
        broker.client_metrics.check_push(
            instance_id,
            identity(context),
            broker.state.resource_configs,
            int(1000 * broker.clock.monotonic()),
            subscription_id=request.subscription_id,
            terminating=request.terminating,
            compression=request.compression_type,
            size=len(data),
        )
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code}
    try:
        if len(data) > READ_ON_THE_LOOP_BYTES_MAX:
            points = await asyncio.to_thread(decoded_points, request.compression_type, data)
        else:
            points = decoded_points(request.compression_type, data)
    except KafkaError as error:
        log.debug("client_metrics_unreadable", client=context.client_id, reason=error.message)
        broker.client_metrics.failed(instance_id)
        return {"throttle_time": 0, "error_code": ErrorCode.INVALID_RECORD}
    broker.client_metrics.pushed(instance_id, points)
    return {"throttle_time": 0, "error_code": ErrorCode.NONE}
