"""InitProducerId (22): a producer id and epoch, which fence every earlier producer of the same transactional
id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.transaction.events import InitProducerId
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, for_version, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import InitProducerIdRequest


async def handle(broker: Broker, context: RequestContext, request: InitProducerIdRequest) -> Fields:
    producer_id, producer_epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    try:
        if (producer_id == -1) is not (producer_epoch == -1):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together or not at all"
            )
        if request.transactional_id is None:
            if not broker.permissions.allows_some(context, "any topic"):
                broker.permissions.require(context, "cluster")
            return _answer(await broker.producer_ids.next(), 0)
        if not request.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        broker.permissions.require(context, "transactional id", request.transactional_id)
        reply = await broker.transactions.ask(
            request.transactional_id,
            InitProducerId(
                request.transactional_id,
                milliseconds(request.transaction_timeout),
                producer_id,
                producer_epoch,
            ),
        )
        return _answer(reply.producer_id, reply.producer_epoch)
    except KafkaError as error:
        code = for_version(error.code, fenced_known=context.api_version >= 4)
        return {"throttle_time": 0, "error_code": code, "producer_id": -1, "producer_epoch": -1}


def _answer(producer_id: int, producer_epoch: int) -> Fields:
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
    }
