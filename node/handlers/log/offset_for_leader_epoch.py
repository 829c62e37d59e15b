"""OffsetForLeaderEpoch (23): where a leader epoch ends in the leader's log (docs/semantics.md E3, F5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import OffsetForLeaderEpochRequest


async def handle(broker: Broker, context: RequestContext, request: OffsetForLeaderEpochRequest) -> Fields:
    topics = []
    is_broker = broker.permissions.allows(context, "follower")
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            answer: dict[str, object] = {"partition": wanted.partition, "error_code": ErrorCode.NONE}
            try:
                if not is_broker:
                    broker.permissions.require(context, "topic", topic.topic)
                end = broker.replicas.epoch_end(
                    topic.topic, wanted.partition, wanted.current_leader_epoch, wanted.leader_epoch
                )
                answer |= {"leader_epoch": end.epoch, "end_offset": end.end_offset}
            except KafkaError as error:
                answer["error_code"] = error.code
            partitions.append(answer)
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}
