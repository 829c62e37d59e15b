"""ConsumerGroupHeartbeat (68): a member joins, lives, moves its partitions and leaves; KIP-848 in one
request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....coordinator.group.consumer.events import ConsumerGroupHeartbeat, Partitions
from ....coordinator.group.consumer.records import by_topic
from ....wire.errors import ErrorCode, KafkaError
from ...coordinators.group_coordination import check_consumer_groups_enabled
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import ConsumerGroupHeartbeatRequest, OwnedTopic


async def handle(broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Fields:
    member_id = request.member_id
    if not member_id and context.api_version == 0 and request.member_epoch == 0:
        member_id = str(broker.clock.uuid())  # since version 1 a member names itself
    event = ConsumerGroupHeartbeat(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topic_names=None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
        topic_regex=getattr(request, "subscribed_topic_regex", None),
        assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=context.client_id,
        client_host=f"/{context.client_host}",  # as Kafka writes it
    )
    try:
        check_consumer_groups_enabled(broker.cluster)
        broker.permissions.require(context, "group", request.group_id)
        for name in event.topic_names or ():
            broker.permissions.require(context, "topic", name)
        if event.topic_regex:
            await broker.groups.learn_pattern(event.topic_regex)
        reply = await broker.groups.ask(request.group_id, event)
    except KafkaError as error:
        return {
            "throttle_time": 0,
            "error_code": error.code,
            "error_message": error.message,
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval": 0,
            "assignment": None,
        }
    assignment = None
    if reply.assignment is not None:
        topics = [
            {"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in by_topic(reply.assignment)
        ]
        assignment = {"topic_partitions": topics}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "member_id": reply.member_id,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval": reply.heartbeat_interval_ms,
        "assignment": assignment,
    }


def _owned(topics: Sequence[OwnedTopic] | None) -> Partitions | None:
    if topics is None:
        return None
    return frozenset(
        (topic.topic_id, number) for topic in topics if topic.topic_id for number in topic.partitions
    )
