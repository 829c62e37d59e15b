"""How fast replicas that nothing waits for are served, and fetch: those outside the ISR, after a move, a
return, with a new disk.

A token bucket over everything that this node sends to such replicas, or fetches as one.  Members of the ISR,
and followers about to join it, are never held back: a write waits for them
(`PartitionLeader.is_catching_up`).  So the limit says how much of a node's network and disk a move may take
from its clients; one below what is written to a partition lets it never catch up.

There are three of them: `replica.catch.up.max.bytes.per.second` for all such replicas, and Kafka's two
(KIP-73), for those that the topic names: `leader.replication.throttled.rate` where they are sent from,
`follower.replication.throttled.rate` where they arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

BURST_S = 1.0
DELAY_MAX_S = 1.0
"""After this the limit is looked at again: it may be another one."""


class CatchUpThrottle:
    """Pure: the caller supplies the time."""

    __slots__ = ("_bytes_per_s", "_filled_at_s", "_limit", "_tokens")

    def __init__(self, limit: Callable[[], int | None]) -> None:
        """`limit()`: bytes a second as they are set now.  None: no limit.  0: nothing at all."""
        self._limit = limit
        self._begin_afresh(limit())

    def _begin_afresh(self, bytes_per_s: int | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._tokens = float(bytes_per_s or 0)
        self._filled_at_s: float | None = None

    @property
    def limits(self) -> bool:
        """Whether there is a limit.  Another one than before begins afresh: what was sent under the old one
        is not its debt."""
        if (bytes_per_s := self._limit()) != self._bytes_per_s:
            self._begin_afresh(bytes_per_s)
        return bytes_per_s is not None

    def allowance(self, now_s: float) -> int:
        """Bytes that may be sent now; not above 0 while an earlier batch, which is never cut, is paid for."""
        bytes_per_s = (self._bytes_per_s or 0) if self.limits else 0
        if self._filled_at_s is not None:
            gained = max(0.0, now_s - self._filled_at_s) * bytes_per_s
            self._tokens = min(bytes_per_s * BURST_S, self._tokens + gained)
        self._filled_at_s = now_s
        return int(self._tokens)

    def delay_s(self, now_s: float) -> float:
        """How long it takes until something may be sent, at most `DELAY_MAX_S`; 0: something may be sent
        now."""
        if not self.limits or self.allowance(now_s) > 0:
            return 0.0
        return min(DELAY_MAX_S, (1 - self._tokens) / self._bytes_per_s) if self._bytes_per_s else DELAY_MAX_S

    def sent(self, size: int) -> None:
        if self.limits:
            self._tokens -= size


def is_throttled(replicas: str, partition: int, node_id: int) -> bool:
    """Whether `{leader,follower}.replication.throttled.replicas` names this replica: `*`, or
    `partition:broker,...`."""
    return bool(replicas) and (replicas == "*" or f"{partition}:{node_id}" in _pairs(replicas))


@lru_cache(maxsize=256)
def _pairs(replicas: str) -> frozenset[str]:
    """All replicas of a topic share one; a move of a large topic names thousands.  What is no pair of
    numbers, because a later version knows it, names no replica."""
    pairs = (part.split(":") for part in replicas.replace(" ", "").split(","))
    return frozenset(
        ":".join(str(int(number)) for number in pair) for pair in pairs if all(map(str.isdecimal, pair))
    )
