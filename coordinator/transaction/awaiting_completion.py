"""Requests that came while the markers of the last transaction are written: they wait a moment instead of being sent away.

Kafka answers CONCURRENT_TRANSACTIONS, and the producer comes again after a back-off of 20 to 100 ms; the markers are mostly
written within a few.  What waits is decided anew when COMPLETE is in the log, by the rules that hold then: it is as if the
request had come at that moment.  Volatile: a shard that is unloaded refuses whoever waits (`CoordinatorRuntime`).

Who may wait: clients that begin the next transaction by a request of its own (TV1), or ask for their identity, or end a
transaction that its epoch names (TV2).  Not an EndTxn of TV1, which names none: a repeated one that waited behind the beginning
of the next transaction would end that.  And not partition leaders that ask for a producer (KIP-890): a marker takes away the
guard that they hold while they ask, so they have to ask again after it (`TransactionEnlistment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .events import AddOffsets, AddPartitions, EndTxn, InitProducerId, TransactionEvent

HELD_PER_ID_MAX: Final = 4
"""A producer asks one thing at a time; more are other instances of it, or repetitions."""

Held = tuple[TransactionEvent, int]
"""An event and the token of its caller."""


def may_wait(event: TransactionEvent) -> bool:
    match event:
        case AddPartitions():
            return event.transaction_version < 2 and not event.verify_only
        case EndTxn():
            return event.transaction_version >= 2
        case InitProducerId() | AddOffsets():
            return True
        case _:
            return False


class RequestsAwaitingCompletion:
    """By transactional id, in the order in which they came."""

    def __init__(self, wait_ms: int) -> None:
        """`wait_ms` 0: nobody waits."""
        self._wait_ms = wait_ms
        self._held: dict[str, list[tuple[TransactionEvent, int, int]]] = {}

    def hold(self, transactional_id: str, event: TransactionEvent, token: int, now_ms: int) -> bool:
        """False when it has to be refused."""
        held = self._held.get(transactional_id, [])
        if not self._wait_ms or not may_wait(event) or len(held) >= HELD_PER_ID_MAX:
            return False
        self._held[transactional_id] = [*held, (event, token, now_ms + self._wait_ms)]
        return True

    def of(self, transactional_id: str) -> Sequence[Held]:
        return [(event, token) for event, token, _ in self._held.get(transactional_id, ())]

    def forget(self, transactional_id: str) -> None:
        """They are decided anew."""
        self._held.pop(transactional_id, None)

    def overdue(self, now_ms: int) -> list[int]:
        """Takes out those that have waited for long enough; their tokens."""
        tokens: list[int] = []
        for transactional_id, held in list(self._held.items()):
            late = [token for _, token, until_ms in held if until_ms <= now_ms]
            if late:
                tokens += late
                self._held[transactional_id] = [each for each in held if each[1] not in late]
                if not self._held[transactional_id]:
                    del self._held[transactional_id]
        return tokens

    def has_overdue(self, now_ms: int) -> bool:
        return any(until_ms <= now_ms for held in self._held.values() for _, _, until_ms in held)
