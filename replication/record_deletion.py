"""DeleteRecords: a client moves the log start of a partition up (KIP-107).

Order: the leader notes its new log start on the disk (a restart must not bring deleted records back), moves
it, sends it to the followers with its next fetch responses, and answers the client once every in-sync replica
has moved and noted its own.  When the disk is full and the note fails, nothing has moved.  A follower that
joins the ISR later has moved and noted its log start too.  So no later leader shows the records again, also
after a power cut of all nodes.  While the ISR is below min.insync.replicas the answer waits, because a
replica outside the ISR may be elected.

A request that times out, or that ends because this node may not lead any more, has moved the leader's log
start even so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..runtime import logs
from ..runtime.calm_logs import RateLimitedLines
from ..runtime.clock import Clock
from ..storage.log.log import Log
from ..storage.topic_config import CleanupPolicy
from ..wire.errors import ErrorCode, KafkaError
from .partition.leader import PartitionLeader
from .partition.lease import LeadershipLease
from .replica.replica import Replica

_log = logs.get(__name__)

HIGH_WATERMARK = -1
WAITING_MAX = 10_000


class _Deletion:
    """One request: what it has to look at again, and the code that has ended it."""

    __slots__ = ("ended_with", "news")

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.ended_with: ErrorCode | None = None


class RecordDeletions:
    """The DeleteRecords requests of one node that wait for followers; see the module's docstring."""

    def __init__(
        self, clock: Clock, lease: LeadershipLease, note_start: Callable[[Log], Awaitable[None]]
    ) -> None:
        """`note_start` makes a log start durable; it raises KAFKA_STORAGE_ERROR."""
        self._clock = clock
        self._lease = lease
        self._note_start = note_start
        self._waiting: dict[Replica, set[_Deletion]] = {}
        self.lines = RateLimitedLines(_log, "deletion_refused", "deletions_refused")

    async def delete_before(self, replica: Replica, offset: int, timeout_ms: int) -> int:
        """Removes the records below `offset` (-1: all that are committed); returns the least log start that
        the in-sync replicas have noted.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (a topic that is only
        compacted, records that a pinned cut keeps), REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR.
        """
        self._lease.require()
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
        pin = next((each for each in log.pins if each.start < target), None)
        if pin is not None:
            # the answer of the protocol has an error code, and no text
            self.lines.line(
                self._clock.monotonic(), "pinned", log=log.name, pinned_cut=pin.name, keeps_from=pin.start
            )
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"the pinned cut {pin.name!r} keeps the records of {log.name} from {pin.start} on: "
                "`tidegate cuts unpin` lets go of them",
            )
        deadline_s = self._clock.monotonic() + timeout_ms / 1000
        deletion = _Deletion()
        waiting = self._waiting.setdefault(replica, set())
        waiting.add(deletion)
        try:
            return await self._delete(replica, leader, target, deadline_s, deletion)
        finally:
            waiting.discard(deletion)
            if not waiting and self._waiting.get(replica) is waiting:
                del self._waiting[replica]

    async def _delete(
        self, replica: Replica, leader: PartitionLeader, target: int, deadline_s: float, deletion: _Deletion
    ) -> int:
        log = replica.log
        await self._note(log, max(target, log.log_start_offset))
        if replica.leader is not leader:
            raise self._ended(replica, deletion)
        log.advance_log_start(target)
        leader.deleted_below = log.log_start_offset
        replica.watchers.state_changed()
        while True:
            if replica.leader is not leader or deletion.ended_with is not None:
                raise self._ended(replica, deletion)
            self._lease.require()
            if (low := self._low_watermark(replica, leader)) >= target:
                return low
            if not await self._news_of(replica, deletion, deadline_s - self._clock.monotonic()):
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"records of {log.name} below {target} are deleted on the leader; "
                    + (
                        f"a follower still keeps those from {low} on"
                        if low >= 0
                        else "too few replicas are in sync to say more"
                    ),
                )

    @staticmethod
    def _ended(replica: Replica, deletion: _Deletion) -> KafkaError:
        code = deletion.ended_with or ErrorCode.NOT_LEADER_OR_FOLLOWER
        return KafkaError(code, f"node {replica.node_id} may not lead {replica.log.name} any more")

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
        if leader.is_under_min_isr():
            # an eligible leader outside the ISR (KIP-966), whose log start is unknown here, may lead next
            return -1
        followers = (
            leader.follower(node).log_start_offset for node in leader.maximal_isr if node != leader.node_id
        )
        # A later deletion may have moved the log start and not noted it, or noted it and not moved it yet: a
        # follower that joins meanwhile must have the old one.
        return min(leader.deleted_below, replica.log.noted_start_offset, *followers)

    async def _news_of(self, replica: Replica, deletion: _Deletion, wait_s: float) -> bool:
        """Waits for news of the replica's followers or its ISR, or for `end`; False when time is up."""
        if wait_s <= 0 or len(self._waiting[replica]) > WAITING_MAX:
            return False
        deletion.news.clear()
        timer = self._clock.call_later(wait_s, deletion.news.set)
        try:
            await deletion.news.wait()
            return True
        finally:
            timer.cancel()

    def progressed(self, replica: Replica) -> None:
        """A follower fetched, or the ISR changed."""
        for deletion in self._waiting.get(replica, ()):
            deletion.news.set()

    def end(self, replica: Replica, code: ErrorCode) -> None:
        """Answers all that wait for this replica; its own log start may have moved."""
        for deletion in self._waiting.get(replica, ()):
            deletion.ended_with = deletion.ended_with or code
            deletion.news.set()
