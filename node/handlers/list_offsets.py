"""ListOffsets (2): the earliest, the latest, or the first offset at or after a timestamp.

"Latest" is the last stable offset for read_committed and the high watermark otherwise; right after an election it is
OFFSET_NOT_AVAILABLE until the high watermark reached the leader's own epoch (SEMANTICS 3.2 18).
"""

from __future__ import annotations

from typing import Any

from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..requests import Fields, RequestContext, Turns


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    isolation = getattr(request, "isolation_level", 0)
    topics = []
    turns = Turns()
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            await turns.before_next()
            answer: dict[str, Any] = {"partition_index": wanted.partition_index, "error_code": ErrorCode.NONE}
            try:
                found = broker.replicas.list_offsets(
                    topic.name,
                    wanted.partition_index,
                    wanted.timestamp,
                    None if request.replica_id >= 0 else isolation,
                    getattr(wanted, "current_leader_epoch", -1),
                )
                answer |= {"timestamp": found.timestamp_ms, "offset": found.offset, "leader_epoch": found.leader_epoch}
            except KafkaError as error:
                answer["error_code"] = error.code
            partitions.append(answer)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}
