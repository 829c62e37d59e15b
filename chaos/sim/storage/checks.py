"""Compares the answers of a log with those of the model.  Every function raises AssertionError."""

from __future__ import annotations

import itertools
from random import Random

from ....storage.log.log import Log, LogConfig
from ....storage.log.lookup import max_timestamp, offset_for_timestamp
from ....storage.segment.batch_scan import scan_batches
from ....wire.records import iterate_headers
from .count_checks import check_counts
from .model import LogModel, ModelProducer, StoredBatch


def read_all(log: Log, start: int, upper: int, max_bytes: int) -> list[StoredBatch]:
    """All batches that reads return, from `start` on, by as many reads as it takes."""
    found: list[StoredBatch] = []
    offset = start
    while offset < upper:
        result = log.read(offset, max_bytes, upper_offset=upper)
        if not result.data:
            break
        headers = list(iterate_headers(result.data))
        assert sum(header.size_bytes for _, header in headers) == len(result.data), (
            "a read of something else than whole batches"
        )
        assert headers[0][1].base_offset == result.first_offset
        assert headers[-1][1].next_offset <= result.next_offset
        assert offset < result.next_offset
        found += [StoredBatch(header, result.data[at : at + header.size_bytes]) for at, header in headers]
        offset = result.next_offset
    return found


def check_survivors(log: Log, model: LogModel, flushed: int, start_noted: int, start_most: int) -> None:
    """After a restart the log is a prefix of the appended batches, with all that were flushed.  The model
    becomes this prefix.

    `start_noted` <= log start <= `start_most`: the last start that a checkpoint noted, and the greatest one
    that was requested.
    """
    end = log.log_end_offset
    assert end >= flushed, f"flushed up to {flushed}, only {end} is left"
    assert log.flushed_end_offset == end, "what was recovered is not durable"
    assert min(start_noted, end) <= log.log_start_offset <= max(start_most, model.start), (
        f"the log start is {log.log_start_offset}, noted was {start_noted}, asked for "
        f"{max(start_most, model.start)}"
    )
    keep = sum(batch.header.next_offset <= end for batch in model.batches)
    if not keep and not flushed:
        model.restart(log.log_start_offset)  # perhaps a new file
    assert keep == 0 or end >= model.batches[keep - 1].header.next_offset
    model.keep(keep, end)
    model.start = log.log_start_offset


def forget_removed(log: Log, model: LogModel) -> None:
    """A full disk had no room for the producer state of the segments that were removed to make room: then a
    crash leaves exactly the state that the other segments define."""
    try:
        _check_producers(log, model)
    except AssertionError:
        model.forget_below(log.segments[0].base_offset)


def check_log(
    log: Log, model: LogModel, config: LogConfig, random: Random, *, times: int = 1, indexes: bool = True
) -> None:
    """Every answer of the log agrees with the model; `times` look-ups by time; with `indexes`, all entries of
    indexes."""
    end = log.log_end_offset
    assert end == model.end, f"the log ends at {end}, not {model.end}"
    assert log.log_start_offset == model.start, f"the log starts at {log.log_start_offset}, not {model.start}"
    assert log.log_start_offset <= log.last_stable_offset <= max(log.high_watermark, log.log_start_offset)
    assert log.high_watermark <= end
    assert log.recovery_point <= log.flushed_end_offset <= end
    _check_data(log, model, random)
    _check_producers(log, model)
    _check_transactions(log, model, random)
    _check_epoch_history(log, model)
    if indexes:
        _check_indexes(log, model, config)
    _check_times(log, model, random, times)
    check_counts(log, model, random)


def _check_data(log: Log, model: LogModel, random: Random) -> None:
    visible = model.visible()
    found = read_all(log, log.log_start_offset, log.log_end_offset, random.choice((1, 300, 100_000)))
    assert [batch.data for batch in found] == [batch.data for batch in visible], (
        f"readers see offsets {[b.header.base_offset for b in found]}, written were "
        f"{[b.header.base_offset for b in visible]}"
    )
    if visible:
        start = random.randrange(log.log_start_offset, log.log_end_offset + 1)
        upper = random.randrange(start, log.log_end_offset + 1)
        part = [b.data for b in visible if b.header.next_offset > start and b.header.next_offset <= upper]
        assert [b.data for b in read_all(log, start, upper, random.randrange(900))] == part, (
            f"the read of [{start}, {upper})"
        )


def _check_producers(log: Log, model: LogModel) -> None:
    """The producers equal those of a replay from zero of all batches that were appended and not truncated,
    also of batches that were deleted since.

    Of a cleaned log, a restart may know only the last batch of a producer (docs/semantics.md C5), and only
    its marker's time.
    """
    found = {
        view.producer_id: ModelProducer(
            view.epoch, view.coordinator_epoch, view.last_timestamp_ms, view.current_txn_first_offset,
            _batches(log, view.producer_id),
        )
        for view in log.producers.views()
    }  # fmt: skip
    wanted = model.replay().producers
    if model.cleaned_to:
        found = {pid: _lasting(producer) for pid, producer in found.items()}
        wanted = {pid: _lasting(producer) for pid, producer in wanted.items()}
    assert found == wanted, f"producers are {found}, a replay gives {wanted}"


def _lasting(producer: ModelProducer) -> ModelProducer:
    """What compaction must leave of a producer."""
    return ModelProducer(
        producer.epoch, first_offset=producer.first_offset, batches=_without_times(producer.batches[-1:])
    )


def _without_times(batches: tuple[tuple[int, int, int, int], ...]) -> tuple[tuple[int, int, int, int], ...]:
    return tuple((*batch[:3], 0) for batch in batches)


def _batches(log: Log, producer_id: int) -> tuple[tuple[int, int, int, int], ...]:
    entry = log.producers.get(producer_id)
    return () if entry is None else tuple((b[0], b[1], b[2], b[3]) for b in entry.batches)


def _check_transactions(log: Log, model: LogModel, random: Random) -> None:
    replay = model.replay()
    # A marker that was once below the high watermark is replicated, also when a restart knows only an older
    # high watermark.
    wanted = [
        replay.last_stable_offset(log.high_watermark, replicated_to, log.log_start_offset)
        for replicated_to in (log.high_watermark, max(log.high_watermark, model.watermark_most))
    ]
    assert wanted[0] <= log.last_stable_offset <= wanted[1], (
        f"the last stable offset is {log.last_stable_offset}, not {wanted}"
    )
    low, end = log.log_start_offset, log.log_end_offset
    start = random.randrange(low, end + 1)
    for first, upper in ((low, end), (start, random.randrange(start, end + 1))):
        found = [(t.producer_id, t.first_offset) for t in log.aborted_transactions(first, upper)]
        wanted_aborts = replay.aborted(first, upper)
        if model.cleaned_to:  # transactions without their marker have no data left: `cleaning_checks`
            for pid, begins in found:  # a replay of the remaining batches may begin later
                known = any(pid == each[0] and each[1] <= begins for each in wanted_aborts)
                assert known, f"aborted in [{first}, {upper}): {found}, a replay gives {wanted_aborts}"
            continue
        if model.forgotten_to:  # the index may know more of the past than a replay of the remaining batches
            found = [each for each in found if each[1] >= model.forgotten_to or each in wanted_aborts]
            wanted_aborts = [each for each in wanted_aborts if each[1] > model.forgotten_to or each in found]
        assert found == wanted_aborts, (
            f"aborted in [{first}, {upper}): {found}, a replay gives {wanted_aborts}"
        )


def _check_epoch_history(log: Log, model: LogModel) -> None:
    latest = -1
    for header, _data in model.visible():
        first = max(header.base_offset, log.log_start_offset)
        found = log.epoch_at(first)
        if found < 0 and first < model.start_most:
            continue  # below a log start that was forgotten: the history was cut there
        latest = header.partition_leader_epoch
        assert found == latest, (
            f"offset {header.base_offset} is of leader epoch {latest}, and said to be of {found}"
        )
        assert log.epoch_end(latest).end_offset >= header.next_offset
    assert log.latest_epoch >= latest


def _check_indexes(log: Log, model: LogModel, config: LogConfig) -> None:
    """Entries are batch boundaries, in order, dense enough; segments hold all batches in order."""
    at, batches = 0, model.visible()
    for segment in log.segments:
        positions: dict[int, int] = {}
        for position, header, _view in scan_batches(segment.file, 0, segment.size_bytes):
            positions[header.base_offset] = position
            if header.next_offset > model.start:
                assert batches[at].header == header
                at += 1
        index = segment.index
        entries = [index.entry(number) for number in range(len(index))]
        assert all(positions.get(offset) == position for offset, position in entries), (
            f"the index of {segment.base_offset}"
        )
        assert bool(entries) == bool(positions)
        boundaries = [*sorted(positions.values()), segment.size_bytes]
        marks = [position for _offset, position in entries] + [segment.size_bytes]
        for left, right in itertools.pairwise(marks):
            single = boundaries[boundaries.index(left) + 1] == right
            assert single or right - left <= config.index_interval_bytes, (
                f"a gap of {right - left} bytes in the index"
            )
    assert at == len(batches)


def _check_times(log: Log, model: LogModel, random: Random, times: int) -> None:
    records = model.records()
    greatest = max_timestamp(log)
    wanted = max((record.timestamp_ms for record in records), default=None)
    assert (greatest.timestamp_ms if greatest else None) == wanted, (
        f"the greatest timestamp is {greatest}, not {wanted}"
    )
    for _ in range(times if records else 0):
        asked = random.choice(records).timestamp_ms + random.randrange(-1, 2)
        first = next((r.offset for r in records if r.timestamp_ms >= asked), None)
        found = offset_for_timestamp(log, asked, log.log_end_offset)
        assert (found.offset if found else None) == first, (
            f"the first record from {asked} on is {first}, not {found}"
        )
