"""Metadata (3): brokers, and the leaders of topics' partitions.

Brokers that are fenced are not listed and a partition without a leader answers LEADER_NOT_AVAILABLE, so that clients retry
instead of talking to a dead node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...controller.state import ClusterState, TopicState
from ...wire.errors import ErrorCode
from ..broker import Broker
from ..internal_topics import INTERNAL_TOPICS
from ..requests import Fields, RequestContext

# "Not asked for": the value that Kafka defines for authorized operations.
OPERATIONS_UNKNOWN = -(2**31)


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    state = broker.state
    topics: list[dict[str, Any]] = []
    wanted = _wanted(state, request, context.api_version)
    for name in wanted:
        topic = state.topics.get(name)
        if topic is not None:
            topics.append(_describe(state, topic))
            continue
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if getattr(request, "allow_auto_topic_creation", True):
            error = await broker.auto_create(name)
        topics.append({"error_code": error, "name": name, "is_internal": False, "partitions": []})
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": b.node_id, "host": b.kafka_host, "port": b.kafka_port, "rack": b.rack or None}
            for b in state.active_brokers()
        ],
        "cluster_id": state.cluster_id,
        "controller_id": some_broker(state, broker.controller_id),
        "topics": topics,
        "cluster_authorized_operations": OPERATIONS_UNKNOWN,
    }


def _wanted(state: ClusterState, request: Any, version: int) -> Iterable[str]:
    """v0 asked for all topics by an empty list, v1 and later by null."""
    if request.topics is None or (version == 0 and not request.topics):
        return sorted(state.topics)
    names: list[str] = []
    for topic in request.topics:
        name = topic.name
        if name is None:
            found = state.topic_by_id(topic.topic_id)
            name = found.name if found else ""
        names.append(name)
    return list(dict.fromkeys(names))


def some_broker(state: ClusterState, controller_id: int) -> int:
    """Clients send administration to the controller they are told: any live broker serves it and forwards."""
    active = [broker.node_id for broker in state.active_brokers()]
    if controller_id in active:
        return controller_id
    return min(active, default=-1)


def _describe(state: ClusterState, topic: TopicState) -> dict[str, Any]:
    live = {broker.node_id for broker in state.active_brokers()}
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [
            {
                "error_code": ErrorCode.NONE if partition.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                "partition_index": index,
                "leader_id": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": list(partition.replicas),
                "isr_nodes": list(partition.isr),
                "offline_replicas": [replica for replica in partition.replicas if replica not in live],
            }
            for index, partition in sorted(topic.partitions.items())
        ],
        "topic_authorized_operations": OPERATIONS_UNKNOWN,
    }
