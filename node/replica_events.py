"""What happens to this node's replicas, passed on to the parts that act on it.

The coordinators and the metadata's application are made after the replicas, because they need them;
`pass_on_to` names them before the first replica is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ..replication.broker_view import PartitionListener
from ..storage.log.log import Log


class Coordination(Protocol):
    """A coordinator: each partition of its state topic that this node leads is a shard."""

    def on_elected(self, partition: int, leader_epoch: int, replica_log: Log) -> None: ...
    def on_resigned(self, partition: int, leader_epoch: int) -> None: ...
    def on_high_watermark(self, partition: int, offset: int) -> None: ...


class ReplicaEvents:
    """A coordinator gets the events of its own state topic, `on_offline(topic, partition)` those of all."""

    def __init__(self) -> None:
        self._coordinations: Mapping[str, Coordination] = {}
        self._on_offline: Callable[[str, int], None] = lambda _topic, _partition: None

    def pass_on_to(
        self, coordinations: Mapping[str, Coordination], on_offline: Callable[[str, int], None]
    ) -> None:
        """`coordinations`: state topic -> its coordinator."""
        self._coordinations = coordinations
        self._on_offline = on_offline

    def listener(self, on_failure: Callable[[BaseException], None]) -> PartitionListener:
        return PartitionListener(
            self._elected, self._resigned, self._high_watermark_moved, self._offline, on_failure
        )

    def _elected(self, topic: str, partition: int, leader_epoch: int, replica_log: Log) -> None:
        if (coordination := self._coordinations.get(topic)) is not None:
            coordination.on_elected(partition, leader_epoch, replica_log)

    def _resigned(self, topic: str, partition: int, leader_epoch: int) -> None:
        if (coordination := self._coordinations.get(topic)) is not None:
            coordination.on_resigned(partition, leader_epoch)

    def _high_watermark_moved(self, topic: str, partition: int, offset: int) -> None:
        if (coordination := self._coordinations.get(topic)) is not None:
            coordination.on_high_watermark(partition, offset)

    def _offline(self, topic: str, partition: int, _reason: str) -> None:
        self._on_offline(topic, partition)
