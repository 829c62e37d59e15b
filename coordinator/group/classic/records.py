"""Records of __consumer_offsets in Kafka's formats.

    OffsetCommitKey 0-1      group, topic, partition            -> OffsetCommitValue 0-4   (3 is written)
    GroupMetadataKey 2       group                              -> GroupMetadataValue 0-4  (3 is written)

The key's version tells which it is.  Keys of later versions (KIP-848 and after) are skipped by `decode_key`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from ...fields import FieldReader, FieldWriter, RecordFormatError
from ..levels import FIRST_LEVEL, require_level
from .state import STORED_FROM, GroupState

_OFFSET_KEY_VERSION = 1
_GROUP_KEY_VERSION = 2
_OFFSET_VALUE_VERSION = 3
_GROUP_VALUE_VERSION = 3
VERSIONS_STORED_FROM: Final[dict[tuple[str, int], int]] = {
    ("OffsetCommitValue", 1): FIRST_LEVEL,
    ("OffsetCommitValue", 3): FIRST_LEVEL,
    ("GroupMetadataValue", 3): FIRST_LEVEL,
}
"""Version of a value -> the level from which on the shard writes it: a coordinator of an older version cannot
load it."""
_FLEXIBLE_FROM = 4
_NEWEST = 4
_INT16, _INT32, _INT64 = Struct(">h"), Struct(">i"), Struct(">q")
_OFFSET_HEAD = Struct(">hqih")  # version 3 up to the length of the metadata
_OFFSET_OVERHEAD = _OFFSET_HEAD.size + _INT64.size


class OffsetKey(NamedTuple):
    """Names a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Names a group's metadata."""

    group_id: str


class OffsetValue(NamedTuple):
    """A committed offset; expire_timestamp_ms is -1 unless the client asked for its own retention."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1


@dataclass(slots=True, frozen=True)
class MemberValue:
    """A stored member: its subscription under the chosen protocol, and its assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class GroupValue:
    """A generation of a group: stable with members, or empty without."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...]

    @property
    def state(self) -> GroupState:
        """The one in which a load finds the group."""
        return GroupState.STABLE if self.members else GroupState.EMPTY


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    writer = FieldWriter()
    writer.int16(_OFFSET_KEY_VERSION)
    writer.string(group_id)
    writer.string(topic)
    writer.int32(partition)
    return writer.finish()


def encode_group_key(group_id: str) -> bytes:
    writer = FieldWriter()
    writer.int16(_GROUP_KEY_VERSION)
    writer.string(group_id)
    return writer.finish()


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """The key of an offset or of a classic group; None for every other kind of record."""
    return _plain_offset_key(data) or _decode_key(data)


def _plain_offset_key(data: bytes) -> OffsetKey | None:
    """The usual key without a reader: a coordinator loads a million of them.  None for anything unusual."""
    if len(data) < 4 or data[:2] != b"\x00\x01":
        return None
    group_end = 4 + _INT16.unpack_from(data, 2)[0]
    if not 4 <= group_end <= len(data) - 6:
        return None
    topic_at = group_end + 2
    topic_end = topic_at + _INT16.unpack_from(data, group_end)[0]
    if topic_end < topic_at or topic_end + 4 != len(data):
        return None
    try:
        return OffsetKey(
            data[4:group_end].decode(),
            data[topic_at:topic_end].decode(),
            _INT32.unpack_from(data, topic_end)[0],
        )
    except UnicodeDecodeError:
        return None


def _decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    reader = FieldReader(data)
    version = reader.int16()
    if version in (0, 1):
        key = OffsetKey(reader.string(), reader.string(), reader.int32())
        reader.finish()
        return key
    if version == _GROUP_KEY_VERSION:
        group = GroupKey(reader.string())
        reader.finish()
        return group
    return None


def _writer(what: str, version: int, level: int) -> FieldWriter:
    require_level(VERSIONS_STORED_FROM[what, version], level, what, version)
    writer = FieldWriter()
    writer.int16(version)
    return writer


def encode_offset_value(value: OffsetValue, level: int = FIRST_LEVEL) -> bytes:
    """Version 3; version 1 when the offset has an expiry of its own, as Kafka does (3 cannot hold it).
    `level`: the finalised one.  Raises KafkaError UNSUPPORTED_VERSION for a version that is not written at
    this level."""
    version = _OFFSET_VALUE_VERSION if value.expire_timestamp_ms < 0 else 1
    writer = _writer("OffsetCommitValue", version, level)
    writer.int64(value.offset)
    if version >= 3:
        writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.commit_timestamp_ms)
    if version == 1:
        writer.int64(value.expire_timestamp_ms)
    return writer.finish()


def _version(reader: FieldReader, what: str) -> int:
    version = reader.int16()
    if not 0 <= version <= _NEWEST:
        raise RecordFormatError(f"{what} version {version} is unknown: a later release wrote it")
    reader.flexible = version >= _FLEXIBLE_FROM
    return version


def decode_offset_value(data: bytes) -> OffsetValue:
    if len(data) == _OFFSET_OVERHEAD:  # the usual value: version 3 without metadata
        version, offset, leader_epoch, length = _OFFSET_HEAD.unpack_from(data)
        if version == _OFFSET_VALUE_VERSION and length == 0:
            return OffsetValue(offset, leader_epoch, "", _INT64.unpack_from(data, _OFFSET_HEAD.size)[0])
    reader = FieldReader(data)
    version = _version(reader, "OffsetCommitValue")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else -1
    reader.tags()
    reader.finish()
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms)


def encode_group_value(value: GroupValue, level: int = FIRST_LEVEL) -> bytes:
    """`level`: as of `encode_offset_value`; of the state, too."""
    require_level(STORED_FROM[value.state], level, "a group that is", value.state.value)
    writer = _writer("GroupMetadataValue", _GROUP_VALUE_VERSION, level)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.string(value.protocol)
    writer.string(value.leader)
    writer.int64(value.state_timestamp_ms)
    writer.array(len(value.members))
    for member in value.members:
        writer.string(member.member_id)
        writer.string(member.group_instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.data(member.subscription)
        writer.data(member.assignment)
    return writer.finish()


def decode_group_value(data: bytes) -> GroupValue:
    reader = FieldReader(data)
    version = _version(reader, "GroupMetadataValue")
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.optional_string(), reader.optional_string()
    state_timestamp_ms = reader.int64() if version >= 2 else -1
    members = tuple(_decode_member(reader, version) for _ in range(reader.array()))
    reader.tags()
    reader.finish()
    return GroupValue(protocol_type, generation, protocol, leader, state_timestamp_ms, members)


def _decode_member(reader: FieldReader, version: int) -> MemberValue:
    member_id = reader.string()
    instance = reader.optional_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.data(), reader.data()
    reader.tags()
    return MemberValue(
        member_id,
        instance,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
