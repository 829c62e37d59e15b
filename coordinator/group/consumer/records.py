"""The consumer groups' records in __consumer_offsets, in Kafka's formats (all values version 0, flexible).

    ConsumerGroupMetadata 3             group           -> group epoch
    ConsumerGroupPartitionMetadata 4    group           -> the topics read, with ids and partition counts
    ConsumerGroupMemberMetadata 5       group, member   -> identity and subscription of the member
    TargetAssignmentMetadata 6          group           -> assignment epoch
    TargetAssignmentMember 7            group, member   -> the partitions of its target
    CurrentMemberAssignment 8           group, member   -> the partitions that it owns, and must revoke

The key's version tells which it is.  Partitions are written in order, so equal assignments are equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby
from typing import Final, NamedTuple
from uuid import UUID

from ....controller.state.model import RESOURCES_LEVEL
from ...fields import FieldReader, FieldWriter, RecordFormatError
from ..levels import FIRST_LEVEL, require_level
from .events import Partitions, TopicIdPartition, TopicShape
from .state import STORED_FROM, MemberState

_VERSION = 0
CLASSIC_TAG: Final = 0


class RecordKind(IntEnum):
    """The kind of a record; the number is its key's version."""

    GROUP = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


FIELDS_STORED_FROM: Final[dict[tuple[RecordKind, int], int | None]] = {
    (RecordKind.MEMBER, CLASSIC_TAG): RESOURCES_LEVEL,
}
"""Tag of a kind -> the level from which on the shard sets the field; None: at every level, because it does no
harm that a coordinator of an older version loses it."""

ABOUT_A_MEMBER = frozenset({RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT})


class Key(NamedTuple):
    """member_id is empty for records of the whole group."""

    kind: RecordKind
    group_id: str
    member_id: str = ""


@dataclass(slots=True, frozen=True)
class ClassicMember:
    """The JoinGroup of a classic member: its session timeout, and its subscription under each assignor's
    name."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)


@dataclass(slots=True, frozen=True)
class MemberMetadata:
    """A member as its requests describe it.  classic: None for members of the consumer protocol."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None


@dataclass(slots=True, frozen=True)
class CurrentAssignment:
    """epoch: the epoch of the member's next heartbeat; previous_epoch: accepted, too, if the last answer was
    lost."""

    epoch: int
    previous_epoch: int
    state: MemberState = MemberState.STABLE
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()

    @property
    def held(self) -> Partitions:
        """The partitions that no other member may get."""
        return self.assigned | self.revoking


Value = int | dict[str, TopicShape] | MemberMetadata | Partitions | CurrentAssignment


def encode_key(key: Key) -> bytes:
    writer = FieldWriter()
    writer.int16(key.kind)
    writer.string(key.group_id)
    if key.kind in ABOUT_A_MEMBER:
        writer.string(key.member_id)
    return writer.finish()


def decode_key(data: bytes) -> Key | None:
    """None for records of another kind."""
    reader = FieldReader(data)
    version = reader.int16()
    if not RecordKind.GROUP <= version <= RecordKind.CURRENT:
        return None
    kind = RecordKind(version)
    key = Key(kind, reader.string(), reader.string() if kind in ABOUT_A_MEMBER else "")
    reader.finish()
    return key


def encode_value(kind: RecordKind, value: Value, level: int = FIRST_LEVEL) -> bytes:
    """`level`: the finalised one.  Raises KafkaError UNSUPPORTED_VERSION for a state, or a field, that is not
    written at this level."""
    writer = FieldWriter(flexible=True)
    writer.int16(_VERSION)
    match value:
        case int():
            writer.int32(value)
        case dict():
            _write_topics(writer, value)
        case MemberMetadata():
            _write_member(writer, value)
        case CurrentAssignment():
            require_level(STORED_FROM[value.state], level, "a member that is", value.state.name)
            writer.int32(value.epoch)
            writer.int32(value.previous_epoch)
            writer.int8(value.state)
            _write_partitions(writer, value.assigned)
            _write_partitions(writer, value.revoking)
        case frozenset():
            _write_partitions(writer, value)
    tags = _member_tags(value) if isinstance(value, MemberMetadata) else {}
    for tag in tags:
        require_level(FIELDS_STORED_FROM[kind, tag], level, "tag", tag, "of", kind.name)
    writer.tags(tags)
    return writer.finish()


def decode_value(kind: RecordKind, data: bytes) -> Value:
    """Raises RecordFormatError, also for a version of a later release."""
    reader = FieldReader(data)
    version = reader.int16()
    if version != _VERSION:
        raise RecordFormatError(f"{kind.name} value version {version} is unknown: a later release wrote it")
    reader.flexible = True
    value: Value
    match kind:
        case RecordKind.GROUP | RecordKind.TARGET_EPOCH:
            value = reader.int32()
        case RecordKind.TOPICS:
            value = _read_topics(reader)
        case RecordKind.MEMBER:
            value = _read_member(reader)
        case RecordKind.TARGET:
            value = _read_partitions(reader)
        case RecordKind.CURRENT:
            epoch, previous, state = reader.int32(), reader.int32(), _member_state(reader.int8())
            value = CurrentAssignment(
                epoch, previous, state, _read_partitions(reader), _read_partitions(reader)
            )
    tags = reader.tags()
    if isinstance(value, MemberMetadata) and CLASSIC_TAG in tags:
        value = replace(value, classic=_read_classic(tags[CLASSIC_TAG]))
    reader.finish()
    return value


def _member_state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError as error:
        raise RecordFormatError(f"member state {number} is unknown: a later release wrote it") from error


def by_topic(partitions: Partitions) -> list[tuple[UUID, list[int]]]:
    """Partitions by topic, in order."""
    ordered = sorted(partitions, key=lambda each: (each[0].bytes, each[1]))
    return [
        (topic, [number for _, number in group])
        for topic, group in groupby(ordered, key=lambda each: each[0])
    ]


def _write_partitions(writer: FieldWriter, partitions: Partitions) -> None:
    topics = by_topic(partitions)
    writer.array(len(topics))
    for topic_id, numbers in topics:
        writer.uuid(topic_id)
        writer.array(len(numbers))
        for number in numbers:
            writer.int32(number)
        writer.tags({})


def _read_partitions(reader: FieldReader) -> Partitions:
    found: set[TopicIdPartition] = set()
    for _ in range(reader.array()):
        topic_id = reader.uuid()
        found.update([(topic_id, reader.int32()) for _ in range(reader.array())])
        reader.tags()
    return frozenset(found)


def _write_topics(writer: FieldWriter, topics: Mapping[str, TopicShape]) -> None:
    writer.array(len(topics))
    for name in sorted(topics):
        writer.uuid(topics[name].topic_id)
        writer.string(name)
        writer.int32(topics[name].partitions)
        writer.array(0)  # racks of the partitions: no assignor here uses them, nor does Kafka since 4.0
        writer.tags({})


def _read_topics(reader: FieldReader) -> dict[str, TopicShape]:
    topics: dict[str, TopicShape] = {}
    for _ in range(reader.array()):
        topic_id, name, partitions = reader.uuid(), reader.string(), reader.int32()
        for _ in range(reader.array()):
            reader.int32()
            for _ in range(reader.array()):
                reader.string()
            reader.tags()
        reader.tags()
        topics[name] = TopicShape(topic_id, partitions)
    return topics


def _write_member(writer: FieldWriter, member: MemberMetadata) -> None:
    writer.string(member.instance_id)
    writer.string(member.rack_id)
    writer.string(member.client_id)
    writer.string(member.client_host)
    writer.array(len(member.topic_names))
    for name in member.topic_names:
        writer.string(name)
    writer.string(member.topic_regex)
    writer.int32(member.rebalance_timeout_ms)
    writer.string(member.assignor)


def _read_member(reader: FieldReader) -> MemberMetadata:
    instance_id, rack_id = reader.optional_string(), reader.optional_string()
    client_id, client_host = reader.string(), reader.string()
    names = tuple(reader.string() for _ in range(reader.array()))
    regex = reader.optional_string()
    return MemberMetadata(
        instance_id, rack_id, client_id, client_host, names, regex, reader.int32(), reader.optional_string()
    )


def _member_tags(member: MemberMetadata) -> dict[int, bytes]:
    if member.classic is None:
        return {}
    writer = FieldWriter(flexible=True)
    writer.int8(1)  # a structure that may be null, and is not
    writer.int32(member.classic.session_timeout_ms)
    writer.array(len(member.classic.protocols))
    for name, metadata in member.classic.protocols:
        writer.string(name)
        writer.data(metadata)
        writer.tags({})
    writer.tags({})
    return {CLASSIC_TAG: writer.finish()}


def _read_classic(data: bytes) -> ClassicMember | None:
    reader = FieldReader(data, flexible=True)
    if reader.int8() < 0:
        return None
    session_timeout_ms = reader.int32()
    protocols: list[tuple[str, bytes]] = []
    for _ in range(reader.array()):
        protocols.append((reader.string(), reader.data()))
        reader.tags()
    reader.tags()
    reader.finish()
    return ClassicMember(session_timeout_ms, tuple(protocols))
