"""Segments of ours are read by the record readers of kafka-python and aiokafka, and batches of theirs by us,
byte for byte.

Every codec, headers, null and empty keys and values, control batches, batches without records, and the
largest sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder
from kafka.record.memory_records import MemoryRecords as KafkaRecords
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.cleaning.cleaner import clean_now
from tidegate.storage.log.log import LogConfig
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.records import Compression, NewRecord, decode_batch, iterate_headers, validate_batch

from .workload import FOLDER, NOW_MS, append, append_marker, batch, marker, open_log

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, timestamp, key, value, headers."""

RECORDS = [
    NewRecord(b"key", b"value", (), NOW_MS),
    NewRecord(None, b"no key", (), NOW_MS + 1),
    NewRecord(b"tombstone", None, (), NOW_MS - 5_000),
    NewRecord(None, None, (), NOW_MS + 3_000_000),
    NewRecord(b"old", b"", (), 0),
    NewRecord(b"", b"", (("", b""),), NOW_MS),
    NewRecord(
        b"k" * 300,
        b"v" * 70_000,
        (("h\u00e9ader", b"x" * 200), ("null", None), ("again", b"1"), ("again", b"2")),
        NOW_MS,
    ),
]
LARGE = [NewRecord(b"k", bytes(range(256)) * 3900, (), NOW_MS)]
"""Almost max.message.bytes."""
MANY = [NewRecord(b"%d" % i, None if i % 7 == 0 else b"%d" % i, (), NOW_MS + i) for i in range(5000)]
SETS = {"odd": RECORDS, "large": LARGE, "many": MANY}
READERS = {"kafka-python": KafkaRecords, "aiokafka": AioRecords}
BUILDERS = {"kafka-python": KafkaBuilder, "aiokafka": AioBuilder}


def rows_of(records: Sequence[NewRecord], base_offset: int = 0) -> list[Row]:
    return [
        (base_offset + i, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for i, r in enumerate(records)
    ]


def read_by(reader: str, data: bytes) -> Iterator[tuple[object, list[Row]]]:
    """(batch, rows) of all that another library finds."""
    records = READERS[reader](bytes(data))
    while records.has_next():
        found = records.next_batch()
        assert found.validate_crc()
        yield found, [
            (
                record.offset, record.timestamp, None if record.key is None else bytes(record.key),
                None if record.value is None else bytes(record.value),
                tuple((name, None if value is None else bytes(value)) for name, value in record.headers),
            )
            for record in found
        ]  # fmt: skip


def segment_bytes(disk: LyingDisk) -> bytes:
    return b"".join(disk.read(path) for path in disk.files() if path.suffix == ".log")


def encoded(records: Sequence[NewRecord], compression: Compression) -> bytes:
    from tidegate.wire.records import encode_batch

    return encode_batch(records, compression=compression)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("records", SETS)
@pytest.mark.parametrize("compression", Compression)
def test_our_segments_are_read_by_others(compression: Compression, records: str, reader: str) -> None:
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig(segment_bytes=200_000))
    for _ in range(3):
        append(log, encoded(SETS[records], compression), leader_epoch=3)
    wanted = [row for turn in range(3) for row in rows_of(SETS[records], turn * len(SETS[records]))]
    assert [row for _batch, rows in read_by(reader, segment_bytes(disk)) for row in rows] == wanted


@pytest.mark.parametrize("reader", READERS)
def test_our_transactions_and_markers_are_read_by_others(reader: str) -> None:
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(2, pid=7, epoch=4, sequence=0, transactional=True))
    append_marker(log, marker(7, 5, commit=False, coordinator_epoch=9))
    append(log, batch(1, pid=8, epoch=0, sequence=0))
    append(log, batch(1, pid=7, epoch=5, sequence=0, transactional=True))
    append_marker(log, marker(7, 6, commit=True, coordinator_epoch=9))
    found: list[Any] = list(read_by(reader, segment_bytes(disk)))
    facts = [
        (b.is_transactional, b.is_control_batch, b.producer_id, b.producer_epoch, b.base_sequence)
        for b, _rows in found
    ]
    assert facts == [
        (True, False, 7, 4, 0), (True, True, 7, 5, -1), (False, False, 8, 0, 0), (True, False, 7, 5, 0),
        (True, True, 7, 6, -1),
    ]  # fmt: skip
    assert found[1][1][0][:4] == (2, NOW_MS, b"\0\0\0\0", b"\0\0\0\0\0\x09")
    assert found[4][1][0][2] == b"\0\0\0\x01"


@pytest.mark.parametrize("reader", READERS)
def test_foreign_clients_read_cleaned_segments_with_empty_batches(reader: str) -> None:
    disk = LyingDisk()
    log = open_log(
        disk, config=LogConfig(segment_bytes=1000, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    )
    for turn in range(12):
        append(log, batch(2, pid=1 + turn // 6, epoch=0, sequence=turn % 6 * 2, size=100))
    log.set_high_watermark(log.log_end_offset)
    log.roll()
    log.flush_now()
    assert clean_now(log, disk, NOW_MS) is not None
    data = segment_bytes(disk)
    headers = [header for _position, header in iterate_headers(data)]
    assert any(header.record_count == 0 for header in headers), (
        "the last batch of a live producer stays, empty"
    )
    found = list(read_by(reader, data))
    assert [b.base_offset for b, _rows in found] == [header.base_offset for header in headers]  # type: ignore[attr-defined]
    assert [b.next_offset for b, _rows in found] == [header.next_offset for header in headers]  # type: ignore[attr-defined]
    ours = [record for position, _header in iterate_headers(data) for record in decode_batch(data, position)]
    assert (
        [row[0] for _batch, rows in found for row in rows] == [record.offset for record in ours] == [22, 23]
    )


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("records", SETS)
@pytest.mark.parametrize("compression", Compression)
def test_batches_of_others_are_stored_as_they_are_and_read_by_us(
    compression: Compression, records: str, builder: str
) -> None:
    made = BUILDERS[builder](2, int(compression), 0, 77, 3, 0, 10 << 20)
    for offset, record in enumerate(SETS[records]):
        timestamp, headers = record.timestamp_ms, list(record.headers)
        if builder == "aiokafka":
            assert made.append(offset, timestamp, record.key, record.value, headers) is not None
        else:
            assert made.append(offset, timestamp, record.key, record.value, headers) is not None
    data = bytes(made.build())
    assert validate_batch(memoryview(data), from_client=True).producer_id == 77
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig())
    append(log, batch(1))
    append(log, data, leader_epoch=5)
    stored = bytes(log.read(1, 10 << 20, upper_offset=log.log_end_offset).data)
    assert stored[16:] == data[16:], "all behind the leader epoch is the producer's"
    found = [tuple(record) for record in decode_batch(stored)]
    assert [(r[0], r[1], r[2], r[3], tuple(r[4])) for r in found] == rows_of(SETS[records], 1)  # type: ignore[arg-type]
    log.flush_now()
    again = open_log(disk, config=LogConfig())
    assert bytes(again.read(1, 10 << 20, upper_offset=again.log_end_offset).data) == stored
    assert [path for path in disk.files() if path.parent == FOLDER and path.suffix == ".log"]


@pytest.mark.parametrize("reader", READERS)
def test_a_recovered_log_reads_the_same_to_others(reader: str) -> None:
    disk = LyingDisk()
    log = open_log(disk)
    for compression in Compression:
        append(log, encoded(RECORDS[:4], compression))
    before = [rows for _batch, rows in read_by(reader, segment_bytes(disk))]
    disk.kill()
    open_log(disk)
    assert [rows for _batch, rows in read_by(reader, segment_bytes(disk))] == before
