"""WriteTxnMarkers (27): a coordinator ends transactions at the partitions that this node leads.

Each marker is appended as the coordinator's word (SEMANTICS 3.2 15-16: checked by coordinator epoch and producer epoch, an
idempotent retry succeeds) and answered when it is committed.  At an offsets partition the marker also decides the transaction's
offsets, in the same step as its append.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ...storage.log import AppendOrigin
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import ControlType, encode_marker
from ..broker import Broker
from ..internal_topics import CONSUMER_OFFSETS
from ..requests import Deferred, Fields, RequestContext

COMMIT_WAIT_MS: Final = 20_000


async def handle(broker: Broker, context: RequestContext, request: Any) -> Deferred:
    waits: list[tuple[int, str, int, asyncio.Task[ErrorCode] | ErrorCode]] = []
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                waits.append((marker.producer_id, topic.name, index, _append(broker, marker, topic.name, index)))
    return Deferred(_answer(request, waits))


def _append(broker: Broker, marker: Any, topic: str, index: int) -> asyncio.Task[ErrorCode] | ErrorCode:
    """Appends now; what is returned says, or will say, how it ended."""
    control_type = ControlType.COMMIT if marker.transaction_result else ControlType.ABORT
    try:
        replica = broker.replicas.replica(topic, index)
        leader_epoch = replica.leader_epoch
        if topic == CONSUMER_OFFSETS and not broker.groups.accepts_markers(index, leader_epoch):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        info = broker.replicas.append_now(
            topic,
            index,
            encode_marker(
                control_type, marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, broker.clock.wall_ms()
            ),
            origin=AppendOrigin.COORDINATOR,
            required_acks=-1,
            expected_leader_epoch=leader_epoch,
            transaction_version=getattr(marker, "transaction_version", 0),
        )
    except KafkaError as error:
        return error.code
    if topic == CONSUMER_OFFSETS and not info.duplicate:
        decided = broker.groups.marker_appended(
            index, leader_epoch, marker.producer_id, marker.producer_epoch, marker.transaction_result, info.first_offset
        )
        return asyncio.create_task(_until_decided(decided))
    return asyncio.create_task(broker.replicas.wait_committed(topic, index, leader_epoch, info.next_offset, COMMIT_WAIT_MS))


async def _until_decided(decided: asyncio.Future[None]) -> ErrorCode:
    try:
        await decided
    except KafkaError as error:
        # The coordinator of transactions retries what it is told here; NOT_COORDINATOR means that the partition has moved.
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code is ErrorCode.NOT_COORDINATOR else error.code
    return ErrorCode.NONE


async def _answer(request: Any, waits: list[tuple[int, str, int, asyncio.Task[ErrorCode] | ErrorCode]]) -> Fields:
    codes: dict[tuple[int, str, int], ErrorCode] = {}
    for producer_id, topic, index, wait in waits:
        codes[producer_id, topic, index] = await wait if isinstance(wait, asyncio.Task) else wait
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": codes[marker.producer_id, topic.name, index]}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }
