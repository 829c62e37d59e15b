"""Records of __transaction_state and __consumer_offsets: Kafka's bytes, round trips, and damage that is
noticed."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.coordinator.fields import RecordFormatError
from tidegate.coordinator.group.classic import records as group_records
from tidegate.coordinator.group.classic.records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
)
from tidegate.coordinator.group.consumer import records as consumer_records
from tidegate.coordinator.group.consumer.events import TopicShape
from tidegate.coordinator.group.consumer.records import (
    ClassicMember,
    CurrentAssignment,
    Key,
    MemberMetadata,
    RecordKind,
)
from tidegate.coordinator.group.consumer.state import MemberState
from tidegate.coordinator.transaction import records
from tidegate.coordinator.transaction.state import TransactionMetadata, TransactionPartition, TransactionState

STORED = [
    s for s in TransactionState if s not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]
names = st.text(min_size=1, max_size=20)
int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
topic_ids = st.one_of(st.none(), st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number)))
partitions = st.builds(TransactionPartition, names, st.integers(0, 2**31 - 1), topic_ids)


def drawn(kind: type[Any], *strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A field that is new has a strategy here, too: one that a record loses would have its default."""
    assert len(strategies) == len(dataclasses.fields(kind)), f"a field of {kind.__name__} is not drawn"
    return st.builds(kind, *strategies)


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "transactional_id": names,
    "producer_id": int64,
    "producer_epoch": int16,
    "timeout_ms": int32,
    "state": st.sampled_from(STORED),
    "last_update_ms": int64,
    "start_ms": int64,
    "partitions": st.frozensets(partitions, max_size=6),
    "last_producer_epoch": int16,
    "previous_producer_id": int64,
    "next_producer_id": int64,
    "transaction_version": st.integers(0, 2),
    "record_offset": st.just(12),
}


def test_every_field_of_a_transaction_is_drawn() -> None:
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(TransactionMetadata)}


@settings(max_examples=150, deadline=None)
@given(st.builds(TransactionMetadata, **FIELDS))
def test_a_transaction_survives_the_log(metadata: TransactionMetadata) -> None:
    assert records.decode_key(records.encode_key(metadata.transactional_id)) == metadata.transactional_id
    assert records.decode_value(metadata.transactional_id, records.encode_value(metadata), 12) == metadata


def sample(**changes: Any) -> TransactionMetadata:
    fields: dict[str, Any] = {
        "transactional_id": "t",
        "producer_id": 258,
        "producer_epoch": 3,
        "timeout_ms": 60_000,
        "state": TransactionState.ONGOING,
        "last_update_ms": 5,
        "start_ms": 4,
        "partitions": frozenset({TransactionPartition("ab", 1), TransactionPartition("ab", 0)}),
    }
    return TransactionMetadata(**(fields | changes))


def test_the_bytes_are_kafkas() -> None:
    """TransactionLogKey 0, TransactionLogValue 0 and 1, written out by hand from Kafka's schemas."""
    head = "0000000000000102" + "0003" + "0000ea60" + "01"
    tail = "0000000000000005" + "0000000000000004"
    assert records.encode_key("t").hex() == "0000" + "0001" + "74"
    classic = "00000001" + "0002" + "6162" + "00000002" + "00000000" + "00000001"
    assert records.encode_value(sample(), version=0).hex() == "0000" + head + classic + tail
    flexible = "02" + "03" + "6162" + "03" + "00000000" + "00000001" + "00"
    assert records.encode_value(sample()).hex() == "0001" + head + flexible + tail + "00"
    tagged = sample(previous_producer_id=7, next_producer_id=9, transaction_version=2)
    tags = "03" + "0008" + "0000000000000007" + "0108" + "0000000000000009" + "0202" + "0002"
    assert records.encode_value(tagged).hex() == "0001" + head + flexible + tail + tags


def test_a_null_partition_array_of_kafka_is_read() -> None:
    data = bytes.fromhex("0000" + "0000000000000102" + "0003" + "0000ea60" + "00" + "ffffffff" + "00" * 16)
    assert records.decode_value("t", data, 0).partitions == frozenset()


def test_unknown_tags_are_skipped_and_unknown_versions_are_not() -> None:
    data = records.encode_value(sample())[:-1] + bytes.fromhex("01" + "32" + "02" + "ffff")
    assert records.decode_value("t", data, -1) == sample()
    with pytest.raises(RecordFormatError, match="later release"):
        records.decode_value("t", b"\x00\x02" + data[2:], 0)
    assert records.decode_key(b"\x00\x01\x00\x01t") is None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_value_is_an_error_never_a_shorter_one(data: st.DataObject) -> None:
    whole = records.encode_value(sample(previous_producer_id=7))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RecordFormatError):
        records.decode_value("t", whole[:cut], 0)
    with pytest.raises(RecordFormatError):
        records.decode_value("t", whole + b"\x00", 0)


members = drawn(
    MemberValue,
    names,
    st.none() | names,
    names,
    names,
    st.integers(0, 2**31 - 1),
    int32,
    st.binary(max_size=30),
    st.binary(),
)


@settings(max_examples=100, deadline=None)
@given(
    drawn(
        GroupValue,
        names,
        int32,
        st.none() | names,
        st.none() | names,
        int64,
        st.lists(members, max_size=4).map(tuple),
    )
)
def test_a_generation_survives_the_log(value: GroupValue) -> None:
    assert group_records.decode_group_value(group_records.encode_group_value(value)) == value


@settings(max_examples=100, deadline=None)
@given(
    names, names, st.integers(0, 2**31 - 1), int64, int32, names, int64, st.just(-1) | st.integers(0, 2**60)
)
def test_an_offset_survives_the_log(
    group: str,
    topic: str,
    partition: int,
    offset: int,
    epoch: int,
    metadata: str,
    committed: int,
    expires: int,
) -> None:
    key = OffsetKey(group, topic, partition)
    assert group_records.decode_key(group_records.encode_offset_key(*key)) == key
    value = OffsetValue(offset, epoch if expires < 0 else -1, metadata, committed, expires)
    assert group_records.decode_offset_value(group_records.encode_offset_value(value)) == value


@settings(max_examples=200, deadline=None)
@given(names, names, st.integers(0, 2**31 - 1), st.data())
def test_the_quick_way_to_read_a_key_agrees_with_the_slow_one(
    group: str, topic: str, partition: int, data: st.DataObject
) -> None:
    encoded = bytearray(group_records.encode_offset_key(group, topic, partition))
    if data.draw(st.booleans()):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del encoded[data.draw(st.integers(0, len(encoded) - 1)) :]
    quick = group_records._plain_offset_key(bytes(encoded))
    try:
        slow = group_records._decode_key(bytes(encoded))
    except RecordFormatError:
        slow = None
    assert quick is None or quick == slow
    assert quick is not None or slow is None or encoded[1] != 1, "the usual key takes the quick way"


def test_the_bytes_of_offsets_and_groups_are_kafkas() -> None:
    assert group_records.encode_offset_key("g", "ab", 3).hex() == "0001" + "000167" + "00026162" + "00000003"
    assert group_records.encode_group_key("g").hex() == "0002" + "000167"
    assert group_records.decode_key(bytes.fromhex("0002000167")) == GroupKey("g")
    value = OffsetValue(7, 2, "m", 9)
    classic = "0003" + "0000000000000007" + "00000002" + "00016d" + "0000000000000009"
    assert group_records.encode_offset_value(value).hex() == classic
    flexible = bytes.fromhex("0004" + "0000000000000007" + "00000002" + "026d" + "0000000000000009" + "00")
    assert group_records.decode_offset_value(flexible) == value
    assert group_records.decode_key(b"\x00\x03\x00\x01g") is None, (
        "KIP-848's records belong to a later release"
    )


# --- consumer groups (KIP-848) ------------------------------------------------------------------------------

assigned = st.frozensets(
    st.tuples(st.integers(1, 3).map(lambda number: UUID(int=number)), st.integers(0, 40)), max_size=8
)
shapes = st.builds(
    TopicShape, st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number)), st.integers(1, 2**31 - 1)
)
optional = st.one_of(st.none(), names)
protocols = st.lists(st.tuples(names, st.binary(max_size=9)), max_size=2).map(tuple)
consumer_values = st.one_of(
    st.tuples(st.sampled_from([RecordKind.GROUP, RecordKind.TARGET_EPOCH]), int32),
    st.tuples(st.just(RecordKind.TOPICS), st.dictionaries(names, shapes, max_size=4)),
    st.tuples(st.just(RecordKind.TARGET), assigned),
    st.tuples(
        st.just(RecordKind.MEMBER),
        drawn(
            MemberMetadata,
            optional,
            optional,
            names,
            names,
            st.lists(names, max_size=3).map(tuple),
            optional,
            int32,
            optional,
            st.none() | drawn(ClassicMember, int32, protocols),
        ),
    ),
    st.tuples(
        st.just(RecordKind.CURRENT),
        drawn(CurrentAssignment, int32, int32, st.sampled_from(MemberState), assigned, assigned),
    ),
)


@settings(max_examples=200, deadline=None)
@given(consumer_values, names, names)
def test_a_consumer_groups_record_survives_the_log(
    value: tuple[RecordKind, Any], group_id: str, member_id: str
) -> None:
    kind, said = value
    key = Key(kind, group_id, member_id if kind in consumer_records.ABOUT_A_MEMBER else "")
    assert consumer_records.decode_key(consumer_records.encode_key(key)) == key
    assert group_records.decode_key(consumer_records.encode_key(key)) is None  # none of the classic kinds
    data = consumer_records.encode_value(kind, said)
    assert consumer_records.decode_value(kind, data) == said
    for cut in range(2, len(data)):
        with pytest.raises(RecordFormatError):
            consumer_records.decode_value(kind, data[:cut])
    with pytest.raises(RecordFormatError):
        consumer_records.decode_value(kind, data + b"\x00")


def test_consumer_groups_records_are_kafkas_bytes() -> None:
    """The keys' versions are the kinds; values are flexible (KIP-482), with compact arrays and tagged fields
    at every level."""
    topic = UUID(int=1)
    assert consumer_records.encode_key(Key(RecordKind.CURRENT, "g", "m")) == b"\x00\x08\x00\x01g\x00\x01m"
    assert consumer_records.encode_value(RecordKind.GROUP, 7) == b"\x00\x00\x00\x00\x00\x07\x00"
    partitions = b"\x02" + topic.bytes + b"\x02\x00\x00\x00\x03\x00"
    assert (
        consumer_records.encode_value(RecordKind.TARGET, frozenset({(topic, 3)}))
        == b"\x00\x00" + partitions + b"\x00"
    )
    current = CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, frozenset(), frozenset({(topic, 3)}))
    expected = b"\x00\x00\x00\x00\x00\x05\x00\x00\x00\x04\x01\x01" + partitions + b"\x00"
    assert consumer_records.encode_value(RecordKind.CURRENT, current) == expected
    shape = b"\x02" + topic.bytes + b"\x02t\x00\x00\x00\x04\x01\x00"
    assert (
        consumer_records.encode_value(RecordKind.TOPICS, {"t": TopicShape(topic, 4)})
        == b"\x00\x00" + shape + b"\x00"
    )
    member = MemberMetadata("i", None, "c", "/h", ("t",), None, 60_000, "range")
    expected = b"\x00\x00\x02i\x00\x02c\x03/h\x02\x02t\x00\x00\x00\xea\x60\x06range\x00"
    assert consumer_records.encode_value(RecordKind.MEMBER, member) == expected


def test_racks_and_tagged_fields_of_kafka_are_read_over() -> None:
    """Kafka 3.7 to 4.0 store the racks of partitions; 4.1 adds tagged fields (KIP-915: unknown ones are
    skipped)."""
    racks = b"\x02\x00\x00\x00\x00\x02\x02r\x00"
    data = b"\x00\x00\x02" + UUID(int=1).bytes + b"\x02t\x00\x00\x00\x04" + racks + b"\x00\x00"
    assert consumer_records.decode_value(RecordKind.TOPICS, data) == {"t": TopicShape(UUID(int=1), 4)}
    assert consumer_records.decode_value(RecordKind.GROUP, b"\x00\x00\x00\x00\x00\x07\x01\x00\x02ab") == 7
