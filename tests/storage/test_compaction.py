"""The pure parts of the cleaner: key map, records of a batch, what is kept, what may be cleaned, and what
comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.cleaning.compaction import SLOT_BYTES, Compaction, KeyMap, note_keys
from tidegate.storage.cleaning.plan import Cleanable, SegmentFacts, dirtiest, group_segments, plan_cleaning
from tidegate.storage.cleaning.records import delete_horizon_ms, records_bytes, rewritten, scan_records
from tidegate.storage.log.log import LogConfig
from tidegate.storage.segment.transaction_index import AbortedRanges, TransactionIndexEntry
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import (
    DELETE_HORIZON,
    NewRecord,
    Record,
    decode_batch,
    encode_batch,
    parse_header,
    validate_batch,
)

from .workload import NOW_MS, append, open_log, stored

COMPACT = frozenset({CleanupPolicy.COMPACT})
BYTES = st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        st.none() | BYTES,
        st.none() | BYTES,
        st.lists(st.tuples(st.text(max_size=5), st.none() | BYTES), max_size=2),
        st.integers(0, 2**41),
    ),
    min_size=1,
    max_size=8,
)

# ---- the map -----------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=3), max_size=200))
def test_the_map_knows_the_newest_offset_of_every_key(keys: list[bytes]) -> None:
    table, model = KeyMap(1 << 20, len(keys)), {}
    for offset, key in enumerate(keys):
        table.put(key, offset)
        model[key] = offset
    assert {key: table.get(key) for key in model} == model
    assert table.size == len(model)
    assert table.get(b"not there") == -1


def test_the_map_takes_24_bytes_a_slot_and_no_more_than_it_was_given() -> None:
    table = KeyMap(1000 * SLOT_BYTES, 10**9)
    assert table.memory_bytes == 1000 * SLOT_BYTES
    assert table.keys_max == 750
    assert KeyMap(1 << 30, 100).memory_bytes < 200 * SLOT_BYTES
    for offset in range(750):
        table.put(b"%d" % offset, offset)
    assert table.is_full
    assert all(table.get(b"%d" % offset) == offset for offset in range(750))


def keyed(*keys: str, base_offset: int = 0, **options: object) -> bytes:
    """Upper-case keys have a value, lower-case ones are tombstones."""
    records = [
        NewRecord(key.lower().encode(), b"v" if key.isupper() else None, (), NOW_MS + i)
        for i, key in enumerate(keys)
    ]
    return encode_batch(records, base_offset=base_offset, **options)  # type: ignore[arg-type]


def test_a_full_map_ends_in_the_middle_of_a_batch_and_goes_on_from_there() -> None:
    data = memoryview(keyed("A", "B", "A", "C", "D"))
    keys = KeyMap(3 * SLOT_BYTES, 100)
    assert keys.keys_max == 2
    assert not note_keys(keys, AbortedRanges(()), data, parse_header(data), 0)
    assert keys.end_offset == 3
    assert keys.get(b"a") == 2
    rest = KeyMap(1000, 100)
    assert note_keys(rest, AbortedRanges(()), data, parse_header(data), 3)
    assert (rest.end_offset, rest.size, rest.get(b"a")) == (5, 2, -1)


def test_aborted_is_a_matter_of_producer_and_offset() -> None:
    aborted = AbortedRanges([TransactionIndexEntry(7, 10, 20, 0), TransactionIndexEntry(7, 30, 35, 0)])
    assert [aborted.holds(7, offset) for offset in (9, 10, 19, 21, 29, 30, 36)] == [
        False,
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert not aborted.holds(8, 15)


# ---- records -----------------------------------------------------------------------------------------------


@given(RECORDS, st.sampled_from(list(Compression)))
def test_records_are_seen_as_a_reader_sees_them(records: list[NewRecord], codec: Compression) -> None:
    data = memoryview(encode_batch(records, base_offset=100, compression=codec))
    header = parse_header(data)
    seen = scan_records(records_bytes(data, header), header)
    assert [(r.offset, r.key, r.has_value, header.base_timestamp + r.timestamp_delta) for r in seen] == [
        (r.offset, r.key, r.value is not None, r.timestamp_ms) for r in decode_batch(data)
    ]


@given(RECORDS, st.data(), st.sampled_from(list(Compression)), st.none() | st.integers(0, 2**41))
def test_what_stays_of_a_batch_reads_as_before(
    records: list[NewRecord], data: st.DataObject, codec: Compression, horizon: int | None
) -> None:
    batch = memoryview(
        encode_batch(
            records, base_offset=100, compression=codec, producer_id=5, producer_epoch=2, base_sequence=9
        )
    )
    header = parse_header(batch)
    payload = records_bytes(batch, header)
    keep = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    seen = [each for each, stays in zip(scan_records(payload, header), keep, strict=True) if stays]
    left = memoryview(rewritten(header, payload, seen, horizon if seen else None))
    after = validate_batch(left)
    assert decode_batch(left) == [
        each for each, stays in zip(decode_batch(batch), keep, strict=True) if stays
    ]
    same = (
        "base_offset",
        "last_offset",
        "partition_leader_epoch",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "last_sequence",
    )
    assert [getattr(after, name) for name in same] == [getattr(header, name) for name in same]
    assert after.compression is (codec if seen else Compression.NONE)
    assert delete_horizon_ms(after) == (horizon if seen else None)
    greatest = max((each.timestamp_ms for each in decode_batch(left)), default=header.max_timestamp)
    assert after.max_timestamp == greatest


@given(st.binary(max_size=60), st.integers(1, 5))
def test_bytes_that_are_no_records_are_an_error(data: bytes, count: int) -> None:
    header = parse_header(encode_batch([NewRecord(b"k", b"v")]))._replace(record_count=count)
    try:
        scan_records(data, header)
    except KafkaError as error:
        assert error.code is ErrorCode.CORRUPT_MESSAGE


# ---- kept records ------------------------------------------------------------------------------------------


def compaction(keys: dict[str, int], end: int, now_ms: int = NOW_MS, retention_ms: int = 100) -> Compaction:
    table = KeyMap(1 << 16, 100)
    for key, offset in keys.items():
        table.put(key.encode(), offset)
    table.end_offset = end
    aborted = AbortedRanges(())
    return Compaction(
        table, aborted, frozenset(), now_ms=now_ms, delete_retention_ms=retention_ms, end_offset=1000
    )


def kept(decider: Compaction, data: bytes) -> tuple[bytes, list[Record]]:
    left = decider.keep(memoryview(data), parse_header(data))
    return (b"", []) if left is None else (bytes(left), decode_batch(left))


def test_a_cleaning_sets_a_tombstones_horizon_and_a_later_one_removes_it() -> None:
    data = keyed("a", "B", base_offset=10)
    first, records = kept(compaction({"a": 10, "b": 11}, 20), data)
    assert [r.value for r in records] == [None, b"v"]
    assert records == decode_batch(data)
    assert parse_header(first).attributes & DELETE_HORIZON
    assert delete_horizon_ms(parse_header(first)) == NOW_MS + 100
    again, _ = kept(compaction({}, 20, NOW_MS + 99), first)
    assert again == first  # also no new horizon
    _, records = kept(compaction({}, 20, NOW_MS + 100), first)
    assert [r.offset for r in records] == [11]


def test_the_longest_delete_retention_keeps_a_tombstone_for_good() -> None:
    data = keyed("a", "B", base_offset=10)
    first, records = kept(compaction({"a": 10, "b": 11}, 20, retention_ms=2**63 - 1), data)
    assert records == decode_batch(data)
    assert delete_horizon_ms(parse_header(first)) == 2**63 - 1


def test_a_tombstone_that_something_newer_follows_goes_at_once() -> None:
    _, records = kept(compaction({"a": 12}, 20), keyed("a", "B", base_offset=10))
    assert [r.offset for r in records] == [11]


def test_records_without_a_key_go_and_are_counted() -> None:
    decider = compaction({}, 20)
    assert kept(decider, encode_batch([NewRecord(None, b"v", (), NOW_MS)]))[1] == []
    assert decider.counts.records_without_key == 1


def test_nothing_beyond_the_maps_end_is_touched() -> None:
    data = keyed("A", "A", "a", base_offset=10)
    assert kept(compaction({"a": 30}, 10), data)[0] == data
    _, records = kept(compaction({"a": 10}, 11), data)
    assert [r.offset for r in records] == [10, 11, 12]


# ---- the plan ----------------------------------------------------------------------------------------------

CONFIG = LogConfig(cleanup_policy=COMPACT, segment_bytes=100)


def facts(*sizes: int) -> list[SegmentFacts]:
    return [SegmentFacts(10 * at, 10 * at + 10, size) for at, size in enumerate(sizes)]


def plan(
    sizes: tuple[int, ...],
    *,
    cleaned_to: int = 0,
    settled: int = 1000,
    stamps: tuple[int, ...] = (),
    **config: Any,
) -> Cleanable | None:
    stamps = stamps or (NOW_MS,) * len(sizes)
    return plan_cleaning(
        facts(*sizes), replace(CONFIG, **config), cleaned_to=cleaned_to, settled_offset=settled,
        now_ms=NOW_MS,
        max_timestamp_of=stamps.__getitem__, first_timestamp_of=stamps.__getitem__,
    )  # fmt: skip


def test_the_active_segment_is_never_cleaned() -> None:
    assert plan((50,)) is None
    part = plan((50, 60, 70))
    assert part is not None
    assert (part.segment_count, part.end_offset, part.dirty_bytes) == (2, 20, 110)


@pytest.mark.parametrize(("settled", "count"), [(30, 3), (29, 2), (10, 1)])
def test_nothing_at_or_above_what_is_settled_is_cleaned(settled: int, count: int) -> None:
    part = plan((50,) * 5, settled=settled)
    assert part is not None
    assert part.segment_count == count
    assert plan((50,) * 5, settled=9) is None


def test_what_is_younger_than_the_least_lag_stays_and_all_behind_it() -> None:
    stamps = (NOW_MS - 100, NOW_MS - 99, NOW_MS - 500, 0)
    part = plan((50,) * 4, stamps=stamps, min_compaction_lag_ms=100)
    assert part is not None
    assert part.segment_count == 1
    assert plan((50,) * 4, stamps=(NOW_MS,) * 4, min_compaction_lag_ms=100) is None


def test_the_ratio_decides_or_the_greatest_lag() -> None:
    part = plan((30, 30, 40, 9), cleaned_to=20, stamps=(0, 0, NOW_MS - 50, 0))
    assert part is not None
    assert (part.dirty_ratio, part.oldest_dirty_ms) == (0.4, NOW_MS - 50)
    assert not part.is_due(CONFIG, NOW_MS)
    assert part.is_due(replace(CONFIG, min_cleanable_dirty_ratio=0.4), NOW_MS)
    assert part.is_due(replace(CONFIG, max_compaction_lag_ms=49), NOW_MS)
    assert not part.is_due(replace(CONFIG, max_compaction_lag_ms=50), NOW_MS)
    assert plan((30, 30, 40, 9), cleaned_to=30) is None


def test_the_overdue_come_first_and_then_the_dirtiest() -> None:
    def part(clean: int, dirty: int) -> Cleanable:
        return Cleanable(1, 0, 10, clean, dirty, NOW_MS)

    due = [("a", part(50, 50), False), ("b", part(20, 80), False), ("c", part(90, 10), True)]
    assert dirtiest(due) == "c"
    assert dirtiest(due[:2]) == "b"
    assert dirtiest([]) is None


def test_neighbours_become_one_segment_as_long_as_they_fit() -> None:
    assert group_segments(facts(40, 40, 40, 90, 150, 0, 10), 100) == [
        range(2),
        range(2, 3),
        range(3, 4),
        range(4, 5),
        range(5, 7),
    ]
    assert group_segments([], 100) == []
    far = [SegmentFacts(0, 10, 1), SegmentFacts(10, 2**31 + 5, 1), SegmentFacts(2**31 + 5, 2**31 + 6, 1)]
    assert group_segments(far, 100) == [range(1), range(1, 3)]


# ---- appending ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_a_compacted_topic_refuses_records_without_a_key(codec: Compression) -> None:
    log = open_log(LyingDisk(), config=replace(CONFIG, segment_bytes=2000))
    good = encode_batch([NewRecord(b"", b"v", (), NOW_MS)], compression=codec)
    with pytest.raises(KafkaError, check=lambda error: error.code is ErrorCode.INVALID_RECORD):
        append(
            log,
            good
            + encode_batch(
                [NewRecord(b"k", b"v", (), NOW_MS), NewRecord(None, b"v", (), NOW_MS)], compression=codec
            ),
        )
    assert log.log_end_offset == 0
    append(log, good)  # an empty key is one
    log.update_config(LogConfig())
    append(log, encode_batch([NewRecord(None, b"v", (), NOW_MS)]))
    assert len(stored(log)) == 2


def test_a_producer_may_not_set_a_delete_horizon() -> None:
    log = open_log(LyingDisk(), config=CONFIG)
    data = encode_batch([NewRecord(b"k", None, (), NOW_MS)])
    header = parse_header(data)
    payload = records_bytes(memoryview(data), header)
    with pytest.raises(KafkaError, check=lambda error: error.code is ErrorCode.INVALID_RECORD):
        append(log, rewritten(header, payload, scan_records(payload, header), 1))
