"""Groups as their coordinator describes them: classic ones, and consumer groups of the newer protocol
(KIP-848).

DescribeGroups answers `Dead` for a consumer group, and ConsumerGroupDescribe does not know a classic one.
The client sends DescribeGroups first, since every version has it, and ConsumerGroupDescribe only for a group
that is `Dead` by that answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..connecting.cluster import Cluster, CoordinatorKind, require_none, top_level_code
from ..requests.assignors import TopicPartitions, decode_assignment

# Answers of a node without this consumer group, or without consumer groups at all (group.version 0, or an
# older release).
_NO_CONSUMER_GROUP: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a group and its assigned partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: TopicPartitions


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    group_id: str
    state: str
    protocol: str
    coordinator: int
    members: Sequence[GroupMember]


async def describe_group(cluster: Cluster, group_id: str, deadline_s: float) -> GroupDescription:
    """The group; `Dead` and without members when it does not exist."""
    fields = {"groups": [group_id], "include_authorized_operations": False}
    group = await _ask(cluster, ApiKey.DESCRIBE_GROUPS, group_id, fields, deadline_s, highest=5)
    require_none(top_level_code(group), f"group {group_id!r}")
    coordinator = await cluster.coordinator(CoordinatorKind.GROUP, group_id, deadline_s)
    if group.group_state == "Dead":
        found = await _describe_consumer_group(cluster, group_id, coordinator, deadline_s)
        if found is not None:
            return found
    members = [
        GroupMember(
            member.member_id,
            getattr(member, "group_instance_id", None),
            member.client_id,
            member.client_host,
            _assignment(group.protocol_type, bytes(member.member_assignment)),
        )
        for member in group.members
    ]
    return GroupDescription(group_id, group.group_state, group.protocol_data, coordinator, members)


async def _describe_consumer_group(
    cluster: Cluster, group_id: str, coordinator: int, deadline_s: float
) -> GroupDescription | None:
    fields = {"group_ids": [group_id], "include_authorized_operations": False}
    try:
        group = await _ask(cluster, ApiKey.CONSUMER_GROUP_DESCRIBE, group_id, fields, deadline_s)
        code = top_level_code(group)
    except KafkaError as error:
        if error.code not in _NO_CONSUMER_GROUP:
            raise
        return None
    if code in _NO_CONSUMER_GROUP:
        return None
    require_none(code, f"group {group_id!r}")
    members = [
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            {topic.topic_name: sorted(topic.partitions) for topic in member.assignment.topic_partitions},
        )
        for member in group.members
    ]
    return GroupDescription(group_id, group.group_state, group.assignor_name, coordinator, members)


async def _ask(
    cluster: Cluster, api_key: ApiKey, group_id: str, fields: dict[str, Any], deadline_s: float, **bounds: Any
) -> Any:
    """The one group in the answer of its coordinator."""

    def code_of(answer: Any) -> ErrorCode:
        return top_level_code(answer.groups[0])

    answer = await cluster.ask_coordinator(
        CoordinatorKind.GROUP, group_id, api_key, fields, deadline_s=deadline_s, code_of=code_of, **bounds
    )
    return answer.groups[0]


def _assignment(protocol_type: str, data: bytes) -> TopicPartitions:
    if protocol_type != "consumer":
        return {}  # another protocol (Connect): its bytes mean something else
    try:
        return decode_assignment(data)
    except KafkaError:
        return {}
