"""The shell around ISR changes: collects the changes that partition leaders propose, sends them to the
controller in batches (AlterPartition), and gives the answers back to the leaders.

One call is in flight at a time; changes proposed meanwhile go with the next one.  After a failed call, or an
answer that leaves the outcome open, the shell sends the same change again after a bounded back-off, as long
as the leader's core has it pending: newer metadata or another leadership ends it there, not here.

When the controller has rejected a follower, or has removed it from the ISR, the leader proposes it again
after a pause, as long as it fetches from this node: in a fetch session the fetches of an idle follower do not
name the partition.  The pauses of a partition grow until the controller accepts a change of it or the
metadata of a follower changes.  A rejection counts at once, before the other results of its call.  This
module has no rule of its own: see `PartitionLeader`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass

from ..runtime import logs
from ..runtime.calm_logs import Outage, RateLimitedLines
from ..runtime.clock import Clock, Timer
from ..runtime.tasks import OnFailure, spawn
from ..wire.errors import KafkaError
from .partition.assignment import IsrChange, IsrResult
from .partition.isr_change import AlterOutcome, ChangeState, PendingChange
from .partition.leader import PartitionLeader
from .replica.replica import Replica

AlterPartition = Callable[[list[IsrChange]], AsyncIterator[Sequence[IsrResult]]]
"""Yields rejections at once, and the other results when this node has applied their metadata."""

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
PAUSE_FIRST_S = 0.3
PAUSE_MAX_S = 5.0
PAUSE_STEP_S = 0.05
"""Pauses whose ends are so close to each other end together."""
RECENT_FETCH_S = 3.0
"""A follower that has fetched within this time may be proposed again."""
BATCH_MAX = 5_000

_log = logs.get(__name__)


@dataclass(slots=True, eq=False)
class _Queued:
    replica: Replica
    leader: PartitionLeader
    change: PendingChange

    def is_current(self) -> bool:
        return (
            self.replica.leader is self.leader
            and self.leader.pending is self.change
            and self.change.state is ChangeState.SENT
        )

    def as_change(self) -> IsrChange:
        proposal = self.change.proposal
        return IsrChange(
            self.replica.topic,
            self.replica.topic_id,
            self.replica.partition,
            proposal.leader_epoch,
            proposal.partition_epoch,
            proposal.isr,
        )


class IsrChanges:
    """The queue of ISR changes of one node, and the task that sends them."""

    def __init__(
        self,
        clock: Clock,
        alter_partition: AlterPartition,
        on_settled: Callable[[Replica], None],
        recent_fetchers: Callable[[float], Container[int]],
        on_failure: OnFailure,
    ) -> None:
        """`on_settled(replica)` runs after an answer that ended the pending change: the high watermark may
        move now.

        `recent_fetchers(seconds)` are the followers that fetched from this node within that time.
        `on_failure(error)`: a defect ended the task in spite of its own handler.
        """
        self._on_failure = on_failure
        self._clock = clock
        self._recent_fetchers = recent_fetchers
        self._paused: dict[Replica, float] = {}  # replica -> the end of its pause
        self._pause_timer: Timer | None = None
        self._pause_timer_s = 0.0
        self._alter_partition = alter_partition
        self._on_settled = on_settled
        self._queue: list[_Queued] = []
        self._tracked: set[PendingChange] = set()  # queued or in flight
        self._task: asyncio.Task[None] | None = None
        self._unanswered = Outage(_log, "isr_changes_not_answered")
        self.lines = RateLimitedLines(_log, "isr_change_answered", "isr_changes_answered")

    def submit(self, replica: Replica, change: PendingChange | None) -> None:
        """Queues a change that is pending in the leader's core.  Ignores None, and a change that is queued or
        in flight already."""
        if change is None or change.state is not ChangeState.SENT:
            return
        if replica.leader is None or change in self._tracked:
            return
        self._tracked.add(change)
        _log.debug(
            "isr_change_proposed",
            topic=replica.topic,
            partition=replica.partition,
            kind=change.kind.value,
            isr=sorted(change.nodes),
            leader_epoch=change.proposal.leader_epoch,
            partition_epoch=change.proposal.partition_epoch,
        )
        self._queue.append(_Queued(replica, replica.leader, change))
        if self._task is None:
            self._task = spawn(self._send_all(), "isr-changes", self._on_failure)

    def propose_next(self, replica: Replica) -> None:
        """Proposes to remove lagging followers or to add the next one, and plans the end of the pauses: after
        an ISR change, at news of a follower, and at the end of a pause."""
        leader = replica.leader
        if leader is None:
            return
        self.submit(replica, leader.propose_removals(replica.log.log_end_offset, self._clock.monotonic()))
        self.submit(replica, leader.propose_next_join())
        if leader.has_paused_changes:
            self._propose_later(replica, leader)

    def maintain(self, replica: Replica) -> None:
        """Called from time to time: sends a lost change again, and proposes to remove lagging followers.  It
        proposes no join: what ends an obstacle (`JoinObstacle`) is an event that does (`JoinTrigger`)."""
        if (leader := replica.leader) is not None:
            self.submit(replica, leader.retry_pending())
            self.submit(replica, leader.propose_removals(replica.log.log_end_offset, self._clock.monotonic()))

    def news_of_followers(self, replica: Replica) -> None:
        """The metadata of a follower changed: earlier rejections do not count, so the pause ends at once."""
        self._paused.pop(replica, None)
        self.propose_next(replica)

    def _propose_later(self, replica: Replica, leader: PartitionLeader) -> None:
        if replica in self._paused:
            return
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(leader.pauses, 10))
        leader.pauses += 1
        due_s = self._paused[replica] = self._clock.monotonic() + pause_s
        if self._pause_timer is not None and due_s < self._pause_timer_s:
            self._pause_timer.cancel()
            self._pause_timer = None
        self._start_pause_timer(due_s)

    def _start_pause_timer(self, due_s: float) -> None:
        if self._pause_timer is None:
            self._pause_timer_s = due_s
            self._pause_timer = self._clock.call_later(
                max(PAUSE_STEP_S, due_s - self._clock.monotonic()), self._end_pauses
            )

    def _end_pauses(self) -> None:
        self._pause_timer = None
        now_s = self._clock.monotonic()
        due = [replica for replica, due_s in self._paused.items() if due_s <= now_s + PAUSE_STEP_S]
        recent_fetchers = self._recent_fetchers(RECENT_FETCH_S)
        for replica in due:
            del self._paused[replica]
            if replica.leader is not None:
                replica.leader.end_pauses(recent_fetchers)
                self.propose_next(replica)
        if self._paused:
            self._start_pause_timer(min(self._paused.values()))

    async def close(self) -> None:
        """Stops sending; changes that are pending stay pending in the cores."""
        task, self._task = self._task, None
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        self._paused.clear()
        self._queue.clear()
        self._tracked.clear()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_all(self) -> None:
        failures = 0
        try:
            while self._queue:
                taken, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
                batch = [queued for queued in taken if queued.is_current()]
                again = await self._send(batch) if batch else []
                self._tracked.difference_update(
                    {queued.change for queued in taken} - {queued.change for queued in again}
                )
                if again:
                    self._queue[:0] = again
                    await self._clock.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures, 10)))
                    failures += 1
                else:
                    failures = 0
        except Exception:
            _log.exception("isr_changes_stopped")  # the maintenance task submits anew what is still pending
            self._queue.clear()
            self._tracked.clear()
        finally:
            if self._task is asyncio.current_task():
                self._task = None

    async def _send(self, batch: list[_Queued]) -> list[_Queued]:
        """One call to the controller; returns the changes that must be sent again."""
        waiting = {queued.replica.key: queued for queued in batch}
        again: list[_Queued] = []
        try:
            async for results in self._alter_partition([queued.as_change() for queued in batch]):
                for result in results:
                    queued = waiting.pop((result.topic, result.partition), None)
                    if queued is not None and self._take(queued, result) is AlterOutcome.RETRY:
                        again.append(queued)
        except (KafkaError, OSError, TimeoutError) as error:
            self._unanswered.failed(self._clock.monotonic(), error=str(error), changes=len(waiting))
        else:
            self._unanswered.over(self._clock.monotonic())
        return [*again, *waiting.values()]

    def _take(self, queued: _Queued, result: IsrResult) -> AlterOutcome:
        """Gives one result to the leader's core, which acts on it at once."""
        replica = queued.replica
        if replica.leader is not queued.leader:
            return AlterOutcome.STALE
        outcome = queued.leader.complete_alter(queued.change, result)
        if outcome is AlterOutcome.STALE:
            return outcome
        if outcome is AlterOutcome.SETTLED:
            self._on_settled(replica)
        self.lines.line(
            self._clock.monotonic(),
            outcome.value,
            topic=replica.topic,
            partition=replica.partition,
            error=result.error.name,
            outcome=outcome.value,
            kind=queued.change.kind.value,
            isr=sorted(queued.leader.isr),
            leader_epoch=queued.change.proposal.leader_epoch,
        )
        return outcome
