"""The requests of consumer groups (KIP-848) as cases, beside those of `protocol_cases`."""

from __future__ import annotations

from typing import Any

from tidegate.wire.api import ApiKey

from .protocol_cases import CASES, OK, World, case, found, fresh

__all__ = ["CASES", "heartbeat", "new_consumer_group"]


def heartbeat(world: World, name: str, member_id: str, epoch: int, **fields: Any) -> dict[str, Any]:
    """A consumer group's heartbeat (KIP-848); with epoch 0 all of it."""
    joining = {"rebalance_timeout": 30_000, "subscribed_topic_names": [world.topic], "topic_partitions": []}
    none = {"instance_id": None, "rack_id": None, "subscribed_topic_regex": None, "server_assignor": None}
    kept = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    member = {"group_id": name, "member_id": member_id, "member_epoch": epoch}
    return none | (joining if epoch == 0 else kept) | member | fields


async def new_consumer_group(world: World) -> str:
    """A consumer group whose only member "member" has both partitions, at epoch 1."""
    name = fresh("group")
    await found(world, 0, name)
    for _ in range(600):
        joined = await world.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, **heartbeat(world, name, "member", 0))
        if joined.error_code == 0:
            return name
    raise AssertionError(joined)


@case(ApiKey.CONSUMER_GROUP_HEARTBEAT)
async def _consumer_group_heartbeat(world: World, version: int) -> Any:
    name = await new_consumer_group(world)
    partitions = [{"topic_id": world.topic_id, "partitions": (0, 1)}]
    answer = OK | {
        "error_message": None, "member_id": "member", "member_epoch": 1, "heartbeat_interval": 5_000,
        "assignment": {"topic_partitions": partitions},
    }  # fmt: skip
    return heartbeat(world, name, "member", 0), answer


@case(ApiKey.CONSUMER_GROUP_DESCRIBE)
async def _consumer_group_describe(world: World, version: int) -> Any:
    name = await new_consumer_group(world)
    topic = {"topic_id": world.topic_id, "topic_name": world.topic, "partitions": (0, 1)}
    everything = {"topic_partitions": [topic]}
    member = {
        "member_id": "member", "instance_id": None, "rack_id": None, "member_epoch": 1,
        "client_id": "conformance",
        "client_host": "/127.0.0.1", "subscribed_topic_names": (world.topic,), "subscribed_topic_regex": None,
        "assignment": everything, "target_assignment": everything, "member_type": 1,
    }  # fmt: skip
    group = {
        "error_code": 0, "error_message": None, "group_id": name, "group_state": "Stable", "group_epoch": 1,
        "assignment_epoch": 1, "assignor_name": "uniform", "members": [member],
        "authorized_operations": 0b110101001000,
    }  # fmt: skip
    return {"group_ids": [name], "include_authorized_operations": True}, {
        "throttle_time": 0,
        "groups": [group],
    }
