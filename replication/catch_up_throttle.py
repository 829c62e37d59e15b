"""How fast a leader serves replicas that nothing waits for: those outside the ISR that catch up (a move, a return, a new disk).

A token bucket over everything that this node sends to such replicas.  Members of the ISR, and followers about to join it, are
never held back: a write waits for them (`PartitionLeader.is_catching_up`).  So the limit says how much of a node's network and
disk a move may take from its clients; one that is lower than what is written to a partition lets that partition never catch up.
"""

from __future__ import annotations

BURST_S = 1.0


class CatchUpThrottle:
    """Pure: the caller supplies the time."""

    __slots__ = ("_bytes_per_s", "_filled_at_s", "_tokens")

    def __init__(self, bytes_per_s: int) -> None:
        """0: no limit."""
        self._bytes_per_s = bytes_per_s
        self._tokens = float(bytes_per_s)
        self._filled_at_s: float | None = None

    def set_limit(self, bytes_per_s: int) -> None:
        """From now on."""
        self._bytes_per_s = bytes_per_s

    @property
    def limits(self) -> bool:
        return self._bytes_per_s > 0

    def allowance(self, now_s: float) -> int:
        """Bytes that may be sent now; not above 0 while an earlier batch, which is never cut, is paid for."""
        if self._filled_at_s is not None:
            gained = max(0.0, now_s - self._filled_at_s) * self._bytes_per_s
            self._tokens = min(self._bytes_per_s * BURST_S, self._tokens + gained)
        self._filled_at_s = now_s
        return int(self._tokens)

    def sent(self, size: int) -> None:
        self._tokens -= size
