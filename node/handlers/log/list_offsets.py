"""ListOffsets (2): the earliest, the latest, or the first offset at or after a timestamp.

There is no tiered storage: the earliest offset is the earliest local one (KIP-405), and none is the latest
tiered (KIP-1005).

"Latest" is the last stable offset for read_committed and the high watermark otherwise; right after an
election it is OFFSET_NOT_AVAILABLE until the high watermark reached the leader's own epoch (docs/semantics.md
F4).

For a timestamp a large batch is decoded in a thread, and the leader, its epoch and its log are asked anew
when that is done.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import ListOffsetsRequest

SPECIAL_FROM: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9}
"""The version from which on a special timestamp is known; others have no meaning."""


async def handle(broker: Broker, context: RequestContext, request: ListOffsetsRequest) -> Fields:
    isolation = getattr(request, "isolation_level", 0)
    topics = []
    times = Counter(
        (topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions
    )
    turns = CooperativeYield(context)
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            await turns.before_next()
            answer: dict[str, object] = {
                "partition_index": wanted.partition_index,
                "error_code": ErrorCode.NONE,
            }
            try:
                broker.permissions.require(context, "topic", topic.name)
                _check(
                    context.api_version,
                    isolation,
                    wanted.timestamp,
                    times[topic.name, wanted.partition_index],
                )
                found = await broker.batch_threads.ask(
                    partial(
                        broker.replicas.list_offsets,
                        topic.name,
                        wanted.partition_index,
                        wanted.timestamp,
                        None if request.replica_id >= 0 else isolation,
                        getattr(wanted, "current_leader_epoch", -1),
                    )
                )
                answer |= {
                    "timestamp": found.timestamp_ms,
                    "offset": found.offset,
                    "leader_epoch": found.leader_epoch,
                }
            except KafkaError as error:
                answer["error_code"] = error.code
            partitions.append(answer)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}


def _check(version: int, isolation: int, timestamp: int, times: int) -> None:
    if times > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the partition is in the request more than once")
    if isolation not in (0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown isolation level {isolation}")
    if timestamp < 0 and version < SPECIAL_FROM.get(timestamp, version + 1):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}"
        )
