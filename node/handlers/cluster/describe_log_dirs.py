"""DescribeLogDirs (35): the data folders of this node, how much of them each replica takes (KIP-113), and
their room (KIP-827).

A future replica, on its way from another folder, is listed with its lag behind the log (`isFutureKey`,
KIP-113). A folder whose disk failed is an error; a damaged log in one that works is not the folder's.  An
offline folder's volume is not asked for its room: the question could hang.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from ....replication.replica.replica import Replica
from ....runtime import logs
from ....storage.moving.future_replica import FutureReplica
from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import DescribeLogDirsRequest

log = logs.get(__name__)

NOT_KNOWN = -1


async def handle(broker: Broker, context: RequestContext, request: DescribeLogDirsRequest) -> Fields:
    refused = broker.permissions.refusal(context, "cluster")
    if refused is not ErrorCode.NONE:
        return {"throttle_time": 0, "error_code": refused, "results": []}
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    folders: dict[Path, list[Replica]] = {path: [] for path in broker.configuration.data_dirs}
    for replica in broker.replicas.hosted:
        if wanted is None or (replica.topic, replica.partition) in wanted:
            folders.setdefault(_folder(broker, replica.log.directory), []).append(replica)
    futures: dict[Path, list[FutureReplica]] = {path: [] for path in folders}
    for future in broker.directory.futures.values():
        if wanted is None or future.key in wanted:
            futures.setdefault(future.target.path, []).append(future)
    results = [await _describe(broker, path, replicas, futures[path]) for path, replicas in folders.items()]
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "results": results}


def _folder(broker: Broker, directory: Path) -> Path:
    """The configured data folder that a log's own folder lies in."""
    return next(
        (path for path in broker.configuration.data_dirs if directory.is_relative_to(path)), directory.parent
    )


async def _describe(
    broker: Broker, path: Path, replicas: list[Replica], futures: list[FutureReplica]
) -> dict[str, object]:
    topics: dict[str, list[dict[str, object]]] = {}
    for replica in sorted(replicas, key=lambda r: (r.topic, r.partition)):
        topics.setdefault(replica.topic, []).append(
            {
                "partition_index": replica.partition,
                "partition_size": replica.log.size_bytes,
                "offset_lag": max(0, replica.log.high_watermark - replica.log.log_end_offset),
                "is_future_key": False,
            }
        )
    for future in sorted(futures, key=lambda f: f.key):
        topics.setdefault(future.key[0], []).append(
            {
                "partition_index": future.key[1],
                "partition_size": future.size_bytes,
                "offset_lag": future.offset_lag,
                "is_future_key": True,
            }
        )
    offline = path in broker.directory.offline_folders
    total_bytes, usable_bytes = (NOT_KNOWN, NOT_KNOWN) if offline else await _room(broker, path)
    return {
        "error_code": ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NONE,
        "log_dir": str(path),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
    }


async def _room(broker: Broker, path: Path) -> tuple[int, int]:
    """Total and usable bytes."""
    try:
        return await asyncio.to_thread(broker.reserves.space, path)
    except OSError as error:
        log.warning("room_not_known", path=path, reason=error)
        return NOT_KNOWN, NOT_KNOWN
