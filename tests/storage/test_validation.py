"""`Log.validate` finds what was planted: each invariant can fail, and a log in use breaks none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.segment.transaction_index import TransactionIndexEntry

from .workload import append, append_marker, batch, marker, open_log

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=1)


def used() -> Log:
    """Some segments, an aborted transaction, an open one, and two leader epochs."""
    log = open_log(LyingDisk(), config=CONFIG)
    for number in range(6):
        append(log, batch(3, pid=7, epoch=0, sequence=3 * number))
    append(log, batch(1, pid=8, epoch=0, sequence=0, transactional=True))
    append_marker(log, marker(8, 1, commit=False))
    log.set_high_watermark(log.log_end_offset - 1)
    append(log, batch(1, pid=9, epoch=0, sequence=0, transactional=True), leader_epoch=4)
    append(log, batch(1, pid=10, epoch=0, sequence=0, transactional=True), leader_epoch=6)
    assert len(log.segments) > 2
    return log


def log_start_above_the_high_watermark(log: Log) -> None:
    log._log_start = log.high_watermark + 1


def high_watermark_above_the_end(log: Log) -> None:
    log._high_watermark = log.log_end_offset + 1


def flushed_end_above_the_end(log: Log) -> None:
    log.local.durability._flushed_end = log.log_end_offset + 1


def recovery_point_above_the_flushed_end(log: Log) -> None:
    durability = log.local.durability
    durability.waits.complete.clear()
    durability._flushed_end, durability._offset_gap, durability.waits.epochs_from = 3, (5, 3), None


def end_without_batches(log: Log) -> None:
    log._log_end += 1
    log.producers.end_offset += 1


def other_active_segment(log: Log) -> None:
    log.segments.active = log.segments[0]


def gap_between_segments(log: Log) -> None:
    log.segments[-2].next_offset -= 1


def index_entry_behind_the_end(log: Log) -> None:
    active = log.segments.active
    active.indexes.add(log.log_end_offset, active.size_bytes, 1, log.log_end_offset)


def index_that_begins_late(log: Log) -> None:
    pair = log.segments.active.indexes.pair
    assert pair is not None
    del pair[0]._positions[0], pair[0]._offsets[0]


def time_index_entry_behind_the_end(log: Log) -> None:
    pair = log.segments.active.indexes.pair
    assert pair is not None
    pair[1].append(1 << 50, log.log_end_offset)


def aborted_transaction_behind_the_end(log: Log) -> None:
    entries = log.segments.active.aborted.entries
    entries.append(TransactionIndexEntry(1, 2, log.log_end_offset, 2))


def aborted_transaction_of_an_earlier_segment(log: Log) -> None:
    log.segments.active.aborted.entries.append(TransactionIndexEntry(1, 0, 1, 2))


def leader_epoch_that_falls(log: Log) -> None:
    log._epochs.epochs[-1] = log._epochs.epochs[-2]


def leader_epoch_above_the_end(log: Log) -> None:
    log._epochs.starts[-1] = log.log_end_offset + 1


def producers_of_fewer_batches(log: Log) -> None:
    log.producers.end_offset -= 1


def open_transactions_out_of_order(log: Log) -> None:
    log.producers._open.move_to_end(next(iter(log.producers._open)))
    log.producers._refresh()


def open_transaction_that_bounds_nothing(log: Log) -> None:
    log.producers.first_unstable_offset = None


def open_transaction_of_no_producer(log: Log) -> None:
    del log.producers._entries[9]


def size_that_is_miscounted(log: Log) -> None:
    log.segments.size_bytes += 1


def transaction_that_is_not_open(log: Log) -> None:
    entry = log.producers.get(7)
    assert entry is not None
    entry.transaction_first_offset = 0


ALWAYS: list[Callable[[Log], None]] = [
    log_start_above_the_high_watermark,
    high_watermark_above_the_end,
    flushed_end_above_the_end,
    recovery_point_above_the_flushed_end,
    end_without_batches,
    other_active_segment,
    gap_between_segments,
    index_entry_behind_the_end,
    index_that_begins_late,
    time_index_entry_behind_the_end,
    aborted_transaction_behind_the_end,
    aborted_transaction_of_an_earlier_segment,
    leader_epoch_that_falls,
    leader_epoch_above_the_end,
    producers_of_fewer_batches,
    open_transactions_out_of_order,
    open_transaction_that_bounds_nothing,
    open_transaction_of_no_producer,
]
WHOLE_ONLY: list[Callable[[Log], None]] = [size_that_is_miscounted, transaction_that_is_not_open]


@pytest.mark.parametrize("plant", ALWAYS, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found_after_every_append(plant: Callable[[Log], None]) -> None:
    log = used()
    log.validate()
    plant(log)
    with pytest.raises(AssertionError, match="breaks its invariants"):
        log.validate()


@pytest.mark.parametrize("plant", ALWAYS + WHOLE_ONLY, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found_by_a_whole_validation(plant: Callable[[Log], None]) -> None:
    log = used()
    log.validate(whole=True)
    plant(log)
    with pytest.raises(AssertionError, match="breaks its invariants"):
        log.validate(whole=True)


def test_a_gap_is_no_violation_in_a_log_that_was_compacted() -> None:
    log = used()
    log.segments[0].next_offset -= 1
    with pytest.raises(AssertionError, match="follows one that ends at"):
        log.validate(whole=True)
    log.config = replace(log.config, was_compacted=True)
    log.validate(whole=True)


def test_an_offline_log_is_not_asked() -> None:
    log = used()
    high_watermark_above_the_end(log)
    log.go_offline(OSError(5, "gone"))
    log.validate(whole=True)
