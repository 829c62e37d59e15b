"""Administrative requests that came late to Kafka, as cases beside those of `protocol_cases`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .protocol_cases import ANY, CASES, OK, World, case, fresh

__all__ = ["CASES", "new_resource"]

CLIENT_METRICS = 16
GROUP = 32


async def new_resource(world: World, kind: int, configs: dict[str, str]) -> str:
    """A group, or a subscription to clients' metrics, with these settings."""
    name = fresh("resource")
    changes = [{"name": key, "config_operation": 0, "value": value} for key, value in configs.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    answer = await world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    assert answer.responses[0].error_code == 0, answer
    return name


@case(ApiKey.ALTER_REPLICA_LOG_DIRS)
async def _alter_replica_log_dirs(world: World, version: int) -> Any:
    def wanted(path: str, name: str) -> dict[str, Any]:
        return {"path": path, "topics": [{"name": name, "partitions": [0]}]}

    results = [
        {"topic_name": name, "partitions": [{"partition_index": 0, "error_code": int(code)}]}
        for name, code in (
            (world.topic, ErrorCode.NONE),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("elsewhere", ErrorCode.LOG_DIR_NOT_FOUND),
        )
    ]
    dirs = [
        wanted(world.folder, world.topic),
        wanted(world.folder, "missing"),
        wanted("/nowhere", "elsewhere"),
    ]
    return {"dirs": dirs}, {"throttle_time": 0, "results": results}


@case(ApiKey.LIST_CONFIG_RESOURCES)
async def _list_config_resources(world: World, version: int) -> Any:
    name = await new_resource(world, CLIENT_METRICS, {"interval.ms": "1000"})

    def has_it(resources: Any) -> bool:
        kinds = {getattr(each, "resource_type", CLIENT_METRICS) for each in resources}
        return name in [each.resource_name for each in resources] and kinds == {CLIENT_METRICS}

    return {"resource_types": [CLIENT_METRICS]}, OK | {"config_resources": has_it}


@case(ApiKey.DESCRIBE_QUORUM)
async def _describe_quorum(world: World, version: int) -> Any:
    voter = {
        "replica_id": 1, "replica_directory_id": lambda each: each in (None, UUID(int=0)),
        "log_end_offset": lambda n: n > 1,
        "last_fetch_timestamp": lambda ms: ms > 0, "last_caught_up_timestamp": lambda ms: ms > 0,
    }  # fmt: skip
    partition = {
        "partition_index": 0, "error_code": 0, "error_message": None, "leader_id": 1,
        "leader_epoch": lambda n: n > 0,
        "high_watermark": lambda n: n > 1, "current_voters": [voter], "observers": [],
    }  # fmt: skip
    topics = [{"topic_name": "__cluster_metadata", "partitions": [partition]}]
    nodes = [{"node_id": 1, "listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": ANY}]}]
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    return {"topics": asked}, {"error_code": 0, "error_message": None, "topics": topics, "nodes": nodes}


@case(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS)
async def _get_telemetry_subscriptions(world: World, version: int) -> Any:
    answer = OK | {
        "client_instance_id": lambda each: each not in (None, UUID(int=0)), "subscription_id": ANY,
        "accepted_compression_types": (4, 3, 1, 2), "push_interval": ANY, "telemetry_max_bytes": 1 << 20,
        "delta_temporality": False, "requested_metrics": ANY,
    }  # fmt: skip
    return {"client_instance_id": None}, answer


@case(ApiKey.PUSH_TELEMETRY)
async def _push_telemetry(world: World, version: int) -> Any:
    known = await world.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=None)
    push = {
        "client_instance_id": known.client_instance_id, "subscription_id": known.subscription_id,
        "terminating": True,
        "compression_type": 0, "metrics": b"",
    }  # fmt: skip
    return push, OK
