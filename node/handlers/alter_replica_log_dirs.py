"""AlterReplicaLogDirs (34): which of this node's data folders is to hold a replica (KIP-113).

Answered as Kafka does for a folder that there is not, one whose disk failed, a replica that is not here, and one that lies there
already.  A replica does not move between the folders of one node: POLICY_VIOLATION.  It may move to another node and back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...wire.errors import ErrorCode
from ..broker import Broker
from ..requests import Fields, RequestContext


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    answers: dict[str, dict[int, ErrorCode]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            found = answers.setdefault(topic.name, {})
            for partition in topic.partitions:
                found[partition] = _outcome(broker, wanted.path, topic.name, partition)
    results = [
        {
            "topic_name": name,
            "partitions": [{"partition_index": index, "error_code": code} for index, code in partitions.items()],
        }
        for name, partitions in answers.items()
    ]
    return {"throttle_time": 0, "results": results}


def _outcome(broker: Broker, path: str, topic: str, partition: int) -> ErrorCode:
    wanted = next((folder for folder in broker.configuration.data_dirs if folder.absolute() == Path(path)), None)
    if wanted is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if wanted in broker.directory.offline_folders:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if broker.state.partition(topic, partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    present = broker.directory.folder_of(topic, partition)
    if present is None:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE if present.path == wanted else ErrorCode.POLICY_VIOLATION
