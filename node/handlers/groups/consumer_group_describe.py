"""ConsumerGroupDescribe (69): epochs, members and assignments of consumer groups (KIP-848); classic groups
are not found here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ....coordinator.group.consumer.events import (
    DescribeConsumerGroup,
    DescribeConsumerGroupReply,
    DescribedConsumer,
    Partitions,
)
from ....coordinator.group.consumer.records import by_topic
from ....security.acls import ResourceType
from ....wire.errors import ErrorCode, KafkaError
from ...coordinators.group_coordination import check_consumer_groups_enabled
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext
from ..cluster.authorized_operations import NOT_ASKED_FOR, authorized_operations

if TYPE_CHECKING:
    from ....wire.request_types import ConsumerGroupDescribeRequest

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


async def handle(broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest) -> Fields:
    described, turns = [], CooperativeYield(context)
    for group_id in request.group_ids:
        await turns.before_next()
        described.append(await _describe(broker, context, group_id, request.include_authorized_operations))
    return {"throttle_time": 0, "groups": described}


async def _describe(
    broker: Broker, context: RequestContext, group_id: str, with_operations: bool
) -> dict[str, object]:
    try:
        check_consumer_groups_enabled(broker.cluster)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "")  # without a message, as by Kafka
        broker.permissions.require(context, "group", group_id)
        found = await broker.groups.ask(group_id, DescribeConsumerGroup(group_id))
        _require_describable(broker, context, found)
    except KafkaError as error:
        return {
            "error_code": error.code,
            "error_message": error.message or None,
            "group_id": group_id,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": [],
            "authorized_operations": NOT_ASKED_FOR,
        }
    operations = NOT_ASKED_FOR
    if with_operations:
        operations = authorized_operations(broker, context, ResourceType.GROUP, group_id)
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_id": group_id,
        "group_state": found.state.value,
        "group_epoch": found.epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor_name": found.assignor,
        "members": [_member(member, found.topic_names) for member in found.members],
        "authorized_operations": operations,
    }


def _require_describable(broker: Broker, context: RequestContext, found: DescribeConsumerGroupReply) -> None:
    """A member that subscribes by a pattern has topics that it may not describe: their names are in no
    answer.  Raises KafkaError, as Kafka has it."""
    assigned = {topic_id for member in found.members for topic_id, _ in (*member.assignment, *member.target)}
    may_describe = broker.permissions.asker(context, "topic")
    if not all(may_describe(found.topic_names[each]) for each in assigned if each in found.topic_names):
        raise KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "The group has described topic(s) that the client is not authorized to describe.",
        )


def _member(member: DescribedConsumer, names: Mapping[UUID, str]) -> dict[str, object]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topic_names,
        "subscribed_topic_regex": member.topic_regex,
        "assignment": {"topic_partitions": _topics(member.assignment, names)},
        "target_assignment": {"topic_partitions": _topics(member.target, names)},
        "member_type": _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    }


def _topics(partitions: Partitions, names: Mapping[UUID, str]) -> list[dict[str, object]]:
    """A topic that was deleted, and that a member has not given up yet, has no name any more and is left
    out."""
    return [
        {"topic_id": topic_id, "topic_name": names[topic_id], "partitions": numbers}
        for topic_id, numbers in by_topic(partitions)
        if topic_id in names
    ]
