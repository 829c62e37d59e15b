"""The requests about groups to both clusters: groups that do not exist, groups of another kind, groups with
members."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tidegate.wire import api
from tidegate.wire.api import ApiKey

from .script import create
from .side import Side

TOPIC = "grouped"
MISSING, SIMPLE, CLASSIC, CONSUMER = "missing", "simple", "classic", "consumer"
MEMBER = "member-of-the-script"


def versions(key: ApiKey) -> range:
    return range(api.TABLE[key].low, api.TABLE[key].high + 1)


def announced(side: Side) -> None:
    """Client metrics without a subscription (KIP-714)."""
    answer = side.ask(
        None, ApiKey.API_VERSIONS, 4, {"client_software_name": "compare", "client_software_version": "1"}
    )
    keys = {each.api_key for each in answer.api_keys}
    side.note(
        "announced: client metrics",
        sorted(keys & {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}),
    )


def make_groups(side: Side, topic_id: UUID) -> str:
    """Three groups; the id of the classic one's member."""
    where = {"key_type": 0, "coordinator_keys": [SIMPLE, CLASSIC, CONSUMER, MISSING]}

    def have_coordinators() -> bool:
        return not any(
            each.error_code for each in side.ask(None, ApiKey.FIND_COORDINATOR, 6, where).coordinators
        )

    side.wait_until(have_coordinators, "coordinators")
    side.wait_until(lambda: not _commit(side, None, SIMPLE), "a coordinator")
    fields = {
        "group_id": CLASSIC, "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": _subscription()}],
        "reason": None,
    }  # fmt: skip
    member_id: str = side.ask(None, ApiKey.JOIN_GROUP, 9, fields).member_id
    side.name_as(member_id, "the member")
    joined = side.ask(None, ApiKey.JOIN_GROUP, 9, fields | {"member_id": member_id})
    assert joined.error_code == 0, joined
    synced = side.ask(None, ApiKey.SYNC_GROUP, 5, _sync(CLASSIC, member_id, 1))
    assert synced.error_code == 0, synced
    heartbeat = _heartbeat(CONSUMER, MEMBER, 0) | {"subscribed_topic_names": [TOPIC], "topic_partitions": []}  # type: ignore[operator]
    joined = side.ask(None, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat)
    assert joined.error_code == 0, joined
    return member_id


def groups(side: Side) -> None:
    member_id = make_groups(side, create(side, TOPIC, 2))
    for group in (MISSING, "", SIMPLE, CLASSIC, CONSUMER):
        for key, version in [(each, version) for each in _QUESTIONS for version in versions(each)]:
            if group in (CLASSIC, CONSUMER) and key in (
                ApiKey.DESCRIBE_GROUPS,
                ApiKey.CONSUMER_GROUP_DESCRIBE,
            ):
                _describe_live(side, group, key, version)
            elif not (group == SIMPLE and key is ApiKey.DELETE_GROUPS):
                side.ask(f"group {group!r}: {key.name} {version}", key, version, _QUESTIONS[key](group))
        _delete_offsets(side, group, "no-such-topic", [0])
        for partitions in ([7], []):
            _delete_offsets(side, group, TOPIC, partitions)
        for member in ("", "unknown", member_id if group == CLASSIC else MEMBER):
            _as_member(side, group, member)
        for partitions in ([0], [0]):
            _delete_offsets(side, group, TOPIC, partitions)
    for group in (CLASSIC, CONSUMER):
        member = member_id if group == CLASSIC else MEMBER
        for epoch in (0, 2, 7):
            label = f"group {group!r} in generation {epoch}"
            side.ask(f"{label}: HEARTBEAT", ApiKey.HEARTBEAT, 4, _classic_heartbeat(group, member, epoch))
            side.note(f"{label}: OFFSET_COMMIT", _commit(side, member, group, epoch))
    _odd_heartbeats(side)
    everything = [MISSING, SIMPLE, "", SIMPLE]
    # in no particular order
    deleted = side.ask(None, ApiKey.DELETE_GROUPS, 2, {"groups_names": everything}).results
    side.note("groups deleted together", {each.group_id: int(each.error_code) for each in deleted})
    side.ask("groups deleted again", ApiKey.DELETE_GROUPS, 2, {"groups_names": [SIMPLE]})
    side.ask("groups listed", ApiKey.LIST_GROUPS, 5, {"states_filter": ["Dead"], "types_filter": []})


def _odd_heartbeats(side: Side) -> None:
    """Heartbeats that are invalid in any group, heartbeats of members with names, and of a member that is
    behind."""
    join = {**_heartbeat("odd", "odd-member", 0), "subscribed_topic_names": [TOPIC], "topic_partitions": []}
    named = {**join, "group_id": "static", "instance_id": "i"}
    other = named | {"member_id": "other"}
    for what, fields in (
        ("instance id", join | {"instance_id": ""}),
        ("rack", join | {"rack_id": ""}),
        ("epoch -3", join | {"member_epoch": -3}),
        ("a while without an instance id", join | {"member_epoch": -2}),
        ("no rebalance timeout", join | {"rebalance_timeout": -1}),
        ("owns something", join | {"topic_partitions": [{"topic_id": UUID(int=7), "partitions": [0]}]}),
        ("owns null", join | {"topic_partitions": None}),
        ("no subscription", join | {"subscribed_topic_names": None}),
        ("assignor", join | {"server_assignor": "sticky"}),
        ("regex", join | {"subscribed_topic_regex": "("}),
        ("name", named),
        ("name held", other),
        ("name fenced", other | {"member_epoch": 1}),
        ("name fenced, leaves", other | {"member_epoch": -1}),
        ("name unknown", named | {"member_epoch": 1, "instance_id": "j"}),
        ("name leaves for a while", named | {"member_epoch": -2}),
        ("name that left", named | {"member_epoch": 1}),
        ("second member", {**join, "group_id": CONSUMER, "member_id": "second"}),
        ("first moves on", _heartbeat(CONSUMER, MEMBER, 1)),
        ("first is behind", {**_heartbeat(CONSUMER, MEMBER, 0), "member_epoch": 1}),
    ):
        answer = side.ask(None, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
        side.note(f"group, odd heartbeat: {what}", [int(answer.error_code), answer.error_message])


def _offset_fetch(group: str) -> Mapping[str, Any]:
    one = {
        "group_id": group,
        "member_id": None,
        "member_epoch": -1,
        "topics": [{"name": TOPIC, "partition_indexes": [0, 7]}],
    }
    return {"groups": [one], "topics": one["topics"], "group_id": group, "require_stable": False}


_QUESTIONS: Mapping[ApiKey, Any] = {
    ApiKey.DESCRIBE_GROUPS: lambda group: {"groups": [group], "include_authorized_operations": True},
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda group: {
        "group_ids": [group],
        "include_authorized_operations": True,
    },
    ApiKey.DELETE_GROUPS: lambda group: {"groups_names": [group]},
    ApiKey.OFFSET_FETCH: _offset_fetch,
}


def _describe_live(side: Side, group: str, key: ApiKey, version: int) -> None:
    """Without what the members are assigned: that is other tests' business."""
    answer = side.ask(None, key, version, _QUESTIONS[key](group)).groups[0]
    outcomes = {
        "error_code": int(answer.error_code), "error_message": getattr(answer, "error_message", None),
        "state": answer.group_state, "members": len(answer.members),
    }  # fmt: skip
    side.note(f"group {group!r}: {key.name} {version}", outcomes)


def _delete_offsets(side: Side, group: str, topic: str, partitions: Sequence[int]) -> None:
    asked = {
        "group_id": group,
        "topics": [{"name": topic, "partitions": [{"partition_index": each} for each in partitions]}],
    }
    label = f"group {group!r}: OFFSET_DELETE {topic} {partitions}"
    side.ask(label + " again" * (label in side.answers), ApiKey.OFFSET_DELETE, 0, asked)


def _as_member(side: Side, group: str, member: str) -> None:
    label = f"group {group!r} as {side.plain(member)!r}"
    generation = 0 if member == MEMBER else 9
    side.ask(f"{label}: HEARTBEAT", ApiKey.HEARTBEAT, 4, _classic_heartbeat(group, member, generation))
    side.ask(f"{label}: SYNC_GROUP", ApiKey.SYNC_GROUP, 5, _sync(group, member, generation))
    side.ask(
        f"{label}: CONSUMER_GROUP_HEARTBEAT",
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        _heartbeat(group, member, 9),
    )
    side.note(f"{label}: OFFSET_COMMIT", _commit(side, member, group, 9))
    if member == "unknown":
        members = [{"member_id": member, "group_instance_id": None, "reason": None}]
        side.ask(f"{label}: LEAVE_GROUP", ApiKey.LEAVE_GROUP, 5, {"group_id": group, "members": members})
        side.ask(
            f"{label}: leaves by heartbeat",
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            _heartbeat(group, member, -1),
        )
    one = {
        "group_id": group,
        "member_id": member,
        "member_epoch": 9,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
    }
    side.ask(f"{label}: OFFSET_FETCH", ApiKey.OFFSET_FETCH, 9, {"groups": [one], "require_stable": False})


def _commit(side: Side, member: str | None, group: str, generation: int = -1) -> int:
    offset = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    asked = {
        "group_id": group, "generation_id_or_member_epoch": generation, "member_id": member or "",
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [offset]}],
    }  # fmt: skip
    return int(side.ask(None, ApiKey.OFFSET_COMMIT, 9, asked).topics[0].partitions[0].error_code)


def _classic_heartbeat(group: str, member: str, generation: int) -> Mapping[str, Any]:
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
    }


def _sync(group: str, member: str, generation: int) -> Mapping[str, Any]:
    return {
        "group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None,
        "protocol_type": "consumer", "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": b""}],
    }  # fmt: skip


def _heartbeat(group: str, member: str, epoch: int) -> Mapping[str, Any]:
    return {
        "group_id": group, "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 30_000 if epoch == 0 else -1, "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None, "topic_partitions": None,
    }  # fmt: skip


def _subscription() -> bytes:
    name = TOPIC.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)
