"""The lease on leadership: a node leads only while its session with the controller lasts.

A timer ends the lease (`suspend`), but a process that was paused reads requests from its sockets before its
timers run.  So the replica manager asks here before every append and every acknowledgement, and
`holds_session` reads the clock.

Most lost sessions come back after moments: a lost session is an `Outage` in the log, and a WARNING only when
it lasts.
"""

from __future__ import annotations

from collections.abc import Callable

from ...runtime import logs
from ...runtime.calm_logs import Outage
from ...wire.errors import ErrorCode, KafkaError

_log = logs.get(__name__)


class LeadershipLease:
    """`holds_session()`: the session with the controller is not over, by the clock."""

    def __init__(self, node_id: int, holds_session: Callable[[], bool]) -> None:
        self._node_id = node_id
        self._holds_session = holds_session
        self._suspended = ""
        self._outage = Outage(_log, "leadership_suspended")

    @property
    def is_good(self) -> bool:
        return not self._suspended and self._holds_session()

    def require(self) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER when another node may lead now."""
        if not self.is_good:
            why = self._suspended or "its session with the controller is over"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self._node_id} may not lead: {why}")

    def suspend(self, reason: str, leaderships: int, now_s: float) -> None:
        self._suspended = self._suspended or reason or "leadership is suspended"
        self.summarize(leaderships, now_s)

    def summarize(self, leaderships: int, now_s: float) -> None:
        """Called from time to time: writes the warning when the outage lasts."""
        if self._suspended:
            self._outage.failed(now_s, reason=self._suspended, leaderships=leaderships)

    def resume(self, leaderships: int, now_s: float) -> None:
        if self._suspended:
            _log.info("leadership_resumed", leaderships=leaderships)
        self._outage.over(now_s)
        self._suspended = ""
