"""AlterReplicaLogDirs (34): which of this node's data folders is to hold a replica (KIP-113).

Answered when the future replica exists; DescribeLogDirs shows how far it is.  A request for the folder that
has the log already ends a move in progress.  A replica that this node does not have yet is
REPLICA_NOT_AVAILABLE; the node will create it in that folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ....runtime import logs
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import AlterReplicaLogDirsRequest

log = logs.get(__name__)


async def handle(broker: Broker, context: RequestContext, request: AlterReplicaLogDirsRequest) -> Fields:
    answers: dict[str, dict[int, ErrorCode]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            found = answers.setdefault(topic.name, {})
            for partition in topic.partitions:
                found[partition] = broker.permissions.refusal(context, "cluster")
                if found[partition] is ErrorCode.NONE:
                    found[partition] = await _outcome(broker, Path(wanted.path), topic.name, partition)
    results = [
        {
            "topic_name": name,
            "partitions": [
                {"partition_index": index, "error_code": code} for index, code in partitions.items()
            ],
        }
        for name, partitions in answers.items()
    ]
    return {"throttle_time": 0, "results": results}


async def _outcome(broker: Broker, path: Path, topic: str, partition: int) -> ErrorCode:
    folder = next((each for each in broker.directory.folders if each.path.absolute() == path), None)
    if folder is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if folder.is_offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if broker.state.partition(topic, partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        await broker.moves.move_to(topic, partition, path)
    except KafkaError as error:
        if error.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
            log.warning("replica_not_moved", topic=topic, partition=partition, path=path, error=error)
        return error.code
    return ErrorCode.NONE
