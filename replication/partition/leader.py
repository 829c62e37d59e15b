"""The leader of one partition in one leader epoch, as a pure core: in-sync replicas, pending ISR change, high
watermark.

One object lives for exactly one leader epoch and begins without any follower offset: a follower's log may
have diverged since it fetched from an earlier leader (KIP-320).

Promises

* The **high watermark** is the least *flushed* end (under flush.policy=os, the least log end) over the
  **maximal ISR** (the committed ISR plus a pending addition; a pending removal still counts) and over the
  followers that are about to join it (`_is_about_to_join`: they only hold it back).  It never moves while the
  committed ISR is smaller than `min.insync.replicas` (KIP-966), and never goes back within the epoch
  (docs/semantics.md R1 to R4). Replicas that a reassignment adds do not count for that minimum before it is
  finished.
* A follower counts only by fetches that carried this leader epoch and that were found not to diverge.
* A replica is proposed for the ISR only when it has reached the high watermark *and* the leader's own epoch
  start, and always together with the broker epoch in its fetches (rule R7).  A fetch with an older broker
  epoch is rejected.
* One ISR change is outstanding at a time.  While its outcome is unknown it stays pending, so that the maximal
  ISR covers both outcomes; only an answer or newer metadata ends it.
* A follower that is fenced or shutting down in the applied metadata, has another broker epoch there, or
  cannot serve the replica, is not proposed and does not hold the high watermark (KIP-903).

Order of a follower's fetch: `check_epoch`, then the divergence check on the log, only then `record_fetch`,
then `advance_high_watermark`, then `propose_join`.  The caller supplies the time; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ...controller.state.eligibility import Eligibility
from ...wire.errors import ErrorCode, KafkaError
from .assignment import UNKNOWN_BROKER_EPOCH, Assignment, IsrMember, IsrProposal, IsrResult
from .isr_change import (
    JOIN_PAUSED,
    OUTCOMES,
    TRANSITIONS,
    AlterOutcome,
    ChangeEvent,
    ChangeKind,
    ChangeState,
    JoinEvent,
    JoinObstacle,
    PendingChange,
    event_of,
)

NEVER_S = float("-inf")

#: The high watermark does not wait for a follower outside the ISR that has not fetched for this long: it may
#: be down.
JOIN_SILENCE_S = 1.5


@dataclass(slots=True)
class ReplicaProgress:
    """The leader's state of one follower in this leader epoch."""

    node_id: int
    fetch_offset: int = -1
    fetch_offset_max: int = -1  # a follower that lost what it had not flushed fetches from below it
    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    last_fetch_s: float = NEVER_S
    leader_end_at_last_fetch: int = -1
    last_caught_up_s: float = NEVER_S
    join_paused: bool = False
    """It neither joins the ISR nor holds the high watermark: see `JoinEvent`."""
    log_start_offset: int = -1

    def note(self, event: JoinEvent) -> None:
        self.join_paused = JOIN_PAUSED[event]


def check_epoch(own: int, current_leader_epoch: int, *, required: bool) -> None:
    """Fences a request with another leader epoch than the replica's `own`; see
    `PartitionLeader.check_epoch`."""
    if current_leader_epoch == own or (current_leader_epoch < 0 and not required):
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if current_leader_epoch < own else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise KafkaError(code, f"request is for leader epoch {current_leader_epoch}, this replica's is {own}")


class LeaderStart(NamedTuple):
    """The log at the election."""

    log_end_offset: int
    """Where the leader epoch begins."""
    high_watermark: int
    """The replica's own, which may be below the partition's."""
    log_start_offset: int


class PartitionLeader:
    """The state of one leadership; see the module's docstring for the rules."""

    __slots__ = (
        "_eligibility_of",
        "_first_high_watermark",
        "_followers",
        "_isr",
        "_lag_max_s",
        "_maximal_isr",
        "_min_insync_replicas",
        "_pending",
        "_removals_paused",
        "_settled",
        "deleted_below",
        "epoch_start_offset",
        "high_watermark",
        "leader_epoch",
        "node_id",
        "partition_epoch",
        "pauses",
    )

    def __init__(
        self,
        assignment: Assignment,
        start: LeaderStart,
        *,
        lag_max_s: float,
        now_s: float,
        eligibility_of: Callable[[int, int], Eligibility] = lambda _node_id, _broker_epoch: Eligibility.YES,
    ) -> None:
        """`assignment` makes this node the leader.  `eligibility_of(node id, broker epoch)` reads the applied
        metadata."""
        node_id, isr = assignment.leader, assignment.isr
        self.node_id = node_id
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.epoch_start_offset = start.log_end_offset
        self.high_watermark = start.high_watermark
        self._first_high_watermark = start.high_watermark
        self.deleted_below = start.log_start_offset
        """Clients may have been answered that records below are deleted: a follower joins the ISR only after
        it has durably moved its own log start there."""
        self._isr = frozenset(isr)
        self._maximal_isr = self._isr
        self._min_insync_replicas = assignment.min_insync_replicas
        self._lag_max_s = lag_max_s
        self._pending: PendingChange | None = None
        self._removals_paused = False
        self._eligibility_of = eligibility_of
        self.pauses = 0
        """The pauses (`end_pauses`) since the ISR grew or the metadata of a follower changed."""
        self._followers = {node: ReplicaProgress(node) for node in assignment.replicas if node != node_id}
        self._settled = self.replicas.difference(assignment.adding)
        if node_id not in self._isr:
            raise ValueError(
                f"node {node_id} was elected with ISR {sorted(self._isr)}, which does not contain it"
            )
        if not self._isr <= self.replicas:
            raise ValueError(f"ISR {sorted(self._isr)} is not within the replicas {sorted(self.replicas)}")
        if start.high_watermark > start.log_end_offset:
            raise ValueError(
                f"high watermark {start.high_watermark} is above the log's end {start.log_end_offset}"
            )
        for node in self._isr:
            # members of the ISR have one full lag time to fetch from their new leader
            if node in self._followers:
                self._followers[node].last_caught_up_s = now_s

    # ---- views ---------------------------------------------------------------------------------------------

    @property
    def isr(self) -> frozenset[int]:
        """The committed ISR: the newest one that the controller has accepted, as far as this leader knows."""
        return self._isr

    @property
    def pending(self) -> PendingChange | None:
        return self._pending

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that may be in the ISR once the pending change is decided, either way."""
        return self._maximal_isr

    @property
    def replicas(self) -> frozenset[int]:
        return frozenset(self._followers) | {self.node_id}

    @property
    def min_insync_replicas(self) -> int:
        """The configured minimum, but at most the number of replicas without those that a reassignment
        adds."""
        return min(self._min_insync_replicas, len(self._settled))

    def follower(self, node_id: int) -> ReplicaProgress:
        """Raises KafkaError NOT_LEADER_OR_FOLLOWER for a node that is not a replica in this leader's
        metadata."""
        found = self._followers.get(node_id)
        if found is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"node {node_id} fetched as a follower but the replicas are {sorted(self.replicas)}",
            )
        return found

    def is_under_min_isr(self) -> bool:
        return len(self._isr) < self.min_insync_replicas

    def is_under_replicated(self) -> bool:
        return not self._isr.issuperset(self._settled)

    def is_catching_up(self, node_id: int, leader_log_end: int, now_s: float) -> bool:
        """True when the high watermark does not wait for this follower, so that its fetches may be throttled:
        it is neither in the maximal ISR nor about to join."""
        progress = self._followers.get(node_id)
        if progress is None or node_id in self._maximal_isr:
            return False
        return not self._is_about_to_join(progress, leader_log_end, now_s)

    def is_confirmed(self) -> bool:
        """True once all records that the leader had at its election are committed (rule F4)."""
        return self.high_watermark >= self.epoch_start_offset

    # ---- fencing and acknowledgements ----------------------------------------------------------------------

    def check_epoch(self, current_leader_epoch: int, *, required: bool) -> None:
        """Fences a request by the leader epoch that it names; -1 (unknown) passes unless `required`
        (KIP-320).

        Raises KafkaError FENCED_LEADER_EPOCH (the sender's metadata are older) or UNKNOWN_LEADER_EPOCH (this
        node's are).
        """
        check_epoch(self.leader_epoch, current_leader_epoch, required=required)

    def check_before_append(self, required_acks: int) -> None:
        """Raises KafkaError NOT_ENOUGH_REPLICAS when acks=all could not be honoured at all (rule A3)."""
        if required_acks == -1 and self.is_under_min_isr():
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the ISR {sorted(self._isr)} has fewer than "
                f"min.insync.replicas={self.min_insync_replicas} members",
            )

    def commit_state(self, next_offset: int) -> ErrorCode | None:
        """None while records up to `next_offset` (exclusive) are not committed; else the acknowledgement for
        acks=all (rule A3)."""
        if self.high_watermark < next_offset:
            return None
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if self.is_under_min_isr() else ErrorCode.NONE

    # ---- progress ------------------------------------------------------------------------------------------

    def record_fetch(
        self, node_id: int, *, broker_epoch: int, fetch_offset: int, leader_log_end: int, now_s: float
    ) -> ReplicaProgress:
        """A follower's fetch that passed the epoch and divergence checks: everything below `fetch_offset` is
        flushed there.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER for a node that is not a replica, and for an older broker
        epoch (rule R7).
        """
        if not 0 <= fetch_offset <= leader_log_end:
            raise ValueError(
                f"fetch offset {fetch_offset} is not within the leader's log, which ends at {leader_log_end}"
            )
        progress = self.follower(node_id)
        if broker_epoch < progress.broker_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"node {node_id} fetched with broker epoch {broker_epoch}, but it has since "
                f"registered {progress.broker_epoch}",
            )
        if broker_epoch > progress.broker_epoch or now_s - progress.last_fetch_s > JOIN_SILENCE_S:
            progress.broker_epoch = broker_epoch
            progress.note(JoinEvent.FETCHES_AGAIN)
        if fetch_offset >= leader_log_end:
            progress.last_caught_up_s = max(progress.last_caught_up_s, now_s)
        elif 0 <= progress.leader_end_at_last_fetch <= fetch_offset:
            # It has everything that the leader had at its last fetch: it was caught up at that time.
            progress.last_caught_up_s = max(progress.last_caught_up_s, progress.last_fetch_s)
        progress.fetch_offset = fetch_offset
        if fetch_offset > progress.fetch_offset_max:
            progress.fetch_offset_max = fetch_offset
        progress.last_fetch_s = now_s
        progress.leader_end_at_last_fetch = leader_log_end
        return progress

    def on_append(self, old_log_end: int, now_s: float) -> None:
        """The leader appended at `old_log_end`: a follower whose offset that was had been caught up until
        now.

        In a fetch session a follower of an idle partition does not repeat its offset, so its last fetch may
        be long ago.
        """
        for progress in self._followers.values():
            if progress.fetch_offset == old_log_end:
                progress.last_caught_up_s = max(progress.last_caught_up_s, now_s)
                progress.last_fetch_s = max(progress.last_fetch_s, now_s)
                progress.leader_end_at_last_fetch = old_log_end

    def advance_high_watermark(self, leader_end: int, leader_log_end: int, now_s: float) -> bool:
        """Moves the high watermark as far as allowed; True when it moved.

        `leader_end` is the leader's own share (`Replica.leader_end`): its flushed end, or its log's end where
        the policy asks for no flush yet.
        """
        if self.is_under_min_isr():
            return False
        candidate = leader_end
        for node, progress in self._followers.items():
            if progress.fetch_offset < candidate and (
                node in self._maximal_isr or self._is_about_to_join(progress, leader_log_end, now_s)
            ):
                candidate = progress.fetch_offset
                if candidate <= self.high_watermark:
                    return False
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    def _is_about_to_join(self, progress: ReplicaProgress, leader_log_end: int, now_s: float) -> bool:
        """True for a follower outside the ISR that keeps up: the high watermark waits for it, or under load
        the follower could never reach the high watermark and join.

        This only holds the high watermark back, it never raises it.  A follower that has stopped fetching
        does not hold it: a broker keeps up until the end of its controlled shutdown, and would then delay
        every commit for `replica.lag.time.max.ms`.
        """
        if now_s - progress.last_fetch_s > JOIN_SILENCE_S:
            return False
        if not self._is_caught_up(progress, leader_log_end, now_s):
            return False
        return all(each.is_waited_for for each in self._join_obstacles(progress))

    def _join_obstacles(self, progress: ReplicaProgress) -> list[JoinObstacle]:
        """All of them: one must not hide another, which the high watermark does not wait for."""
        return [each for each in JoinObstacle if self._is_kept_out_by(each, progress)]

    def _is_kept_out_by(self, obstacle: JoinObstacle, progress: ReplicaProgress) -> bool:
        match obstacle:
            case JoinObstacle.PAUSED:
                return progress.join_paused
            case JoinObstacle.NOT_ELIGIBLE:
                return not self._is_eligible(progress)
            case JoinObstacle.BELOW_EPOCH_START:
                return progress.fetch_offset < self.epoch_start_offset
            case JoinObstacle.HAS_DELETED_RECORDS:
                return max(0, progress.log_start_offset) < self.deleted_below
            case JoinObstacle.BELOW_HIGH_WATERMARK:
                return progress.fetch_offset < self.high_watermark

    def _is_eligible(self, progress: ReplicaProgress) -> bool:
        return self._eligibility_of(progress.node_id, progress.broker_epoch) is Eligibility.YES

    def _is_caught_up(self, progress: ReplicaProgress, leader_log_end: int, now_s: float) -> bool:
        return progress.fetch_offset == leader_log_end or now_s - progress.last_caught_up_s <= self._lag_max_s

    # ---- ISR changes ---------------------------------------------------------------------------------------

    def propose_join(self, node_id: int) -> PendingChange | None:
        """The change that adds this follower to the ISR; None when it is in, may not join, or another change
        is pending."""
        if node_id in self._maximal_isr or self._pending is not None:
            return None
        if self._join_obstacles(self.follower(node_id)):
            return None
        return self._start(ChangeKind.EXPAND, self._isr | {node_id})

    def retry_pending(self) -> PendingChange | None:
        """The pending change, for `IsrChanges.maintain`.  One that is overdue is sent again."""
        change = self._pending
        if change is not None:
            self._advance(change, ChangeEvent.MAINTENANCE)
        return change

    def propose_removals(self, leader_log_end: int, now_s: float) -> PendingChange | None:
        """The change that removes members that have not caught up for `replica.lag.time.max.ms`."""
        if self._pending is not None or self._removals_paused:
            return None
        lagging = {
            node
            for node in self._isr
            if node != self.node_id
            and (
                node not in self._followers
                or not self._is_caught_up(self._followers[node], leader_log_end, now_s)
            )
        }
        if not lagging:
            return None
        return self._start(ChangeKind.SHRINK, self._isr - lagging)

    def propose_next_join(self) -> PendingChange | None:
        """Like `propose_join` for the first follower that may join; see `IsrChanges.propose_next`."""
        for node in self._followers:
            change = self.propose_join(node)
            if change is not None:
                return change
        return None

    @property
    def has_paused_changes(self) -> bool:
        """Whether a change may be proposed only after `end_pauses`.  A follower that is not eligible waits
        for metadata instead."""
        return self._removals_paused or any(
            progress.join_paused and node not in self._isr and self._is_eligible(progress)
            for node, progress in self._followers.items()
        )

    def brokers_changed(self, nodes: Container[int]) -> bool:
        """The applied metadata has changed for these brokers; True when one of them is a follower outside the
        ISR.  A follower that is eligible now may join without a pause; one that is not does not hold the high
        watermark.

        This ends a pending addition of a follower whose broker epoch is over: the metadata that ended that
        epoch does not have the addition, or a newer partition epoch would have ended it here, and the
        controller rejects it from then on.
        """
        matters = False
        for node, progress in self._followers.items():
            if node in nodes and node not in self._isr:
                matters, self.pauses = True, 0
                if self._is_eligible(progress):
                    progress.note(JoinEvent.ELIGIBLE)
        change = self._pending
        if change is not None and any(
            self._is_gone(member) for member in change.proposal.isr if member.node_id not in self._isr
        ):
            self._advance(change, ChangeEvent.JOINER_GONE)
        return matters

    def _is_gone(self, member: IsrMember) -> bool:
        if member.broker_epoch == UNKNOWN_BROKER_EPOCH:  # the controller accepts any registered epoch for it
            return False
        return self._eligibility_of(member.node_id, member.broker_epoch) is Eligibility.NEVER

    def end_pauses(self, recent_fetchers: Container[int]) -> None:
        """Lets the leader propose removals again, and additions of the followers in `recent_fetchers`; the
        shell limits the rate."""
        self._removals_paused = False
        for node, progress in self._followers.items():
            if node in recent_fetchers:
                progress.note(JoinEvent.PAUSE_OVER)

    def _start(self, kind: ChangeKind, nodes: frozenset[int]) -> PendingChange:
        members = tuple(IsrMember(node, self._broker_epoch_of(node)) for node in sorted(nodes))
        proposal = IsrProposal(self.leader_epoch, self.partition_epoch, members)
        self._pending = PendingChange(kind, proposal, nodes)
        self._refresh_maximal_isr()
        return self._pending

    def _broker_epoch_of(self, node: int) -> int:
        progress = self._followers.get(node)
        return UNKNOWN_BROKER_EPOCH if progress is None else progress.broker_epoch

    def _advance(self, change: PendingChange, event: ChangeEvent) -> None:
        change.state = TRANSITIONS[change.state, event]
        if change.state is ChangeState.ENDED:
            self._pending = None
            self._refresh_maximal_isr()

    def _refresh_maximal_isr(self) -> None:
        self._maximal_isr = self._isr if self._pending is None else self._isr | self._pending.nodes

    def complete_alter(self, change: PendingChange, result: IsrResult) -> AlterOutcome:
        """The controller's answer to `change`.  RETRY: a transient or unknown error, the shell sends the same
        change again later."""
        if change is not self._pending:
            return AlterOutcome.STALE
        is_ours = result.error is ErrorCode.NONE and result.leader_epoch == self.leader_epoch
        if is_ours and self.on_metadata(result.partition_epoch, result.isr):
            return AlterOutcome.SETTLED
        event = event_of(result.error)
        if event is ChangeEvent.REFUSED:  # the next try comes after `end_pauses`
            for node in change.nodes - self._isr:
                if node in self._followers:
                    self._followers[node].note(JoinEvent.REFUSED)
            self._removals_paused = change.kind is ChangeKind.SHRINK
        self._advance(change, event)
        return OUTCOMES[event]

    def on_metadata(
        self,
        partition_epoch: int,
        isr: Iterable[int],
        replicas: Iterable[int] | None = None,
        adding: Iterable[int] = (),
    ) -> bool:
        """The committed ISR at `partition_epoch`, from an answer or from the metadata log; False when it is
        not newer.

        `replicas` and `adding` come with the metadata log: a reassignment adds and removes replicas within a
        leader epoch.

        A newer partition epoch ends the pending change for good: its compare-and-set can no longer succeed.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        new_isr = frozenset(isr)
        if self.node_id not in new_isr:
            raise ValueError(
                f"ISR {sorted(new_isr)} of partition epoch {partition_epoch} leaves out its leader "
                f"{self.node_id}"
            )
        for node in self._isr - new_isr:
            if node in self._followers:
                self._followers[node].last_caught_up_s = NEVER_S  # fenced or lagging; its offset still counts
                self._followers[node].note(JoinEvent.REMOVED)
        # an ISR member is never left out of the count
        wanted = set(self._followers if replicas is None else replicas) | new_isr
        self._followers = {
            node: self._followers.get(node) or ReplicaProgress(node)
            for node in wanted
            if node != self.node_id
        }
        if replicas is not None:
            self._settled = self.replicas.difference(adding)
        for node in new_isr - self._isr:
            if node in self._followers:
                self._followers[node].note(JoinEvent.ADDED)
                self.pauses = 0
        self._isr = new_isr
        self.partition_epoch = partition_epoch
        self._removals_paused = False
        if self._pending is not None:
            self._advance(self._pending, ChangeEvent.METADATA)
        self._refresh_maximal_isr()
        return True

    def on_min_insync_replicas(self, min_insync_replicas: int) -> None:
        """The topic's configuration changed."""
        self._min_insync_replicas = min_insync_replicas

    # ---- invariants ----------------------------------------------------------------------------------------

    def validate(self, leader_log_end: int) -> None:
        """Raises AssertionError when an invariant does not hold; the simulators ask after every step, a node
        with `debug.validate` whenever the high watermark may move."""
        violations = list(self._violations(leader_log_end))
        if violations:
            raise AssertionError(
                f"the leader of epoch {self.leader_epoch} breaks its invariants: {'; '.join(violations)}"
            )

    def _violations(self, leader_log_end: int) -> Iterator[str]:
        isr, replicas, pending = self._isr, self.replicas, self._pending
        if not {self.node_id} <= isr <= replicas:
            yield f"ISR {sorted(isr)} of node {self.node_id} among the replicas {sorted(replicas)}"
        if not self._settled <= replicas:
            yield f"{sorted(self._settled - replicas)} are no replicas"
        if self._maximal_isr != (isr if pending is None else isr | pending.nodes):
            yield f"the maximal ISR is {sorted(self._maximal_isr)}, the ISR {sorted(isr)}, pending {pending}"
        if pending is not None:
            yield from self._pending_violations(pending)
        if not self._first_high_watermark <= self.high_watermark <= leader_log_end:
            yield (
                f"the high watermark {self.high_watermark}, from {self._first_high_watermark}, and the log "
                f"ends at {leader_log_end}"
            )
        if self.high_watermark == self._first_high_watermark:
            return
        for node in self._maximal_isr:
            progress = self._followers.get(node)
            if progress is not None and progress.fetch_offset_max < self.high_watermark:
                yield (
                    f"the high watermark is {self.high_watermark}, and follower {node}, which may be in the "
                    f"ISR, has never had more than {progress.fetch_offset_max}"
                )

    def _pending_violations(self, pending: PendingChange) -> Iterator[str]:
        epochs = pending.proposal.leader_epoch, pending.proposal.partition_epoch
        if epochs != (self.leader_epoch, self.partition_epoch):
            yield f"a change of epochs {epochs} is pending in {self.leader_epoch, self.partition_epoch}"
        members = frozenset(member.node_id for member in pending.proposal.isr)
        grows = pending.kind is ChangeKind.EXPAND
        if (
            members != pending.nodes
            or self.node_id not in members
            or not (self._isr < members if grows else members < self._isr)
        ):
            yield f"the ISR {sorted(self._isr)} and a pending {pending.kind.value} to {sorted(members)}"
