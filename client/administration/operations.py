"""The operators' part of the admin client: partition moves, feature levels, brokers and their data folders.

The requests behind `Admin`'s methods of the same names.  Each is idempotent, so the client may repeat it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ... import __version__
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..connecting.cluster import Cluster, require_none, top_level_code
from ..connecting.errors import ConnectionFailed, RequestError, error_for

Key = tuple[str, int]
UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2


_BROKER, _SET, _DELETE = 4, 0, 1  # of IncrementalAlterConfigs


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition that moves from `removing` to `adding` replicas.  Every new replica has at least
    `copied_bytes` of the leader's `leader_bytes` (None: the brokers did not answer)."""

    topic: str
    partition: int
    replicas: Sequence[int]
    adding: Sequence[int]
    removing: Sequence[int]
    copied_bytes: int | None = None
    leader_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FeatureLevel:
    """A feature: the finalised level of the cluster (0: off), and the levels that the asked node supports."""

    name: str
    level: int
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A registered broker; `alive`: it is not fenced."""

    node_id: int
    address: str
    rack: str | None
    alive: bool


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A data folder of a broker.  `offline`: its disk has failed.  The bytes are those of its volume; None:
    unknown (KIP-827)."""

    node_id: int
    path: str
    offline: bool
    total_bytes: int | None = None
    usable_bytes: int | None = None


async def describe_data_folders(cluster: Cluster, timeout_s: float) -> list[DataFolder]:
    """The data folders of all brokers that answer within the time."""
    await cluster.refresh(())

    async def ask(node_id: int) -> list[DataFolder]:
        try:
            async with asyncio.timeout(timeout_s):
                answer = await cluster.ask(node_id, ApiKey.DESCRIBE_LOG_DIRS, {"topics": []})
        except (ConnectionFailed, TimeoutError):
            return []
        return [
            DataFolder(
                node_id,
                str(found.log_dir),
                ErrorCode.from_wire(int(found.error_code)) is not ErrorCode.NONE,
                _known(getattr(found, "total_bytes", -1)),
                _known(getattr(found, "usable_bytes", -1)),
            )
            for found in answer.results
        ]

    found = await asyncio.gather(*(ask(node_id) for node_id in sorted(cluster.view.brokers)))
    return [folder for folders in found for folder in folders]


def _known(count: int) -> int | None:
    return int(count) if count >= 0 else None


async def reassign_partitions(
    cluster: Cluster, targets: Mapping[Key, Sequence[int] | None], timeout_s: float
) -> None:
    topics: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for (topic, partition), replicas in sorted(targets.items()):
        topics[topic].append(
            {"partition_index": partition, "replicas": None if replicas is None else list(replicas)}
        )
    fields = {
        "timeout": int(timeout_s * 1000),
        "allow_replication_factor_change": True,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
    answer = await cluster.ask_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, fields)
    require_none(top_level_code(answer), "moving partitions", answer.error_message)
    refusals: list[KafkaError] = []
    for topic in answer.responses:
        for entry in topic.partitions:
            code = ErrorCode.from_wire(int(entry.error_code))
            if code is not ErrorCode.NONE:
                refusals.append(
                    error_for(code, f"partition {topic.name}-{entry.partition_index}", entry.error_message)
                )
    if refusals:
        raise RequestError(refusals[0].code, "; ".join(refusal.message for refusal in refusals))


async def elect_leaders(
    cluster: Cluster, partitions: Iterable[Key], *, unclean: bool, timeout_s: float
) -> None:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    fields = {
        "election_type": int(unclean),
        "timeout": int(timeout_s * 1000),
        "topic_partitions": [{"topic": name, "partitions": numbers} for name, numbers in topics.items()],
    }
    answer = await cluster.ask_controller(ApiKey.ELECT_LEADERS, fields)
    require_none(top_level_code(answer), "electing leaders")
    refusals: list[KafkaError] = []
    for result in answer.replica_election_results:
        for entry in result.partition_result:
            code = ErrorCode.from_wire(int(entry.error_code))
            if code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                refusals.append(
                    error_for(code, f"partition {result.topic}-{entry.partition_id}", entry.error_message)
                )
    if refusals:
        raise RequestError(refusals[0].code, "; ".join(refusal.message for refusal in refusals))


async def alter_broker_config(
    cluster: Cluster, node_id: int | None, changes: Mapping[str, str | None]
) -> None:
    """Changes settings of running brokers.  A value None resets to the broker's file; `node_id` None means
    all brokers."""
    configs = [
        {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
        for key, value in changes.items()
    ]
    name = "" if node_id is None else str(node_id)
    fields = {
        "resources": [{"resource_type": _BROKER, "resource_name": name, "configs": configs}],
        "validate_only": False,
    }
    answer = await cluster.ask_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, fields)
    for result in answer.responses:
        code = ErrorCode.from_wire(int(result.error_code))
        require_none(code, f"settings of {f'broker {name}' if name else 'all brokers'}", result.error_message)


async def broker_settings(cluster: Cluster, node_id: int | None) -> dict[str, str | None]:
    """Values by name: a broker's settings, or those set at run time for all brokers (`node_id` None)."""
    name = "" if node_id is None else str(node_id)
    fields = {"resources": [{"resource_type": _BROKER, "resource_name": name, "configuration_keys": None}]}
    if node_id is None:
        answer = await cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, fields)
    else:
        answer = await cluster.ask(node_id, ApiKey.DESCRIBE_CONFIGS, fields)
    found: dict[str, str | None] = {}
    for result in answer.results:
        require_none(
            ErrorCode.from_wire(int(result.error_code)), f"settings of broker {name}", result.error_message
        )
        found |= {str(entry.name): entry.value for entry in result.configs}
    return found


async def list_reassignments(cluster: Cluster, timeout_s: float) -> list[PartitionMove]:
    """The moves of partitions, with the copied bytes where the brokers answer."""
    fields = {"timeout": int(timeout_s * 1000), "topics": None}
    answer = await cluster.ask_any(ApiKey.LIST_PARTITION_REASSIGNMENTS, fields)
    require_none(top_level_code(answer), "listing moves of partitions", answer.error_message)
    moves = [
        PartitionMove(
            topic.name,
            int(entry.partition_index),
            tuple(map(int, entry.replicas)),
            tuple(map(int, entry.adding_replicas)),
            tuple(map(int, entry.removing_replicas)),
        )
        for topic in answer.topics
        for entry in topic.partitions
    ]
    if not moves:
        return []
    await cluster.refresh({move.topic for move in moves})
    nodes = sorted({node for move in moves for node in move.replicas if node in cluster.view.brokers})
    sizes: dict[tuple[int, str, int], int] = {}
    for found in await asyncio.gather(*(_sizes(cluster, node, moves) for node in nodes)):
        sizes.update(found)
    return [
        _with_progress(cluster, move, sizes)
        for move in sorted(moves, key=lambda move: (move.topic, move.partition))
    ]


def _with_progress(
    cluster: Cluster, move: PartitionMove, sizes: Mapping[tuple[int, str, int], int]
) -> PartitionMove:
    copied = [
        sizes.get((node, move.topic, move.partition), 0) for node in move.adding if node not in move.removing
    ]
    led = sizes.get((cluster.view.leader(move.topic, move.partition), move.topic, move.partition))
    return PartitionMove(
        move.topic, move.partition, move.replicas, move.adding, move.removing, min(copied, default=None), led
    )


async def _sizes(
    cluster: Cluster, node_id: int, moves: Sequence[PartitionMove]
) -> dict[tuple[int, str, int], int]:
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for move in moves:
        topics[move.topic].append(move.partition)
    fields = {"topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]}
    try:
        answer = await cluster.ask(node_id, ApiKey.DESCRIBE_LOG_DIRS, fields)
    except ConnectionFailed:
        return {}  # the broker does not answer: its sizes are unknown
    return {
        (node_id, topic.name, int(entry.partition_index)): int(entry.partition_size)
        for folder in answer.results
        for topic in folder.topics
        for entry in topic.partitions
    }


async def describe_features(cluster: Cluster) -> list[FeatureLevel]:
    fields = {"client_software_name": "tidegate", "client_software_version": __version__}
    answer = await cluster.ask_any(ApiKey.API_VERSIONS, fields)
    finalised = {str(entry.name): int(entry.max_version_level) for entry in answer.finalized_features}
    known = {
        str(entry.name): (int(entry.min_version), int(entry.max_version))
        for entry in answer.supported_features
    }
    names = sorted({*finalised, *known})
    return [FeatureLevel(name, finalised.get(name, 0), *known.get(name, (0, 0))) for name in names]


async def update_features(
    cluster: Cluster, levels: Mapping[str, int], timeout_s: float, *, downgrade: bool, validate_only: bool
) -> None:
    kind = SAFE_DOWNGRADE if downgrade else UPGRADE
    updates = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind}
        for name, level in sorted(levels.items())
    ]
    fields = {"timeout": int(timeout_s * 1000), "feature_updates": updates, "validate_only": validate_only}
    answer = await cluster.ask_controller(ApiKey.UPDATE_FEATURES, fields)
    require_none(top_level_code(answer), "feature levels", answer.error_message)


async def list_brokers(cluster: Cluster) -> list[RegisteredBroker]:
    """All registered brokers, fenced ones included."""
    fields = {
        "include_cluster_authorized_operations": False,
        "endpoint_type": 1,
        "include_fenced_brokers": True,
    }
    answer = await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, fields)
    require_none(top_level_code(answer), "the cluster's brokers", answer.error_message)
    found = [
        RegisteredBroker(
            int(each.broker_id), f"{each.host}:{each.port}", each.rack, not getattr(each, "is_fenced", False)
        )
        for each in answer.brokers
    ]
    return sorted(found, key=lambda broker: broker.node_id)


async def unregister_broker(cluster: Cluster, node_id: int) -> None:
    answer = await cluster.ask_controller(ApiKey.UNREGISTER_BROKER, {"broker_id": node_id})
    require_none(top_level_code(answer), f"unregistering broker {node_id}", answer.error_message)
