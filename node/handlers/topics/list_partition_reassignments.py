"""ListPartitionReassignments (46): the partitions that move, and between which brokers (KIP-455)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....controller.planning.partitions.moves import moving
from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import ListPartitionReassignmentsRequest


async def handle(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Fields:
    """Everything that moves when no topics are named; what does not move, or does not exist, is left out."""
    refused = broker.permissions.refusal(context, "cluster")
    if refused is not ErrorCode.NONE:
        nowhere: dict[str, list[int]] = {"replicas": [], "adding_replicas": [], "removing_replicas": []}
        unseen = [
            {
                "name": topic.name,
                "partitions": [{"partition_index": index, **nowhere} for index in topic.partition_indexes],
            }
            for topic in request.topics or ()
        ]
        return {"throttle_time": 0, "error_code": refused, "error_message": None, "topics": unseen}
    wanted = None
    if request.topics is not None:
        wanted = {(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
    topics: dict[str, list[dict[str, object]]] = {}
    for topic, number, partition in moving(broker.state):
        if wanted is None or (topic.name, number) in wanted:
            topics.setdefault(topic.name, []).append(
                {
                    "partition_index": number,
                    "replicas": list(partition.replicas),
                    "adding_replicas": list(partition.adding),
                    "removing_replicas": list(partition.removing),
                }
            )
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
