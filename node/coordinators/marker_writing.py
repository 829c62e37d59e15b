"""Writes transaction markers to the partitions that this node leads: for WriteTxnMarkers and for a
coordinator on this node.

The partition's leader checks the coordinator epoch and the producer epoch before it appends a marker; a
repeated marker succeeds (docs/semantics.md L2 to L5).  A marker counts as written when the high watermark has
passed it.  At a partition of `__consumer_offsets` the group shard also commits or drops the transaction's
offsets, in the same step as the append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from ...coordinator.outcome import ProducerIdentity
from ...replication.manager import ReplicaManager
from ...runtime.clock import Clock
from ...storage.log.log import AppendOrigin
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import ControlType, encode_marker
from ..cluster.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from .group_coordination import GroupCoordination

COMMIT_WAIT_MS: Final = 20_000

Key = tuple[int, str, int]
"""Producer id, topic and partition."""


class Marker(NamedTuple):
    """The content of a marker, the same at each of the transaction's partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class MarkerWrites:
    """One batch of markers: `append` each of them, await `all_known`, then read `codes`."""

    def __init__(self, replicas: ReplicaManager, groups: GroupCoordination, clock: Clock) -> None:
        self.codes: dict[Key, ErrorCode] = {}
        """The outcome of each marker that is finished: NONE when it is committed, else the error of its
        append."""
        self._replicas, self._groups, self._clock = replicas, groups, clock
        self._waiting = 0
        self._over: asyncio.Future[None] | None = None

    async def all_known(self) -> None:
        """Returns when `codes` has the outcome of every marker."""
        if self._waiting:
            self._over = asyncio.get_running_loop().create_future()
            await self._over

    def _awaits(self, key: Key) -> Callable[[ErrorCode], None]:
        self._waiting += 1

        def settle(code: ErrorCode) -> None:
            self.codes[key] = code
            self._waiting -= 1
            if not self._waiting and self._over is not None and not self._over.done():
                self._over.set_result(None)

        return settle

    def append(self, marker: Marker, topic: str, index: int) -> None:
        """Appends the marker before it returns; its outcome is in `codes` at the latest when `all_known`
        returns."""
        settle = self._awaits((marker.producer_id, topic, index))
        control_type = ControlType.COMMIT if marker.commit else ControlType.ABORT
        # only the shard writes to its log; it stops serving after a foreign append
        if topic == TRANSACTION_STATE:
            settle(ErrorCode.INVALID_TOPIC_EXCEPTION)
            return
        try:
            leader_epoch = self._replicas.replica(topic, index).leader_epoch
            if topic == CONSUMER_OFFSETS and not self._groups.accepts_markers(index, leader_epoch):
                settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                return
            info = self._replicas.append_now(
                topic,
                index,
                encode_marker(
                    control_type,
                    marker.producer_id,
                    marker.producer_epoch,
                    marker.coordinator_epoch,
                    self._clock.wall_ms(),
                ),
                origin=AppendOrigin.COORDINATOR,
                required_acks=-1,
                expected_leader_epoch=leader_epoch,
                transaction_version=marker.transaction_version,
            )
        except KafkaError as error:
            settle(error.code)
            return
        if topic == CONSUMER_OFFSETS and not info.duplicate:
            producer = ProducerIdentity(marker.producer_id, marker.producer_epoch)
            self._groups.marker_appended(
                index,
                leader_epoch,
                producer,
                marker.commit,
                info.first_offset,
                lambda error: settle(_code_of(error)),
            )
            return
        self._replicas.when_committed(topic, index, leader_epoch, info.next_offset, COMMIT_WAIT_MS, settle)


def _code_of(error: KafkaError | None) -> ErrorCode:
    """The code for the transaction coordinator, which repeats the marker after a retriable one.
    NOT_COORDINATOR of a group shard means that this node does not lead the offsets partition any more."""
    if error is None:
        return ErrorCode.NONE
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code is ErrorCode.NOT_COORDINATOR else error.code
