"""Records of __transaction_state in Kafka's formats: TransactionLogKey 0; TransactionLogValue 0 (read) and 1
(read, written).

Version 1 is flexible and carries, as tagged fields, PreviousProducerId (0), NextProducerId (1),
ClientTransactionVersion (2), NextProducerEpoch (3, KIP-939) (docs/semantics.md T26).  Two tagged fields are
Tidegate's own; other readers skip them:

    100  LastProducerEpoch    int16, so that the coordinator knows a repeated InitProducerId or EndTxn after
                              a failover
    101  PartitionsByTopicId  array of (topic id, topic, array of int32): markers are dropped only when the
                              controller says that this topic id is gone, never because a name is unknown
                              (rule T17)

Where tag 101 is present, the reader takes the partitions from it; the classic array holds the same without
the ids.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from ...controller.state.model import TWO_PHASE_COMMIT_LEVEL
from ..fields import FieldReader, FieldWriter, RecordFormatError
from .state import (
    FIRST_LEVEL,
    READ_STATES,
    TransactionMetadata,
    TransactionPartition,
    TransactionState,
    is_stored,
)

KEY_VERSION = 0
VALUE_VERSION = 1
_TAG_PREVIOUS_PRODUCER_ID = 0
_TAG_NEXT_PRODUCER_ID = 1
_TAG_TRANSACTION_VERSION = 2
_TAG_NEXT_PRODUCER_EPOCH = 3
_TAG_LAST_PRODUCER_EPOCH = 100
_TAG_PARTITIONS_BY_TOPIC_ID = 101
FIELDS_STORED_FROM: Final[dict[int, int | None]] = {
    _TAG_PREVIOUS_PRODUCER_ID: FIRST_LEVEL,
    _TAG_NEXT_PRODUCER_ID: FIRST_LEVEL,
    _TAG_TRANSACTION_VERSION: FIRST_LEVEL,
    _TAG_NEXT_PRODUCER_EPOCH: TWO_PHASE_COMMIT_LEVEL,
    _TAG_LAST_PRODUCER_EPOCH: FIRST_LEVEL,
    _TAG_PARTITIONS_BY_TOPIC_ID: FIRST_LEVEL,
}
"""Tag -> the level from which on the shard sets the field; None: at every level, because it does no harm that
a coordinator of an older version loses it."""
_NO_TOPIC_ID = UUID(int=0)


def encode_key(transactional_id: str) -> bytes:
    """TransactionLogKey version 0."""
    writer = FieldWriter()
    writer.int16(KEY_VERSION)
    writer.string(transactional_id)
    return writer.finish()


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a version of a later release."""
    reader = FieldReader(data)
    if reader.int16() != KEY_VERSION:
        return None
    transactional_id = reader.string()
    reader.finish()
    return transactional_id


def encode_value(
    metadata: TransactionMetadata, level: int = FIRST_LEVEL, *, version: int = VALUE_VERSION
) -> bytes:
    """TransactionLogValue.  `level`: the finalised one.  Version 0 holds no tagged fields and is written by
    tests only.  Raises ValueError for a state, or a field, that is not written at this level."""
    if not is_stored(metadata.state, level):
        name = metadata.state.name
        raise ValueError(f"{metadata.transactional_id!r}: {name} is never stored at level {level}")
    writer = FieldWriter(flexible=version >= 1)
    writer.int16(version)
    writer.int64(metadata.producer_id)
    writer.int16(metadata.producer_epoch)
    writer.int32(metadata.timeout_ms)
    writer.int8(metadata.state)
    by_name: dict[tuple[str, UUID], list[int]] = {}
    for partition in metadata.partitions:
        by_name.setdefault((partition.topic, _NO_TOPIC_ID), []).append(partition.partition)
    _write_partitions(writer, by_name, with_ids=False)
    writer.int64(metadata.last_update_ms)
    writer.int64(metadata.start_ms)
    writer.tags(_tags(metadata, level))
    return writer.finish()


def _write_partitions(
    writer: FieldWriter, groups: dict[tuple[str, UUID], list[int]], *, with_ids: bool
) -> None:
    writer.array(len(groups))
    for topic, topic_id in sorted(groups):
        if with_ids:
            writer.uuid(topic_id)
        writer.string(topic)
        writer.int32s(sorted(set(groups[(topic, topic_id)])))
        writer.tags({})


def _tags(metadata: TransactionMetadata, level: int) -> dict[int, bytes]:
    tags: dict[int, bytes] = {}
    for tag, number, default, size in (
        (_TAG_PREVIOUS_PRODUCER_ID, metadata.previous_producer_id, -1, 8),
        (_TAG_NEXT_PRODUCER_ID, metadata.next_producer_id, -1, 8),
        (_TAG_TRANSACTION_VERSION, metadata.transaction_version, 0, 2),
        (_TAG_NEXT_PRODUCER_EPOCH, metadata.next_producer_epoch, -1, 2),
        (_TAG_LAST_PRODUCER_EPOCH, metadata.last_producer_epoch, -1, 2),
    ):
        if number != default:
            tags[tag] = number.to_bytes(size, "big", signed=True)
    if any(partition.topic_id is not None for partition in metadata.partitions):
        by_id: dict[tuple[str, UUID], list[int]] = {}
        for partition in metadata.partitions:
            by_id.setdefault((partition.topic, partition.topic_id or _NO_TOPIC_ID), []).append(
                partition.partition
            )
        writer = FieldWriter(flexible=True)
        _write_partitions(writer, by_id, with_ids=True)
        tags[_TAG_PARTITIONS_BY_TOPIC_ID] = writer.finish()
    for tag in tags:
        stored_from = FIELDS_STORED_FROM[tag]
        if stored_from is not None and stored_from > level:
            raise ValueError(f"{metadata.transactional_id!r}: tag {tag} is never stored at level {level}")
    return tags


def _read_partitions(reader: FieldReader, *, with_ids: bool) -> frozenset[TransactionPartition]:
    found: set[TransactionPartition] = set()
    for _ in range(reader.array()):
        topic_id = reader.uuid() if with_ids else _NO_TOPIC_ID
        topic = reader.string()
        indexes = [reader.int32() for _ in range(reader.array())]
        reader.tags()
        found.update(
            TransactionPartition(topic, index, None if topic_id == _NO_TOPIC_ID else topic_id)
            for index in indexes
        )
    return frozenset(found)


def decode_value(transactional_id: str, data: bytes, record_offset: int) -> TransactionMetadata:
    """The state that a record holds.  Raises RecordFormatError; a coordinator that cannot read its log must
    not serve."""
    reader = FieldReader(data)
    version = reader.int16()
    if version not in (0, 1):
        raise RecordFormatError(
            f"version {version} of {transactional_id!r} is unknown: a later release wrote it"
        )
    reader.flexible = version >= 1
    producer_id, producer_epoch, timeout_ms, number = (
        reader.int64(),
        reader.int16(),
        reader.int32(),
        reader.int8(),
    )
    if number not in READ_STATES:
        raise RecordFormatError(f"{transactional_id!r} is in state {number}, which is never stored")
    partitions = _read_partitions(reader, with_ids=False)
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tags()
    reader.finish()
    if _TAG_PARTITIONS_BY_TOPIC_ID in tags:
        partitions = _read_partitions(
            FieldReader(tags[_TAG_PARTITIONS_BY_TOPIC_ID], flexible=True), with_ids=True
        )

    def tagged(tag: int, default: int) -> int:
        return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default

    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState(number),
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        partitions=partitions,
        last_producer_epoch=tagged(_TAG_LAST_PRODUCER_EPOCH, -1),
        previous_producer_id=tagged(_TAG_PREVIOUS_PRODUCER_ID, -1),
        next_producer_id=tagged(_TAG_NEXT_PRODUCER_ID, -1),
        next_producer_epoch=tagged(_TAG_NEXT_PRODUCER_EPOCH, -1),
        transaction_version=tagged(_TAG_TRANSACTION_VERSION, 0),
        record_offset=record_offset,
    )
