"""What a consumer shows of fetched batches: exactly the committed records, against a model that knows how
each one ended."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.client.consuming.fetched import FetchedRecords
from tidegate.wire.errors import KafkaError
from tidegate.wire.records import ControlType, NewRecord, encode_batch, encode_marker


@dataclass
class ModelLog:
    """A partition: its bytes, and for every offset whether a read_committed reader is to see it."""

    data: bytearray
    starts: list[int]
    shown: list[int]
    aborted: list[tuple[int, int, int]]  # producer id, first offset, offset of the marker
    next_offset: int = 0


def build(events: list[tuple[int, str]]) -> ModelLog:
    """Producers 1..3 write (transactionally), commit and abort in any order; producer 0 writes plain
    batches."""
    log = ModelLog(bytearray(), [], [], [])
    open_at: dict[int, tuple[int, list[int]]] = {}

    def put(batch: bytes, count: int) -> None:
        raw = bytearray(batch)
        raw[0:8] = log.next_offset.to_bytes(8, "big")
        log.starts.append(log.next_offset)
        log.data += raw
        log.next_offset += count

    for producer, what in events:
        if what == "write":
            count = 2
            records = [NewRecord(None, b"%d" % (log.next_offset + index)) for index in range(count)]
            offsets = list(range(log.next_offset, log.next_offset + count))
            put(
                encode_batch(
                    records,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=producer > 0,
                ),
                count,
            )
            if producer > 0:
                open_at.setdefault(producer, (offsets[0], []))[1].extend(offsets)
            else:
                log.shown += offsets
        elif producer > 0:
            kind = ControlType.COMMIT if what == "commit" else ControlType.ABORT
            first, offsets = open_at.pop(producer, (-1, []))
            if what == "commit":
                log.shown += offsets
            elif offsets:
                log.aborted.append((producer, first, log.next_offset))
            put(encode_marker(kind, producer, 0, 0, 5), 1)
    # What is still open lies above the last stable offset, which no fetch at read_committed passes.
    stable = min((first for first, _ in open_at.values()), default=log.next_offset)
    log.shown = sorted(offset for offset in log.shown if offset < stable)
    return log


def answer(log: ModelLog, start: int) -> tuple[bytes, list[tuple[int, int]]]:
    """What a broker sends for a fetch at `start`: whole batches from the one that holds it, and the
    overlapping aborted ones."""
    open_from = log.next_offset
    first = max((index for index, offset in enumerate(log.starts) if offset <= start), default=0)
    position, ends = 0, []
    while position < len(log.data):
        size = int.from_bytes(log.data[position + 8 : position + 12], "big") + 12
        ends.append((position, position + size))
        position += size
    aborted = [(producer, at) for producer, at, marker in log.aborted if marker >= start and at < open_from]
    return (bytes(log.data[ends[first][0] :]) if ends else b""), aborted


EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["write", "write", "commit", "abort"])), max_size=40
)


@given(EVENTS, st.integers(0, 60), st.integers(1, 7))
@settings(max_examples=300, deadline=None)
def test_exactly_the_committed_records_are_shown_from_any_offset(
    events: list[tuple[int, str]], start: int, step: int
) -> None:
    complete = [*events, *((producer, "abort") for producer in (1, 2, 3))]  # nothing stays open
    log = build(complete)
    start = min(start, log.next_offset)
    data, aborted = answer(log, start)
    fetched = FetchedRecords("t", 0, start, data, aborted)
    seen: list[int] = []
    while taken := fetched.take(step):
        assert len(taken) <= step
        seen += [record.offset for record in taken]
        assert fetched.position == seen[-1] + 1 or fetched.exhausted
    assert seen == [offset for offset in log.shown if offset >= start]
    assert fetched.exhausted
    assert fetched.position == max(start, log.next_offset)


@given(EVENTS)
@settings(max_examples=50, deadline=None)
def test_read_uncommitted_shows_everything_but_control_batches(events: list[tuple[int, str]]) -> None:
    log = build(events)
    written = sum(2 for _, what in events if what == "write")
    assert len(FetchedRecords("t", 0, 0, bytes(log.data), None).take(10_000)) == written


def test_without_the_aborted_list_aborted_records_would_be_shown() -> None:
    log = build([(1, "write"), (1, "abort"), (1, "write"), (1, "commit")])
    data, aborted = answer(log, 0)
    assert [record.offset for record in FetchedRecords("t", 0, 0, data, aborted).take(9)] == log.shown
    assert [record.offset for record in FetchedRecords("t", 0, 0, data, []).take(9)] != log.shown


def test_a_corrupt_batch_raises_after_the_batches_before_it_never_skipped() -> None:
    log = build([(0, "write"), (0, "write")])
    data = bytearray(log.data)
    data[-1] ^= 1
    fetched = FetchedRecords("t", 0, 0, bytes(data), [])
    assert [record.offset for record in fetched.take(10)] == [0, 1]
    for _ in range(2):
        with pytest.raises(KafkaError):
            fetched.take(10)
    assert fetched.position == 2
    assert not fetched.exhausted


def test_a_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    log = build([(0, "write"), (0, "write")])
    fetched = FetchedRecords("t", 0, 0, bytes(log.data[:-5]), [])
    assert [record.offset for record in fetched.take(10)] == [0, 1]
    assert fetched.next_fetch_offset == 2
