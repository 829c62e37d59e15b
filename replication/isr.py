"""The shell around ISR changes: collects what the leaders' cores propose, asks the controller in batches, returns its answers.

One call is in flight at a time; what is proposed meanwhile goes with the next.  A call that failed, or an answer that leaves the
outcome open, is repeated with the same change after a bounded back-off, for as long as the core still considers it pending: newer
metadata or another leadership ends it there, not here.  Followers whose joining was refused, or that were removed, are proposed
again after a pause that grows while refusals go on, as long as they are heard of: in a fetch session an idle follower has no
other occasion.  This file holds no rule of its own; see `leader.PartitionLeader`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass

from ..runtime import logs
from ..runtime.calm_logs import Outage, SparingLines
from ..runtime.clock import Clock, Timer
from ..wire.errors import ErrorCode, KafkaError
from .assignment import IsrChange, IsrResult
from .leader import AlterOutcome, PartitionLeader, PendingChange
from .replica import Replica

AlterPartition = Callable[[list[IsrChange]], Awaitable[Sequence[IsrResult]]]

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
PAUSE_FIRST_S = 0.3
PAUSE_MAX_S = 5.0
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
        self._paused: set[Replica] = set()
        self._pause_timer: Timer | None = None
        self._pauses = 0
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

    def propose_paused_later(self, replica: Replica) -> None:
        """Some follower of `replica` may not join for now: try again after the pause."""
        self._paused.add(replica)
        if self._pause_timer is None:
            delay_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(self._pauses, 10))
            self._pause_timer = self._clock.call_later(delay_s, self._end_pauses)

    def _end_pauses(self) -> None:
        self._pause_timer = None
        self._pauses += 1  # until something is accepted
        paused, self._paused = self._paused, set()
        present = self._heard_of(HEARD_WITHIN_S)
        for replica in paused:
            if replica.leader is not None:
                replica.leader.end_pauses(present)
                self.submit(replica, replica.leader.propose_next_join())
                if replica.leader.has_paused_joins:
                    self.propose_paused_later(replica)

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
        try:
            results = await self._alter_partition([queued.as_change() for queued in batch])
        except (KafkaError, OSError, TimeoutError) as error:
            self._unanswered.failed(self._clock.monotonic(), error=str(error), changes=len(batch))
            return batch
        self._unanswered.over(self._clock.monotonic())
        by_key = {(result.topic, result.partition): result for result in results}
        again: list[_Queued] = []
        for queued in batch:
            replica = queued.replica
            result = by_key.get(replica.key) or IsrResult(replica.topic, replica.partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            outcome = AlterOutcome.STALE
            if replica.leader is queued.leader:
                outcome = queued.leader.complete_alter(queued.change, result)
            if outcome is AlterOutcome.RETRY:
                again.append(queued)
            elif outcome is AlterOutcome.SETTLED:
                if result.error is ErrorCode.NONE:
                    self._pauses = 0
                self._on_settled(replica)
            if outcome is not AlterOutcome.STALE:
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
        return again
