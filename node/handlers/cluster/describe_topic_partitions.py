"""DescribeTopicPartitions (75): topics page by page, with the eligible leaders of each partition (KIP-966).

Topics come in the order of their names.  A page holds at most `response_partition_limit` partitions, or what
this node allows (`max.request.partition.size.limit`); a cursor in the answer says where the next one begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....controller.state.cluster_state import ClusterState
from ....controller.state.model import TopicState, topic_name_problem
from ....security.acls import ResourceType
from ....wire.errors import ErrorCode
from ...cluster.internal_topics import INTERNAL_TOPICS
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext
from .authorized_operations import NOT_ASKED_FOR, authorized_operations
from .metadata import isr_nodes, leader_on, live_brokers, offline_replicas

if TYPE_CHECKING:
    from ....wire.request_types import DescribeTopicPartitionsRequest

_WORK_BYTES = 4096
"""As in metadata.py: the work on one partition."""


async def handle(broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest) -> Fields:
    state = broker.state
    cursor = request.cursor
    first = "" if cursor is None else cursor.topic_name
    asked = {topic.name for topic in request.topics}
    names = asked or broker.permissions.allowed(context, "any topic", state.topics)
    if cursor is not None and (cursor.partition_index < 0 or (request.topics and first not in names)):
        refused = [
            _topic(each.name, None, ErrorCode.INVALID_REQUEST, [], NOT_ASKED_FOR) for each in request.topics
        ]
        return {"throttle_time": 0, "topics": refused, "next_cursor": None}
    most = max(
        1,
        min(
            request.response_partition_limit, broker.configuration.integer("max.request.partition.size.limit")
        ),
    )
    turns = CooperativeYield(context)
    topics: list[dict[str, object]] = []
    following, described = None, 0
    wanted = sorted(name for name in names if name >= first)
    for position, name in enumerate(wanted):
        await turns.before_next(_WORK_BYTES * described)
        state = broker.state
        right = broker.permissions.refusal(context, "topic", name)
        if right is not ErrorCode.NONE:
            topics.append(_topic(name, None, right, [], NOT_ASKED_FOR))
            continue
        operations = authorized_operations(broker, context, ResourceType.TOPIC, name)
        topic, live, described = state.topics.get(name), live_brokers(state, context.listener_name), 0
        if topic is None:
            unknown = topic_name_problem(name) is None
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else ErrorCode.INVALID_TOPIC_EXCEPTION
            topics.append(_topic(name, None, code, [], operations))
            continue
        begin = cursor.partition_index if cursor is not None and name == first else 0
        indexes = [index for index in sorted(topic.partitions) if index >= begin]
        page = indexes[:most]
        described = len(page)
        topics.append(
            _topic(
                name,
                topic,
                ErrorCode.NONE,
                [_partition(state, topic, index, live, context.listener_name) for index in page],
                operations,
            )
        )
        if len(page) < len(indexes):
            following = {"topic_name": name, "partition_index": indexes[most]}
            break
        most -= len(page)
        if most <= 0 and position + 1 < len(wanted):
            following = {"topic_name": wanted[position + 1], "partition_index": 0}
            break
    return {"throttle_time": 0, "topics": topics, "next_cursor": following}


def _topic(
    name: str,
    topic: TopicState | None,
    code: ErrorCode,
    partitions: list[dict[str, object]],
    operations: int,
) -> dict[str, object]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": None if topic is None else topic.topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": operations,
    }


def _partition(
    state: ClusterState, topic: TopicState, index: int, live: frozenset[int], listener_name: str
) -> dict[str, object]:
    found = topic.partitions[index]
    return {
        "error_code": ErrorCode.NONE if found.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        "partition_index": index,
        "leader_id": leader_on(state, found, listener_name),
        "leader_epoch": found.leader_epoch,
        "replica_nodes": list(found.replicas),
        "isr_nodes": isr_nodes(found),
        "eligible_leader_replicas": list(found.elr),
        "last_known_elr": [],
        "offline_replicas": offline_replicas(state, topic, index, live),
    }
