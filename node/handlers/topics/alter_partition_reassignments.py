"""AlterPartitionReassignments (45): moves partitions to other brokers, or ends their moves (KIP-455,
KIP-860).

Answers when this node has applied the start of the moves; ListPartitionReassignments shows their progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import AlterPartitionReassignmentsRequest


async def handle(
    broker: Broker, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Fields:
    may_change = getattr(request, "allow_replication_factor_change", True)
    wanted = pb.ReassignPartitionsRequest(keep_replication_factor=not may_change)
    for topic in request.topics:
        for partition in topic.partitions:
            wanted.partitions.add(
                topic=topic.name,
                partition=partition.partition_index,
                replicas=partition.replicas or (),
                cancel=partition.replicas is None,
            )
    answer: dict[str, object] = {"throttle_time": 0, "allow_replication_factor_change": may_change}
    if not wanted.partitions:
        return answer | {"error_code": ErrorCode.NONE, "error_message": None, "responses": []}
    try:
        broker.permissions.require(context, "cluster")
        reply = await broker.controller.reassign_partitions(
            wanted, max(1.0, milliseconds(request.timeout) / 1000)
        )
    except KafkaError as error:
        failed = {"error_code": error.code, "error_message": error.message or None}
        responses = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, **failed} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        return answer | failed | {"responses": responses}
    await broker.topics.wait_for_metadata(reply.metadata_index)
    topics: dict[str, list[dict[str, object]]] = {}
    for result in reply.results:
        partition_answer = {"error_code": ErrorCode(result.error), "error_message": result.message or None}
        topics.setdefault(result.topic, []).append({"partition_index": result.partition, **partition_answer})
    responses = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    return answer | {"error_code": ErrorCode.NONE, "error_message": None, "responses": responses}
