"""Acknowledgements of acks=all that wait for the high watermark, over all partitions of the node.  Kafka's
purgatory of delayed produce requests.

Promises

* Every callback is called exactly once: when the records are committed, when the leadership or the replica is
  gone, or at the deadline.
* At most `waiting_max` wait; one more is answered at once.
* Nothing is acknowledged while the lease on leadership is not good.
"""

from __future__ import annotations

from collections.abc import Callable

from ...runtime.clock import Clock, Timer
from ...wire.errors import ErrorCode
from ..partition.lease import LeadershipLease
from .replica import Replica, Role
from .waiters import SWEEP_INTERVAL_S, AckCallback


class DelayedProduce:
    """See the module's text."""

    def __init__(
        self, clock: Clock, lease: LeadershipLease, waiting_max: int, progress: Callable[[Replica], None]
    ) -> None:
        """`progress` moves a replica's high watermark as far as allowed now."""
        self._clock = clock
        self._lease = lease
        self._waiting_max = waiting_max
        self._progress = progress
        self._waiting_count = 0
        self._replicas = set[Replica]()
        self._sweep: Timer | None = None

    def when_committed(
        self,
        replica: Replica | None,
        leader_epoch: int,
        next_offset: int,
        timeout_ms: int,
        callback: AckCallback,
    ) -> None:
        """See `ReplicaManager.when_committed`."""
        leader = None if replica is None else replica.leader
        if replica is None or leader is None or leader.leader_epoch != leader_epoch:
            offline = replica is not None and replica.role is Role.OFFLINE
            callback(ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        code = leader.commit_state(next_offset) if self._lease.is_good else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code is None and (timeout_ms <= 0 or self._waiting_count >= self._waiting_max):
            code = ErrorCode.REQUEST_TIMED_OUT
        if code is not None:
            callback(code)
            return
        self._waiting_count += 1
        replica.acks.add(next_offset, self._clock.monotonic() + timeout_ms / 1000, callback)
        self._replicas.add(replica)
        if self._sweep is None:
            self._sweep = self._clock.call_later(SWEEP_INTERVAL_S, self._expire)

    def complete(self, replica: Replica) -> None:
        """The replica's high watermark moved, or the lease is good again."""
        if replica.acks and replica.leader is not None and self._lease.is_good:
            self._waiting_count -= replica.acks.complete(replica.leader)

    def complete_all(self) -> None:
        for replica in tuple(self._replicas):
            self.complete(replica)

    def end(self, replica: Replica, code: ErrorCode) -> None:
        """Answers all that wait for this replica; the outcome of their writes is unknown."""
        self._waiting_count -= replica.acks.fail(code)
        self._replicas.discard(replica)

    def _expire(self) -> None:
        self._sweep = None
        now_s = self._clock.monotonic()
        for replica in tuple(self._replicas):
            self._progress(replica)  # a silent follower stops holding the high watermark by time alone
            under_min = replica.leader is not None and replica.leader.is_under_min_isr()
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if under_min else ErrorCode.REQUEST_TIMED_OUT
            self._waiting_count -= replica.acks.expire(now_s, code)
            if not replica.acks:
                self._replicas.discard(replica)
        if self._replicas:
            self._sweep = self._clock.call_later(SWEEP_INTERVAL_S, self._expire)

    def close(self) -> None:
        """The caller has ended all that waited."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = None
