"""Requests that arrive before the last transaction of their id is complete (its markers are not all written)
wait for a moment.

Kafka answers CONCURRENT_TRANSACTIONS, and the producer retries after a back-off of 20 to 100 ms; the markers
are mostly written within a few.  Once COMPLETE is in the log the shard handles a waiting request as if it had
arrived at that moment.  Volatile: when a shard is unloaded, the runtime answers its waiting requests with
NOT_COORDINATOR.

These may wait: a client's request that begins the next transaction (TV1), InitProducerId, and an EndTxn that
names its transaction by its epoch (TV2).  An EndTxn of TV1 names none and may not: a repeated one that waited
behind the beginning of the next transaction would end that one.  A partition leader that enlists or verifies
for a producer (KIP-890) may not either: a marker ends the guard that the leader holds while it asks, so it
has to ask again after the marker (`TransactionEnlistment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .cut_events import ExpireHolds, HoldDecisions, ReleaseDecisions
from .events import (
    AddOffsets,
    AddPartitions,
    DescribeTransactions,
    EndTxn,
    ExpireAwaitingCompletion,
    ExpireTransactions,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    PrepareTransaction,
    TimeoutTransaction,
    TransactionEvent,
)
from .job_events import (
    AbortJob,
    CarryOutJob,
    CommitJob,
    DescribeJob,
    ForgetJobs,
    ListJobs,
    OpenAttempt,
    PrepareAttempt,
    RenewJob,
    TimeoutJob,
)

AWAITING_PER_ID_MAX: Final = 4
"""A producer sends one request at a time; more come from its other instances, or are repetitions."""


def may_wait(event: TransactionEvent) -> bool:
    match event:
        case AddPartitions():
            return event.transaction_version < 2 and not event.verify_only
        case EndTxn():
            return event.transaction_version >= 2
        case InitProducerId() | AddOffsets() | OpenAttempt():
            return True
        case (
            PrepareTransaction()
            | MarkersWritten()
            | TimeoutTransaction()
            | ExpireTransactions()
            | ListTransactions()
            | DescribeTransactions()
            | ExpireAwaitingCompletion()
            | PrepareAttempt()
            | RenewJob()
            | CommitJob()
            | AbortJob()
            | TimeoutJob()
            | CarryOutJob()
            | ForgetJobs()
            | ListJobs()
            | DescribeJob()
            | HoldDecisions()
            | ReleaseDecisions()
            | ExpireHolds()
        ):
            return False


class RequestsAwaitingCompletion:
    """The tokens of the waiting requests by transactional id, in order of arrival."""

    def __init__(self, wait_ms: int) -> None:
        """`wait_ms` 0: no request waits."""
        self._wait_ms = wait_ms
        self._requests: dict[str, list[tuple[int, int]]] = {}

    def add(self, transactional_id: str, event: TransactionEvent, token: int, now_ms: int) -> bool:
        """Keeps the request; False when the shard has to reject it instead."""
        waiting = self._requests.get(transactional_id, [])
        if not self._wait_ms or not may_wait(event) or len(waiting) >= AWAITING_PER_ID_MAX:
            return False
        self._requests[transactional_id] = [*waiting, (token, now_ms + self._wait_ms)]
        return True

    def tokens_of(self, transactional_id: str) -> Sequence[int]:
        return [token for token, _ in self._requests.get(transactional_id, ())]

    def remove(self, transactional_id: str) -> None:
        """The shard handles them anew, so they wait no longer."""
        self._requests.pop(transactional_id, None)

    def take_overdue(self, now_ms: int) -> list[int]:
        """Removes the requests that have waited for `wait_ms`, and returns their tokens."""
        tokens: list[int] = []
        for transactional_id, waiting in list(self._requests.items()):
            late = [token for token, until_ms in waiting if until_ms <= now_ms]
            if late:
                tokens += late
                self._requests[transactional_id] = [each for each in waiting if each[0] not in late]
                if not self._requests[transactional_id]:
                    del self._requests[transactional_id]
        return tokens

    def has_overdue(self, now_ms: int) -> bool:
        return any(until_ms <= now_ms for waiting in self._requests.values() for _, until_ms in waiting)
