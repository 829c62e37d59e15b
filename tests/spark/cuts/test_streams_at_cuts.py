"""Micro-batches that end at cuts: each committed record is in exactly one, the first whose cut has its
transaction (docs/semantics.md X12)."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.client.consuming.cut import Cut, CutPartition, CutTopic, unless_aborted
from tidegate.spark.options import parse_stream_options
from tidegate.spark.reading.planning import limits_at_cut
from tidegate.spark.streaming.offsets import OffsetError, StreamOffset, from_json, to_json
from tidegate.spark.streaming.triggers import (
    Seen,
    available,
    filter_at,
    finished,
    late_ranges,
    left_out_at,
    next_offset,
    ranges,
    without_aborted,
)

from .histories import TOPIC, TOPIC_ID, History

OPTIONS = parse_stream_options(
    {"bootstrap": "localhost:1", "subscribe": TOPIC, "consistency": "cut", "startingOffsets": "earliest"}
).read
IDS = {TOPIC: TOPIC_ID}

Records = list[tuple[int, int]]
seeds = st.integers(0, 1 << 32)
rounds = st.lists(st.integers(1, 25), min_size=1, max_size=8)


def initial(history: History, *, at: dict[int, int] | None = None) -> StreamOffset:
    """`at`: offsets to begin at; without, the latest ones."""
    cut = history.cut()
    undecided = {key: part.undecided for key, part in cut.partitions.items()} if at is None else {}
    positions = {key: part.end if at is None else at.get(key[1], 0) for key, part in cut.partitions.items()}
    return StreamOffset(IDS, positions, initial=True, cut=("begin", 1), undecided=undecided)


def step(start: StreamOffset, cut: Cut) -> StreamOffset:
    seen = Seen(IDS, {key: limits_at_cut(part) for key, part in cut.partitions.items()}, cut)
    what = available(start, seen, OPTIONS)
    return through_json(next_offset(start, what, what.ends))


def through_json(offset: StreamOffset) -> StreamOffset:
    tree = to_json(offset)
    again = from_json(json.loads(json.dumps(tree)))
    assert to_json(again) == tree
    return again


def rows(history: History, start: StreamOffset, end: StreamOffset) -> Records:
    """What the tasks of the micro-batch read now, each row as often as it comes."""
    found: Records = []
    for key, (first, last) in ranges(start, end).items():
        found += [
            (key[1], offset) for offset in history.logs[key[1]].read(first, last, filter_at(end, key, last))
        ]
    for key, (first, last, only) in late_ranges(start, end).items():
        found += [(key[1], offset) for offset in history.logs[key[1]].read(first, last, only)]
    return sorted(found)


@settings(max_examples=300, deadline=None)
@given(seeds, rounds, st.integers(0, 40), st.booleans())
def test_each_record_is_in_exactly_the_first_micro_batch_whose_cut_has_it(
    seed: int, counts: list[int], before: int, from_latest: bool
) -> None:
    history = History(seed)
    history.steps(before)
    start = through_json(initial(history, at=None if from_latest else {}))
    delivered = history.inside(history.cut()) if from_latest else set()
    batches: list[tuple[StreamOffset, StreamOffset, Records]] = []
    for count in counts:
        history.steps(count)
        cut = history.cut()
        end = step(start, cut)
        if end.positions == start.positions:
            continue
        wanted = sorted(history.inside(cut) - delivered)
        assert rows(history, start, end) == wanted
        delivered |= set(wanted)
        batches.append((start, end, wanted))
        start = end
    # A micro-batch that is run again, however late, reads the same: the first one also from another begin.
    later = initial(history, at=None if from_latest else {})
    for number, (begin, end, wanted) in enumerate(batches):
        assert rows(history, later if number == 0 else begin, end) == wanted


@settings(max_examples=200, deadline=None)
@given(seeds, rounds, st.dictionaries(st.integers(0, 1), st.integers(0, 20)))
def test_a_query_that_begins_in_the_middle_of_transactions_reads_their_rest(
    seed: int, counts: list[int], at: dict[int, int]
) -> None:
    """The offsets where it begins are the user's, so what lies below is not read."""
    history = History(seed)
    history.steps(30)
    at = {number: min(offset, history.cut().partitions[TOPIC, number].end) for number, offset in at.items()}
    start, delivered = initial(history, at=at), set[tuple[int, int]]()
    for count in counts:
        history.steps(count)
        cut = history.cut()
        end = step(start, cut)
        if end.positions == start.positions:
            continue
        found = rows(history, start, end)
        assert len(found) == len(set(found))
        assert not delivered & set(found)
        delivered |= set(found)
        assert delivered == {pair for pair in history.inside(cut) if pair[1] >= at.get(pair[0], 0)}
        start = end


def test_ablation_without_the_ranges_below_records_are_lost() -> None:
    """The ablation: the property above notices a stream that only goes on."""
    lost = 0
    for seed in range(40):
        history = History(seed)
        history.steps(20)
        middle = step(initial(history, at={}), history.cut())
        in_middle = history.inside(history.cut())
        history.steps(40)
        end = step(middle, history.cut())
        wanted = sorted(history.inside(history.cut()) - in_middle)
        forgetful = replace(middle, undecided={})
        assert rows(history, middle, end) == wanted
        lost += rows(history, forgetful, end) != wanted
    assert lost


@settings(max_examples=300, deadline=None)
@given(seeds, st.data())
def test_what_is_gone_below_is_a_loss_if_it_was_committed_and_only_then(
    seed: int, data: st.DataObject
) -> None:
    history = History(seed)
    history.steps(20)
    middle = step(initial(history, at={}), history.cut())
    history.steps(40)
    end = step(middle, history.cut())
    for (topic, number), late in late_ranges(middle, end).items():
        log = history.logs[number]
        log_start = data.draw(st.integers(late.first, log.end))
        across = {
            producer_id: first
            for producer_id, first, marker in log.aborted
            if first < log_start <= marker and marker < end.positions[topic, number]
        }
        left = without_aborted(late, log_start, across)
        shown = log.read(late.first, late.last, late.shown)
        is_loss = left is not None and left.first < log_start
        if late.last >= log_start:  # else the ABORT marker may be gone, too
            assert is_loss == any(offset < log_start for offset in shown)
        if not is_loss:
            assert shown == ([] if left is None else log.read(left.first, left.last, left.shown))


@pytest.mark.parametrize(
    ("log_start", "aborted", "left"),
    [
        (5, {}, ((1, 5), (2, 8))),
        (6, {}, ((1, 5), (2, 8))),
        (6, {1: 5}, ((2, 8),)),
        (6, {1: 3}, ((2, 8),)),  # the query began in its middle
        (9, {1: 5, 2: 8}, ()),
        (20, {1: 15}, ((1, 5), (2, 8))),  # a later one of the same producer
    ],
)
def test_a_transaction_is_known_to_be_aborted_by_its_beginning(
    log_start: int, aborted: dict[int, int], left: tuple[tuple[int, int], ...]
) -> None:
    assert unless_aborted(((1, 5), (2, 8)), log_start, aborted) == left


def test_an_empty_first_micro_batch_is_empty_when_it_is_run_again() -> None:
    """Spark has written where the query began, and asks for that anew after a crash: at a later cut, or with
    other options."""
    key = TOPIC, 0
    end = StreamOffset(IDS, {key: 50}, initial=True, cut=("c", 1), undecided={key: {1: 40}})
    later = StreamOffset(IDS, {key: 75}, initial=True, cut=("d", 2), undecided={key: {2: 60}})
    earliest = StreamOffset(IDS, {key: 0}, initial=True, cut=("e", 3))
    for start in (end, later, earliest):
        assert (ranges(start, end), late_ranges(start, end)) == ({}, {})


@pytest.mark.parametrize(
    ("log_start", "topic_id", "late"),
    [
        (0, TOPIC_ID, [(4, 10)]),
        (15, TOPIC_ID, []),  # the log has dropped where the stream was
        (10, UUID(int=8).bytes, []),  # the topic was made again: none of its records is left over
    ],
)
def test_what_was_left_out_is_read_only_where_the_partition_goes_on(
    log_start: int, topic_id: bytes, late: list[tuple[int, int]]
) -> None:
    key = TOPIC, 0
    start = StreamOffset(IDS, {key: 10}, cut=("c", 1), undecided={key: {1: 4}})
    cut = Cut({TOPIC: CutTopic(topic_id, {0: CutPartition(log_start, 20)})})
    accepting = replace(OPTIONS, fail_on_data_loss=False)
    seen = Seen({TOPIC: topic_id}, {key: limits_at_cut(cut.partitions[key])}, cut)
    what = available(start, seen, accepting)
    found = late_ranges(start, next_offset(start, what, what.ends))
    assert [(each.first, each.last) for each in found.values()] == late


def test_the_checkpoint_says_what_is_left_to_read() -> None:
    offset = StreamOffset(
        IDS,
        {(TOPIC, 0): 23, (TOPIC, 1): 5},
        begins={(TOPIC, 1): 0},
        cut=("c", 17),
        undecided={(TOPIC, 1): {}, (TOPIC, 0): {4712: 9, 4711: 17}},
        begins_undecided={(TOPIC, 1): {9: 0}},
    )
    tree = {
        "version": 2,
        "cut": {"id": "c", "takenMs": 17},
        "topics": {
            TOPIC: {
                "id": "00000000-0000-0000-0000-000000000007",
                "offsets": {"0": 23, "1": 5},
                "begins": {"1": 0},
                "undecided": {"0": {"4711": 17, "4712": 9}},
                "beginsUndecided": {"1": {"9": 0}},
            }
        },
    }
    assert json.dumps(to_json(offset)) == json.dumps(tree), "Spark compares texts"


def test_a_transaction_without_records_above_the_begin_is_not_left_to_read() -> None:
    assert left_out_at(CutPartition(0, 5, {1: 2}), {}, 5) == {}
    assert left_out_at(CutPartition(0, 6, {1: 2}), {}, 5) == {1: 5}


def test_a_group_gets_the_offsets_below_which_everything_is_read() -> None:
    offset = StreamOffset(
        IDS, {(TOPIC, 0): 23, (TOPIC, 1): 5}, cut=("c", 17), undecided={(TOPIC, 0): {4711: 17, 4712: 9}}
    )
    assert finished(offset) == {(TOPIC, 0): 9, (TOPIC, 1): 5}


@pytest.mark.parametrize(
    "tree",
    [
        {"version": 3, "topics": {}},
        {"version": 2, "topics": {}},
        {"version": 2, "cut": {"id": "c"}, "topics": {}},
        {"version": 2, "cut": {"id": "c", "takenMs": 1}, "topics": {TOPIC: {"undecided": {"0": 5}}}},
        {"version": 2, "cut": {"id": "c", "takenMs": 1}, "topics": {TOPIC: {"undecided": {"0": {"x": 5}}}}},
        {"version": 2, "cut": {"id": "c", "takenMs": 1}, "topics": {TOPIC: {"undecided": {"x": {"1": 5}}}}},
        {"version": 2, "cut": {"id": "c", "takenMs": 1}, "topics": {TOPIC: {"undecided": {"00": {"1": 5}}}}},
        {"version": 2, "cut": {"id": "c", "takenMs": 1}, "topics": {TOPIC: {"undecided": 7}}},
    ],
)
def test_a_checkpoint_that_is_none_is_refused(tree: object) -> None:
    with pytest.raises(OffsetError):
        from_json(tree)
