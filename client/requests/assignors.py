"""How a group's partitions are shared out, and the two messages of Kafka's consumer group protocol that carry
it.

The group's leader (a client, not the broker) runs an assignor; the broker only passes the bytes on.  Hence
these bytes, and the result, must match other clients in the same group: `range` and `roundrobin` give exactly
the shares that Kafka's Java client and kafka-python give; `cooperative-sticky` keeps to KIP-429, where any
balanced result will do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ...wire.errors import ErrorCode, KafkaError

TopicPartitions = dict[str, list[int]]
Partition = tuple[str, int]
SUBSCRIPTION_VERSION: Final = 2
ASSIGNMENT_VERSION: Final = 0
COUNT_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a member. `owned` are its partitions now, since `generation` (used by cooperative
    assignors; -1: not known).

    `group_instance_id` travels outside these bytes (JoinGroup has it): static members go first, so that they
    keep their partitions when other members join and leave (KIP-345).
    """

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: TopicPartitions = field(default_factory=dict)
    generation: int = -1
    group_instance_id: str | None = None


class ClassicAssignor(Protocol):
    """A named, deterministic way to share out partitions."""

    name: str

    def assign(
        self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, TopicPartitions]:
        """Partitions by member and topic.  Every member is in the answer; topics that do not exist are left
        out."""


class RangeAssignor:
    """Topic by topic: members in order of their id get consecutive ranges, the first ones one more."""

    name = "range"

    def assign(
        self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, TopicPartitions]:
        shares: dict[str, TopicPartitions] = {member: {} for member in subscriptions}
        for topic in sorted({topic for wanted in subscriptions.values() for topic in wanted.topics}):
            count = partition_counts.get(topic, 0)
            members = [member for member in _in_order(subscriptions) if topic in subscriptions[member].topics]
            each, more = divmod(count, len(members))
            start = 0
            for index, member in enumerate(members):
                length = each + (1 if index < more else 0)
                if length:
                    shares[member][topic] = list(range(start, start + length))
                start += length
        return shares


class RoundRobinAssignor:
    """Assigns all partitions of all topics in order to the members in turn; members without a subscription to
    the topic are skipped."""

    name = "roundrobin"

    def assign(
        self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, TopicPartitions]:
        shares: dict[str, TopicPartitions] = {member: {} for member in subscriptions}
        members = _in_order(subscriptions)
        turn = 0
        for topic in sorted({topic for wanted in subscriptions.values() for topic in wanted.topics}):
            for partition in range(partition_counts.get(topic, 0)):
                while topic not in subscriptions[members[turn % len(members)]].topics:
                    turn += 1
                shares[members[turn % len(members)]].setdefault(topic, []).append(partition)
                turn += 1
        return shares


def _in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Static members by instance id, then the others by member id."""

    def place(member: str) -> tuple[bool, str]:
        instance = subscriptions[member].group_instance_id
        return (instance is None, member if instance is None else instance)

    return sorted(subscriptions, key=place)


class CooperativeStickyAssignor:
    """Every member keeps its partitions, as far as the shares stay even. A partition that moves to another
    member has no owner in the first assignment (KIP-429): its present owner revokes it and joins again, and
    the next assignment gives it to the other member.

    Two shares differ by at most one where all members subscribe to the same topics.
    """

    name = "cooperative-sticky"

    def assign(
        self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]
    ) -> dict[str, TopicPartitions]:
        members = _in_order(subscriptions)
        wanted = {member: set(subscriptions[member].topics) for member in members}
        owners = _owners(partition_counts, subscriptions)
        shares: dict[str, set[Partition]] = {member: set() for member in members}
        for partition, member in owners.items():
            shares[member].add(partition)
        for topic in sorted(set().union(*wanted.values())):
            for number in range(partition_counts.get(topic, 0)):
                if (topic, number) not in owners:
                    takers = [member for member in members if topic in wanted[member]]
                    shares[min(takers, key=lambda member: len(shares[member]))].add((topic, number))
        while _even_out(members, wanted, shares):
            pass
        given = {
            member: {p for p in share if owners.get(p, member) == member} for member, share in shares.items()
        }
        return {member: by_topic(share) for member, share in given.items()}


def _owners(
    partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]
) -> dict[Partition, str]:
    """The present owner of each partition. When two members claim one, the claim of the later generation
    counts; when both have the same generation, neither claim does."""
    claims: dict[Partition, list[tuple[int, str]]] = {}
    for member, subscription in subscriptions.items():
        for topic, numbers in subscription.owned.items():
            if topic in subscription.topics:
                for number in numbers:
                    if 0 <= number < partition_counts.get(topic, 0):
                        claims.setdefault((topic, number), []).append((subscription.generation, member))
    owners: dict[Partition, str] = {}
    for partition, claimed in claims.items():
        newest = max(generation for generation, _ in claimed)
        members = {member for generation, member in claimed if generation == newest}
        if len(members) == 1:
            owners[partition] = members.pop()
    return owners


def _even_out(
    members: Sequence[str], wanted: Mapping[str, set[str]], shares: Mapping[str, set[Partition]]
) -> bool:
    """Moves one partition from the member with most of them to a member with at least two fewer; False when
    no such move exists."""
    lightest = sorted(members, key=lambda member: len(shares[member]))
    for giver in reversed(lightest):
        for taker in lightest:
            if len(shares[giver]) - len(shares[taker]) < 2:
                break
            moveable = [partition for partition in shares[giver] if partition[0] in wanted[taker]]
            if moveable:
                moved = max(moveable)
                shares[giver].remove(moved)
                shares[taker].add(moved)
                return True
    return False


def by_topic(partitions: Iterable[Partition]) -> TopicPartitions:
    share: TopicPartitions = {}
    for topic, number in sorted(partitions):
        share.setdefault(topic, []).append(number)
    return share


ASSIGNORS: Final[dict[str, ClassicAssignor]] = {
    each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), CooperativeStickyAssignor())
}
COOPERATIVE: Final = CooperativeStickyAssignor.name


def encode_subscription(subscription: Subscription) -> bytes:
    """ConsumerProtocolSubscription, version 2."""
    parts = [struct.pack(">hi", SUBSCRIPTION_VERSION, len(subscription.topics))]
    parts += [_string(topic) for topic in sorted(subscription.topics)]
    parts += [
        _bytes(subscription.user_data),
        _topic_partitions(subscription.owned),
        struct.pack(">i", subscription.generation),
    ]
    return b"".join(parts)


def decode_subscription(data: bytes) -> Subscription:
    """Reads any version: later ones only append fields.  Raises KafkaError(INCONSISTENT_GROUP_PROTOCOL) for
    garbage."""
    reader = _Reader(data)
    version = reader.number(">h")
    topics = tuple(reader.text() for _ in range(reader.count()))
    user_data = reader.data()
    owned = reader.topic_partitions() if version >= 1 else {}
    generation = reader.number(">i") if version >= 2 else -1
    return Subscription(topics, user_data, owned, generation)


def encode_assignment(partitions: TopicPartitions) -> bytes:
    """ConsumerProtocolAssignment, version 0."""
    return struct.pack(">h", ASSIGNMENT_VERSION) + _topic_partitions(partitions) + _bytes(b"")


def decode_assignment(data: bytes) -> TopicPartitions:
    """The partitions that the leader gave us; nothing at all means none.  Raises KafkaError for garbage."""
    if not data:
        return {}
    reader = _Reader(data)
    reader.number(">h")
    return reader.topic_partitions()


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _topic_partitions(partitions: Mapping[str, Sequence[int]]) -> bytes:
    parts = [struct.pack(">i", len(partitions))]
    for topic, numbers in sorted(partitions.items()):
        parts += [_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    return b"".join(parts)


class _Reader:
    """A bounds-checked cursor: these bytes come from other members of the group, through the broker."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        return int(value)

    def count(self) -> int:
        value = self.number(">i")
        if not 0 <= value <= COUNT_MAX:
            raise self._broken(f"a count of {value}")
        return value

    def text(self) -> str:
        try:
            return self._take(self.number(">h")).decode()
        except UnicodeDecodeError as error:
            raise self._broken(str(error)) from error

    def data(self) -> bytes:
        length = self.number(">i")
        return self._take(length) if length > 0 else b""

    def topic_partitions(self) -> TopicPartitions:
        return {self.text(): [self.number(">i") for _ in range(self.count())] for _ in range(self.count())}

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise self._broken(f"{length} bytes at {self._position} of {len(self._data)}")
        part = self._data[self._position : end]
        self._position = end
        return part

    def _broken(self, what: str) -> KafkaError:
        return KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"a group member's message cannot be read ({what}): do all members use the consumer protocol?",
        )
