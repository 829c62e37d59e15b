"""UnregisterBroker (64): a broker that will not come back is forgotten; refused while anything may rely on
it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import UnregisterBrokerRequest


async def handle(broker: Broker, context: RequestContext, request: UnregisterBrokerRequest) -> Fields:
    try:
        broker.permissions.require(context, "cluster")
        reply = await broker.controller.unregister_broker(
            pb.UnregisterBrokerRequest(node_id=request.broker_id)
        )
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code, "error_message": error.message or None}
    await broker.topics.wait_for_metadata(reply.metadata_index)
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "error_message": None}
