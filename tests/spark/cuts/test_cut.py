"""A cut as a value, and what a reader of any log shows at one (docs/semantics.md X11)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.client.consuming.cut import Cut, CutError, CutPartition, CutTopic, Order, decided_since
from tidegate.client.consuming.visibility import AtCut, VisibilityFilter
from tidegate.wire.records import NewRecord, encode_batch, parse_header

from .histories import TOPIC, TOPIC_ID, History

seeds = st.integers(0, 1 << 32)


def shown(
    history: History, cut: Cut, start: int = 0, *, markers_below_end: bool = False
) -> set[tuple[int, int]]:
    return {
        (at, offset)
        for (_, at), part in cut.partitions.items()
        if start < part.end
        for offset in history.logs[at].read(
            start,
            part.end,
            part.shown(start, part.end),
            markers_below=part.end if markers_below_end else None,
        )
    }


@settings(max_examples=300, deadline=None)
@given(seeds, st.integers(0, 60), st.integers(0, 60), st.integers(0, 10))
def test_a_reader_at_a_cut_gets_exactly_its_records_now_and_later(
    seed: int, before: int, after: int, start: int
) -> None:
    history = History(seed)
    history.steps(before)
    cut = history.cut()
    wanted = {(at, offset) for at, offset in history.inside(cut) if offset >= start}
    assert shown(history, cut, start) == wanted
    history.steps(after)
    assert shown(history, cut, start) == wanted
    # The leader may have lost what was above the end.
    assert shown(history, cut, start, markers_below_end=True) == wanted


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(0, 60), st.integers(1, 30))
def test_what_lies_between_two_cuts_is_what_the_newer_one_has_more(
    seed: int, before: int, after: int
) -> None:
    history = History(seed)
    history.steps(before)
    older = history.cut()
    in_older = history.inside(older)
    history.steps(after)
    newer = history.cut()
    in_newer = history.inside(newer)
    assert older.order(newer) in (Order.OLDER, Order.SAME)
    between = older.between(newer)
    parts = newer.partitions
    above = {
        (key[1], offset)
        for key, (start, end) in between.ranges.items()
        for offset in history.logs[key[1]].read(start, end, parts[key].shown(start, end))
    }
    below = {
        (key[1], offset)
        for key, decided in between.decided.items()
        for offset in history.logs[key[1]].read(0, older.partitions[key].end, AtCut(decided, only=True))
    }
    assert not above & below
    assert above | below == in_newer - in_older


def test_ablation_without_what_the_cut_leaves_out_a_reader_gets_more() -> None:
    """The ablation: the first property notices when the filter is off, and so when unreplicated aborts are
    missing from the cut."""
    differs = lost = 0
    for seed in range(60):
        history = History(seed)
        history.steps(40)
        cut = history.cut()
        bare = Cut(
            {
                TOPIC: CutTopic(
                    TOPIC_ID, {at: replace(part, undecided={}) for (_, at), part in cut.partitions.items()}
                )
            }
        )
        differs += shown(history, bare) != history.inside(cut)
        lost += shown(history, bare, markers_below_end=True) != shown(history, bare)
    assert differs
    assert lost


def test_a_cut_has_the_same_text_and_message_as_its_equal() -> None:
    history = History(5)
    history.steps(80)
    cut = history.cut()
    assert Cut.from_json(cut.to_json()) == cut == Cut.from_proto(cut.to_proto())
    assert Cut.from_json(cut.to_json()).to_json() == cut.to_json()
    assert json.loads(cut.to_json())["version"] == 1


FLIGHTS = '"topics": {"flights": {"id": "00000000-0000-0000-0000-000000000007", "partitions": %s}}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "is no part of a cut"),
        ("[" * 100_000, "not JSON"),
        ('{"version": 2}', "version 2, and this reader knows version 1"),
        ('{"topics": {}}', "version None"),
        ('{"version": 1, "topics": {}}', "no topic"),
        ('{"version": 1, "topics": {"a": {"id": "x", "partitions": {}}}}', "is no part of a cut"),
        ('{"version": 1, %s}' % (FLIGHTS % '{"0": {"start": 5, "end": 4}}'), "is no part of a cut"),
        ('{"version": 1, %s}' % (FLIGHTS % '{"0": {"start": 0, "end": -4}}'), "is no part of a cut"),
        ('{"version": 1, %s}' % (FLIGHTS % '{"0": {"start": false, "end": 4}}'), "is no part of a cut"),
        ('{"version": 1, %s}' % (FLIGHTS % f'{{"0": {{"start": 0, "end": {1 << 63}}}}}'), "is no part"),
        ('{"version": 1, %s}' % (FLIGHTS % '{"x": {"start": 0, "end": 4}}'), "is no part of a cut"),
        ('{"version": 1, %s}' % (FLIGHTS % ('{"%s": {"start": 0, "end": 4}}' % ("9" * 9000))), "is no part"),
        (
            '{"version": 1, %s}' % (FLIGHTS % '{"0": {"start": 0, "end": 4, "undecided": {"1": 4}}}'),
            "is no part of a cut",
        ),
    ],
)
def test_a_text_that_is_no_cut_is_refused(text: str, why: str) -> None:
    with pytest.raises(CutError, match=why):
        Cut.from_json(text)


def made(end: int, undecided: dict[int, int] | None = None, *, topic_id: bytes = TOPIC_ID) -> Cut:
    return Cut({TOPIC: CutTopic(topic_id, {0: CutPartition(0, end, undecided or {})})})


def test_the_order_of_cuts() -> None:
    assert made(5).order(made(5)) is Order.SAME
    assert made(5, {1: 2}).order(made(5)) is Order.OLDER
    assert made(5).order(made(5, {1: 2})) is Order.NEWER
    assert made(5, {1: 2}).order(made(9, {1: 7})) is Order.OLDER
    assert made(5, {1: 2, 2: 3}).order(made(5, {1: 2})) is Order.OLDER
    assert made(5, {1: 2}).order(made(5, {2: 3})) is Order.CONCURRENT
    assert made(9, {1: 2}).order(made(5)) is Order.CONCURRENT
    assert made(5, {1: 2}).between(made(9, {1: 7})).decided == {(TOPIC, 0): ((1, 2),)}
    with pytest.raises(CutError, match="not newer"):
        made(9).between(made(5))
    with pytest.raises(CutError, match="not the same topics"):
        made(5).order(made(5, topic_id=bytes(16)))
    with pytest.raises(CutError, match="partitions were added"):
        made(5).order(Cut({TOPIC: CutTopic(TOPIC_ID, {0: CutPartition(0, 5), 1: CutPartition(0, 0)})}))


@pytest.mark.parametrize(
    ("now", "decided"),
    [
        ({}, ((1, 5),)),
        ({1: 5}, ()),
        ({1: 9}, ()),
        ({1: 10}, ((1, 5),)),  # the next one of its producer, right behind the end
        ({2: 5}, ((1, 5),)),
    ],
)
def test_decided_is_whose_producer_has_no_transaction_or_a_later_one(
    now: dict[int, int], decided: tuple[tuple[int, int], ...]
) -> None:
    assert decided_since({1: 5}, 10, now) == decided


def test_what_a_cut_contains() -> None:
    cut = made(9, {1: 4})
    assert cut.contains(TOPIC, 0, 3, 1)
    assert not cut.contains(TOPIC, 0, 4, 1)
    assert cut.contains(TOPIC, 0, 8, 2)
    assert cut.contains(TOPIC, 0, 8)
    assert not cut.contains(TOPIC, 0, 9)
    assert not cut.contains(TOPIC, 1, 0)
    assert not cut.contains("others", 0, 0)


def test_records_without_a_transaction_of_a_producer_that_is_left_out_are_shown() -> None:
    """An idempotent producer outside of transactions may have the same producer id."""
    visibility = VisibilityFilter((), AtCut(((1, 0),)))
    plain = encode_batch([NewRecord(b"k", b"v")], producer_id=1, producer_epoch=0)
    assert visibility.shows(parse_header(plain), memoryview(plain), 0)


def test_a_filter_for_no_transaction_and_a_range_above_the_cut_are_defects() -> None:
    """The one would show all records once more, the other such as the cut does not have."""
    with pytest.raises(AssertionError, match="none is named"):
        AtCut((), only=True)
    with pytest.raises(AssertionError, match="reaches above the cut's end, 9"):
        CutPartition(0, 9).shown(0, 10)
