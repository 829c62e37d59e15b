"""OffsetCommit (8): stores how far a group has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ....coordinator.group.events import OffsetCommit, OffsetToCommit
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import OffsetCommitRequest, OffsetCommitTopic, TxnOffsetCommitTopic


async def handle(broker: Broker, context: RequestContext, request: OffsetCommitRequest) -> Fields:
    known, answer = split_known(broker, context, request.topics)
    of_group = broker.permissions.refusal(context, "group", request.group_id)
    if of_group is not ErrorCode.NONE:
        return {"throttle_time": 0, "topics": all_refused(request.topics, of_group)}
    if not known:
        return {"throttle_time": 0, "topics": answer(lambda _key: ErrorCode.NONE)}
    # versions 2 to 4: how long the offsets are to be kept (KIP-211)
    retention = getattr(request, "retention_time", None)
    event = OffsetCommit(
        group_id=request.group_id,
        offsets=known,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        retention_ms=-1 if retention is None else milliseconds(retention),
        knows_member_epochs=context.api_version >= 9,
    )
    try:
        errors = (await broker.groups.ask(request.group_id, event)).errors
    except KafkaError as error:
        code = error.code
        return {"throttle_time": 0, "topics": answer(lambda _key: code)}
    return {"throttle_time": 0, "topics": answer(lambda key: errors.get(key, ErrorCode.UNKNOWN_SERVER_ERROR))}


def all_refused(
    topics: Sequence[OffsetCommitTopic | TxnOffsetCommitTopic], code: ErrorCode
) -> list[dict[str, object]]:
    """Each partition with this error."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": each.partition_index, "error_code": code} for each in topic.partitions
            ],
        }
        for topic in topics
    ]


CodeOf = Callable[[tuple[str, int]], ErrorCode]


def split_known(
    broker: Broker, context: RequestContext, topics: Sequence[OffsetCommitTopic | TxnOffsetCommitTopic]
) -> tuple[tuple[OffsetToCommit, ...], Callable[[CodeOf], list[dict[str, object]]]]:
    """The offsets of existing partitions, and a function that builds the answer for all: partitions that do
    not exist get UNKNOWN_TOPIC_OR_PARTITION, the others what the given function says."""
    known: list[OffsetToCommit] = []
    refused: dict[tuple[str, int], ErrorCode] = {}
    for topic in topics:
        found = broker.state.topics.get(topic.name)
        right = broker.permissions.refusal(context, "topic", topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            if right is not ErrorCode.NONE:
                refused[topic.name, index] = right
                continue
            if found is None or index not in found.partitions:
                refused[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            known.append(
                OffsetToCommit(
                    topic.name,
                    index,
                    partition.committed_offset,
                    getattr(partition, "committed_leader_epoch", -1),
                    partition.committed_metadata or "",
                )
            )

    def answer(code_of: CodeOf) -> list[dict[str, object]]:
        return [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": p.partition_index,
                        "error_code": refused.get((topic.name, p.partition_index))
                        or code_of((topic.name, p.partition_index)),
                    }
                    for p in topic.partitions
                ],
            }
            for topic in topics
        ]

    return tuple(known), answer
