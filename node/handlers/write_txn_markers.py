"""WriteTxnMarkers (27): a coordinator ends transactions at the partitions that this node leads.

Each marker is appended as the coordinator's word (SEMANTICS 3.2 15-16: checked by coordinator epoch and producer epoch, an
idempotent retry succeeds) and answered when it is committed.  At an offsets partition the marker also decides the transaction's
offsets, in the same step as its append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ...coordinator.outcome import ProducerIdentity
from ...storage.log import AppendOrigin
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import ControlType, encode_marker
from ..broker import Broker
from ..internal_topics import CONSUMER_OFFSETS
from ..requests import Deferred, Fields, RequestContext

COMMIT_WAIT_MS: Final = 20_000

_Key = tuple[int, str, int]
"""Producer id, topic and partition."""


async def handle(broker: Broker, context: RequestContext, request: Any) -> Deferred:
    outcome = _Outcome()
    for marker in request.markers:
        for topic in marker.topics:
            for index in topic.partition_indexes:
                _append(broker, marker, topic.name, index, outcome.awaits((marker.producer_id, topic.name, index)))
    return Deferred(_answer(request, outcome))


class _Outcome:
    """How the markers of one request ended."""

    def __init__(self) -> None:
        self.codes: dict[_Key, ErrorCode] = {}
        self._waiting = 0
        self._over: asyncio.Future[None] | None = None

    def awaits(self, key: _Key) -> Callable[[ErrorCode], None]:
        """What is to be called once, perhaps at once, when it is known how the marker of `key` ended."""
        self._waiting += 1

        def settle(code: ErrorCode) -> None:
            self.codes[key] = code
            self._waiting -= 1
            if not self._waiting and self._over is not None and not self._over.done():
                self._over.set_result(None)

        return settle

    async def all_known(self) -> None:
        if self._waiting:
            self._over = asyncio.get_running_loop().create_future()
            await self._over


def _append(broker: Broker, marker: Any, topic: str, index: int, settle: Callable[[ErrorCode], None]) -> None:
    """Appends now; `settle` hears how it ended."""
    control_type = ControlType.COMMIT if marker.transaction_result else ControlType.ABORT
    try:
        replica = broker.replicas.replica(topic, index)
        leader_epoch = replica.leader_epoch
        if topic == CONSUMER_OFFSETS and not broker.groups.accepts_markers(index, leader_epoch):
            settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
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
        settle(error.code)
        return
    if topic == CONSUMER_OFFSETS and not info.duplicate:
        producer = ProducerIdentity(marker.producer_id, marker.producer_epoch)
        broker.groups.marker_appended(
            index, leader_epoch, producer, marker.transaction_result, info.first_offset, lambda error: settle(_code_of(error))
        )
        return
    broker.replicas.when_committed(topic, index, leader_epoch, info.next_offset, COMMIT_WAIT_MS, settle)


def _code_of(error: KafkaError | None) -> ErrorCode:
    """The coordinator of transactions retries what it is told here; NOT_COORDINATOR means that the partition has moved."""
    if error is None:
        return ErrorCode.NONE
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code is ErrorCode.NOT_COORDINATOR else error.code


async def _answer(request: Any, outcome: _Outcome) -> Fields:
    await outcome.all_known()
    codes = outcome.codes
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
