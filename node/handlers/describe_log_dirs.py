"""DescribeLogDirs (35): the data folders of this node, and how much of them each replica takes (KIP-113)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...replication.replica import Replica, Role
from ...wire.errors import ErrorCode
from ..broker import Broker
from ..requests import Fields, RequestContext

NOT_KNOWN = -1


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    folders: dict[Path, list[Replica]] = {path: [] for path in broker.configuration.data_dirs}
    for replica in broker.replicas.replicas:
        if wanted is None or (replica.topic, replica.partition) in wanted:
            folders.setdefault(_folder(broker, replica.log.directory), []).append(replica)
    results = [_describe(broker, path, replicas) for path, replicas in folders.items()]
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "results": results}


def _folder(broker: Broker, directory: Path) -> Path:
    """The configured data folder that a log's own folder lies in."""
    return next((path for path in broker.configuration.data_dirs if directory.is_relative_to(path)), directory.parent)


def _describe(broker: Broker, path: Path, replicas: list[Replica]) -> dict[str, Any]:
    offline = broker.directory.is_offline or any(replica.role is Role.OFFLINE for replica in replicas)
    topics: dict[str, list[dict[str, Any]]] = {}
    for replica in sorted(replicas, key=lambda r: (r.topic, r.partition)):
        topics.setdefault(replica.topic, []).append(
            {
                "partition_index": replica.partition,
                "partition_size": replica.log.size_bytes,
                "offset_lag": max(0, replica.log.high_watermark - replica.log.log_end_offset),
                "is_future_key": False,
            }
        )
    return {
        "error_code": ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NONE,
        "log_dir": str(path),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": NOT_KNOWN,
        "usable_bytes": NOT_KNOWN,
    }
