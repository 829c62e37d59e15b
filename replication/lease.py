"""The lease on leadership: a node leads while its session with the controller is good, and not a moment longer.

The end of a session is told (`suspend`) by a timer, and a process that slept finds requests in its sockets before its timers run.
So whoever appends or acknowledges asks here, and the clock is looked at then (`holds_session`).
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime import logs
from ..wire.errors import ErrorCode, KafkaError

_log = logs.get(__name__)


class Lease:
    """`holds_session()`: the session is good right now."""

    def __init__(self, node_id: int, holds_session: Callable[[], bool]) -> None:
        self._node_id = node_id
        self._holds_session = holds_session
        self._suspended = ""

    @property
    def is_good(self) -> bool:
        return not self._suspended and self._holds_session()

    def require(self) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER when another node may lead by now."""
        if not self.is_good:
            why = self._suspended or "its session with the controller is over"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self._node_id} may not lead: {why}")

    def suspend(self, reason: str, leaderships: int) -> None:
        if not self._suspended:
            _log.warning("leadership_suspended", reason=reason, leaderships=leaderships)
        self._suspended = reason or "leadership is suspended"

    def resume(self, leaderships: int) -> None:
        if self._suspended:
            _log.info("leadership_resumed", leaderships=leaderships)
        self._suspended = ""
