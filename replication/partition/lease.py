"""The lease on leadership: a node leads while its session with the controller is good, and not a moment longer.

The end of a session is told (`suspend`) by a timer, and a process that slept finds requests in its sockets before its timers run.
So whoever appends or acknowledges asks here, and the clock is looked at then (`holds_session`).

A session that is over is over for moments, mostly: it is an `Outage` in the log, and a WARNING only when it lasts.
"""

from __future__ import annotations

from collections.abc import Callable

from ...runtime import logs
from ...runtime.calm_logs import Outage
from ...wire.errors import ErrorCode, KafkaError

_log = logs.get(__name__)


class Lease:
    """`holds_session()`: the session is good right now."""

    def __init__(self, node_id: int, holds_session: Callable[[], bool]) -> None:
        self._node_id = node_id
        self._holds_session = holds_session
        self._suspended = ""
        self._outage = Outage(_log, "leadership_suspended")

    @property
    def is_good(self) -> bool:
        return not self._suspended and self._holds_session()

    def require(self) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER when another node may lead by now."""
        if not self.is_good:
            why = self._suspended or "its session with the controller is over"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self._node_id} may not lead: {why}")

    def suspend(self, reason: str, leaderships: int, now_s: float) -> None:
        self._suspended = self._suspended or reason or "leadership is suspended"
        self.tell(leaderships, now_s)

    def tell(self, leaderships: int, now_s: float) -> None:
        """To be called from time to time: says what lasts."""
        if self._suspended:
            self._outage.failed(now_s, reason=self._suspended, leaderships=leaderships)

    def resume(self, leaderships: int, now_s: float) -> None:
        if self._suspended:
            _log.info("leadership_resumed", leaderships=leaderships)
        self._outage.over(now_s)
        self._suspended = ""
