"""DeleteRecords, sent to each partition's leader and followed when leaders move.

Repeated until the deadline: deleting the same records twice changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from ...wire.api import ApiKey
from ...wire.errors import ErrorCode
from ..connecting.cluster import Backoff, Cluster
from ..connecting.errors import ConnectionFailed, RequestError, error_for
from ..connecting.metadata import NO_LEADER, no_partition

_REPEATED: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT})
STORAGE_PATIENCE_S: Final = 5.0
"""A leader whose disk fails is replaced sooner; one whose disk is full stays."""

_REASONS: Final = {
    # the answer of the protocol has no text
    ErrorCode.POLICY_VIOLATION: "a pinned cut keeps them (`tidegate cuts list` shows it, `... unpin`"
    " lets go of it), or the topic's cleanup.policy has no `delete`",
}


async def delete_records(
    cluster: Cluster, before: Mapping[tuple[str, int], int], timeout_s: float
) -> dict[tuple[str, int], int]:
    """Removes the records below an offset (-1: all committed ones); the new first offset of each partition.

    Raises the first partition's error that repeating does not mend.
    """
    deadline_s = cluster.clock.monotonic() + timeout_s
    patient_until_s = cluster.clock.monotonic() + STORAGE_PATIENCE_S
    backoff = Backoff(cluster.clock)
    done: dict[tuple[str, int], int] = {}
    left = dict(before)
    while True:
        by_leader: defaultdict[int, dict[tuple[str, int], int]] = defaultdict(dict)
        code, said = ErrorCode.LEADER_NOT_AVAILABLE, None
        for key, offset in left.items():
            topic = await cluster.topic(key[0], max(0.0, deadline_s - cluster.clock.monotonic()))
            if key[1] not in topic.partitions:
                await cluster.refresh([key[0]])  # partitions may have been added since
                topic = await cluster.topic(key[0], max(0.0, deadline_s - cluster.clock.monotonic()))
            if key[1] not in topic.partitions:
                raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_partition(topic, key[1]))
            by_leader[cluster.view.leader(*key)][key] = offset
        by_leader.pop(NO_LEADER, None)
        timeout_ms = max(1, int((deadline_s - cluster.clock.monotonic()) * 1000))
        asked = [_ask_leader(cluster, node, part, timeout_ms) for node, part in by_leader.items()]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, ConnectionFailed):
                code, said = answer.code, answer.message
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for key, (result, low_watermark) in answer.items():
                    if result is ErrorCode.NONE:
                        done[key] = low_watermark
                        del left[key]
                    elif (
                        result is ErrorCode.KAFKA_STORAGE_ERROR
                        and cluster.clock.monotonic() > patient_until_s
                    ):
                        raise error_for(
                            result, f"deleting records of {key[0]}-{key[1]}", "its disk is full, or fails"
                        )
                    elif result.retriable or result in _REPEATED:
                        code = result
                    else:
                        raise error_for(
                            result,
                            f"deleting records of {key[0]}-{key[1]} before offset {left[key]}",
                            _REASONS.get(result),
                        )
        if not left:
            return done
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(left))
        await cluster.pause(backoff, deadline_s, code, f"deleting records of {names}", said)
        await cluster.refresh({topic for topic, _ in left})


async def _ask_leader(
    cluster: Cluster, node_id: int, before: Mapping[tuple[str, int], int], timeout_ms: int
) -> dict[tuple[str, int], tuple[ErrorCode, int]]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), offset in sorted(before.items()):
        topics.setdefault(topic, []).append({"partition_index": partition, "offset": offset})
    fields: dict[str, Any] = {
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
        "timeout": timeout_ms,
    }
    answer = await cluster.ask(node_id, ApiKey.DELETE_RECORDS, fields)
    return {
        (topic.name, int(entry.partition_index)): (
            ErrorCode.from_wire(int(entry.error_code)),
            int(entry.low_watermark),
        )
        for topic in answer.topics
        for entry in topic.partitions
    }
