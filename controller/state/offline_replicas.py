"""Replicas that a living broker cannot serve, as messages: partitions grouped by topic id, in one order.

A broker names them in every heartbeat; for these partitions the controller treats the broker as absent.  An
offline replica may come back with its data and stays eligible to lead; a damaged one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

Replica = tuple[bytes, int]
"""(topic id, partition)."""


class _Group(Protocol):
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> Iterable[int]: ...


Group = TypeVar("Group")


def encode_replicas(replicas: Iterable[Replica], group: Callable[..., Group]) -> list[Group]:
    """As messages of the type `group`; the same list for the same replicas: nodes compare what they store."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(replicas):
        by_topic.setdefault(topic_id, []).append(partition)
    return [group(topic_id=topic_id, partitions=partitions) for topic_id, partitions in by_topic.items()]


def decode_replicas(groups: Iterable[_Group]) -> frozenset[Replica]:
    return frozenset((bytes(group.topic_id), partition) for group in groups for partition in group.partitions)
