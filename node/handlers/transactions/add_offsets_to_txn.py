"""AddOffsetsToTxn (25): enlists the offsets partition of a consumer group in an open transaction
(docs/semantics.md O1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....controller.state.model import TopicState
from ....coordinator.transaction.events import AddOffsets
from ....wire.errors import ErrorCode, KafkaError
from ...cluster.internal_topics import CONSUMER_OFFSETS, partition_for
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, for_version

if TYPE_CHECKING:
    from ....wire.request_types import AddOffsetsToTxnRequest


async def _offsets_topic(broker: Broker) -> TopicState:
    """The producer can only try again while the topic cannot be made: any other error would end its
    transaction for good."""
    try:
        return await broker.topics.ensure_internal_topic(CONSUMER_OFFSETS)
    except KafkaError as error:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error


async def handle(broker: Broker, context: RequestContext, request: AddOffsetsToTxnRequest) -> Fields:
    try:
        broker.permissions.require(context, "transactional id", request.transactional_id)
        broker.permissions.require(context, "group", request.group_id)
        topic = await _offsets_topic(broker)
        index = partition_for(request.group_id, len(topic.partitions))
        event = AddOffsets(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            broker.transactions.partition(CONSUMER_OFFSETS, index),
            transaction_version=2 if context.api_version >= 4 else 1,
        )
        await broker.transactions.ask(request.transactional_id, event)
    except KafkaError as error:
        return {
            "throttle_time": 0,
            "error_code": for_version(error.code, fenced_known=context.api_version >= 2),
        }
    return {"throttle_time": 0, "error_code": ErrorCode.NONE}
