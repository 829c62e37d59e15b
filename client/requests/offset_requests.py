"""Questions about offsets: the begin and the end of a log, the offset of a time, the committed offsets of a
group.

ListOffsets goes to each partition's leader and is followed when leaders move; OffsetFetch and OffsetCommit go
to the group's coordinator.  All are repeated until the deadline: reading twice, or storing the same offsets
twice, changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..connecting.cluster import Backoff, Cluster, CoordinatorKind
from ..connecting.errors import (
    ConnectionFailed,
    FatalError,
    GroupChanged,
    RetriableError,
    error_for,
    sentence,
)
from ..connecting.metadata import NO_LEADER
from .transaction_requests import CommittedOffset, GroupMetadata, Offsets, offset_topics, worst_offset_code

EARLIEST: Final = -2
LATEST: Final = -1  # at read_committed: the last stable offset (docs/semantics.md F4)
LIST_OFFSETS_VERSION_MAX: Final = 6
OFFSET_FETCH_VERSION_MAX: Final = 7
_CHANGED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        # since version 9 (KIP-848) for a generation of a group that the coordinator does not know
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)


class TopicPartition(NamedTuple):
    """One partition of a topic; equal to the plain tuple."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetAtTime:
    """The first record at or after a time.  `offset` -1: there is none."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster,
    times: Mapping[tuple[str, int], int],
    *,
    read_committed: bool,
    timeout_s: float,
    partly: bool = False,
) -> dict[tuple[str, int], OffsetAtTime]:
    """The offset for each partition and time (milliseconds, EARLIEST or LATEST).  Raises the partition's
    error.

    `partly`: partitions without an answer within the time are left out; for showing, never for deciding.
    """
    found: dict[tuple[str, int], OffsetAtTime] = {}
    try:
        async with asyncio.timeout(timeout_s if partly else None):
            await _find_offsets(cluster, times, found, read_committed, cluster.clock.monotonic() + timeout_s)
    except (TimeoutError, RetriableError):
        if not partly:
            raise
    return found


async def _find_offsets(
    cluster: Cluster,
    times: Mapping[tuple[str, int], int],
    found: dict[tuple[str, int], OffsetAtTime],
    read_committed: bool,
    deadline_s: float,
) -> None:
    """Fills `found`, until it is complete or the deadline passes."""
    backoff = Backoff(cluster.clock)
    left = dict(times)
    while True:
        by_leader: defaultdict[int, dict[tuple[str, int], int]] = defaultdict(dict)
        code, said = ErrorCode.LEADER_NOT_AVAILABLE, None
        for key, time in left.items():
            await cluster.topic(key[0], max(0.0, deadline_s - cluster.clock.monotonic()))
            by_leader[cluster.view.leader(*key)][key] = time
        without_leader = by_leader.pop(NO_LEADER, {})
        answers = await asyncio.gather(
            *(_ask_leader(cluster, node, part, read_committed) for node, part in by_leader.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, ConnectionFailed):
                code, said = answer.code, answer.message
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for key, result in answer.items():
                    if isinstance(result, OffsetAtTime):
                        found[key] = result
                        left.pop(key, None)
                    elif result.retriable:
                        code = result
                    else:
                        raise error_for(result, f"offsets of {key[0]}-{key[1]}")
        if not left:
            return
        await cluster.pause(backoff, deadline_s, code, f"offsets of {_names(left)}", said)
        if without_leader or left:
            await cluster.refresh({topic for topic, _ in left})


async def _ask_leader(
    cluster: Cluster, node_id: int, times: Mapping[tuple[str, int], int], read_committed: bool
) -> dict[tuple[str, int], OffsetAtTime | ErrorCode]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), time in sorted(times.items()):
        epoch = cluster.view.leader_epoch(topic, partition)
        topics.setdefault(topic, []).append(
            {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": time}
        )
    fields = {
        "replica_id": -1,
        "isolation_level": 1 if read_committed else 0,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    answer = await cluster.ask(node_id, ApiKey.LIST_OFFSETS, fields, highest=LIST_OFFSETS_VERSION_MAX)
    found: dict[tuple[str, int], OffsetAtTime | ErrorCode] = {}
    for topic_answer in answer.topics:
        for entry in topic_answer.partitions:
            code = ErrorCode.from_wire(int(entry.error_code))
            result = OffsetAtTime(
                int(entry.offset), int(entry.timestamp), int(getattr(entry, "leader_epoch", -1))
            )
            found[topic_answer.name, int(entry.partition_index)] = result if code is ErrorCode.NONE else code
    return found


async def committed_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[tuple[str, int]] | None,
    *,
    require_stable: bool,
    timeout_s: float,
) -> dict[tuple[str, int], CommittedOffset]:
    """The committed offsets of a group; partitions without an offset are left out.  `partitions` None: all of
    the group.

    `require_stable` waits for offsets that an open transaction is about to change (rule O3).
    """
    topics: list[dict[str, Any]] | None = None
    if partitions is not None:
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(partitions):
            by_topic[topic].append(partition)
        topics = [{"name": topic, "partition_indexes": numbers} for topic, numbers in by_topic.items()]
    answer = await cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group_id,
        ApiKey.OFFSET_FETCH,
        {"group_id": group_id, "topics": topics, "require_stable": require_stable},
        deadline_s=cluster.clock.monotonic() + timeout_s,
        code_of=_fetch_code,
        retry=frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT}),
        highest=OFFSET_FETCH_VERSION_MAX,
        lowest=7 if require_stable else 1,
    )
    code = _fetch_code(answer)
    if code is not ErrorCode.NONE:
        raise error_for(code, f"offsets of group {group_id!r}")
    return {
        (topic.name, int(entry.partition_index)): CommittedOffset(
            int(entry.committed_offset),
            int(getattr(entry, "committed_leader_epoch", -1)),
            entry.metadata or "",
        )
        for topic in answer.topics
        for entry in topic.partitions
        if int(entry.committed_offset) >= 0
    }


def _fetch_code(answer: Any) -> ErrorCode:
    code = ErrorCode.from_wire(int(getattr(answer, "error_code", 0)))
    return code if code is not ErrorCode.NONE else worst_offset_code(answer)


async def commit_offsets(
    cluster: Cluster, group: GroupMetadata, offsets: Offsets, *, timeout_s: float
) -> None:
    """Stores a group's offsets.  Raises GroupChanged when this member or its generation is not the group's
    any more."""
    if not offsets:
        return
    fields = {
        "group_id": group.group_id,
        "generation_id_or_member_epoch": group.generation_id,
        "member_id": group.member_id,
        "group_instance_id": group.group_instance_id,
        "retention_time": -1,
        "topics": offset_topics(offsets),
    }
    answer = await cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group.group_id,
        ApiKey.OFFSET_COMMIT,
        fields,
        deadline_s=cluster.clock.monotonic() + timeout_s,
        code_of=worst_offset_code,
        retry=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT}),
        highest=8,
    )
    code = worst_offset_code(answer)
    what = f"commit of group {group.group_id!r}"
    if code in _CHANGED:
        advice = (
            "the group has rebalanced: what was read since the last commit will be read again by its new "
            "owner"
        )
        raise GroupChanged(code, f"{what}: {advice}")
    if code is ErrorCode.FENCED_INSTANCE_ID:
        raise FatalError(code, sentence(code, what))
    if code is not ErrorCode.NONE:
        error: KafkaError = error_for(code, what)
        raise error


def _names(partitions: Iterable[tuple[str, int]]) -> str:
    names = [f"{topic}-{partition}" for topic, partition in sorted(partitions)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


__all__ = [
    "EARLIEST", "LATEST", "OffsetAtTime", "TopicPartition", "commit_offsets", "committed_offsets",
    "list_offsets",
]  # fmt: skip
