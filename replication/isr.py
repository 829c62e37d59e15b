"""The shell around ISR changes: collects what the leaders' cores propose, asks the controller in batches, returns its answers.

One call is in flight at a time; what is proposed meanwhile goes with the next.  A call that failed, or an answer that leaves the
outcome open, is repeated with the same change after a bounded back-off, for as long as the core still considers it pending: newer
metadata or another leadership ends it there, not here.  Followers whose joining was refused, or that were removed, are proposed
again after a pause, as long as they are heard of: in a fetch session an idle follower has no other occasion.  The pauses of one
partition grow until a change of it is accepted or there is news of a follower; refusals of one cost the others nothing.  A
refusal counts at once, whatever else was asked in the same call.  This file holds no rule of its own: see `PartitionLeader`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass

from ..runtime import logs
from ..runtime.calm_logs import Outage, SparingLines
from ..runtime.clock import Clock, Timer
from ..wire.errors import KafkaError
from .partition.assignment import IsrChange, IsrResult
from .partition.leader import AlterOutcome, PartitionLeader, PendingChange
from .replica.replica import Replica

AlterPartition = Callable[[list[IsrChange]], AsyncIterator[Sequence[IsrResult]]]
"""Yields results as they count: refusals at once, the others when the metadata that they rest on is applied."""

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
PAUSE_FIRST_S = 0.3
PAUSE_MAX_S = 5.0
PAUSE_STEP_S = 0.05
"""Pauses that end so close to each other end together."""
HEARD_WITHIN_S = 3.0
BATCH_MAX = 5_000

_log = logs.get(__name__)


@dataclass(slots=True, eq=False)
class _Queued:
    replica: Replica
    leader: PartitionLeader
    change: PendingChange

    def is_current(self) -> bool:
        return (
            self.replica.leader is self.leader and self.leader.pending is self.change and not self.change.awaits_metadata
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
        heard_of: Callable[[float], Container[int]],
    ) -> None:
        """`on_settled(replica)` runs after an answer changed what the leader may do: its high watermark may move now.

        `heard_of(seconds)` names the followers that fetched lately.
        """
        self._clock = clock
        self._heard_of = heard_of
        self._paused: dict[Replica, float] = {}  # until when
        self._pause_timer: Timer | None = None
        self._pause_timer_s = 0.0
        self._alter_partition = alter_partition
        self._on_settled = on_settled
        self._queue: list[_Queued] = []
        self._tracked: set[PendingChange] = set()  # queued or in flight
        self._task: asyncio.Task[None] | None = None
        self._unanswered = Outage(_log, "isr_changes_not_answered")
        self.lines = SparingLines(_log, "isr_change_answered", "isr_changes_answered")

    def submit(self, replica: Replica, change: PendingChange | None) -> None:
        """Queues a change that is pending in the replica's core; None is no change, and one already on its way stays one."""
        if change is None or replica.leader is None or change.awaits_metadata or change in self._tracked:
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
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="isr-changes")

    def propose_next(self, replica: Replica) -> None:
        """The ISR of `replica` was settled: who lags leaves, who may join joins, and what is refused for now comes later."""
        leader = replica.leader
        if leader is None:
            return
        self.submit(replica, leader.propose_removals(replica.log.log_end_offset, self._clock.monotonic()))
        self.submit(replica, leader.propose_next_join())
        if leader.has_paused_changes:
            self._propose_later(replica, leader)

    def maintain(self, replica: Replica) -> None:
        """Called from time to time: asks again what got lost, and removes what lags."""
        if (leader := replica.leader) is not None:
            self.submit(replica, leader.pending_again())
            self.submit(replica, leader.propose_removals(replica.log.log_end_offset, self._clock.monotonic()))

    def news_of_followers(self, replica: Replica) -> None:
        """What was refused before says nothing any more."""
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
            self._pause_timer = self._clock.call_later(max(PAUSE_STEP_S, due_s - self._clock.monotonic()), self._end_pauses)

    def _end_pauses(self) -> None:
        self._pause_timer = None
        now_s = self._clock.monotonic()
        due = [replica for replica, due_s in self._paused.items() if due_s <= now_s + PAUSE_STEP_S]
        present = self._heard_of(HEARD_WITHIN_S)
        for replica in due:
            del self._paused[replica]
            if replica.leader is not None:
                replica.leader.end_pauses(present)
                self.propose_next(replica)
        if self._paused:
            self._start_pause_timer(min(self._paused.values()))

    async def close(self) -> None:
        """Stops sending; what was pending stays pending in the cores."""
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
                self._tracked.difference_update({queued.change for queued in taken} - {queued.change for queued in again})
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
        """One call; returns what has to be sent again."""
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
        """One answer; what it lets the leader do happens at once."""
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
