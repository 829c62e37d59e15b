"""How far a micro-batch goes, and what counts as loss: tables and properties, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.spark.connecting.answers import OffsetAnswer, SplitRange, TopicView
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.options import Partitions, Pattern, ReadOptions, StreamOptions, Topics
from tidegate.spark.streaming.offsets import OffsetError, StreamOffset
from tidegate.spark.streaming.triggers import (
    Available,
    Seen,
    available,
    behind,
    covered,
    end_within_bytes,
    is_delayed,
    lag_metrics,
    matching,
    next_offset,
    ranges,
    share_of_bytes,
    within_offsets,
)
from tidegate.wire.errors import ErrorCode

OLD, NEW = UUID(int=1).bytes, UUID(int=2).bytes
F0, F1 = ("flights", 0), ("flights", 1)
OPTIONS = ReadOptions(("a:1",), Topics(("flights", "late")))
ACCEPTING = replace(OPTIONS, fail_on_data_loss=False)
START = StreamOffset({"flights": OLD}, {F0: 50})


def log(start: int, stable: int, high_watermark: int | None = None) -> OffsetAnswer:
    end = stable if high_watermark is None else high_watermark
    return OffsetAnswer(stable, start, stable, end)


def seen(limits: dict[tuple[str, int], OffsetAnswer], **ids: bytes) -> Seen:
    return Seen({"flights": OLD} | ids, limits)


def test_a_partition_goes_on_where_it_was_up_to_the_last_stable_offset() -> None:
    what = available(START, seen({F0: log(10, 90, 100)}), OPTIONS)
    assert (what.begins, what.ends, what.new, what.losses) == ({F0: 50}, {F0: 90}, frozenset(), ())
    uncommitted = available(START, seen({F0: log(10, 90, 100)}), replace(OPTIONS, read_committed=False))
    assert uncommitted.ends == {F0: 100}


@pytest.mark.parametrize(
    "limits",
    [
        log(50, 50),  # retention or DeleteRecords up to where the stream has read
        log(0, 40, 90),  # read uncommitted before, now committed: a transaction is open below
        log(0, 50, 60),
        log(49, 90),
    ],
)
def test_what_the_stream_has_passed_and_what_is_undecided_is_no_loss(limits: OffsetAnswer) -> None:
    what = available(START, seen({F0: limits}), OPTIONS)
    assert what.losses == ()
    assert what.begins == {F0: 50}
    assert what.ends[F0] >= 50


def test_offsets_deleted_before_they_were_read_are_a_loss_that_is_told_exactly() -> None:
    with pytest.raises(ReadError, match="at offset 50, but the log begins at 53 now: 3 offsets") as failure:
        available(START, seen({F0: log(53, 90)}), OPTIONS)
    assert failure.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    what = available(START, seen({F0: log(53, 90)}), ACCEPTING)
    assert (what.begins, what.ends, what.new, len(what.losses)) == ({F0: 53}, {F0: 90}, {F0}, 1)


def test_a_log_that_ends_below_the_stream_has_lost_records() -> None:
    with pytest.raises(ReadError, match="read up to offset 50, but the log ends at 40 now"):
        available(START, seen({F0: log(0, 40)}), OPTIONS)
    what = available(START, seen({F0: log(0, 40)}), ACCEPTING)
    assert (what.begins, what.ends, what.new) == ({F0: 40}, {F0: 40}, {F0})


def test_a_topic_made_again_is_noticed_by_its_id() -> None:
    other = seen({F0: log(0, 80)}, flights=NEW)
    with pytest.raises(ReadError, match=rf"'flights' .* id {UUID(bytes=OLD)}.* id {UUID(bytes=NEW)}"):
        available(START, other, OPTIONS)
    what = available(START, other, ACCEPTING)
    assert (what.ids, what.begins, what.ends, what.new) == ({"flights": NEW}, {F0: 0}, {F0: 80}, {F0})


def test_ablation_without_ids_the_new_topic_would_pass_for_the_old_one() -> None:
    blind = replace(START, ids={})
    assert available(blind, seen({F0: log(0, 80)}, flights=NEW), OPTIONS).begins == {F0: 50}


def test_what_the_log_of_the_new_topic_has_dropped_is_no_further_loss() -> None:
    what = available(START, seen({F1: log(3, 80)}, flights=NEW), ACCEPTING)
    assert (what.begins, len(what.losses), what.notes) == ({F1: 3}, 1, ("flights-1 begins at 3",))


def test_the_checkpoint_has_ids_of_topics_with_an_offset_alone() -> None:
    assert available(START, seen({F0: log(0, 60)}, late=NEW), OPTIONS).ids == {"flights": OLD}


def test_a_deleted_topic_fails_the_stream_or_is_left_out() -> None:
    nothing = Seen({}, {})
    with pytest.raises(ReadError, match=r"topic 'flights' .* was deleted"):
        available(START, nothing, OPTIONS)
    what = available(START, nothing, ACCEPTING)
    assert (what.ids, what.begins, what.ends) == ({}, {}, {})


def test_new_partitions_begin_at_their_start() -> None:
    what = available(START, seen({F0: log(0, 60), F1: log(0, 7)}), OPTIONS)
    assert (what.begins, what.ends, what.new) == ({F0: 50, F1: 0}, {F0: 60, F1: 7}, {F1})


def test_a_new_partition_of_a_known_topic_lost_what_its_log_dropped() -> None:
    cut = seen({F0: log(0, 60), F1: log(3, 7)})
    with pytest.raises(ReadError, match=r"flights-1: .* 3 offsets"):
        available(START, cut, OPTIONS)
    assert available(START, cut, ACCEPTING).begins[F1] == 3


def test_what_was_not_selected_before_begins_at_its_start_without_alarm() -> None:
    """A topic that the options add, or a partition: it may be old."""
    late = ("late", 0)
    what = available(START, seen({F0: log(0, 60), late: log(30, 70)}, late=NEW), OPTIONS)
    assert (what.begins[late], what.losses, what.notes) == (30, (), ("late-0 begins at 30",))
    assigned = replace(OPTIONS, selection=Partitions({"flights": (0, 1)}))
    assert available(START, seen({F0: log(0, 60), F1: log(3, 7)}), assigned).begins[F1] == 3


def test_what_the_options_select_no_more_is_no_loss() -> None:
    start = replace(START, ids={"flights": OLD, "gone": NEW}, positions={F0: 50, ("gone", 0): 9})
    what = available(start, seen({F0: log(0, 60)}), OPTIONS)
    assert (what.begins, what.losses) == ({F0: 50}, ())
    assert "gone-0" in what.notes[0]


def test_a_node_that_does_not_know_a_partition_yet_changes_nothing() -> None:
    start = replace(START, positions={F0: 50, F1: 8})
    what = available(start, seen({F0: log(0, 60)}), OPTIONS)
    assert (what.begins[F1], what.ends[F1], what.losses) == (8, 8, ())


def test_the_offset_of_the_official_connector_takes_the_ids_that_are_there() -> None:
    official = StreamOffset({}, {F0: 50})
    what = available(official, seen({F0: log(0, 50)}), OPTIONS)
    assert next_offset(official, what, what.ends) == StreamOffset({"flights": OLD}, {F0: 50})


def test_a_partition_of_the_official_connector_that_is_gone_is_a_loss() -> None:
    """Its topic was made again with fewer of them: no id tells."""
    official = StreamOffset({}, {F0: 50, F1: 8})
    with pytest.raises(ReadError, match=r"'flights' has no partition 1, .* failOnDataLoss=false") as failure:
        available(official, seen({F0: log(0, 60)}), OPTIONS)
    assert failure.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    what = available(official, seen({F0: log(0, 60)}), ACCEPTING)
    assert (what.begins, what.ends, len(what.losses)) == ({F0: 50}, {F0: 60}, 1)
    assert next_offset(official, what, what.ends) == StreamOffset({"flights": OLD}, {F0: 60})


def test_nothing_new_is_the_same_offset() -> None:
    start = replace(START, begins={F0: 4})
    what = available(start, seen({F0: log(0, 50)}), OPTIONS)
    assert next_offset(start, what, what.ends) is start
    what = available(start, seen({F0: log(0, 51)}), OPTIONS)
    assert next_offset(start, what, what.ends) == StreamOffset({"flights": OLD}, {F0: 51})


def test_a_first_micro_batch_that_is_run_again_begins_where_it_did() -> None:
    """Spark asks for the beginning again after a crash; *latest* is elsewhere by then."""
    initial = StreamOffset({"flights": OLD}, {F0: 50}, initial=True)
    what = available(initial, seen({F0: log(0, 60)}), OPTIONS)
    end = next_offset(initial, what, what.ends)
    assert end.begins == {F0: 50}
    later = replace(initial, positions={F0: 75})
    assert ranges(later, end) == ranges(initial, end) == {F0: (50, 60)}
    assert ranges(later, initial) == {}  # an empty first micro-batch stays empty


def test_ablation_without_begins_the_second_run_of_a_first_micro_batch_would_be_empty() -> None:
    end = StreamOffset({"flights": OLD}, {F0: 60}, {})
    assert ranges(StreamOffset({"flights": OLD}, {F0: 75}, initial=True), end) == {}


def test_a_range_without_a_beginning_is_refused() -> None:
    with pytest.raises(OffsetError, match=r"flights-1.* finish it"):
        ranges(START, StreamOffset({}, {F0: 60, F1: 5}))


POSITIONS = st.integers(0, 100)
LOGS = st.tuples(POSITIONS, POSITIONS, POSITIONS).map(lambda three: log(*sorted(three)))
PARTITION_LOGS = st.dictionaries(st.sampled_from([("flights", n) for n in range(5)]), LOGS, max_size=5)
STARTS = st.dictionaries(st.sampled_from([("flights", n) for n in range(5)]), POSITIONS, max_size=5)


@given(STARTS, PARTITION_LOGS, st.booleans(), st.none() | st.integers(1, 300))
def test_micro_batches_read_each_offset_once_and_never_what_is_not_there(
    positions: dict[tuple[str, int], int],
    logs: dict[tuple[str, int], OffsetAnswer],
    initial: bool,
    most: int | None,
) -> None:
    start = StreamOffset({"flights": OLD}, positions, initial=initial)
    passed = dict(positions)
    for _ in range(600):
        what = available(start, seen(logs), ACCEPTING)
        end = next_offset(start, what, within_offsets(what, most))
        if end is start:
            break
        for key, (first, last) in ranges(start, end).items():
            assert logs[key].log_start_offset <= first < last <= logs[key].last_stable_offset
            assert first >= passed.get(key, 0)
            if first != passed.get(key, first):  # only over what the log has dropped
                assert first == logs[key].log_start_offset
            passed[key] = last
        start = replace(end, initial=False)
    for key, limits in logs.items():
        within = limits.log_start_offset <= positions.get(key, 0) <= limits.high_watermark
        if within and key in passed:
            assert passed[key] == max(positions.get(key, 0), limits.last_stable_offset)


# ---- limits ------------------------------------------------------------------------------------------------


def backlog(*sizes: int) -> Available:
    keys = [("t", number) for number in range(len(sizes))]
    return Available(
        {}, dict.fromkeys(keys, 1_000), {key: 1_000 + n for key, n in zip(keys, sizes, strict=True)}
    )


@pytest.mark.parametrize(
    ("sizes", "most", "taken"),
    [
        ((10, 20), None, (10, 20)),
        ((10, 20), 30, (10, 20)),
        ((10, 20), 15, (5, 10)),
        ((1, 1_000), 10, (1, 9)),  # not starved, and rounded down
        ((0, 100), 10, (0, 10)),
        ((300, 300, 300), 100, (33, 33, 33)),
        ((1, 1, 1), 1, (1, 1, 1)),
    ],
)
def test_a_limit_is_shared_in_proportion(
    sizes: tuple[int, ...], most: int | None, taken: tuple[int, ...]
) -> None:
    what = backlog(*sizes)
    assert tuple(end - 1_000 for end in within_offsets(what, most).values()) == taken


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30), st.integers(1, 20_000))
def test_a_limit_is_exceeded_by_less_than_one_offset_a_partition(sizes: list[int], most: int) -> None:
    what = backlog(*sizes)
    taken = [end - what.begins[key] for key, end in within_offsets(what, most).items()]
    assert all(0 <= some <= size for some, size in zip(taken, sizes, strict=True))
    assert all(some > 0 for some, size in zip(taken, sizes, strict=True) if size)
    assert sum(taken) <= most + len(sizes)


def test_few_records_wait_for_more_until_the_delay_is_over() -> None:
    options = StreamOptions(OPTIONS, offsets_min=100, trigger_delay_ms=1_000)
    assert not is_delayed(backlog(40), options, None), "the first micro-batch does not wait"
    assert is_delayed(backlog(40, 59), options, 999.0)
    assert not is_delayed(backlog(40, 60), options, 1.0)
    assert not is_delayed(backlog(40), options, 1_000.0)
    assert not is_delayed(backlog(0), StreamOptions(OPTIONS), 1.0)


def test_bytes_are_shared_in_proportion_and_end_at_a_batch() -> None:
    assert share_of_bytes({F0: 300, F1: 100}, 200) == {F0: 150.0, F1: 50.0}
    assert share_of_bytes({F0: 0}, 200) == {F0: 0.0}
    parts = [SplitRange(0, 10, 40), SplitRange(10, 20, 40), SplitRange(20, 30, 40)]
    assert end_within_bytes(parts, 100.0) == 20
    assert end_within_bytes(parts, 120.0) == 30
    assert end_within_bytes(parts, 1.0) == 10, "a trigger always gets on"


# ---- selection, metrics ------------------------------------------------------------------------------------


def test_what_exists_of_the_selection_is_read() -> None:
    found = {
        "flights": TopicView("flights", OLD, False, (0, 1)),
        "__state": TopicView("__state", NEW, True, (0,)),
    }
    assert matching(Topics(("none", "flights")), found) == [F0, F1]
    assert matching(Partitions({"flights": (1, 7), "none": (0,)}), found) == [F1]
    assert matching(Pattern(".*"), found) == [F0, F1]
    assert covered(Topics(("flights",)), [F0, ("late", 0)]) == [F0]
    assert covered(Partitions({"flights": (1,)}), [F0, F1]) == [F1]
    assert covered(Pattern("fl.*"), [F0, ("late", 0)]) == [F0]
    assert covered(Pattern("^l"), [F0, ("late", 0)]) == [("late", 0)]


def test_lag_is_counted_from_the_end_of_the_micro_batch() -> None:
    lags = behind({F0: 60, F1: 9}, {F0: 50})
    assert lags == {F0: 10, F1: 0}
    assert behind({F0: 40}, {F0: 50}) == {F0: 0}, "a transaction is open below what was read uncommitted"
    assert lag_metrics(lags.values()) == {
        "minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 10, "avgOffsetsBehindLatest": 5.0,
    }  # fmt: skip
    assert lag_metrics([])["maxOffsetsBehindLatest"] == 0
