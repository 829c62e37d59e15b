"""Records of __transaction_state and __consumer_offsets: Kafka's bytes, round trips, and damage that is
noticed."""

from __future__ import annotations

import dataclasses
from dataclasses import is_dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.coordinator import silence
from tidegate.coordinator.fields import FieldWriter, RecordFormatError
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
from tidegate.coordinator.group.levels import NEWEST_LEVEL
from tidegate.coordinator.transaction import records
from tidegate.coordinator.transaction.state import (
    FIRST_LEVEL,
    PROPERTIES,
    READ_STATES,
    Stimulus,
    TransactionMetadata,
    TransactionPartition,
    TransactionState,
)
from tidegate.wire.errors import ErrorCode

from . import test_transaction_table as transaction_table
from .coordinator_doubles import code_of

names = st.text(min_size=1, max_size=20)
int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
topic_ids = st.one_of(st.none(), st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number)))


def drawn(kind: type[Any], *strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A field that is new has a strategy here, too: one that a record loses would have its default.  `kind`:
    a dataclass, or a named tuple."""
    names = [each.name for each in dataclasses.fields(kind)] if is_dataclass(kind) else kind._fields
    assert len(strategies) == len(names), f"a field of {kind.__name__} is not drawn"
    return st.builds(kind, *strategies)


partitions = drawn(TransactionPartition, names, st.integers(0, 2**31 - 1), topic_ids)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "transactional_id": names,
    "producer_id": int64,
    "producer_epoch": int16,
    "timeout_ms": int32,
    "state": st.sampled_from(sorted(READ_STATES)),
    "last_update_ms": int64,
    "start_ms": int64,
    "partitions": st.frozensets(partitions, max_size=6),
    "last_producer_epoch": int16,
    "previous_producer_id": int64,
    "next_producer_id": int64,
    "next_producer_epoch": int16,
    "transaction_version": st.integers(0, 2),
    "record_offset": st.just(12),
}


def test_every_field_of_a_transaction_is_drawn() -> None:
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(TransactionMetadata)}


@settings(max_examples=150, deadline=None)
@given(st.builds(TransactionMetadata, **FIELDS))
def test_a_transaction_survives_the_log(metadata: TransactionMetadata) -> None:
    assert records.decode_key(records.encode_key(metadata.transactional_id)) == metadata.transactional_id
    assert records.decode_value(metadata.transactional_id, records.encode_value(metadata, 5), 12) == metadata


# Every node of a cluster reads these, and writes them (docs/tour.md, the rule for mixed versions).
FIRST_STATES = {"EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT"}


def test_the_states_and_versions_of_the_first_level_are_pinned() -> None:
    """A state, or a version of a value, that is new stops the coordinator of an older version: it needs a
    level of its own."""
    by_level: dict[int | None, set[str]] = {}
    for state in TransactionState:
        by_level.setdefault(PROPERTIES[state].stored_from, set()).add(state.name)
    assert by_level == {FIRST_LEVEL: FIRST_STATES, 5: {"PREPARED"}, None: {"DEAD", "PREPARE_EPOCH_FENCE"}}
    later = {tag: level for tag, level in records.FIELDS_STORED_FROM.items() if level != FIRST_LEVEL}
    assert later == {3: 5}, "NextProducerEpoch"
    versions = {
        "transaction": records.encode_value(sample()),
        "group": group_records.encode_group_value(GroupValue("", 0, None, None, 0, ())),
        "offset": group_records.encode_offset_value(OffsetValue(0, 0, "", 0)),
        "offset that expires": group_records.encode_offset_value(OffsetValue(0, -1, "", 0, 5)),
        "note of silence": silence.encode_value(silence.Note(0, 0)),
    } | {kind.name: consumer_records.encode_value(kind, said) for kind, said in CONSUMER_SAMPLES.items()}
    assert {name: int.from_bytes(data[:2], "big") for name, data in versions.items()} == {
        "transaction": 1, "group": 3, "offset": 3, "offset that expires": 1, "note of silence": 0,
        **{kind.name: 0 for kind in RecordKind},
    }  # fmt: skip


@pytest.mark.parametrize("state", sorted(set(TransactionState) - READ_STATES))
def test_a_state_of_no_level_is_neither_written_nor_read(state: TransactionState) -> None:
    with pytest.raises(ValueError, match="never stored"):
        records.encode_value(sample(state=state))
    data = bytearray(records.encode_value(sample()))
    assert data[16] == TransactionState.ONGOING
    data[16] = state
    with pytest.raises(RecordFormatError, match="never stored"):
        records.decode_value("t", bytes(data), 0)


def test_a_state_or_a_field_of_a_later_level_is_written_from_that_level_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ongoing = TransactionState.ONGOING
    with monkeypatch.context() as later:
        later.setitem(PROPERTIES, ongoing, PROPERTIES[ongoing]._replace(stored_from=7))
        with pytest.raises(ValueError, match="ONGOING is never stored at level 6"):
            records.encode_value(sample(), 6)
        assert records.decode_value("t", records.encode_value(sample(), 7), 0).state is ongoing
    of_a_topic_id = frozenset({TransactionPartition("ab", 1, UUID(int=7))})
    for tag, changes in ((0, {"previous_producer_id": 5}), (101, {"partitions": of_a_topic_id})):
        later_entry = sample(**changes)
        with monkeypatch.context() as later:
            later.setitem(records.FIELDS_STORED_FROM, tag, 7)
            records.encode_value(sample(), 6)
            with pytest.raises(ValueError, match=f"tag {tag} is never stored at level 6"):
                records.encode_value(later_entry, 6)
            (name,) = changes
            data = records.encode_value(later_entry, 7)
            assert getattr(records.decode_value("t", data, 0), name) == changes[name]


WRITES = {
    TransactionState.EMPTY: (TransactionState.DEAD, Stimulus.INIT_PRODUCER_ID),
    TransactionState.ONGOING: (TransactionState.EMPTY, Stimulus.ADD_PARTITIONS),
    TransactionState.PREPARED: (TransactionState.ONGOING, Stimulus.PREPARE),
    TransactionState.PREPARE_COMMIT: (TransactionState.ONGOING, Stimulus.COMMIT_TV1),
    TransactionState.PREPARE_ABORT: (TransactionState.ONGOING, Stimulus.ABORT_TV1),
    TransactionState.COMPLETE_COMMIT: (TransactionState.PREPARE_COMMIT, Stimulus.MARKERS_WRITTEN),
    TransactionState.COMPLETE_ABORT: (TransactionState.PREPARE_ABORT, Stimulus.MARKERS_WRITTEN),
}
"""Each state, and what takes an entry to it."""


@pytest.mark.parametrize("target", sorted(READ_STATES), ids=lambda state: state.name)
def test_the_shard_takes_an_entry_to_a_state_of_a_later_level_only_at_that_level(
    target: TransactionState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below it the client gets UNSUPPORTED_VERSION, and the log nothing."""
    level, (state, stimulus) = 6, WRITES[target]
    shard = transaction_table.make(state, version=2, level=lambda: level)
    monkeypatch.setitem(PROPERTIES, target, PROPERTIES[target]._replace(stored_from=7))
    request = transaction_table.request(stimulus, shard)
    refused = transaction_table.decide(shard, request)
    assert (refused.records, code_of(refused.reply)) == ((), ErrorCode.UNSUPPORTED_VERSION)
    level = 7
    (record,) = transaction_table.decide(shard, request).records
    assert record.value is not None
    assert records.decode_value("t", record.value, 0).state is target


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
    drawn(OffsetKey, names, names, st.integers(0, 2**31 - 1)),
    # the version with an expiry has no leader epoch
    drawn(OffsetValue, int64, int32, names, int64, st.just(-1))
    | drawn(OffsetValue, int64, st.just(-1), names, int64, st.integers(0, 2**60)),
)
def test_an_offset_survives_the_log(key: OffsetKey, value: OffsetValue) -> None:
    assert group_records.decode_key(group_records.encode_offset_key(*key)) == key
    assert group_records.decode_offset_value(group_records.encode_offset_value(value)) == value


@settings(max_examples=50, deadline=None)
@given(drawn(silence.NoteKey, names, names), drawn(silence.Note, int64, int16))
def test_a_note_of_silence_survives_the_log(key: silence.NoteKey, note: silence.Note) -> None:
    assert silence.decode_key(silence.encode_key(*key)) == key
    assert silence.decode_value(silence.encode_value(note)) == note


def test_a_tagged_field_never_gets_lost_in_a_classic_record() -> None:
    with pytest.raises(ValueError, match="no tagged fields"):
        FieldWriter().tags({7: b"lost"})
    with pytest.raises(ValueError, match="no tagged fields"):
        records.encode_value(sample(next_producer_id=9), version=0)


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
    assert group_records.decode_key(b"\x00\x03\x00\x01g") is None, "a consumer group's record (KIP-848)"


# --- consumer groups (KIP-848) ------------------------------------------------------------------------------

assigned = st.frozensets(
    st.tuples(st.integers(1, 3).map(lambda number: UUID(int=number)), st.integers(0, 40)), max_size=8
)
shapes = drawn(
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
    data = consumer_records.encode_value(kind, said, NEWEST_LEVEL)
    assert consumer_records.decode_value(kind, data) == said
    for cut in range(2, len(data)):
        with pytest.raises(RecordFormatError):
            consumer_records.decode_value(kind, data[:cut])
    with pytest.raises(RecordFormatError):
        consumer_records.decode_value(kind, data + b"\x00")


CONSUMER_SAMPLES: dict[RecordKind, Any] = {
    RecordKind.GROUP: 7,
    RecordKind.TARGET_EPOCH: 7,
    RecordKind.TOPICS: {},
    RecordKind.TARGET: frozenset(),
    RecordKind.MEMBER: MemberMetadata("i", None, "c", "/h", ("t",), None, 60_000, "range"),
    RecordKind.CURRENT: CurrentAssignment(5, 4, MemberState.STABLE, frozenset(), frozenset()),
}


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
