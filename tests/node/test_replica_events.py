"""A coordinator hears of its own state topic, and the metadata's application of all that is offline."""

from __future__ import annotations

from typing import Any, cast

from tidegate.node.cluster.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from tidegate.node.replica_events import ReplicaEvents
from tidegate.storage.log.log import Log


class Coordinator:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_elected(self, partition: int, leader_epoch: int, replica_log: Log) -> None:
        self.events.append(("elected", partition, leader_epoch, replica_log))

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        self.events.append(("resigned", partition, leader_epoch))

    def on_high_watermark(self, partition: int, offset: int) -> None:
        self.events.append(("high watermark", partition, offset))


def test_each_coordinator_gets_the_events_of_its_own_state_topic() -> None:
    groups, transactions, offline = Coordinator(), Coordinator(), list[tuple[str, int]]()
    events, log = ReplicaEvents(), cast(Log, None)
    listener = events.listener(lambda error: None)
    events.pass_on_to(
        {CONSUMER_OFFSETS: groups, TRANSACTION_STATE: transactions}, lambda *key: offline.append(key)
    )
    for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, "t"):
        listener.on_elected(topic, 3, 7, log)
        listener.on_offline(topic, 3, "a disk failed")
    listener.on_high_watermark(TRANSACTION_STATE, 3, 40)
    listener.on_resigned(CONSUMER_OFFSETS, 3, 8)
    assert groups.events == [("elected", 3, 7, log), ("resigned", 3, 8)]
    assert transactions.events == [("elected", 3, 7, log), ("high watermark", 3, 40)]
    assert offline == [(CONSUMER_OFFSETS, 3), (TRANSACTION_STATE, 3), ("t", 3)]
