"""The follower's core and the leader's comparison of histories: truncation by epochs, through any number of
elections."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.replication.partition.follower import (
    Action,
    Answer,
    Append,
    BackOff,
    Fail,
    FetchPosition,
    Ignore,
    PartitionFollower,
    Restart,
    Truncate,
)
from tidegate.replication.partition.history import find_divergence
from tidegate.wire.errors import ErrorCode, KafkaError

from .epoch_log import EpochLog

EPOCH = 50


def answer(
    *,
    error: ErrorCode = ErrorCode.NONE,
    high_watermark: int = 0,
    start: int = 0,
    diverging: tuple[int, int] | None = None,
    records: bytes = b"",
) -> Answer:
    return Answer(error, high_watermark, start, diverging, records)


def decide(log: EpochLog, given_answer: Answer) -> Action:
    core = PartitionFollower(leader=1, leader_epoch=EPOCH)
    return core.on_answer(core.next_fetch(log), given_answer, log)


def catch_up(follower: EpochLog, leader: EpochLog, *, steps_max: int = 50) -> int:
    """Runs fetches until the follower is where the leader is; returns the number of truncations."""
    core = PartitionFollower(leader=1, leader_epoch=EPOCH)
    cuts = 0
    for _ in range(steps_max):
        sent = core.next_fetch(follower)
        try:
            diverging = find_divergence(leader, sent.fetch_offset, sent.last_fetched_epoch, follower=True)
            reply = answer(diverging=diverging, start=leader.log_start_offset)
        except KafkaError as error:
            reply = answer(error=error.code, start=leader.log_start_offset)
        match core.on_answer(sent, reply, follower):
            case Truncate(offset):
                assert offset <= follower.log_end_offset
                follower.truncate_to(offset)
                cuts += 1
            case Restart(offset):
                follower.truncate_fully_and_start_at(offset)
                cuts += 1
            case Append():
                if follower.log_end_offset == leader.log_end_offset:
                    return cuts
                follower.records.append(leader.records[follower.log_end_offset - leader.log_start_offset])
            case other:
                raise AssertionError(f"{other} with {follower} and {leader}")
    raise AssertionError(f"no agreement: {follower} and {leader}")


# ---- decisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "diverging", "target"),
    [
        ([1, 1, 2, 2], (2, 3), 3),  # the leader's epoch 2 ended earlier
        ([1, 1, 3, 3], (2, 5), 2),  # we never saw epoch 2: keep only what is older
        ([1, 1, 3, 3], (1, 1), 1),
        ([3, 3, 3], (1, 0), 0),  # all of ours is newer
        ([1, 1, 2, 4, 4], (2, 9), 3),  # the leader has more of epoch 2 than we
    ],
)
def test_the_cut_is_the_smaller_end_of_the_common_epoch(
    own: list[int], diverging: tuple[int, int], target: int
) -> None:
    assert decide(EpochLog(own, high_watermark=len(own)), answer(diverging=diverging)) == Truncate(target)


@pytest.mark.parametrize(("leader_end", "target"), [(120, 100), (100, 100)])
def test_a_follower_with_newer_epochs_only_truncates_to_its_first(leader_end: int, target: int) -> None:
    """The leader knows nothing of the follower's epoch 5, however far its own epoch 3 reaches."""
    own = EpochLog([5] * 50, log_start_offset=100, high_watermark=100)
    assert decide(own, answer(diverging=(3, leader_end))) == Truncate(target)


def test_an_election_without_records_is_cut_from_the_history_too() -> None:
    log = EpochLog([1, 1], led={4: 2})
    assert decide(log, answer(diverging=(1, 2))) == Truncate(2)


def test_a_log_that_begins_after_the_leaders_end_starts_again_there() -> None:
    assert decide(EpochLog([], log_start_offset=9), answer(diverging=(4, 6))) == Restart(6)


def test_an_end_below_the_leaders_start_starts_again_at_the_leaders_start() -> None:
    assert decide(EpochLog([1, 1]), answer(error=ErrorCode.OFFSET_OUT_OF_RANGE, start=7)) == Restart(7)


def test_out_of_range_without_a_reason_changes_nothing() -> None:
    assert decide(EpochLog([1, 1]), answer(error=ErrorCode.OFFSET_OUT_OF_RANGE, start=1)) == BackOff(
        ErrorCode.OFFSET_OUT_OF_RANGE
    )


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_errors_wait_and_change_nothing(code: ErrorCode) -> None:
    assert decide(EpochLog([1, 1]), answer(error=code, diverging=(0, 0), records=b"x")) == BackOff(code)


def test_records_are_appended_with_the_leaders_high_watermark_and_start() -> None:
    assert decide(EpochLog([1]), answer(records=b"r", high_watermark=9, start=1)) == Append(b"r", 9, 1)


@pytest.mark.parametrize("name", [each.name for each in fields(FetchPosition)])
@pytest.mark.parametrize(
    "given_answer", [answer(records=b"r"), answer(diverging=(0, 0)), answer(high_watermark=1)]
)
def test_an_answer_to_an_old_question_is_ignored(name: str, given_answer: Answer) -> None:
    """The follower's own log start alone changes nothing in what the leader answers."""
    log, core = EpochLog([1, 1]), PartitionFollower(leader=1, leader_epoch=EPOCH)
    sent = core.next_fetch(log)
    old = replace(sent, **{name: getattr(sent, name) - 1})
    assert (core.on_answer(old, given_answer, log) is Ignore.STALE) == (name != "log_start_offset")


def test_logs_that_never_agree_fail_the_replica_instead_of_looping() -> None:
    log = EpochLog([1, 1])
    core = PartitionFollower(leader=1, leader_epoch=EPOCH)
    sent = core.next_fetch(log)
    assert isinstance(core.on_answer(sent, answer(diverging=(1, 5)), log), Truncate)
    assert isinstance(core.on_answer(sent, answer(diverging=(1, 5)), log), Fail)


# ---- the leader's side -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (5, 3, None),
        (4, 3, None),
        (2, 1, None),
        (2, 0, (0, 0)),
        (3, 1, (1, 2)),
        (4, 2, (1, 2)),  # epoch 2 is unknown here
        (6, 3, (3, 5)),
        (0, -1, None),
        (6, -1, (3, 5)),
    ],
)
def test_the_leader_answers_with_the_largest_epoch_not_above_the_asked_one(
    offset: int, epoch: int, expected: tuple[int, int] | None
) -> None:
    assert find_divergence(EpochLog([1, 1, 3, 3, 3]), offset, epoch, follower=True) == expected


@pytest.mark.parametrize(
    ("offset", "epoch", "follower"), [(1, 1, True), (1, -1, False), (9, -1, False), (4, 9, True)]
)
def test_offsets_outside_the_log_are_out_of_range(offset: int, epoch: int, follower: bool) -> None:
    with pytest.raises(KafkaError) as error:
        find_divergence(EpochLog([1, 1, 3], log_start_offset=2), offset, epoch, follower=follower)
    assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


# ---- both together -----------------------------------------------------------------------------------------


def test_three_fast_elections_need_more_than_one_question() -> None:
    """KIP-279: the leader lacks the follower's last epochs, and one answer does not reach the common
    history."""
    leader = EpochLog([1, 1, 1, 4, 4, 6])
    follower = EpochLog([1, 1, 3, 3, 5, 5, 5])
    assert catch_up(follower, leader) >= 2
    assert follower.records == leader.records


@st.composite
def histories(draw: st.DrawFn) -> tuple[EpochLog, EpochLog]:
    """Two logs grown by elections among four: a record's epoch names its only writer, so equal epochs mean
    equal records."""
    logs = [EpochLog() for _ in range(4)]
    epoch = 0
    for _ in range(draw(st.integers(1, 8))):
        epoch += draw(st.integers(1, 2))
        leader = logs[draw(st.integers(0, 3))]
        leader.led[epoch] = leader.log_end_offset
        leader.records.extend([epoch] * draw(st.integers(0, 3)))
        for follower in logs:
            if follower is leader or not draw(st.booleans()):
                continue
            catch_up(follower, leader)
            unseen = draw(st.integers(0, 3))  # the last records did not reach it
            follower.truncate_to(max(0, follower.log_end_offset - unseen))
    final = logs[0]
    final.led[epoch + 1] = final.log_end_offset
    return final, logs[1]


@given(histories())
def test_two_histories_agree_after_truncation_and_keep_their_prefix(
    pair: tuple[EpochLog, EpochLog],
) -> None:
    leader, follower = pair
    common = 0
    while (
        common < min(len(leader.records), len(follower.records))
        and leader.records[common] == follower.records[common]
    ):
        common += 1
    lowest = len(follower.records)
    original = EpochLog.truncate_to

    class Watched(EpochLog):
        def truncate_to(self, offset: int) -> None:
            nonlocal lowest
            lowest = min(lowest, offset)
            original(self, offset)

    watched = Watched(list(follower.records), led=dict(follower.led))
    catch_up(watched, leader)
    assert watched.records == leader.records
    assert lowest >= common, "something that both logs had was cut"
