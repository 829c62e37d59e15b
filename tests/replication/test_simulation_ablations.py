"""Every rule of replication, left out of the product itself: random histories of a cluster must notice.

docs/semantics.md, chapters A, R, E and M.  Each is proven twice: a history is broken without the rule, and
the same history passes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from tidegate.chaos.sim.replication.history import History
from tidegate.chaos.sim.replication.network import Weather
from tidegate.chaos.sim.replication.node import NodeTimings
from tidegate.chaos.sim.replication.options import Options, draw_first
from tidegate.chaos.sim.runs import Broken
from tidegate.controller.planning import planner
from tidegate.controller.planning.brokers import registration
from tidegate.controller.planning.brokers.reachability import Reachability, Reached
from tidegate.controller.planning.brokers.registration import broker_with_epoch
from tidegate.controller.planning.brokers.sessions import BrokerSessions
from tidegate.controller.planning.partitions import isr_changes, moves
from tidegate.controller.planning.partitions.elections import needed_changes
from tidegate.controller.planning.plan import Plan
from tidegate.controller.planning.planner import ControllerPlanner
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.service.service import ControllerService
from tidegate.controller.state import partition_changes
from tidegate.controller.state.broker_table import BrokerTable
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.eligibility import Eligibility
from tidegate.controller.state.model import BrokerState, PartitionState, TopicState
from tidegate.controller.state.topic_table import TopicTable
from tidegate.controller.state.validation import StateValidator
from tidegate.node.cluster.cluster_view import ClusterView
from tidegate.node.lifecycle.broker_lifecycle import BrokerLifecycle
from tidegate.node.lifecycle.session_lease import AnsweredHeartbeat, Change, SessionLease
from tidegate.replication.fetching.followed import Followed
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.partition.assignment import UNKNOWN_BROKER_EPOCH, Assignment
from tidegate.replication.partition.follower import Action, Answer, FetchPosition, LogView, PartitionFollower
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.replication.record_deletion import RecordDeletions
from tidegate.replication.replica import replica as replica_module
from tidegate.replication.replica.delayed_produce import DelayedProduce
from tidegate.replication.replica.replica import Replica
from tidegate.storage.durability.flush import Durability
from tidegate.storage.epoch_cache import EpochCache
from tidegate.storage.log.log_start import LogStart
from tidegate.wire.errors import ErrorCode, KafkaError

from .leading import join_despite

Patch = pytest.MonkeyPatch

SEEDS_UNTIL_RED_MAX = 400


def truncate_by_high_watermark(patch: Patch) -> None:
    """KIP-101."""
    follow, next_fetch, on_answer = Replica._follow, PartitionFollower.next_fetch, PartitionFollower.on_answer

    def follow_from_high_watermark(replica: Replica, assignment: Assignment) -> None:
        follow(replica, assignment)
        replica.log.truncate_to(replica.log.high_watermark)

    def believe(core: PartitionFollower, sent: FetchPosition, answer: Answer, log: LogView) -> Action:
        return on_answer(core, replace(sent, last_fetched_epoch=log.latest_epoch), answer, log)

    patch.setattr(Replica, "_follow", follow_from_high_watermark)
    patch.setattr(
        PartitionFollower,
        "next_fetch",
        lambda core, log: replace(next_fetch(core, log), last_fetched_epoch=-1),
    )
    patch.setattr(PartitionFollower, "on_answer", believe)


def ask_for_epochs_once(patch: Patch) -> None:
    """KIP-279: after the first cut in an epoch the follower takes it that the histories agree."""
    next_fetch, on_answer = PartitionFollower.next_fetch, PartitionFollower.on_answer

    def ask(core: PartitionFollower, log: LogView) -> FetchPosition:
        position = next_fetch(core, log)
        return position if core._last_truncation is None else replace(position, last_fetched_epoch=-1)

    def answered(core: PartitionFollower, sent: FetchPosition, answer: Answer, log: LogView) -> Action:
        before = core._last_truncation
        if before is not None:
            sent = replace(sent, last_fetched_epoch=log.latest_epoch)
        action = on_answer(core, sent, answer, log)
        core._last_truncation = core._last_truncation or before
        return action

    patch.setattr(PartitionFollower, "next_fetch", ask)
    patch.setattr(PartitionFollower, "on_answer", answered)


def fetches_are_not_fenced(patch: Patch) -> None:
    """KIP-320."""
    patch.setattr(PartitionLeader, "check_epoch", lambda leader, epoch, *, required: None)


def join_at_the_high_watermark(patch: Patch) -> None:
    """KIP-320: without having reached the leader's epoch start."""
    join_despite(patch, "epoch_start_offset")


def minimal_isr(patch: Patch) -> None:
    """docs/semantics.md R1."""

    def refresh(leader: PartitionLeader) -> None:
        pending = leader._pending
        leader._maximal_isr = leader._isr if pending is None else leader._isr & pending.nodes

    patch.setattr(PartitionLeader, "_refresh_maximal_isr", refresh)


def commit_under_the_minimum(patch: Patch) -> None:
    """KIP-966: the high watermark moves with fewer than min.insync.replicas."""
    advance = PartitionLeader.advance_high_watermark

    def advance_always(leader: PartitionLeader, flushed_end: int, log_end: int, now_s: float) -> bool:
        minimum, leader._min_insync_replicas = leader._min_insync_replicas, 1
        try:
            return advance(leader, flushed_end, log_end, now_s)
        finally:
            leader._min_insync_replicas = minimum

    patch.setattr(PartitionLeader, "advance_high_watermark", advance_always)


def unclean_replica_keeps_its_place(patch: Patch) -> None:
    """KIP-966: what an unclean stop may have lost is not asked; the last replica standing leads again."""

    def nothing_lost(state: ClusterState, present: set[int], reached: Reached, loss: object = None) -> object:
        return needed_changes(state, present, reached)

    for module in (planner, registration):
        patch.setattr(module, "needed_changes", nothing_lost)


def stale_incarnation_joins(patch: Patch) -> None:
    """docs/semantics.md R7: the proposal does not say which incarnation has caught up, and the leader asks no
    metadata."""
    patch.setattr(ClusterView, "isr_eligibility", lambda *_arguments: Eligibility.YES)
    patch.setattr(PartitionLeader, "_broker_epoch_of", lambda leader, node: UNKNOWN_BROKER_EPOCH)


def fetch_before_flush(patch: Patch) -> None:
    """The fetch offset vouches for what is not flushed."""
    needs_flush = Replica.needs_flush
    assert isinstance(needs_flush, property)
    assert needs_flush.fget is not None
    asked = needs_flush.fget
    patch.setattr(Replica, "needs_flush", property(lambda replica: replica.is_leader and asked(replica)))


def leader_counts_unflushed(patch: Patch) -> None:
    patch.setattr(Replica, "leader_end", property(lambda replica: replica.log.log_end_offset))


def histories_are_not_compared(patch: Patch) -> None:
    def no_divergence(
        log: LogView, fetch_offset: int, last_fetched_epoch: int, *, follower: bool
    ) -> tuple[int, int] | None:
        return None if fetch_offset <= log.log_end_offset else (log.latest_epoch, log.log_end_offset)

    patch.setattr(replica_module, "find_divergence", no_divergence)


def answers_to_old_questions_are_believed(patch: Patch) -> None:
    """Neither the fetcher nor the core looks whether the answer is to what is asked now."""
    on_answer = PartitionFollower.on_answer

    def believe(core: PartitionFollower, sent: FetchPosition, answer: Answer, log: LogView) -> Action:
        return on_answer(core, core.next_fetch(log), answer, log)

    patch.setattr(PartitionFollower, "on_answer", believe)
    patch.setattr(Followed, "is_current", lambda followed: True)


def epoch_history_is_kept_late(patch: Patch) -> None:
    """A log is cut before the cut of its epoch history is durable, and a restart does not ask the batches."""

    def cut_without(durability: Durability, end_offset: int) -> None:
        durability.drop_snapshots(lambda snapshot: snapshot > end_offset)
        durability.epochs_changed(end_offset)

    patch.setattr(Durability, "truncate_history", cut_without)
    patch.setattr(EpochCache, "deny", lambda cache, epoch, since, offset: None)


def epoch_history_is_not_cut(patch: Patch) -> None:
    patch.setattr(EpochCache, "truncate_from_end", lambda cache, end_offset: False)


def session_end_stops_nothing(patch: Patch) -> None:
    patch.setattr(BrokerLifecycle, "holds_session", property(lambda lifecycle: True))
    patch.setattr(BrokerLifecycle, "_end_session_when_over", lambda lifecycle: None)


def session_end_by_timer_only(patch: Patch) -> None:
    """A process that slept finds requests in its sockets before its timers run."""
    patch.setattr(BrokerLifecycle, "holds_session", property(lambda lifecycle: True))


def acknowledgements_outlive_the_session(patch: Patch) -> None:
    """What is committed after the session's end is acknowledged at once, and not only when the session is
    renewed."""

    def acknowledge(delayed: DelayedProduce, replica: Replica) -> None:
        if replica.acks and replica.leader is not None:
            delayed._waiting_count -= replica.acks.complete(replica.leader)

    patch.setattr(DelayedProduce, "complete", acknowledge)


def lagging_controller_is_believed(patch: Patch) -> None:
    """A deposed controller calls a registration that it does not know yet superseded, and does not say in
    which term."""

    def answer(state: ClusterState, node_id: int, broker_epoch: int) -> BrokerState:
        try:
            return broker_with_epoch(state, node_id, broker_epoch)
        except KafkaError as error:
            code = ErrorCode.STALE_BROKER_EPOCH if error.code is ErrorCode.NOT_CONTROLLER else error.code
            raise KafkaError(code, error.message) from None

    note_answer = ControllerClient.note_answer

    def note_without_term(client: ControllerClient, node_id: int, status: Any) -> bool:
        status.controller_epoch = 0
        return note_answer(client, node_id, status)

    for module in (planner, isr_changes):
        patch.setattr(module, "broker_with_epoch", answer)
    patch.setattr(ControllerClient, "note_answer", note_without_term)


def registration_before_fencing(patch: Patch) -> None:
    """docs/semantics.md M5: a broker is given a new epoch while it still is in ISRs."""
    register = BrokerTable.register

    def at_once(table: BrokerTable, op: Any, topics: TopicTable, features: Any, changes: Any) -> Any:
        existing = table.by_id.get(op.node_id)
        if existing is not None:
            table.by_id[op.node_id] = replace(existing, fenced=True)
        return register(table, op, TopicTable(), features, changes)

    patch.setattr(BrokerTable, "register", at_once)
    patch.setattr(registration, "_changes_after_restart", lambda *_arguments: [])


def deletions_wait_for_no_replica(patch: Patch) -> None:
    """DeleteRecords is answered before the followers have noted it."""
    patch.setattr(
        RecordDeletions,
        "_low_watermark",
        staticmethod(lambda replica, leader: replica.log.noted_start_offset),
    )


def deletions_answered_under_the_minimum(patch: Patch) -> None:
    """The replica that left the ISR last may lead again (KIP-966), and was not asked."""
    low_watermark = RecordDeletions._low_watermark

    def answer(replica: Replica, leader: PartitionLeader) -> int:
        minimum, leader._min_insync_replicas = leader._min_insync_replicas, 1
        try:
            return low_watermark(replica, leader)
        finally:
            leader._min_insync_replicas = minimum

    patch.setattr(RecordDeletions, "_low_watermark", staticmethod(answer))


def join_with_what_was_deleted(patch: Patch) -> None:
    """A replica joins the ISR before it has noted the log start that a client got as an answer."""
    join_despite(patch, "deleted_below")


def log_starts_are_not_durable(patch: Patch) -> None:
    patch.setattr(LogStart, "write", lambda start: setattr(start, "noted", start._wanted))


def begin_at_the_leaders_log_start_only(patch: Patch) -> None:
    """... and not with the batch in the middle of which it lies."""
    patch.setattr(Replica, "_begin_within", lambda replica, records, leader_log_start: None)


def moves_end_with_too_few_copies(patch: Patch) -> None:
    """KIP-455: what was added for a move that is cancelled leaves at once, also where a record is committed
    on it and nowhere else."""

    def without_cancelled(
        topic: TopicState, partition: PartitionState, able: Collection[int]
    ) -> PartitionState:
        left = moves._dropped(
            partition, [node_id for node_id in partition.adding if node_id not in partition.target]
        )
        isr = tuple(node_id for node_id in left.isr if node_id in left.replicas)
        return replace(left, isr=isr) if left.leader in isr else partition

    patch.setattr(moves, "_without_cancelled", without_cancelled)


def fetches_from_before_a_move_count(patch: Patch) -> None:
    """A replica that was taken away, deleted, and given back is believed what it had fetched before."""
    patch.setattr(partition_changes, "_loses_replicas", lambda before, after: False)


def sleeping_controllers_answer(patch: Patch) -> None:
    """A controller that stood still, and was deposed meanwhile, answers the heartbeats that it finds."""

    def duties(service: ControllerService) -> ControllerPlanner:
        if service._planner is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "not the active one")
        return service._planner

    patch.setattr(ControllerService, "require_planner", duties)


def heartbeats_are_answered_during_a_fencing(patch: Patch) -> None:
    patch.setattr(BrokerSessions, "is_being_fenced", lambda sessions, node_id: False)


def controllers_grant_their_own_sessions(patch: Patch) -> None:
    """docs/semantics.md M8: each controller goes by its own setting, and knows of no other."""
    patch.setattr(ControllerPlanner, "_longer_sessions", lambda _planner: [])
    patch.setattr(ControllerPlanner, "_agree_on_sessions", lambda _planner, now: Plan())


def shorter_sessions_count_at_once(patch: Patch) -> None:
    """docs/semantics.md M8: those that an earlier controller granted may still last."""
    agree = ControllerPlanner._agree_on_sessions
    patch.setattr(ControllerPlanner, "_agree_on_sessions", lambda duties, now: agree(duties, now + 3600))


def sessions_come_back_with_old_metadata(patch: Patch) -> None:
    """A controller that heard nothing for a session is asked for the metadata of its first answer only."""

    def note_heard(lease: SessionLease, answer: AnsweredHeartbeat, now: float) -> None:
        if answer.controller_epoch > lease._controller_epoch or lease._heard_sent_at is None:
            lease._known_index, lease._heard_sent_at = answer.metadata_index, answer.sent_at
        lease._controller_epoch = answer.controller_epoch
        lease._heard_sent_at = max(lease._heard_sent_at, answer.sent_at)

    patch.setattr(SessionLease, "_note_heard", note_heard)


def answers_count_from_their_arrival(patch: Patch) -> None:
    """A heartbeat that is answered late renews the lease from then on, and not from when it was sent."""
    answered = SessionLease.answered

    def answered_now(
        lease: SessionLease, answer: AnsweredHeartbeat, applied_index: int, now: float
    ) -> Change | None:
        return answered(lease, replace(answer, sent_at=now), applied_index, now)

    patch.setattr(SessionLease, "answered", answered_now)


def leaderships_return_unfound(patch: Patch) -> None:
    """A broker that came back in sync leads again at once, whether the others look for it where it is or
    where it was."""
    patch.setattr(Reachability, "is_reached", lambda *_arguments: True)


def full_disks_take_records(patch: Patch) -> None:
    patch.setattr(ReplicaManager, "_require_room", lambda manager, replica: None)


# ---- histories in which what is rare otherwise is met soon -------------------------------------------------

LATE = Weather(loss=0.02, duplication=0.1, late=0.3, late_s_max=1.0)


def focused(seed: int, *faults: tuple[str, float], **changes: Any) -> Options:
    """The options of a seed, with these faults only."""
    base = {
        "replicas": 3,
        "partitions": 1,
        "min_insync_replicas": 1,
        "flushed": True,
        "unclean_elections": False,
        "fault_pause_s": 0.3,
        "duration_s": 15.0,
        "producers": ((1, False), (1, False), (1, False)),
        "produce_pause_s": 0.03,
        "faults": faults,
    }
    return replace(draw_first(Random(seed)), **cast("dict[str, Any]", base | changes))


def anything(seed: int) -> Options | None:
    return None


def unclean_tails(seed: int) -> Options:
    faults = (("move_leaders_fast", 3.0), ("isolate", 2.0), ("cut_pair", 2.0), ("pause", 1.0), ("kill", 2.0))
    return focused(seed, *faults, replicas=4, unclean_elections=True)


def late_messages(seed: int) -> Options:
    return focused(
        seed,
        ("move_leaders_fast", 3.0),
        ("isolate", 2.0),
        ("cut_pair", 2.0),
        ("kill", 1.0),
        weather=LATE,
        producers=((1, False), (-1, False), (1, False)),
    )


def fast_elections_of_two_partitions(seed: int) -> Options:
    return focused(
        seed, ("move_leaders_fast", 3.0), ("pause", 1.0), ("cut_pair", 1.0), partitions=2, weather=LATE
    )


def losses(seed: int) -> Options:
    return focused(
        seed,
        ("power_cut", 3.0),
        ("replace_disk", 1.0),
        min_insync_replicas=2,
        flushed=False,
        weather=LATE,
        fault_pause_s=0.6,
        producers=((-1, False), (1, False)),
        produce_pause_s=0.05,
    )


def power_cuts_after_truncations(seed: int) -> Options:
    return focused(
        seed,
        ("move_leaders_fast", 3.0),
        ("power_cut_after_truncation", 6.0),
        ("power_cut_all", 0.5),
        ("cut_pair", 1.0),
        ("isolate", 2.0),
        unclean_elections=True,
        weather=Weather(),
        fault_pause_s=0.15,
        producers=((1, False), (1, False)),
        produce_pause_s=0.05,
    )


def deletions(seed: int) -> Options:
    return focused(
        seed,
        ("power_cut", 1.0),
        ("power_cut_all", 0.3),
        ("isolate", 1.0),
        ("cut_pair", 2.0),
        ("kill", 1.0),
        ("move_leader", 1.0),
        min_insync_replicas=2,
        producers=((-1, False), (1, False)),
        produce_pause_s=0.15,
        delete_pause_s=0.2,
    )


def deletions_on_full_disks(seed: int) -> Options:
    drawn = draw_first(Random(seed))
    return focused(
        seed,
        ("full_disk", 3.0),
        ("isolate", 1.0),
        ("cut_pair", 3.0),
        ("move_leader", 1.0),
        ("kill", 0.5),
        ("slow_disk", 1.0),
        timings=replace(drawn.timings, lag_max_s=0.8, session_timeout_s=2.0, heartbeat_s=0.4),
        duration_s=10.0,
        producers=((-1, False), (1, False)),
        produce_pause_s=0.2,
        delete_pause_s=0.15,
    )


def moves_of_replicas(seed: int) -> Options:
    return focused(
        seed,
        ("move_replicas", 3.0),
        ("cancel_move", 2.0),
        ("isolate", 1.0),
        ("cut_pair", 2.0),
        ("kill", 1.0),
        ("move_leader", 0.5),
        min_insync_replicas=2,
        spare=2,
        duration_s=10.0,
        producers=((-1, False), (1, False)),
        produce_pause_s=0.1,
    )


def moves_back(seed: int) -> Options:
    faults = (("move_replicas", 3.0), ("cancel_move", 3.0), ("cut_pair", 1.0), ("slow_disk", 1.0))
    return replace(moves_of_replicas(seed), faults=faults, spare=1, weather=LATE, fault_pause_s=0.15)


def lost_sessions(seed: int) -> Options:
    timings = replace(draw_first(Random(seed)).timings, session_timeout_s=1.0, heartbeat_s=0.2)
    faults = (("cut_controllers", 3.0), ("cut_one_controller", 2.0), ("pause", 2.0), ("isolate", 1.0))
    producers = ((1, False), (1, False), (-1, False))
    return focused(seed, *faults, timings=timings, weather=LATE, producers=producers, produce_pause_s=0.05)


def late_heartbeats(seed: int) -> Options:
    """Several are in flight at a time, overtake each other, and some arrive after the session has ended."""
    weather = Weather(loss=0.05, duplication=0.1, late=0.5, late_s_max=2.5)
    faults = (
        ("cut_controllers", 3.0),
        ("pause", 1.0),
        ("cut_one_controller", 2.0),
        ("fail_over_controller", 0.5),
    )
    return replace(lost_sessions(seed), faults=faults, weather=weather)


def registrations_and_deposed_controllers(seed: int) -> Options:
    return focused(
        seed, ("kill", 3.0), ("fail_over_controller", 3.0), ("cut_one_controller", 2.0), weather=LATE
    )


def sleeping_controllers(seed: int) -> Options:
    faults = (("pause_controller", 2.0), ("cut_one_controller", 3.0))
    return replace(lost_sessions(seed), faults=faults, weather=draw_first(Random(seed)).weather)


def different_sessions(seed: int) -> Options:
    """One controller's session timeout is a third of the other's."""
    faults = (("fail_over_controller", 1.0), ("cut_controllers", 2.0))
    return focused(
        seed, *faults, controllers_sessions=(1.0, 0.34), min_insync_replicas=2, fault_pause_s=0.6,
        weather=Weather(), producers=((1, False), (-1, False)), produce_pause_s=0.15,
        timings=NodeTimings(session_timeout_s=3.0, heartbeat_s=0.6, lag_max_s=4.0, fetch_wait_s=0.5),
    )  # fmt: skip


def other_addresses(seed: int) -> Options:
    """A restarted node has another address, which the others learn late."""
    faults = (("kill", 2.0), ("leave", 3.0), ("cut_pair", 1.0), ("fail_over_controller", 1.0), ("pause", 0.5))
    return focused(
        seed, *faults, partitions=2, min_insync_replicas=2, fault_pause_s=1.5, duration_s=15.0,
        names_lag_s=4.0,
        timings=draw_first(Random(seed)).timings, weather=draw_first(Random(seed)).weather,
    )  # fmt: skip


def no_room(seed: int) -> Options:
    return focused(seed, ("out_of_room", 3.0), ("move_leader", 1.0), fault_pause_s=0.5, produce_pause_s=0.2)


#: (the rule left out, the histories, the first seed to try: near one that is known to notice, so that the
#: test is quick)
ABLATIONS: list[tuple[Callable[[Patch], None], Callable[[int], Options | None], int]] = [
    (truncate_by_high_watermark, anything, 0),
    (ask_for_epochs_once, unclean_tails, 88),
    (fetches_are_not_fenced, late_messages, 103),
    (join_at_the_high_watermark, anything, 370),
    (minimal_isr, anything, 0),
    (commit_under_the_minimum, anything, 8),
    (unclean_replica_keeps_its_place, anything, 38),
    (stale_incarnation_joins, losses, 190),
    (fetch_before_flush, anything, 0),
    (leader_counts_unflushed, anything, 4),
    (histories_are_not_compared, anything, 0),
    (answers_to_old_questions_are_believed, fast_elections_of_two_partitions, 167),
    (epoch_history_is_kept_late, power_cuts_after_truncations, 8),
    (epoch_history_is_not_cut, anything, 0),
    (session_end_stops_nothing, anything, 0),
    (session_end_by_timer_only, anything, 12),
    (acknowledgements_outlive_the_session, lost_sessions, 50),
    (lagging_controller_is_believed, registrations_and_deposed_controllers, 56),
    (registration_before_fencing, anything, 4),
    (deletions_wait_for_no_replica, deletions, 0),
    (deletions_answered_under_the_minimum, deletions, 0),
    (join_with_what_was_deleted, deletions_on_full_disks, 72),
    (log_starts_are_not_durable, deletions, 0),
    (begin_at_the_leaders_log_start_only, deletions, 218),
    (moves_end_with_too_few_copies, moves_of_replicas, 23),
    (fetches_from_before_a_move_count, moves_back, 120),
    (sleeping_controllers_answer, sleeping_controllers, 134),
    (heartbeats_are_answered_during_a_fencing, lost_sessions, 28),
    (sessions_come_back_with_old_metadata, lost_sessions, 0),
    (controllers_grant_their_own_sessions, different_sessions, 0),
    (shorter_sessions_count_at_once, different_sessions, 0),
    (answers_count_from_their_arrival, late_heartbeats, 0),
    (full_disks_take_records, no_room, 0),
    (leaderships_return_unfound, other_addresses, 0),
]


@pytest.mark.parametrize(
    ("leave_out", "options", "first"), ABLATIONS, ids=[each[0].__name__ for each in ABLATIONS]
)
def test_a_missing_rule_is_noticed(
    leave_out: Callable[[Patch], None], options: Callable[[int], Options | None], first: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        leave_out(patch)
        # what clients would meet must be noticed, not a broken invariant only
        patch.setattr(Replica, "validate", lambda replica: None)
        patch.setattr(StateValidator, "check", lambda validator, state, result: None)
        seed = next(
            (seed for seed in range(first, first + SEEDS_UNTIL_RED_MAX) if is_broken(seed, options(seed))),
            None,
        )
    assert seed is not None, f"without its rule nothing was found in {SEEDS_UNTIL_RED_MAX} histories"
    History(seed, options(seed), drawn_by=draw_first).run()  # with the rule the same history passes


def is_broken(seed: int, options: Options | None) -> bool:
    try:
        History(seed, options, drawn_by=draw_first).run()
    except Broken:
        return True
    return False
