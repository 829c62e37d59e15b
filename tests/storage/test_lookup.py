"""Look-ups by timestamp: the same answer as from reading everything, and no batch that is expensive is
decoded at once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.log import lookup
from tidegate.storage.log.log import Log
from tidegate.storage.log.lookup import (
    BatchNotDecoded,
    DecodedBatches,
    TimestampOffset,
    max_timestamp,
    offset_for_timestamp,
)
from tidegate.wire.compression import Compression
from tidegate.wire.records import ControlType, NewRecord, Record, decode_batch, encode_batch, encode_marker

from .workload import NOW_MS, SMALL, append, append_marker, open_log, stored


def grown_log(dice: random.Random) -> Log:
    """Small segments, timestamps in and out of order, transactions whose markers are the youngest."""
    log = open_log(LyingDisk())
    in_order = dice.random() < 0.5
    for number in range(dice.randrange(1, 40)):
        at = NOW_MS + (10 * number if in_order else dice.choice([10, 100]) * dice.randrange(4))
        if dice.random() < 0.2:
            append(log, batch_at([at], producer=number))
            append_marker(log, marker_at(at, number))
        else:
            append(
                log,
                batch_at(
                    [at + dice.randrange(-2, 3) for _ in range(dice.randrange(1, 5))], dice.choice([5, 300])
                ),
            )
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(dice.choice([0, 0, dice.randrange(log.log_end_offset)]))
    return log


def batch_at(timestamps: list[int], size: int = 10, producer: int = -1) -> bytes:
    records = [NewRecord(None, b"v" * size, timestamp_ms=timestamp) for timestamp in timestamps]
    if producer < 0:
        return encode_batch(records)
    return encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)


def marker_at(timestamp_ms: int, producer: int) -> bytes:
    return encode_marker(ControlType.COMMIT, producer, 1, 0, timestamp_ms)


def data_records(log: Log, upper: int) -> list[Record]:
    found = [
        record for each in stored(log) if not each.header.is_control for record in decode_batch(each.data)
    ]
    return [record for record in found if log.log_start_offset <= record.offset < upper]


def plain(found: TimestampOffset | None) -> tuple[int, int] | None:
    return None if found is None else (found.timestamp_ms, found.offset)


@pytest.mark.parametrize("seed", range(40))
def test_every_look_up_answers_what_reading_everything_would(seed: int) -> None:
    dice = random.Random(seed)
    log = grown_log(dice)
    for upper in {
        log.log_end_offset,
        *(dice.randrange(log.log_start_offset, log.log_end_offset + 1) for _ in range(5)),
    }:
        there = data_records(log, upper)
        greatest = max(((r.timestamp_ms, -r.offset) for r in there), default=None)
        assert plain(max_timestamp(log, upper)) == (None if greatest is None else (greatest[0], -greatest[1]))
        for asked in {r.timestamp_ms + d for r in there for d in (0, 1)}:
            first = next(((r.timestamp_ms, r.offset) for r in there if r.timestamp_ms >= asked), None)
            assert plain(offset_for_timestamp(log, asked, upper)) == first


def test_the_greatest_timestamp_is_found_with_one_decoded_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also below a high watermark that follows the log's end, and in front of a marker."""
    log = open_log(LyingDisk())
    for number in range(200):
        append(log, batch_at([NOW_MS + number]))
    append(log, batch_at([NOW_MS + 200], producer=5))
    append_marker(log, marker_at(NOW_MS + 201, 5))
    decoded: list[int] = []

    def counted(data: bytes) -> list[Record]:
        decoded.append(1)
        return decode_batch(data)

    monkeypatch.setattr(lookup, "decode_batch", counted)
    for upper, expected in ((202, 200), (150, 149), (17, 16)):
        decoded.clear()
        found = max_timestamp(log, upper)
        assert found is not None
        assert found.offset == expected
        assert len(decoded) <= 2


def expensive_batch(timestamp_ms: int, records: int = 2000) -> bytes:
    each = [NewRecord(None, b"v", timestamp_ms=timestamp_ms + number) for number in range(records)]
    return encode_batch(each, compression=Compression.ZSTD)


@pytest.mark.parametrize("kind", ["many records", "unfolds far", "large"])
def test_an_expensive_batch_is_decoded_by_the_caller(kind: str) -> None:
    log = open_log(LyingDisk(), config=replace(SMALL, max_message_bytes=4 << 20, segment_bytes=8 << 20))
    data = {
        "many records": expensive_batch(NOW_MS),
        "unfolds far": encode_batch(
            [NewRecord(None, bytes(300_000), timestamp_ms=NOW_MS)], compression=Compression.ZSTD
        ),
        "large": encode_batch([NewRecord(None, bytes(2 << 20), timestamp_ms=NOW_MS)]),
    }[kind]
    append(log, data)
    for ask in (
        lambda known: offset_for_timestamp(log, NOW_MS, 1, known),
        lambda known: max_timestamp(log, 1, known),
    ):
        known = DecodedBatches()
        with pytest.raises(BatchNotDecoded) as missing:
            ask(known)
        known.add(missing.value, missing.value.look())
        assert plain(ask(known)) == (NOW_MS, 0)


def test_what_was_found_in_a_batch_does_not_count_for_the_one_in_its_place() -> None:
    log = open_log(LyingDisk())
    append(log, expensive_batch(NOW_MS))
    known = DecodedBatches()
    with pytest.raises(BatchNotDecoded) as missing:
        offset_for_timestamp(log, NOW_MS + 5, 2000, known)
    known.add(missing.value, missing.value.look())
    log.truncate_to(0)
    append(log, expensive_batch(NOW_MS + 3), leader_epoch=2)
    with pytest.raises(BatchNotDecoded):
        offset_for_timestamp(log, NOW_MS + 5, 2000, known)


def test_a_log_start_that_moves_into_the_batch_asks_anew() -> None:
    log = open_log(LyingDisk())
    append(log, expensive_batch(NOW_MS))
    log.set_high_watermark(2000)
    known = DecodedBatches()
    with pytest.raises(BatchNotDecoded) as missing:
        offset_for_timestamp(log, NOW_MS, 2000, known)
    known.add(missing.value, missing.value.look())
    log.advance_log_start(100)
    with pytest.raises(BatchNotDecoded) as again:
        offset_for_timestamp(log, NOW_MS, 2000, known)
    known.add(again.value, again.value.look())
    assert plain(offset_for_timestamp(log, NOW_MS, 2000, known)) == (NOW_MS + 100, 100)


def test_a_look_up_goes_on_below_a_high_watermark_that_moves() -> None:
    log = open_log(LyingDisk())
    append(log, expensive_batch(NOW_MS))
    append(log, expensive_batch(NOW_MS + 5000))
    known = DecodedBatches()
    with pytest.raises(BatchNotDecoded) as missing:
        offset_for_timestamp(log, NOW_MS, 2000, known)
    known.add(missing.value, missing.value.look())
    assert plain(offset_for_timestamp(log, NOW_MS, 4000, known)) == (NOW_MS, 0)
