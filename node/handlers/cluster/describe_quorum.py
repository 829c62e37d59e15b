"""DescribeQuorum (55): the voters and observers of the metadata quorum, with their log ends (KIP-595,
KIP-836).

Every broker answers with the active controller's state.  Offsets are Kafka's: one above the last entry's.
Observers are the brokers that are not voters; their offsets come from their heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import DescribeQuorumRequest

_TOPIC: Final = "__cluster_metadata"
_NO_DIRECTORY: Final = UUID(int=0)


async def handle(broker: Broker, context: RequestContext, request: DescribeQuorumRequest) -> Fields:
    refused = broker.permissions.refusal(context, "cluster")
    if refused is not ErrorCode.NONE:
        return {"error_code": refused, "error_message": None, "topics": [], "nodes": []}
    asked = [
        (topic.topic_name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if asked != [(_TOPIC, 0)]:
        return _answer(request, _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    try:
        reply = await broker.controller.describe_active_quorum()
    except KafkaError as error:
        return _answer(request, _failed(error.code), error)
    partition: dict[str, object] = {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "leader_id": reply.leader_id,
        "leader_epoch": reply.term,
        "high_watermark": reply.committed_index + 1,
        "current_voters": [_replica(voter) for voter in reply.voters],
        "observers": [_replica(observer) for observer in reply.observers],
    }
    voters = {voter.node_id: voter.quorum for voter in broker.configuration.voters}
    name = broker.configuration.texts("controller.listener.names")[0].upper()
    nodes = [
        {"node_id": node_id, "listeners": [{"name": name, "host": address.host, "port": address.port}]}
        for node_id, address in sorted(voters.items())
    ]
    return _answer(request, partition) | {"nodes": nodes}


def _replica(view: pb.VoterView) -> dict[str, object]:
    return {
        "replica_id": view.node_id,
        "replica_directory_id": _NO_DIRECTORY,
        "log_end_offset": view.match_index + 1,
        "last_fetch_timestamp": view.last_fetch_timestamp_ms or -1,
        "last_caught_up_timestamp": view.last_caught_up_timestamp_ms or -1,
    }


def _failed(code: ErrorCode) -> dict[str, object]:
    return {
        "error_code": code,
        "error_message": None,
        "leader_id": -1,
        "leader_epoch": -1,
        "high_watermark": -1,
        "current_voters": [],
        "observers": [],
    }


def _answer(
    request: DescribeQuorumRequest, partition: dict[str, object], error: KafkaError | None = None
) -> dict[str, object]:
    return {
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message,
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    partition | {"partition_index": each.partition_index} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        "nodes": [],
    }
