"""The embedded consumer protocol: ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to
3, which the clients of a classic group of protocol type "consumer" exchange.

The coordinator reads them, too: to serve such members in a consumer group (KIP-848), and to know which topics
a group reads.  It reads a later version as version 3, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ...fields import FieldReader, FieldWriter, RecordFormatError

PROTOCOL_TYPE: Final = "consumer"
NEWEST: Final = 3
NamedPartition = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Subscription:
    """The topics that a member reads, and the partitions that it owns when it joins; the rack since version
    3."""

    version: int
    topics: tuple[str, ...]
    owned: frozenset[NamedPartition] = frozenset()
    rack_id: str | None = None


@dataclass(slots=True, frozen=True)
class Assignment:
    """The partitions that the leader assigned to a member.  user_data: written only by assignors that are not
    Kafka's own."""

    partitions: frozenset[NamedPartition]
    user_data: bytes = b""


def read_topics(data: bytes) -> tuple[str, ...]:
    """The topics of a subscription.  Raises RecordFormatError."""
    return _topics(FieldReader(data))[1]


def _topics(reader: FieldReader) -> tuple[int, tuple[str, ...]]:
    version = reader.int16()
    return version, tuple([reader.string() for _ in range(reader.array())])


def read_subscription(data: bytes) -> Subscription:
    """Raises RecordFormatError."""
    reader = FieldReader(data)
    version, topics = _topics(reader)
    if version < 0:
        raise RecordFormatError(f"there is no version {version} of a subscription")
    reader.data()
    owned = _read_partitions(reader) if version >= 1 else frozenset()
    if version >= 2:
        reader.int32()
    return Subscription(
        min(version, NEWEST), topics, owned, reader.optional_string() if version >= 3 else None
    )


def read_assignment(data: bytes) -> Assignment:
    """Empty data means no partitions: the member never had an assignment.  Raises RecordFormatError."""
    if not data:
        return Assignment(frozenset())
    reader = FieldReader(data)
    if reader.int16() < 0:
        raise RecordFormatError("there is no such version of an assignment")
    return Assignment(_read_partitions(reader), reader.data())


def _read_partitions(reader: FieldReader) -> frozenset[NamedPartition]:
    found: set[NamedPartition] = set()
    for _ in range(reader.array()):
        topic = reader.string()
        found.update([(topic, reader.int32()) for _ in range(reader.array())])
    return frozenset(found)


def write_assignment(partitions: Iterable[NamedPartition], version: int) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    writer = FieldWriter()
    writer.int16(version)
    _write_partitions(writer, topics)
    writer.int32(-1)
    return writer.finish()


def _write_partitions(writer: FieldWriter, topics: Mapping[str, list[int]]) -> None:
    writer.array(len(topics))
    for topic, numbers in topics.items():
        writer.string(topic)
        writer.int32s(numbers)
