"""Ranges are frozen from the leaders' answers by rules that guess nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.client.consuming.cut import CutPartition
from tidegate.spark.connecting.answers import OffsetAnswer, SplitRange, TopicView
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.options import (
    EARLIEST,
    LATEST,
    AtOffsets,
    AtTimestamps,
    EveryPartition,
    OptionError,
    Partitions,
    Pattern,
    ReadOptions,
    Topics,
)
from tidegate.spark.reading import planning
from tidegate.spark.reading.planning import (
    RANGES_OF_TASK_MAX,
    TASKS_MAX,
    FrozenRange,
    PlannedRange,
    choose_partitions,
    freeze_at_cut,
    freeze_range,
    limit_decompressed,
    limit_records,
    reach_task_min,
    require_all_named,
    share_tasks,
    split_into_tasks,
)

KEY = ("flights", 0)
OPTIONS = ReadOptions(("a:1",), Topics(("flights",)))
LIMITS = OffsetAnswer(offset=90, log_start_offset=10, last_stable_offset=90, high_watermark=100)
FOUND = {
    "flights": TopicView("flights", b"f" * 16, False, (0, 1)),
    "late": TopicView("late", b"l" * 16, False, (0,)),
    "__consumer_offsets": TopicView("__consumer_offsets", b"c" * 16, True, (0,)),
}


def test_everything_ends_at_the_last_stable_offset_or_the_high_watermark() -> None:
    assert freeze_range(KEY, OPTIONS, LIMITS, None, None) == FrozenRange(10, 90)
    assert freeze_range(KEY, replace(OPTIONS, read_committed=False), LIMITS, None, None) == FrozenRange(
        10, 100
    )


def test_explicit_offsets_are_taken_as_they_are() -> None:
    options = replace(OPTIONS, starting=AtOffsets({KEY: 20}), ending=AtOffsets({KEY: 55}))
    assert freeze_range(KEY, options, LIMITS, None, None) == FrozenRange(20, 55)
    special = replace(OPTIONS, starting=AtOffsets({KEY: EARLIEST}), ending=AtOffsets({KEY: LATEST}))
    assert freeze_range(KEY, special, LIMITS, None, None) == FrozenRange(10, 90)
    for start, found in (
        (10, FrozenRange(10, 100)),
        (100, FrozenRange(100, 100)),
        (LATEST, FrozenRange(100, 100)),
    ):
        uncommitted = replace(OPTIONS, starting=AtOffsets({KEY: start}), read_committed=False)
        assert freeze_range(KEY, uncommitted, LIMITS, None, None) == found


@pytest.mark.parametrize(
    ("start", "end", "cut"),
    [
        (5, 50, FrozenRange(10, 50)),
        (20, 95, FrozenRange(20, 90)),
        (95, 100, FrozenRange(95, 95)),
        (101, 90, FrozenRange(100, 100)),
    ],
)
def test_offsets_that_are_not_there_fail_unless_loss_is_accepted(
    start: int, end: int, cut: FrozenRange
) -> None:
    options = replace(OPTIONS, starting=AtOffsets({KEY: start}), ending=AtOffsets({KEY: end}))
    with pytest.raises(ReadError, match="failOnDataLoss=false"):
        freeze_range(KEY, options, LIMITS, None, None)
    assert freeze_range(KEY, replace(options, fail_on_data_loss=False), LIMITS, None, None) == cut


def test_a_read_may_end_at_the_first_offset_of_all() -> None:
    """0 is an offset like any other, also as the answer about a time."""
    whole = replace(LIMITS, log_start_offset=0)
    ending = replace(OPTIONS, ending=AtOffsets({KEY: 0}))
    assert freeze_range(KEY, ending, whole, None, None) == FrozenRange(0, 0)
    assert freeze_range(KEY, OPTIONS, whole, None, replace(whole, offset=0)) == FrozenRange(0, 0)
    assert freeze_range(KEY, OPTIONS, whole, replace(whole, offset=0), None) == FrozenRange(0, 90)


def test_a_time_after_the_last_record_starts_nowhere_and_ends_at_the_end() -> None:
    nothing, at_40 = replace(LIMITS, offset=-1), replace(LIMITS, offset=40)
    assert freeze_range(KEY, OPTIONS, LIMITS, at_40, nothing) == FrozenRange(40, 90)
    with pytest.raises(ReadError, match="startingOffsetsByTimestampStrategy=latest"):
        freeze_range(KEY, OPTIONS, LIMITS, nothing, None)
    assert freeze_range(
        KEY, replace(OPTIONS, starting_after_last_is_error=False), LIMITS, nothing, None
    ) == FrozenRange(90, 90)


def test_a_read_that_would_end_before_it_begins_fails_unless_loss_is_accepted() -> None:
    """As the options alone do not tell: one bound is an offset and the other one a time, or all that was
    asked for is deleted."""
    at_40, at_60 = replace(LIMITS, offset=40), replace(LIMITS, offset=60)
    by_offset = replace(OPTIONS, starting=AtOffsets({KEY: 41}))
    deleted = replace(OPTIONS, ending=AtOffsets({KEY: 9}))
    for options, start, end, reason, empty in (
        (by_offset, None, at_40, "start at 41, which is above its end 40;", 41),
        (replace(OPTIONS, ending=AtOffsets({KEY: 59})), at_60, None, "start at 60, .* its end 59;", 60),
        (deleted, None, None, "start at 10, .* its end 9: the log begins there, .* is deleted;", 10),
    ):
        with pytest.raises(ReadError, match=f"{reason} set failOnDataLoss=false"):
            freeze_range(KEY, options, LIMITS, start, end)
        accepting = replace(options, fail_on_data_loss=False)
        assert freeze_range(KEY, accepting, LIMITS, start, end) == FrozenRange(empty, empty)
    assert freeze_range(KEY, by_offset, LIMITS, None, replace(LIMITS, offset=41)) == FrozenRange(41, 41)
    none, latest = replace(LIMITS, offset=-1), replace(deleted, starting_after_last_is_error=False)
    assert freeze_range(KEY, latest, LIMITS, none, None) == FrozenRange(90, 90), "nothing was asked for"


def test_a_start_above_an_open_transaction_is_there() -> None:
    options = replace(OPTIONS, starting=AtOffsets({KEY: 95}))
    assert freeze_range(KEY, options, LIMITS, None, None) == FrozenRange(95, 95)
    uncommitted = replace(options, read_committed=False)
    assert freeze_range(KEY, uncommitted, LIMITS, None, None) == FrozenRange(95, 100)
    for accepts in (options, uncommitted):
        beyond = replace(accepts, starting=AtOffsets({KEY: 101}))
        with pytest.raises(ReadError, match="to start at 101, but offsets 10 to 100 are there"):
            freeze_range(KEY, beyond, LIMITS, None, None)


def test_an_answer_about_a_time_goes_with_its_own_limits() -> None:
    """It is later than the look at the limits: records may have come since."""
    since = OffsetAnswer(offset=120, log_start_offset=10, last_stable_offset=130, high_watermark=150)
    assert freeze_range(KEY, OPTIONS, LIMITS, None, since) == FrozenRange(10, 120)
    none = replace(since, offset=-1)
    assert freeze_range(KEY, OPTIONS, LIMITS, None, none) == FrozenRange(10, 130)
    uncommitted = replace(OPTIONS, read_committed=False)
    assert freeze_range(KEY, uncommitted, LIMITS, None, none) == FrozenRange(10, 150)
    latest = replace(OPTIONS, starting_after_last_is_error=False)
    assert freeze_range(KEY, latest, LIMITS, none, none) == FrozenRange(130, 130), "none is as late"
    assert freeze_range(KEY, latest, LIMITS, none, None) == FrozenRange(130, 130)
    assert freeze_range(KEY, OPTIONS, LIMITS, since, None) == FrozenRange(120, 120)


def test_a_time_above_the_cut_is_after_its_last_record() -> None:
    """Whatever was written since."""
    part, at_95 = CutPartition(10, 90, {}), replace(LIMITS, offset=95)
    options = replace(OPTIONS, takes_cut=True, read_committed=False)
    assert freeze_at_cut(KEY, options, part, LIMITS, None) == FrozenRange(10, 90)
    for start in (at_95, replace(LIMITS, offset=90)):
        with pytest.raises(ReadError, match="startingOffsetsByTimestampStrategy=latest"):
            freeze_at_cut(KEY, options, part, LIMITS, start)
    assert freeze_at_cut(KEY, options, part, LIMITS, replace(LIMITS, offset=89)) == FrozenRange(89, 90)
    latest = replace(options, starting_after_last_is_error=False)
    assert freeze_at_cut(KEY, latest, part, LIMITS, at_95) == FrozenRange(90, 90)


@pytest.mark.parametrize(
    ("log", "start", "earliest", "found", "lost"),
    [
        ((10, 90), None, None, FrozenRange(10, 90), ""),
        ((10, 100), 40, None, FrozenRange(40, 90), ""),
        ((50, 100), None, None, FrozenRange(50, 90), "the log begins at 50 now"),
        ((90, 120), None, None, FrozenRange(90, 90), "the log begins at 90 now"),
        ((95, 120), None, None, FrozenRange(90, 90), "the log begins at 95 now"),
        ((50, 100), 60, 55, FrozenRange(60, 90), ""),  # an older record is there: none is missing
        ((50, 100), 60, 60, FrozenRange(60, 90), "the log begins at 50 now"),
        ((50, 100), 90, 55, FrozenRange(90, 90), ""),
        ((10, 70), None, None, FrozenRange(10, 70), "the log ends at 70 now"),
        ((10, 70), 80, None, FrozenRange(70, 70), "the log ends at 70 now"),
        ((0, 5), None, None, FrozenRange(5, 5), "the log ends at 5 now"),
    ],
)
def test_what_a_log_no_longer_has_of_a_cut_is_a_loss(
    log: tuple[int, int], start: int | None, earliest: int | None, found: FrozenRange, lost: str
) -> None:
    """`start` and `earliest` are offsets that answer a time."""
    part, now = CutPartition(10, 90, {}), OffsetAnswer(log[1], log[0], log[1], log[1])
    answers = [None if offset is None else replace(now, offset=offset) for offset in (start, earliest)]
    options = replace(OPTIONS, takes_cut=True, read_committed=False, starting_after_last_is_error=False)
    if lost:
        with pytest.raises(ReadError, match=rf"the cut has \[10, 90\), and {lost}.* failOnDataLoss=false"):
            freeze_at_cut(KEY, options, part, now, *answers)
        options = replace(options, fail_on_data_loss=False)
    assert freeze_at_cut(KEY, options, part, now, *answers) == found


def test_a_log_without_a_record_has_lost_what_its_cut_had() -> None:
    """No record is as late as the start, but one may have been."""
    part, shorter, none = (
        CutPartition(10, 90, {}),
        replace(LIMITS, log_start_offset=50),
        replace(LIMITS, offset=-1),
    )
    options = replace(OPTIONS, takes_cut=True, read_committed=False, starting_after_last_is_error=False)
    with pytest.raises(ReadError, match="the log begins at 50 now"):
        freeze_at_cut(KEY, options, part, shorter, none, none)
    with pytest.raises(ReadError, match="the log begins at 50 now"):  # gone after the first question
        freeze_at_cut(KEY, options, part, shorter, replace(LIMITS, offset=60), none)
    accepted = replace(options, fail_on_data_loss=False)
    assert freeze_at_cut(KEY, accepted, part, shorter, none, none) == FrozenRange(90, 90)


@given(st.integers(0, 120), st.integers(0, 120))
def test_a_range_never_ends_before_it_starts_nor_leaves_the_log(start: int, end: int) -> None:
    options = replace(
        OPTIONS, starting=AtOffsets({KEY: start}), ending=AtOffsets({KEY: end}), fail_on_data_loss=False
    )
    found = freeze_range(KEY, options, LIMITS, None, None)
    assert 10 <= found.start <= found.end <= max(90, found.start) <= 100


def test_partitions_are_chosen_by_name_pattern_or_list() -> None:
    assert choose_partitions(Topics(("late", "flights")), FOUND)[1] == [
        ("late", 0),
        ("flights", 0),
        ("flights", 1),
    ]
    assert choose_partitions(Partitions({"flights": (1,)}), FOUND)[1] == [("flights", 1)]
    # no internal topic
    assert choose_partitions(Pattern(".*"), FOUND)[1] == [("flights", 0), ("flights", 1), ("late", 0)]
    # anywhere in the name, as Spark's Kafka connector finds it; no rows are no error
    assert choose_partitions(Pattern("at"), FOUND)[1] == [("late", 0)]
    assert choose_partitions(Pattern("^flight$"), FOUND) == ({}, [])
    assert choose_partitions(Pattern("^[a-z&&[^f]]+$"), FOUND)[1] == [("late", 0)]  # as Java reads it
    with pytest.raises(OptionError, match="has no partition 7: it has 2"):
        choose_partitions(Partitions({"flights": (16, 7)}), FOUND)


def test_topics_of_a_pattern_are_read_in_the_order_of_their_names() -> None:
    found = dict(reversed(FOUND.items()))
    assert choose_partitions(Pattern(".*"), found)[1] == [("flights", 0), ("flights", 1), ("late", 0)]


@pytest.mark.parametrize(("expression", "is_said"), [("^flight$", True), ("^flights$", False)])
def test_a_pattern_without_a_topic_is_said(
    expression: str, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    choose_partitions(Pattern(expression), FOUND)
    assert [line for line in caplog.messages if "no_topic_matches" in line] == caplog.messages
    assert bool(caplog.messages) == is_said


def test_bounds_by_partition_must_name_exactly_what_is_read() -> None:
    keys = [("flights", 0), ("flights", 1)]
    require_all_named("starting", EveryPartition(EARLIEST), keys)
    require_all_named("starting", AtOffsets(dict.fromkeys(keys, 1)), keys)
    require_all_named("starting", AtTimestamps(dict.fromkeys(keys, 1)), keys)
    with pytest.raises(OptionError, match=r"^startingOffsets must name .* flights-1 is missing"):
        require_all_named("starting", AtOffsets({("flights", 0): 1}), keys)
    with pytest.raises(OptionError, match=r"^startingOffsetsByTimestamp must name .* flights-1 is missing"):
        require_all_named("starting", AtTimestamps({("flights", 0): 1}), keys)
    with pytest.raises(OptionError, match="flights-2, which is not read"):
        require_all_named("ending", AtOffsets({("flights", n): 1 for n in range(3)}), keys)


def make(*ranges: tuple[int, int, int]) -> list[SplitRange]:
    return [SplitRange(*each) for each in ranges]


def test_min_partitions_divides_the_largest_ranges_until_there_are_so_many() -> None:
    splits = {("a", 0): make((0, 100, 1000), (100, 110, 10)), ("b", 0): make((5, 8, 2000))}
    assert reach_task_min(splits, None) == splits
    assert reach_task_min(splits, 3) == splits
    found = reach_task_min(splits, 7)
    assert found["b", 0] == make((5, 6, 666), (6, 7, 666), (7, 8, 666))  # no more than one offset each
    assert [(part.start, part.end) for part in found["a", 0]] == [(0, 33), (33, 66), (66, 100), (100, 110)]


@pytest.mark.parametrize(
    ("ranges", "count_min", "tasks"),
    [
        ([(0, 100, 10), (100, 200, 1000)], 3, [1, 2]),  # the largest one, wherever it stands
        ([(0, 100, 1000), (100, 200, 900)], 4, [2, 2]),  # which then has smaller tasks
        ([(0, 100, 0), (100, 200, 0)], 4, [2, 2]),
        ([(0, 2, 10)], 2, [2]),
        ([(0, 1, 1000), (1, 5, 10)], 4, [1, 3]),  # an offset is not divided
        ([(TASKS_MAX, TASKS_MAX + 3, 10)], 1 << 40, [3]),
        ([(0, 1 << 60, 10)], 2, [2]),
    ],
)
def test_tasks_are_made_of_the_range_that_has_the_largest(
    ranges: list[tuple[int, int, int]], count_min: int, tasks: list[int]
) -> None:
    splits = {("flights", number): make(whole) for number, whole in enumerate(ranges)}
    assert [len(parts) for parts in reach_task_min(splits, count_min).values()] == tasks


SPLITS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10_000)), min_size=1, max_size=8)


@given(SPLITS, st.integers(1, 100), st.integers(1, 400))
def test_there_are_exactly_min_partitions_and_they_cover_the_same_offsets(
    sizes: list[tuple[int, int]], wanted: int, records_max: int
) -> None:
    ranges, at = [], 0
    for offsets, size in sizes:
        ranges.append(SplitRange(at, at + offsets, size))
        at += offsets
    limited = limit_records({KEY: ranges}, records_max)
    assert all(part.end - part.start <= records_max for part in limited[KEY])
    found = reach_task_min(limited, wanted)[KEY]
    assert len(found) == max(len(limited[KEY]), min(wanted, at))
    assert [0, *(part.end for part in found)] == [*(part.start for part in found), at]
    assert all(part.start < part.end for part in found)


def test_records_of_a_task_are_limited_evenly() -> None:
    whole = {KEY: make((0, 10, 90))}
    assert limit_records(whole, 4) == {KEY: make((0, 3, 30), (3, 6, 30), (6, 10, 30))}
    assert limit_records(whole, 10) == whole


def test_what_is_much_when_decompressed_is_divided_where_that_is_known() -> None:
    much = {KEY: [SplitRange(0, 600, 69_000, 540_000_000)]}
    assert limit_decompressed(much, 200_000_000)[KEY] == [
        SplitRange(0, 200, 23_000, 180_000_000), SplitRange(200, 400, 23_000, 180_000_000),
        SplitRange(400, 600, 23_000, 180_000_000),
    ]  # fmt: skip
    unknown = {KEY: make((0, 600, 69_000))}
    assert limit_decompressed(unknown, 1) == unknown
    # a record is not divided
    assert len(limit_decompressed({KEY: [SplitRange(100, 102, 69_000, 540_000_000)]}, 1_000)[KEY]) == 2


def test_tasks_without_number_are_refused_before_they_are_made() -> None:
    """Of all partitions together: the driver holds them all."""
    endless = {KEY: [SplitRange(0, 1 << 60, 1, 1 << 60)]}
    with pytest.raises(OptionError, match="maxRecordsPerPartition would make"):
        limit_records(endless, 1)
    with pytest.raises(OptionError, match="maxDecompressedBytesPerPartition would make"):
        limit_decompressed(endless, 1)
    with pytest.raises(OptionError, match="minPartitions would make"):
        reach_task_min(endless, 1 << 40)
    many = {("flights", number): [SplitRange(0, TASKS_MAX, 1, TASKS_MAX)] for number in range(2)}
    with pytest.raises(OptionError, match=f"maxRecordsPerPartition would make {2 * TASKS_MAX} tasks"):
        limit_records(many, 1)
    with pytest.raises(OptionError, match=f"maxDecompressedBytesPerPartition would make {2 * TASKS_MAX} ta"):
        limit_decompressed(many, 1)


def test_more_tasks_than_a_driver_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch each is a task, the leaders' answer is the number of tasks."""

    def tasks(of_each: int) -> int:
        parts = make(*((at, at + 1, 1) for at in range(of_each)))
        monkeypatch.setattr(DataClient, "plan_many_ranges", lambda *_, **__: dict.fromkeys(wanted, parts))
        client = DataClient(["127.0.0.1:1"], retry_timeout_ms=1)
        return len(split_into_tasks(client, FOUND, wanted, OPTIONS, reads_data=True))

    monkeypatch.setattr(planning, "TASKS_MAX", 6)
    wanted = {("flights", number): (0, 3) for number in range(2)}
    assert tasks(3) == 6
    with pytest.raises(OptionError, match="maxBytesPerPartition would make 8 tasks"):
        tasks(4)


def planned(*sizes: tuple[int, int]) -> list[PlannedRange]:
    """Of partitions 0, 1, ...; each (offsets, stored bytes)."""
    return [
        PlannedRange("t", b"t" * 16, number, 100, 100 + offsets, size, None)
        for number, (offsets, size) in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "records_max", "tasks"),
    [
        ([(10, 60), (10, 60), (10, 60)], None, [2, 1]),
        ([(10, 100), (10, 99), (10, 1)], None, [1, 2]),
        ([(10, 500), (10, 500)], None, [1, 1]),
        ([(10, 1)] * 5, 20, [2, 2, 1]),
        ([(90, 1), (10, 1)], 50, [1, 1]),
        ([(1, 0)] * (RANGES_OF_TASK_MAX + 1), None, [RANGES_OF_TASK_MAX, 1]),
        ([], None, []),
    ],
)
def test_small_ranges_share_a_task(
    sizes: list[tuple[int, int]], records_max: int | None, tasks: list[int]
) -> None:
    ranges = planned(*sizes)
    shared = share_tasks(ranges, 100, records_max)
    assert [len(task) for task in shared] == tasks
    assert [part for task in shared for part in task] == ranges
    assert share_tasks(ranges, 0, None) == [(part,) for part in ranges]
