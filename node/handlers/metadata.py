"""Metadata (3): brokers, and the leaders of topics' partitions.

Brokers that are fenced are not listed and a partition without a leader answers LEADER_NOT_AVAILABLE, so that clients retry
instead of talking to a dead node.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

from ...controller.model import PartitionState, topic_name_problem
from ...controller.state import ClusterState, TopicState
from ...wire.errors import ErrorCode
from ..broker import Broker
from ..internal_topics import INTERNAL_TOPICS
from ..requests import Fields, RequestContext
from .authorized_operations import NOT_ASKED_FOR, ON_CLUSTER, ON_TOPIC, when_asked

IDS_ASKED_FROM: Final = 12


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    state = broker.state
    version = context.api_version
    operations = when_asked(getattr(request, "include_topic_authorized_operations", False), ON_TOPIC)
    # v0 asked for all topics by an empty list, v1 and later by null.
    if request.topics is None or (version == 0 and not request.topics):
        topics = [_describe(state, topic, operations) for _, topic in sorted(state.topics.items())]
    else:
        create = getattr(request, "allow_auto_topic_creation", True)
        asked = dict.fromkeys((topic.name, getattr(topic, "topic_id", None)) for topic in request.topics)
        topics = [await _one(broker, version, name, topic_id, operations, create) for name, topic_id in asked]
        state = broker.state
    asked_for_cluster = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "throttle_time": 0,
        "brokers": [
            {"node_id": b.node_id, "host": b.kafka_host, "port": b.kafka_port, "rack": b.rack or None}
            for b in state.active_brokers()
        ],
        "cluster_id": state.cluster_id,
        "controller_id": some_broker(state, broker.controller_id),
        "topics": topics,
        "cluster_authorized_operations": when_asked(asked_for_cluster, ON_CLUSTER),
        "error_code": ErrorCode.NONE,
    }


async def _one(
    broker: Broker, version: int, name: str | None, topic_id: UUID | None, operations: int, create: bool
) -> dict[str, Any]:
    """One topic that was asked for: by name, or since version 12 by id."""
    if version < IDS_ASKED_FROM and (name is None or topic_id is not None):
        return _failed(name or "", topic_id, ErrorCode.INVALID_REQUEST)
    if topic_id is not None:
        named = broker.state.topic_by_id(topic_id)
        if named is None:
            return _failed(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        return _describe(broker.state, named, operations)
    if name is None:
        return _failed(None, None, ErrorCode.INVALID_REQUEST)
    found = broker.state.topics.get(name)
    if found is not None:
        return _describe(broker.state, found, operations)
    if topic_name_problem(name) is not None:
        return _failed(name, None, ErrorCode.INVALID_TOPIC_EXCEPTION, operations)
    error = await broker.auto_create(name) if create else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return _failed(name, None, error, operations)


def _failed(
    name: str | None, topic_id: UUID | None, code: ErrorCode, operations: int = NOT_ASKED_FOR
) -> dict[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
        "topic_authorized_operations": operations,
    }


def some_broker(state: ClusterState, controller_id: int) -> int:
    """Clients send administration to the controller they are told: any live broker serves it and forwards."""
    active = [broker.node_id for broker in state.active_brokers()]
    if controller_id in active:
        return controller_id
    return min(active, default=-1)


def offline_replicas(state: ClusterState, topic: TopicState, index: int, live: Collection[int]) -> list[int]:
    """The replicas whose node is down, or cannot serve them."""
    offline = state.offline_nodes(topic.topic_id, index)
    return [replica for replica in topic.partitions[index].replicas if replica not in live or replica in offline]


def live_brokers(state: ClusterState) -> frozenset[int]:
    return frozenset(broker.node_id for broker in state.active_brokers())


def isr_nodes(partition: PartitionState) -> list[int]:
    """In the order of the replicas, in which Kafka's tools show both: a replica that left and came back stands where it stood."""
    isr = partition.isr
    return list(isr) if isr == partition.replicas else [node_id for node_id in partition.replicas if node_id in isr]


def _describe(state: ClusterState, topic: TopicState, operations: int) -> dict[str, Any]:
    live = live_brokers(state)
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
                "isr_nodes": isr_nodes(partition),
                "offline_replicas": offline_replicas(state, topic, index, live),
            }
            for index, partition in sorted(topic.partitions.items())
        ],
        "topic_authorized_operations": operations,
    }
