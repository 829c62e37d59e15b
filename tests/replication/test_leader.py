"""The leader's core: high watermark, ISR changes, fencing and acknowledgements, as tables."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from tidegate.controller.state.eligibility import Eligibility
from tidegate.controller.state.model import TopicState
from tidegate.replication.partition.assignment import Assignment, IsrMember, IsrResult
from tidegate.replication.partition.isr_change import (
    JOIN_PAUSED,
    REFUSED,
    SUPERSEDED,
    TRANSITIONS,
    AlterOutcome,
    ChangeEvent,
    ChangeKind,
    ChangeState,
    JoinEvent,
    JoinObstacle,
    JoinTrigger,
    PendingChange,
)
from tidegate.replication.partition.leader import JOIN_SILENCE_S, PartitionLeader
from tidegate.wire.errors import ErrorCode, KafkaError

from .leading import leader_of

LAG_S = 10.0


def fetch(
    leader: PartitionLeader, node: int, offset: int, *, end: int, now_s: float = 0.0, broker_epoch: int = 100
) -> None:
    leader.record_fetch(node, broker_epoch=broker_epoch, fetch_offset=offset, leader_log_end=end, now_s=now_s)


# ---- the high watermark ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "flushed", "fetched", "expected"),
    [
        ((1, 2, 3), 20, {2: 15, 3: 18}, 15),
        ((1, 2, 3), 12, {2: 15, 3: 18}, 12),  # the leader's own flush is the slowest
        ((1, 2, 3), 20, {2: 15}, 10),  # 3 has not fetched in this epoch
        ((1, 2), 20, {2: 15}, 15),
        ((1, 2), 20, {2: 9}, 10),  # never back
        ((1, 2, 3), 20, {2: 20, 3: 20}, 20),
    ],
)
def test_high_watermark_is_the_least_flushed_end_of_the_isr(
    isr: tuple[int, ...], flushed: int, fetched: dict[int, int], expected: int
) -> None:
    leader = leader_of(isr=isr)
    for node, offset in fetched.items():
        fetch(leader, node, offset, end=20)
    leader.advance_high_watermark(flushed, 20, 0.0)
    assert leader.high_watermark == expected


def test_high_watermark_rests_while_the_isr_is_under_its_minimum() -> None:
    leader = leader_of(isr=(1,), minimum=2)
    assert not leader.advance_high_watermark(20, 20, 0.0)
    assert leader.high_watermark == 10
    leader.on_min_insync_replicas(1)
    assert leader.advance_high_watermark(20, 20, 0.0)
    assert leader.high_watermark == 20


def test_a_minimum_above_the_number_of_replicas_means_all_replicas() -> None:
    leader = leader_of(replicas=(1,), isr=(1,), minimum=3)
    assert leader.advance_high_watermark(20, 20, 0.0)


def test_a_pending_addition_counts_for_the_high_watermark() -> None:
    leader = leader_of(isr=(1, 2))
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 12, end=20)
    assert leader.propose_join(3) is not None
    leader.advance_high_watermark(20, 20, 1000.0)
    assert leader.high_watermark == 12


def test_a_pending_removal_still_counts_for_the_high_watermark() -> None:
    leader = leader_of()
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 11, end=20)
    now_s = LAG_S + 1
    fetch(leader, 2, 25, end=25, now_s=now_s)
    change = leader.propose_removals(25, now_s)
    assert change is not None
    assert change.nodes == {1, 2}
    leader.advance_high_watermark(25, 25, now_s)
    assert leader.high_watermark == 11
    assert (
        leader.complete_alter(change, IsrResult("t", 0, ErrorCode.NONE, 1, 5, 8, (1, 2)))
        is AlterOutcome.SETTLED
    )
    leader.advance_high_watermark(25, 25, now_s)
    assert leader.high_watermark == 25


def test_a_replica_that_keeps_up_holds_the_high_watermark_until_it_joins() -> None:
    leader = leader_of(isr=(1, 2))
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 18, end=18)  # caught up, before the leader had the last two records
    leader.advance_high_watermark(20, 20, 0.0)
    assert leader.high_watermark == 18
    leader.advance_high_watermark(20, 20, LAG_S + 1)  # it stopped keeping up
    assert leader.high_watermark == 20


def test_a_replica_that_shut_down_holds_the_high_watermark_for_a_moment() -> None:
    """It was refused, went on fetching until its process ended, and its pause was over: only its silence
    tells."""
    leader = leader_of()
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 20, end=20)
    leader.on_metadata(8, (1, 2))
    fetch(leader, 3, 20, end=20)
    leader.end_pauses({3})
    leader.advance_high_watermark(20, 20, 0.0)
    leader.on_append(20, 0.0)
    fetch(leader, 2, 25, end=25)
    assert not leader.advance_high_watermark(25, 25, JOIN_SILENCE_S)
    assert leader.advance_high_watermark(25, 25, JOIN_SILENCE_S + 0.01)
    assert leader.high_watermark == 25


def test_a_replica_that_has_deleted_records_does_not_hold_the_high_watermark() -> None:
    """It keeps up, but has no room to note the log start, and may not join before it has."""
    leader = leader_of(isr=(1, 2))
    leader.deleted_below = 5
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 18, end=18)
    leader.follower(3).log_start_offset = 4
    leader.advance_high_watermark(20, 20, 0.0)
    assert leader.high_watermark == 20


def test_a_replica_that_was_fenced_does_not_hold_the_high_watermark() -> None:
    leader = leader_of()
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 15, end=15)
    leader.on_metadata(8, (1, 2))
    leader.advance_high_watermark(20, 20, 0.0)
    assert leader.high_watermark == 20


# ---- followers' fetches ------------------------------------------------------------------------------------


def test_a_fetch_by_a_stranger_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        fetch(leader_of(), 9, 10, end=10)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_of_an_older_incarnation_is_refused() -> None:
    leader = leader_of()
    fetch(leader, 2, 10, end=20, broker_epoch=101)
    with pytest.raises(KafkaError) as refused:
        fetch(leader, 2, 20, end=20, broker_epoch=100)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.follower(2).fetch_offset == 10


@pytest.mark.parametrize(
    ("epoch", "required", "expected"),
    [
        (5, True, None),
        (5, False, None),
        (-1, False, None),
        (-1, True, ErrorCode.FENCED_LEADER_EPOCH),
        (4, False, ErrorCode.FENCED_LEADER_EPOCH),
        (4, True, ErrorCode.FENCED_LEADER_EPOCH),
        (6, False, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (6, True, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_requests_are_fenced_by_the_leader_epoch(
    epoch: int, required: bool, expected: ErrorCode | None
) -> None:
    if expected is None:
        leader_of().check_epoch(epoch, required=required)
        return
    with pytest.raises(KafkaError) as fenced:
        leader_of().check_epoch(epoch, required=required)
    assert fenced.value.code is expected


# ---- joining and leaving the ISR ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "high_watermark", "offset", "joins"),
    [
        (10, 10, 9, False),
        (10, 10, 10, True),
        (10, 6, 8, False),  # past the high watermark but not at the leader's own epoch start (KIP-320)
        (10, 6, 10, True),
    ],
)
def test_a_replica_joins_at_the_high_watermark_and_the_epoch_start(
    start: int, high_watermark: int, offset: int, joins: bool
) -> None:
    leader = leader_of(isr=(1, 2), start=start, high_watermark=high_watermark)
    fetch(leader, 3, offset, end=20, broker_epoch=33)
    change = leader.propose_join(3)
    assert (change is not None) is joins
    if change is not None:
        assert change.kind is ChangeKind.EXPAND
        assert change.proposal.isr == (IsrMember(1, -1), IsrMember(2, -1), IsrMember(3, 33))
        assert (change.proposal.leader_epoch, change.proposal.partition_epoch) == (5, 7)


def test_a_replica_behind_a_moved_high_watermark_does_not_join() -> None:
    leader = leader_of(isr=(1, 2))
    fetch(leader, 2, 20, end=20)
    leader.advance_high_watermark(20, 20, 0.0)
    fetch(leader, 3, 19, end=20)
    assert leader.propose_join(3) is None
    fetch(leader, 3, 20, end=20)
    assert leader.propose_join(3) is not None


def test_one_change_at_a_time() -> None:
    leader = leader_of(isr=(1,), minimum=1)
    fetch(leader, 2, 10, end=10)
    fetch(leader, 3, 10, end=10)
    first = leader.propose_join(2)
    assert first is not None
    assert leader.propose_join(3) is None
    assert leader.propose_removals(10, 1000.0) is None
    leader.complete_alter(first, IsrResult("t", 0, ErrorCode.NONE, 1, 5, 8, (1, 2)))
    second = leader.propose_next_join()
    assert second is not None
    assert second.nodes == {1, 2, 3}
    assert second.proposal.partition_epoch == 8


def test_a_member_is_removed_only_after_the_lag_time() -> None:
    leader = leader_of()
    fetch(leader, 2, 20, end=20, now_s=1.0)
    fetch(leader, 3, 20, end=20, now_s=9.0)
    assert leader.propose_removals(30, LAG_S) is None
    change = leader.propose_removals(30, LAG_S + 1.5)
    assert change is not None
    assert change.kind is ChangeKind.SHRINK
    assert change.nodes == {1, 3}


def test_members_of_an_idle_partition_are_not_removed() -> None:
    leader = leader_of()
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 20, end=20)
    assert leader.propose_removals(20, 1_000_000.0) is None


def test_a_follower_at_its_last_seen_log_end_was_caught_up_at_that_fetch() -> None:
    leader = leader_of()
    fetch(leader, 2, 20, end=30, now_s=5.0)
    fetch(leader, 2, 30, end=40, now_s=6.0)
    assert leader.follower(2).last_caught_up_s == 5.0


# ---- answers of the controller -----------------------------------------------------------------------------


def expanding(metadata: Metadata | None = None) -> tuple[PartitionLeader, PendingChange]:
    leader = leader_of(isr=(1, 2), eligibility_of=(metadata or Metadata()).eligibility_of)
    fetch(leader, 3, 20, end=20, broker_epoch=33)
    change = leader.propose_join(3)
    assert change is not None
    return leader, change


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_a_refused_change_leaves_the_committed_isr(code: ErrorCode) -> None:
    leader, change = expanding()
    assert leader.complete_alter(change, IsrResult("t", 0, code)) is AlterOutcome.SETTLED
    assert leader.pending is None
    assert leader.maximal_isr == {1, 2}
    fetch(leader, 3, 20, end=20, broker_epoch=33)
    assert leader.propose_join(3) is None  # not at once again
    leader.end_pauses((1, 2, 3, 4, 5))
    assert leader.propose_join(3) is not None


def test_a_follower_cut_off_before_joins_with_its_first_caught_up_fetch() -> None:
    """However long the pauses have grown meanwhile: below min.insync.replicas every write with acks=all waits
    for that."""
    leader = leader_of(isr=(1, 2))
    fetch(leader, 2, 20, end=20)
    leader.on_metadata(8, (1,))  # it lagged
    leader.pauses = 9
    fetch(leader, 2, 20, end=30, now_s=JOIN_SILENCE_S / 2)
    assert leader.propose_join(2) is None, "it was never silent, and is removed for a reason: after the pause"
    fetch(leader, 2, 25, end=30, now_s=60.0)
    fetch(leader, 2, 30, end=30, now_s=60.1)
    change = leader.propose_join(2)
    assert change is not None
    assert change.nodes == {1, 2}


def test_a_refused_follower_that_goes_on_fetching_waits_for_the_pause() -> None:
    leader, change = expanding()
    leader.complete_alter(change, IsrResult("t", 0, ErrorCode.INELIGIBLE_REPLICA))
    for number in range(1, 20):
        fetch(leader, 3, 20, end=20, broker_epoch=33, now_s=number * JOIN_SILENCE_S / 2)
        assert leader.propose_join(3) is None


def test_a_new_incarnation_may_be_proposed_after_the_old_one_was_refused() -> None:
    leader, change = expanding()
    leader.complete_alter(change, IsrResult("t", 0, ErrorCode.INELIGIBLE_REPLICA))
    fetch(leader, 3, 20, end=20, broker_epoch=34)
    again = leader.propose_join(3)
    assert again is not None
    assert again.proposal.isr[-1] == IsrMember(3, 34)


class Metadata:
    """What is known of the followers' lives: broker epoch 100 by default."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], Eligibility] = {}

    def eligibility_of(self, node_id: int, broker_epoch: int) -> Eligibility:
        return self.known.get((node_id, broker_epoch), Eligibility.YES)


@pytest.mark.parametrize("eligibility", [Eligibility.NOT_NOW, Eligibility.NEVER])
def test_a_follower_that_may_not_join_is_not_proposed_and_holds_nothing(eligibility: Eligibility) -> None:
    """It stops in good order, and fetches to the last moment."""
    metadata = Metadata()
    leader = leader_of(isr=(1, 2), eligibility_of=metadata.eligibility_of)
    metadata.known[3, 100] = eligibility
    fetch(leader, 2, 20, end=20)
    fetch(leader, 3, 18, end=18)
    assert leader.propose_join(3) is None
    assert leader.propose_next_join() is None
    assert leader.advance_high_watermark(20, 20, 0.0)
    assert leader.high_watermark == 20
    leader.end_pauses({3})
    assert leader.propose_next_join() is None
    assert not leader.has_paused_changes


OBSTACLES: dict[JoinObstacle, Callable[[PartitionLeader, Metadata], object]] = {
    JoinObstacle.PAUSED: lambda leader, _: leader.follower(3).note(JoinEvent.REMOVED),
    JoinObstacle.NOT_ELIGIBLE: lambda _, metadata: metadata.known.update({(3, 100): Eligibility.NOT_NOW}),
    JoinObstacle.BELOW_EPOCH_START: lambda leader, _: setattr(leader, "epoch_start_offset", 21),
    JoinObstacle.HAS_DELETED_RECORDS: lambda leader, _: setattr(leader, "deleted_below", 1),
    JoinObstacle.BELOW_HIGH_WATERMARK: lambda leader, _: setattr(leader, "high_watermark", 21),
}
"""What each of them needs, where follower 3 would join without it."""
WAITED_FOR = {JoinObstacle.BELOW_HIGH_WATERMARK}


def kept_out(*obstacles: JoinObstacle) -> tuple[PartitionLeader, Metadata]:
    metadata = Metadata()
    leader = leader_of(isr=(1, 2), eligibility_of=metadata.eligibility_of)
    fetch(leader, 3, 20, end=20)
    assert not leader._join_obstacles(leader.follower(3))
    for obstacle in obstacles:
        OBSTACLES[obstacle](leader, metadata)
    return leader, metadata


@pytest.mark.parametrize("obstacle", JoinObstacle)
@pytest.mark.parametrize("other", JoinObstacle)
def test_each_obstacle_keeps_a_follower_out_and_hides_no_other(
    obstacle: JoinObstacle, other: JoinObstacle
) -> None:
    """The high watermark waits only for a follower that nothing else keeps out."""
    leader, _ = kept_out(obstacle, other)
    assert set(leader._join_obstacles(leader.follower(3))) == {obstacle, other}
    assert leader.propose_join(3) is None
    assert leader._is_about_to_join(leader.follower(3), 20, 0.0) == ({obstacle, other} <= WAITED_FOR)


@pytest.mark.parametrize("obstacle", JoinObstacle)
def test_the_event_that_ends_an_obstacle_leads_to_a_proposal(obstacle: JoinObstacle) -> None:
    """By what the shell asks at each event (`ReplicaManager._follower_progressed`, `IsrChanges`)."""
    leader, metadata = kept_out(obstacle)
    assert leader.propose_next_join() is None
    match obstacle.ended_by:
        case JoinTrigger.FETCH:
            fetch(leader, 3, 21, end=21)
            leader.follower(3).log_start_offset = 1
            assert leader.propose_join(3) is not None
        case JoinTrigger.BROKER_NEWS:
            metadata.known.clear()
            assert leader.brokers_changed({3})
            assert leader.propose_next_join() is not None
        case JoinTrigger.PAUSE_END:
            assert leader.has_paused_changes
            leader.end_pauses({3})
            assert leader.propose_next_join() is not None


def test_a_follower_is_proposed_as_soon_as_there_is_news_that_it_may_join() -> None:
    metadata = Metadata()
    leader, change = expanding(metadata)
    leader.pauses = 7
    leader.complete_alter(change, IsrResult("t", 0, ErrorCode.INELIGIBLE_REPLICA))
    metadata.known[3, 33] = Eligibility.NOT_NOW
    assert leader.brokers_changed({3})
    assert leader.propose_next_join() is None
    metadata.known[3, 33] = Eligibility.YES
    assert not leader.brokers_changed({2, 4})
    assert leader.propose_next_join() is None
    assert leader.brokers_changed({3})
    assert leader.propose_next_join() is not None
    assert leader.pauses == 0


def test_a_new_life_is_not_proposed_before_its_registration_is_known() -> None:
    metadata = Metadata()
    leader = leader_of(isr=(1, 2), eligibility_of=metadata.eligibility_of)
    metadata.known[3, 101] = Eligibility.NOT_NOW
    fetch(leader, 3, 20, end=20, broker_epoch=101)
    assert leader.propose_join(3) is None
    del metadata.known[3, 101]
    assert leader.brokers_changed({3})
    again = leader.propose_next_join()
    assert again is not None
    assert again.proposal.isr[-1] == IsrMember(3, 101)


@pytest.mark.parametrize(
    ("eligibility", "is_over"),
    [(Eligibility.NEVER, True), (Eligibility.NOT_NOW, False), (Eligibility.YES, False)],
)
def test_a_pending_addition_ends_with_the_life_that_it_was_for(
    eligibility: Eligibility, is_over: bool
) -> None:
    """The controller that was asked may be gone, too: no answer would come.  A follower that is only fenced
    may still be added."""
    metadata = Metadata()
    leader, change = expanding(metadata)
    fetch(leader, 2, 30, end=30)
    metadata.known[3, 33] = eligibility
    leader.brokers_changed({3})
    assert (leader.pending is None, leader.maximal_isr == {1, 2}) == (is_over, is_over)
    assert leader.advance_high_watermark(30, 30, 100.0) is is_over or leader.high_watermark == 20
    if is_over:
        assert (
            leader.complete_alter(change, IsrResult("t", 0, ErrorCode.NONE, 1, 5, 8, (1, 2, 3)))
            is AlterOutcome.STALE
        )


def test_a_pending_addition_without_a_broker_epoch_waits_for_its_answer() -> None:
    """The controller takes it for whichever life there is."""
    metadata = Metadata()
    leader = leader_of(isr=(1, 2), eligibility_of=metadata.eligibility_of)
    fetch(leader, 3, 20, end=20, broker_epoch=-1)
    change = leader.propose_join(3)
    metadata.known[3, -1] = Eligibility.NEVER
    leader.brokers_changed({3})
    assert leader.pending is change is not None


def test_a_refused_removal_is_tried_again_after_a_pause() -> None:
    leader = leader_of()
    fetch(leader, 2, 20, end=20, now_s=LAG_S)
    change = leader.propose_removals(20, LAG_S + 1)
    assert change is not None
    assert not leader.has_paused_changes
    leader.complete_alter(change, IsrResult("t", 0, ErrorCode.INELIGIBLE_REPLICA))
    assert leader.has_paused_changes
    assert leader.propose_removals(20, LAG_S + 1) is None
    leader.end_pauses(())
    assert leader.propose_removals(20, LAG_S + 1) is not None


#: As `Partition.handleAlterPartitionError` of Kafka 4.1 has it, and with what our own controller adds. Only
#: the first two say for sure that the change was not made, by no controller, and never will be: these alone
#: end it.
AS_KAFKA = [
    (ErrorCode.INELIGIBLE_REPLICA, AlterOutcome.SETTLED),
    (ErrorCode.OPERATION_NOT_ATTEMPTED, AlterOutcome.SETTLED),
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.UNKNOWN_TOPIC_ID, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.FENCED_LEADER_EPOCH, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.INVALID_UPDATE_VERSION, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.INVALID_REQUEST, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.NEW_LEADER_ELECTED, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.STALE_BROKER_EPOCH, AlterOutcome.AWAIT_METADATA),
    (ErrorCode.NOT_CONTROLLER, AlterOutcome.RETRY),
    (ErrorCode.REQUEST_TIMED_OUT, AlterOutcome.RETRY),
    (ErrorCode.UNKNOWN_SERVER_ERROR, AlterOutcome.RETRY),
    (ErrorCode.THROTTLING_QUOTA_EXCEEDED, AlterOutcome.RETRY),
    (ErrorCode.NETWORK_EXCEPTION, AlterOutcome.RETRY),
]


@pytest.mark.parametrize(("code", "outcome"), AS_KAFKA)
def test_only_a_certain_refusal_ends_a_pending_change(code: ErrorCode, outcome: AlterOutcome) -> None:
    leader, change = expanding()
    assert leader.complete_alter(change, IsrResult("t", 0, code)) is outcome
    ended = outcome is AlterOutcome.SETTLED
    assert (leader.pending is None, leader.maximal_isr == {1, 2}, leader.isr) == (ended, ended, {1, 2})


#: What becomes of a change that is sent, that awaits metadata, that is overdue.
CHANGES = {
    ChangeEvent.REFUSED: ("ended", "ended", "ended"),
    ChangeEvent.SUPERSEDED: ("awaits metadata", "awaits metadata", "overdue"),
    ChangeEvent.UNANSWERED: ("sent", "awaits metadata", "overdue"),
    ChangeEvent.METADATA: ("ended", "ended", "ended"),
    ChangeEvent.JOINER_GONE: ("ended", "ended", "ended"),
    ChangeEvent.MAINTENANCE: ("sent", "overdue", "sent"),
}


@pytest.mark.parametrize("event", ChangeEvent)
@pytest.mark.parametrize("at", range(3))
def test_a_pending_change_ends_as_the_table_says(event: ChangeEvent, at: int) -> None:
    metadata = Metadata()
    leader, change = expanding(metadata)
    if at:
        leader.complete_alter(change, IsrResult("t", 0, ErrorCode.STALE_BROKER_EPOCH))
    if at == 2:
        leader.retry_pending()
    before = (ChangeState.SENT, ChangeState.AWAITS_METADATA, ChangeState.OVERDUE)[at]
    assert change.state is before
    match event:
        case ChangeEvent.METADATA:
            leader.on_metadata(8, (1, 2))
        case ChangeEvent.JOINER_GONE:
            metadata.known[3, 33] = Eligibility.NEVER
            leader.brokers_changed((3,))
        case ChangeEvent.MAINTENANCE:
            leader.retry_pending()
        case _:
            code = {
                ChangeEvent.REFUSED: ErrorCode.INELIGIBLE_REPLICA,
                ChangeEvent.SUPERSEDED: ErrorCode.INVALID_UPDATE_VERSION,
                ChangeEvent.UNANSWERED: ErrorCode.NOT_CONTROLLER,
            }[event]
            leader.complete_alter(change, IsrResult("t", 0, code))
    assert change.state.value == CHANGES[event][at]
    assert (leader.pending is None) == (change.state is ChangeState.ENDED)
    assert TRANSITIONS[before, event] is change.state
    leader.validate(20)


PAUSED = {JoinEvent.REFUSED, JoinEvent.REMOVED}


@pytest.mark.parametrize("event", JoinEvent)
@pytest.mark.parametrize("paused", [False, True])
def test_a_follower_is_paused_as_the_table_says(event: JoinEvent, paused: bool) -> None:
    leader = leader_of(isr=(1, 2, 3) if event is JoinEvent.REMOVED else (1, 2))
    fetch(leader, 3, 20, end=20)
    follower = leader.follower(3)
    follower.join_paused = paused and event is not JoinEvent.REFUSED  # a paused follower is not proposed
    match event:
        case JoinEvent.REFUSED:
            change = leader.propose_join(3)
            assert change is not None
            leader.complete_alter(change, IsrResult("t", 0, ErrorCode.INELIGIBLE_REPLICA))
        case JoinEvent.REMOVED:
            leader.on_metadata(8, (1, 2))
        case JoinEvent.ADDED:
            leader.on_metadata(8, (1, 2, 3))
        case JoinEvent.FETCHES_AGAIN:
            fetch(leader, 3, 20, end=20, now_s=0.0 if paused else JOIN_SILENCE_S + 1, broker_epoch=101)
        case JoinEvent.ELIGIBLE:
            leader.brokers_changed((3,))
        case JoinEvent.PAUSE_OVER:
            leader.end_pauses((3,))
    assert follower.join_paused == (event in PAUSED) == JOIN_PAUSED[event]
    assert (leader.propose_join(3) is None) == (event in PAUSED or event is JoinEvent.ADDED)


def test_every_distinguished_error_code_is_in_the_table() -> None:
    assert {code for code, outcome in AS_KAFKA if outcome is AlterOutcome.SETTLED} == REFUSED
    assert {code for code, outcome in AS_KAFKA if outcome is AlterOutcome.AWAIT_METADATA} == SUPERSEDED


@pytest.mark.parametrize("code", sorted(SUPERSEDED))
def test_a_superseded_change_stays_pending_until_newer_metadata(code: ErrorCode) -> None:
    leader, change = expanding()
    assert leader.complete_alter(change, IsrResult("t", 0, code)) is AlterOutcome.AWAIT_METADATA
    assert leader.maximal_isr == {1, 2, 3}
    assert leader.on_metadata(8, (1, 2))
    assert leader.pending is None
    assert leader.maximal_isr == {1, 2}


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_an_open_outcome_keeps_the_change_pending(code: ErrorCode) -> None:
    leader, change = expanding()
    assert leader.complete_alter(change, IsrResult("t", 0, code)) is AlterOutcome.RETRY
    assert leader.pending is change
    assert leader.maximal_isr == {1, 2, 3}


def test_an_answer_that_metadata_overtook_changes_nothing() -> None:
    leader, change = expanding()
    leader.on_metadata(9, (1,))
    assert (
        leader.complete_alter(change, IsrResult("t", 0, ErrorCode.NONE, 1, 5, 8, (1, 2, 3)))
        is AlterOutcome.STALE
    )
    assert leader.isr == {1}
    assert leader.partition_epoch == 9


def test_older_metadata_changes_nothing() -> None:
    leader, change = expanding()
    assert not leader.on_metadata(7, (1,))
    assert not leader.on_metadata(6, (1,))
    assert leader.pending is change
    assert leader.isr == {1, 2}


def test_an_acceptance_for_another_leader_epoch_is_not_taken() -> None:
    leader, change = expanding()
    assert (
        leader.complete_alter(change, IsrResult("t", 0, ErrorCode.NONE, 2, 6, 9, (2, 3)))
        is AlterOutcome.AWAIT_METADATA
    )
    assert leader.isr == {1, 2}


def test_a_member_of_the_isr_counts_even_when_the_replica_list_lacks_it() -> None:
    leader = leader_of(isr=(1, 2))
    leader.on_metadata(8, (1, 2, 4), (1, 2, 3))
    fetch(leader, 2, 20, end=20)
    leader.advance_high_watermark(20, 20, 1000.0)
    assert leader.high_watermark == 10


def test_a_leader_outside_its_isr_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not contain it"):
        leader_of(isr=(2, 3))
    with pytest.raises(ValueError, match="leaves out its leader"):
        leader_of().on_metadata(8, (2, 3))


# ---- acknowledgements --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "acks", "refused"), [((1, 2), -1, False), ((1,), -1, True), ((1,), 1, False), ((1,), 0, False)]
)
def test_acks_all_needs_the_minimum_before_the_append(isr: tuple[int, ...], acks: int, refused: bool) -> None:
    leader = leader_of(isr=isr)
    if not refused:
        leader.check_before_append(acks)
        return
    with pytest.raises(KafkaError) as error:
        leader.check_before_append(acks)
    assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_an_acknowledgement_is_decided_by_the_state_at_completion() -> None:
    leader = leader_of()
    assert leader.commit_state(11) is None
    assert leader.commit_state(10) is ErrorCode.NONE
    leader.on_metadata(8, (1,))
    assert leader.commit_state(10) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.parametrize("text", ["2", " 2 ", "0", "7", "", "-1", "two", "2.0", "9" * 12])
def test_leader_and_controller_read_min_insync_replicas_alike(text: str) -> None:
    """Also a value that only a later version knows."""
    config, replicas = {"min.insync.replicas": text}, (1, 2, 3)
    topic = TopicState("t", UUID(int=1), config)
    assignment = Assignment("t", topic.topic_id, 0, replicas, replicas, 1, 1, 1, config)
    assert max(1, min(assignment.min_insync_replicas, 3)) == topic.min_in_sync_replicas(replicas)
