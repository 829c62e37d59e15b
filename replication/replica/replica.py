"""One replica: a log, its role in the newest applied metadata, and the core that goes with the role.

Promises

* The role changes only by `apply`, in the order of leader epochs; an assignment that is not newer changes
  nothing.
* Each leader epoch has a new leader's core, made after the epoch's start is in the log's epoch history.
* An offline replica (its disk failed) stays offline until the process starts again: its answers could be
  wrong.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from ...controller.state.eligibility import Eligibility
from ...controller.state.model import INTERNAL_TOPICS
from ...runtime import logs
from ...storage.log.log import FlushPolicy, Log
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import iterate_headers
from ..partition.assignment import NO_LEADER, Assignment, EligibilityOf
from ..partition.follower import (
    Append,
    FetchPosition,
    PartitionFollower,
    Restart,
    Truncate,
)
from ..partition.history import find_divergence
from ..partition.leader import LeaderStart, PartitionLeader, check_epoch
from .catch_up_throttle import is_throttled
from .waiters import AckWaiters, FetchWatchers

LEADER_THROTTLED_CONFIG = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED_CONFIG = "follower.replication.throttled.replicas"

_log = logs.get(__name__)


class Role(enum.Enum):
    """What this node does for the partition."""

    IDLE = "idle"  # the partition has no leader, or this node is not a replica any more
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"


class OfflineCause(enum.Enum):
    """Why a replica is offline until the process starts again; its requests get KAFKA_STORAGE_ERROR."""

    DISK_FAILED = "disk_failed"  # of its data folder: at an append, a read or a flush of any log there
    LOG_DAMAGED = "log_damaged"  # a read found flushed bytes that are not what was written
    LOGS_DISAGREE = "logs_disagree"  # no truncation brings this follower's log closer to the leader's


class RoleChange(enum.Enum):
    """What `Replica.apply` did."""

    NONE = "none"
    NEW_LEADER_EPOCH = "new_leader_epoch"  # the role began in a new leader epoch, or ended
    ISR = "isr"


class Replica:
    """The state of one partition on this node."""

    __slots__ = (
        "_applied_leader_epoch",
        "_eligibility_of",
        "acks",
        "assignment",
        "flush_running",
        "follower",
        "leader",
        "log",
        "node_id",
        "offline_reason",
        "role",
        "watchers",
    )

    def __init__(
        self, node_id: int, assignment: Assignment, log: Log, eligibility_of: EligibilityOf | None = None
    ) -> None:
        self.node_id = node_id
        self._eligibility_of = eligibility_of
        self.assignment = assignment
        self.log = log
        self._applied_leader_epoch = -1
        self.role = Role.IDLE
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self.acks = AckWaiters()
        self.watchers = FetchWatchers()
        self.flush_running = False
        self.offline_reason = ""

    # ---- views ---------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return self.assignment.topic

    @property
    def topic_id(self) -> UUID:
        return self.assignment.topic_id

    @property
    def partition(self) -> int:
        return self.assignment.partition

    @property
    def key(self) -> tuple[str, int]:
        return (self.assignment.topic, self.assignment.partition)

    @property
    def leader_epoch(self) -> int:
        return self.assignment.leader_epoch

    @property
    def leader_id(self) -> int:
        return self.assignment.leader

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def log_fields(self) -> dict[str, object]:
        """The role and offsets, as fields of a log line."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "role": self.role.value,
            "leader": self.leader_id,
            "leader_epoch": self.leader_epoch,
            "log_end_offset": self.log.log_end_offset,
            "high_watermark": self.log.high_watermark,
        }

    @property
    def is_leader_throttled(self) -> bool:
        """True when the topic's setting throttles what this replica sends as a leader (KIP-73)."""
        return is_throttled(
            self.assignment.config.get(LEADER_THROTTLED_CONFIG, ""), self.partition, self.node_id
        )

    @property
    def is_follower_throttled(self) -> bool:
        """True when the topic's setting throttles what this replica fetches, while it is not in the ISR."""
        named = self.assignment.config.get(FOLLOWER_THROTTLED_CONFIG, "")
        return (
            bool(named)
            and self.node_id not in self.assignment.isr
            and is_throttled(named, self.partition, self.node_id)
        )

    @property
    def flushes_always(self) -> bool:
        """True also for every state topic, whatever its configuration is (docs/semantics.md A2)."""
        return self.topic in INTERNAL_TOPICS or self.log.config.flush_policy is FlushPolicy.ALWAYS

    @property
    def leader_end(self) -> int:
        """The offset that the leader's own log allows for the high watermark."""
        return self.log.flushed_end_offset if self.needs_flush else self.log.log_end_offset

    @property
    def needs_flush(self) -> bool:
        """True while the log has unflushed records that its policy requires to be flushed: any, or, under
        flush.policy=os, at least flush.messages of them."""
        log = self.log
        if self.flushes_always:
            return log.has_unflushed_records
        return log.log_end_offset - log.flushed_end_offset >= log.config.flush_messages

    def require_leader(self) -> PartitionLeader:
        """The leader's core; raises KafkaError KAFKA_STORAGE_ERROR or NOT_LEADER_OR_FOLLOWER."""
        leader = self.leader
        if leader is None:
            raise self._not_leader()
        return leader

    def require_leader_at(self, leader_epoch: int | None) -> PartitionLeader:
        """Like `require_leader`, and fences a caller with another leader epoch (None and -1: do not
        check)."""
        leader = self.require_leader()
        if leader_epoch is not None:
            leader.check_epoch(leader_epoch, required=False)
        return leader

    def require_served(self) -> None:
        """Raises KAFKA_STORAGE_ERROR when the disk of this replica, whatever its role, has failed."""
        if self.role is Role.OFFLINE:
            raise self._not_leader()

    def require_reader_at(self, leader_epoch: int, *, nearby: bool) -> None:
        """Raises KafkaError unless a client may read here: from the leader, or with `nearby` (KIP-392) from a
        follower, in the leader epoch that the client names."""
        if nearby and self.follower is not None:
            check_epoch(self.follower.leader_epoch, leader_epoch, required=False)
        else:
            self.require_leader_at(leader_epoch)

    def _not_leader(self) -> KafkaError:
        if self.role is Role.OFFLINE:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._name()} is offline: {self.offline_reason}"
            )
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"node {self.node_id} does not lead {self._name()}; the leader of epoch "
            f"{self.leader_epoch} is {self.leader_id}",
        )

    def _name(self) -> str:
        return f"{self.topic}-{self.partition}"

    # ---- changes of role -----------------------------------------------------------------------------------

    def apply(self, assignment: Assignment, *, now_s: float, lag_max_s: float) -> RoleChange:
        """Begins the role that `assignment` gives this node; RoleChange says what changed.

        Leader epochs only grow; within one epoch only the replicas, the ISR and the configuration change.
        """
        if assignment.leader_epoch < self._applied_leader_epoch:
            return RoleChange.NONE
        if self.role is Role.OFFLINE:
            self.assignment = assignment
            return RoleChange.NONE
        if assignment.leader_epoch == self._applied_leader_epoch:
            return self._apply_same_epoch(assignment)
        self.assignment = assignment
        self._applied_leader_epoch = assignment.leader_epoch
        self._go_idle()
        if self.node_id in assignment.replicas and assignment.leader != NO_LEADER:
            if assignment.leader == self.node_id:
                if not self._led_before_the_crash(assignment):
                    self._lead(assignment, now_s, lag_max_s)
            else:
                self._follow(assignment)
        return RoleChange.NEW_LEADER_EPOCH

    def _apply_same_epoch(self, assignment: Assignment) -> RoleChange:
        old, newer = self.assignment, assignment.partition_epoch > self.assignment.partition_epoch
        if not newer and assignment.config == old.config:
            return RoleChange.NONE
        if not newer:  # an AlterPartition answer was newer: only the configuration changes
            assignment = replace(old, config=assignment.config)
        self.assignment = assignment
        if self.leader is not None:
            self.leader.on_min_insync_replicas(assignment.min_insync_replicas)
            moved = self.leader.on_metadata(
                assignment.partition_epoch, assignment.isr, assignment.replicas, assignment.adding
            )
            return RoleChange.ISR if moved else RoleChange.NONE
        if self.follower is not None and self.node_id not in assignment.replicas:
            self._go_idle()
            return RoleChange.NEW_LEADER_EPOCH
        if (
            self.role is Role.IDLE
            and self.node_id in assignment.replicas
            and assignment.leader not in (NO_LEADER, self.node_id)
        ):
            self._follow(assignment)
            return RoleChange.NEW_LEADER_EPOCH
        return RoleChange.NONE

    def _go_idle(self) -> None:
        self.role = Role.IDLE
        self.leader = None
        self.follower = None

    def _follow(self, assignment: Assignment) -> None:
        self.role = Role.FOLLOWER
        self.follower = PartitionFollower(leader=assignment.leader, leader_epoch=assignment.leader_epoch)

    def _led_before_the_crash(self, assignment: Assignment) -> bool:
        """True when this node appended in this very leader epoch before an unclean stop: followers may have
        records that it lost.

        If it appended other records at the same offsets in the same epoch, no epoch history would show that
        divergence.  The controller starts a new leader epoch when a broker registers; an old one can only
        come from metadata before that.
        """
        if not self.log.recovered or self.log.latest_epoch < assignment.leader_epoch:
            return False
        _log.error(
            "leadership_refused",
            topic=assignment.topic,
            partition=assignment.partition,
            leader_epoch=assignment.leader_epoch,
            latest_epoch=self.log.latest_epoch,
            reason="the log has records of this epoch from before an unclean stop; a newer epoch is needed",
        )
        return True

    def _lead(self, assignment: Assignment, now_s: float, lag_max_s: float) -> None:
        start = self.log.log_end_offset
        # A DeleteRecords of an earlier leadership may have noted a log start without moving it: a restart
        # would move it.
        self.log.advance_log_start(min(self.log.noted_start_offset, self.log.high_watermark))
        self.log.assign_epoch(assignment.leader_epoch, start)
        self.leader = PartitionLeader(
            assignment,
            LeaderStart(start, min(self.log.high_watermark, start), self.log.log_start_offset),
            lag_max_s=lag_max_s,
            now_s=now_s,
            eligibility_of=self._eligibility,
        )
        self.role = Role.LEADER

    def _eligibility(self, node_id: int, broker_epoch: int) -> Eligibility:
        if self._eligibility_of is None:
            return Eligibility.YES
        return self._eligibility_of(self.topic_id, self.partition, node_id, broker_epoch)

    def go_offline(self, reason: str) -> bool:
        """Ends the role until the process starts again; False when the replica was offline already."""
        if self.role is Role.OFFLINE:
            return False
        self.role = Role.OFFLINE
        self.offline_reason = reason
        self.leader = None
        self.follower = None
        return True

    # ---- the two ends of a fetch ---------------------------------------------------------------------------

    def receive_fetch(
        self, node_id: int, broker_epoch: int, sent: FetchPosition, *, now_s: float, arrival: bool
    ) -> tuple[int, int] | None:
        """Leader: a follower's fetch.  Returns the divergence for the answer, or None when the follower may
        read from its offset.

        The order is: fence by leader epoch, compare epoch histories, record the offset.  `arrival` is False
        for a fetch that has waited: its offset was recorded when it came.  Raises KafkaError with the
        partition's error code.
        """
        leader = self.require_leader()
        leader.check_epoch(sent.leader_epoch, required=True)
        # A new leader's core has no offset of the follower: the position that the session has counts as if it
        # came now.
        arrival = arrival or leader.follower(node_id).fetch_offset < 0
        diverging = find_divergence(self.log, sent.fetch_offset, sent.last_fetched_epoch, follower=True)
        if diverging is None and arrival:
            leader.record_fetch(
                node_id,
                broker_epoch=broker_epoch,
                fetch_offset=sent.fetch_offset,
                leader_log_end=self.log.log_end_offset,
                now_s=now_s,
            )
            leader.follower(node_id).log_start_offset = sent.log_start_offset
        return diverging

    def cleaned_at_most_for(self, fetch_offset: int) -> int:
        """Leader: no record at or above this offset has let a cleaner take away one that a follower which
        fetches from here lacks.

        Nothing at or above the high watermark is cleaned.  A follower that fetches from below is catching up,
        and what it has already, perhaps of earlier leaders and from before a restart, may lack what any
        cleaner took.  Before the epoch's start the high watermark may be too low."""
        leader = self.require_leader()
        if fetch_offset >= max(leader.high_watermark, leader.epoch_start_offset):
            return 0
        return self.log.decided_end

    def carry_out(self, action: Append | Truncate | Restart) -> bool:
        """Follower: changes the log as the core decided; True when the follower must flush before its next
        fetch: it has appended records, or has to note a log start that the leader waits for.  Raises
        KafkaError from the log.
        """
        log = self.log
        match action:
            case Truncate(offset):
                log.truncate_to(offset)
            case Restart(offset):
                log.truncate_fully_and_start_at(offset)
            case Append(records, high_watermark, leader_log_start, may_have_offset_gaps, cleaned_at_most):
                if records:
                    if may_have_offset_gaps:
                        log.allow_offset_gaps()
                        if cleaned_at_most < 0 and log.log_end_offset < high_watermark:
                            cleaned_at_most = high_watermark
                    if cleaned_at_most >= 0:
                        log.note_copied(cleaned_at_most)
                    self._begin_within(records, leader_log_start)
                    log.append_follower(records)
                if high_watermark > log.high_watermark:
                    log.set_high_watermark(min(high_watermark, log.log_end_offset))
                    self.watchers.high_watermark_moved()
                if leader_log_start <= log.high_watermark:
                    # the note may be higher: a DeleteRecords that this node led
                    log.advance_log_start(leader_log_start)
                    log.local.start_note.want(leader_log_start)
                return bool(records) or log.local.start_note.is_due
        return False

    def _begin_within(self, records: bytes | memoryview, leader_log_start: int) -> None:
        """Restarts the log at the leader's first batch when that begins below this log's end and ends above
        it.

        Either the leader's log starts within the batch (KIP-107): records of this log at the batch's offsets
        are not in the leader's history, or the leader has deleted them.  Or this log is empty and starts
        where an earlier leader's did, and the present leader has deleted less.  After the append the log
        start moves up to the leader's."""
        log = self.log
        if int.from_bytes(records[:8], "big", signed=True) >= log.log_end_offset:
            return
        first = next((header for _, header in iterate_headers(records)), None)
        if first is None or not first.base_offset < log.log_end_offset < first.next_offset:
            return
        if log.latest_epoch < 0 or first.base_offset < leader_log_start <= log.log_end_offset:
            log.truncate_fully_and_start_at(first.base_offset)

    # ---- the high watermark --------------------------------------------------------------------------------

    def advance_high_watermark(self, now_s: float) -> bool:
        """Leader only: moves the high watermark, in the core and in the log, as far as the core allows; True
        when it moved."""
        leader = self.leader
        if leader is None or not leader.advance_high_watermark(
            self.leader_end, self.log.log_end_offset, now_s
        ):
            return False
        self.log.set_high_watermark(leader.high_watermark)
        return True

    # ---- invariants ----------------------------------------------------------------------------------------

    def validate(self, *, whole: bool = False) -> None:
        """Raises AssertionError when an invariant of the log, of the leader, or between them does not hold;
        see `Log.validate` for `whole`."""
        log, leader, follower = self.log, self.leader, self.follower
        log.validate(whole=whole)
        roles = leader is not None, follower is not None
        if roles != (self.role is Role.LEADER, self.role is Role.FOLLOWER):
            raise AssertionError(f"{self._name()} is {self.role.value}, with {leader} and {follower}")
        if leader is None or log.is_offline or log.is_closed:
            return
        leader.validate(log.log_end_offset)
        epochs = leader.leader_epoch, self.assignment.leader_epoch, log.latest_epoch
        if len(set(epochs)) > 1:
            raise AssertionError(f"{self._name()}: leader, metadata and log have the epochs {epochs}")
        if leader.high_watermark != log.high_watermark:
            raise AssertionError(
                f"{self._name()}: the leader's high watermark is {leader.high_watermark}, "
                f"the log's {log.high_watermark}"
            )


TakeOffline = Callable[[Replica, OfflineCause, str], None]
"""`ReplicaManager.take_offline`."""
