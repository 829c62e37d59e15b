"""DeleteRecords (21): moves log starts up; answers when the in-sync replicas have followed (KIP-107)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ....wire.errors import ErrorCode, KafkaError
from ...cluster.internal_topics import INTERNAL_TOPICS
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import DeleteRecordsRequest

NO_LOW_WATERMARK = -1


async def handle(broker: Broker, context: RequestContext, request: DeleteRecordsRequest) -> Fields:
    timeout_ms = milliseconds(request.timeout)

    async def delete(topic: str, partition: int, offset: int) -> dict[str, object]:
        try:
            if topic in INTERNAL_TOPICS:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is the cluster's own")
            broker.permissions.require(context, "topic", topic)
            low = await broker.replicas.delete_records(topic, partition, offset, timeout_ms)
            return {"partition_index": partition, "low_watermark": low, "error_code": ErrorCode.NONE}
        except KafkaError as error:
            return {"partition_index": partition, "low_watermark": NO_LOW_WATERMARK, "error_code": error.code}

    wanted = [
        (topic.name, part.partition_index, part.offset)
        for topic in request.topics
        for part in topic.partitions
    ]
    answers = await asyncio.gather(*(delete(*each) for each in wanted))
    topics: dict[str, list[dict[str, object]]] = {}
    for (topic, _partition, _offset), answer in zip(wanted, answers, strict=True):
        topics.setdefault(topic, []).append(answer)
    return {
        "throttle_time": 0,
        "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
    }
