"""DeleteRecords: a client moves the log start of a partition up (KIP-107).

Order: the leader notes its new log start on the disk (a restart must not bring deleted records back), moves
it, sends it to the followers with its next fetch responses, and answers the client once every in-sync replica
has moved and noted its own.  When the disk is full and the note fails, nothing has moved.  A follower that
joins the ISR later has moved and noted its log start too.
 So no later leader shows the records again, also after a power cut of all nodes.  While the ISR is below
 min.insync.replicas the
answer waits, because a replica outside the ISR may be elected.

A request that times out has moved the leader's log start even so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..runtime.clock import Clock
from ..storage.log.log import Log
from ..storage.topic_config import CleanupPolicy
from ..wire.errors import ErrorCode, KafkaError
from .partition.leader import PartitionLeader
from .replica.replica import Replica

HIGH_WATERMARK = -1
WAITING_MAX = 10_000


class RecordDeletions:
    """The DeleteRecords requests of one node that wait for followers; see the module's docstring."""

    def __init__(self, clock: Clock, note_start: Callable[[Log], Awaitable[None]]) -> None:
        """`note_start` makes a log start durable; it raises KAFKA_STORAGE_ERROR."""
        self._clock = clock
        self._note_start = note_start
        self._waiting: dict[Replica, set[asyncio.Event]] = {}

    async def delete_before(self, replica: Replica, offset: int, timeout_ms: int) -> int:
        """Removes the records below `offset` (-1: all that are committed); returns the least log start that
        the in-sync replicas have noted.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (a topic that is only
        compacted), REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
        """
        leader, log = replica.require_leader(), replica.log
        if CleanupPolicy.DELETE not in log.config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{log.name} is compacted: its cleanup.policy does not delete by offset",
            )
        target = log.high_watermark if offset == HIGH_WATERMARK else offset
        if target < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records of {log.name} cannot be deleted up to offset {target}",
            )
        if target > log.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {target} of {log.name} is above the high watermark {log.high_watermark}",
            )
        deadline_s = self._clock.monotonic() + timeout_ms / 1000
        await self._note(log, max(target, log.log_start_offset))
        if replica.leader is not leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{log.name} has another leader now")
        log.advance_log_start(target)
        leader.deleted_below = log.log_start_offset
        replica.watchers.state_changed()
        while (low := self._low_watermark(replica, leader)) < target:
            if not await self._change_of(replica, deadline_s - self._clock.monotonic()):
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"records of {log.name} below {target} are deleted on the leader; "
                    + (
                        f"a follower still keeps those from {low} on"
                        if low >= 0
                        else "too few replicas are in sync to say more"
                    ),
                )
        return low

    async def _note(self, log: Log, start: int) -> None:
        """Raises KAFKA_STORAGE_ERROR with nothing changed."""
        log.local.start_note.want(start)
        try:
            await self._note_start(log)
        except KafkaError:
            log.local.start_note.withdraw(start)
            raise
        # another request's failure withdrew the note, or the log was truncated or closed
        if log.local.start_note.noted < start:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log start of {log.name} could not be noted")

    @staticmethod
    def _low_watermark(replica: Replica, leader: PartitionLeader) -> int:
        if replica.leader is not leader:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{replica.topic}-{replica.partition} has another leader now",
            )
        if leader.is_under_min_isr():
            # an eligible leader outside the ISR (KIP-966), whose log start is unknown here, may lead next
            return -1
        followers = (
            leader.follower(node).log_start_offset for node in leader.maximal_isr if node != leader.node_id
        )
        # A later deletion may have moved the log start and not noted it, or noted it and not moved it yet: a
        # follower that joins meanwhile must have the old one.
        return min(leader.deleted_below, replica.log.noted_start_offset, *followers)

    async def _change_of(self, replica: Replica, wait_s: float) -> bool:
        """Waits for news of the replica's followers, its ISR or its role; False when time is up."""
        waiting = self._waiting.setdefault(replica, set())
        if wait_s <= 0 or len(waiting) >= WAITING_MAX:
            return False
        event = asyncio.Event()
        waiting.add(event)
        timer = self._clock.call_later(wait_s, event.set)
        try:
            await event.wait()
            return True
        finally:
            timer.cancel()
            waiting.discard(event)
            if not waiting and self._waiting.get(replica) is waiting:
                del self._waiting[replica]

    def progressed(self, replica: Replica) -> None:
        """A follower fetched, the ISR changed, or the replica changed its role."""
        for event in tuple(self._waiting.get(replica, ())):
            event.set()
