"""The server-side assignors (KIP-848), pure and deterministic.

`uniform` spreads partitions evenly, and moves as few as it can.  `range` gives each member a run of
neighbouring partitions of every topic, the same run in topics of the same size, so that one member gets the
same numbers of co-partitioned topics.  Static members come first, in the order of their instances, as in
Kafka: an instance under a new member id keeps its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace
from types import MappingProxyType
from typing import Final, Protocol
from uuid import UUID

from .events import Partitions, TopicIdPartition

Subscriptions = Mapping[str, frozenset[UUID]]
"""Member -> the topics that it reads."""
Assignment = dict[str, Partitions]
_NO_INSTANCES: Final[Mapping[str, str]] = MappingProxyType({})


class Assignor(Protocol):
    """`topics`: partition counts.  `before`: the assignment so far.  `instances`: those of static members, by
    member id."""

    def __call__(
        self,
        subscriptions: Subscriptions,
        topics: Mapping[UUID, int],
        before: Mapping[str, Partitions],
        instances: Mapping[str, str] = _NO_INSTANCES,
    ) -> Assignment: ...


def _all_partitions(topics: Mapping[UUID, int]) -> list[TopicIdPartition]:
    return [
        (topic, number)
        for topic in sorted(topics, key=lambda topic: topic.bytes)
        for number in range(topics[topic])
    ]


def assign_uniform(
    subscriptions: Subscriptions,
    topics: Mapping[UUID, int],
    before: Mapping[str, Partitions],
    instances: Mapping[str, str] = _NO_INSTANCES,
) -> Assignment:
    members = sorted(subscriptions)
    owned: dict[str, set[TopicIdPartition]] = {member: set() for member in members}
    wanted = set[UUID]().union(*subscriptions.values())
    partitions = [each for each in _all_partitions(topics) if each[0] in wanted]
    free = set(partitions)
    for member in members:
        for each in before.get(member, frozenset()):
            if each in free and each[0] in subscriptions[member]:
                owned[member].add(each)
                free.discard(each)
    rest = [each for each in partitions if each in free]
    if len(set(subscriptions.values())) == 1:
        _even_out(members, owned, rest, len(partitions))
    else:
        _balance(subscriptions, owned, rest)
    return {member: frozenset(owned[member]) for member in members}


def _even_out(
    members: list[str], owned: dict[str, set[TopicIdPartition]], rest: list[TopicIdPartition], total: int
) -> None:
    """All members read the same topics: each gets total/members, and the members with the most keep the
    remainder."""
    least, remainder = divmod(total, len(members))
    quotas = dict.fromkeys(members, least)
    for member in sorted(members, key=lambda name: -len(owned[name]))[:remainder]:
        quotas[member] += 1
    for member in members:
        while len(owned[member]) > quotas[member]:
            last = max(owned[member], key=_in_order)
            owned[member].discard(last)
            rest.append(last)
    rest.sort(key=_in_order, reverse=True)
    for member in members:
        while len(owned[member]) < quotas[member]:
            owned[member].add(rest.pop())


def _in_order(partition: TopicIdPartition) -> tuple[bytes, int]:
    return partition[0].bytes, partition[1]


def _balance(
    subscriptions: Subscriptions, owned: dict[str, set[TopicIdPartition]], rest: list[TopicIdPartition]
) -> None:
    """Members read different topics: each partition goes to the reader with the least, then moves go on as
    long as one narrows the gap between two members.  Every move makes the sum of squares smaller, so this
    ends."""
    readers: dict[UUID, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            readers.setdefault(topic, []).append(member)
    loads = {member: len(partitions) for member, partitions in owned.items()}
    _give_out(readers, loads, owned, rest)
    moved = True
    while moved:
        moved = False
        for member in sorted(owned, key=lambda name: (-loads[name], name)):
            for topic, partitions in _by_topic(owned[member]):
                # Computed once a topic and once a move, not for each partition: a group may have thousands.
                least = min(readers[topic], key=loads.__getitem__)
                for each in partitions:
                    if loads[least] + 1 >= loads[member]:
                        break
                    owned[member].discard(each)
                    owned[least].add(each)
                    loads[member] -= 1
                    loads[least] += 1
                    moved = True
                    least = min(readers[topic], key=loads.__getitem__)


def _give_out(
    readers: Mapping[UUID, list[str]],
    loads: dict[str, int],
    owned: dict[str, set[TopicIdPartition]],
    rest: list[TopicIdPartition],
) -> None:
    """Each partition goes to its least loaded reader.  Loads only grow here, so an outdated entry of a heap
    is too low: it is put back with its present load."""
    heaps = {topic: [(loads[member], member) for member in names] for topic, names in readers.items()}
    for heap in heaps.values():
        heapify(heap)
    for each in rest:
        heap = heaps[each[0]]
        load, member = heap[0]
        while load != loads[member]:
            heapreplace(heap, (loads[member], member))
            load, member = heap[0]
        owned[member].add(each)
        loads[member] += 1
        heapreplace(heap, (loads[member], member))


def _by_topic(partitions: set[TopicIdPartition]) -> list[tuple[UUID, list[TopicIdPartition]]]:
    """Topics in order, and the partitions of each."""
    found: dict[UUID, list[TopicIdPartition]] = {}
    for each in partitions:
        found.setdefault(each[0], []).append(each)
    return [(topic, sorted(found[topic], key=_number)) for topic in sorted(found, key=_bytes)]


def _bytes(topic: UUID) -> bytes:
    return topic.bytes


def _number(partition: TopicIdPartition) -> int:
    return partition[1]


def assign_range(
    subscriptions: Subscriptions,
    topics: Mapping[UUID, int],
    before: Mapping[str, Partitions],
    instances: Mapping[str, str] = _NO_INSTANCES,
) -> Assignment:
    owned: dict[str, set[TopicIdPartition]] = {member: set() for member in subscriptions}
    in_order = sorted(
        subscriptions, key=lambda member: (member not in instances, instances.get(member, member))
    )
    for topic, count in topics.items():
        readers = [member for member in in_order if topic in subscriptions[member]]
        first = 0
        for place, member in enumerate(readers):
            size = count // len(readers) + (place < count % len(readers))
            owned[member].update((topic, number) for number in range(first, first + size))
            first += size
    return {member: frozenset(partitions) for member, partitions in owned.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
