"""DescribeProducers (61): the producers that a partition remembers and their open transactions (KIP-664).

Followers answer, too, with what they have: `kafka-transactions find-hanging --broker-id` asks each replica's
node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import DescribeProducersRequest


async def handle(broker: Broker, context: RequestContext, request: DescribeProducersRequest) -> Fields:
    return {
        "throttle_time": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _describe(broker, context, topic.name, index) for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ],
    }


def _describe(broker: Broker, context: RequestContext, topic: str, index: int) -> dict[str, object]:
    try:
        broker.permissions.require(context, "topic", topic)
        replica = broker.replicas.replica(topic, index)
        replica.require_served()
    except KafkaError as error:
        failed = {"error_code": error.code, "error_message": error.message or None}
        return {"partition_index": index, **failed, "active_producers": []}
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "active_producers": [
            {
                "producer_id": p.producer_id,
                "producer_epoch": p.epoch,
                "last_sequence": p.last_sequence,
                "last_timestamp": p.last_timestamp_ms,
                "coordinator_epoch": p.coordinator_epoch,
                "current_txn_start_offset": -1
                if p.current_txn_first_offset is None
                else p.current_txn_first_offset,
            }
            for p in replica.log.producers.views()
        ],
    }
