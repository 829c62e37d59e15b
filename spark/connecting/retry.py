"""How long a read or a write retries, and how long a read waits for a silent node."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

from ...runtime.clock import Clock
from ...runtime.logs import get

log = get(__name__)

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0
LOOKS_A_TIMEOUT: Final = 20
SILENT_S_MAX: Final = 5.0
"""After so long without an answer a person who waits is told why."""
UNKNOWN_TOPIC_TIMEOUT_S = 5.0
"""A topic made a moment ago may be unknown to the node that is asked."""


class RetryBudget:
    """Bounds the attempts of one operation: a growing, jittered back-off, and a timeout without progress.

    A shorter timeout holds for a topic that is not in the metadata, from the first such answer on.
    """

    __slots__ = (
        "_clock", "_deadline", "_delay_s", "_is_told", "_timeout_s", "_unknown_deadline", "_unknown_topic_s",
    )  # fmt: skip

    def __init__(self, clock: Clock, timeout_s: float, unknown_topic_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._unknown_topic_s = unknown_topic_s
        self.renew()

    def renew(self) -> None:
        """After progress: the whole timeout is available again."""
        self._deadline = self._clock.monotonic() + self._timeout_s
        self._unknown_deadline: float | None = None
        self._delay_s = BACKOFF_FIRST_S
        self._is_told = False

    def wait(self, *, topic_unknown: bool = False, reason: object = None) -> bool:
        """Waits before the next attempt; False after the timeout.  `reason`, if it is given, is logged once
        when that takes long."""
        now = self._clock.monotonic()
        deadline = self._deadline
        if topic_unknown:
            if self._unknown_deadline is None:
                self._unknown_deadline = now + self._unknown_topic_s
            deadline = min(deadline, self._unknown_deadline)
        left_s = deadline - now
        if left_s <= 0:
            return False
        if (
            reason is not None
            and not self._is_told
            and now >= self._deadline - self._timeout_s + SILENT_S_MAX
        ):
            self._is_told = True
            log.warning("no_answer_yet", reason=reason, gives_up_in_s=round(left_s))
        threading.Event().wait(min(left_s, self._delay_s * (0.5 + self._clock.random())))
        self._delay_s = min(BACKOFF_LAST_S, self._delay_s * 2)
        return True


class StallWatchdog:
    """Calls `on_stall` once when one `with watch:` block lasts longer than `timeout_s`; time outside does not
    count.

    gRPC's own deadline would cover the whole call, with the reader's time.  A thread watches, since
    `next(call)` has no timeout; entering and leaving the block cost one assignment each.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_has_heard",
        "_on_stall",
        "_timeout_s",
        "_waiting_since",
        "has_stalled",
    )

    def __init__(self, clock: Clock, timeout_s: float, on_stall: Callable[[], object]) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_stall = on_stall
        self._waiting_since: float | None = None
        self._has_heard = False
        self._closed = threading.Event()
        self.has_stalled = False
        threading.Thread(target=self._look, name="stall-watch", daemon=True).start()

    def __enter__(self) -> None:
        self._waiting_since = self._clock.monotonic()

    def __exit__(self, *_: object) -> None:
        self._waiting_since = None

    def renew(self) -> None:
        """Within the block: something has come.  It costs an assignment; the time begins anew when the thread
        looks next."""
        self._has_heard = True

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def _look(self) -> None:
        heard_at = -math.inf
        while not self._closed.wait(min(1.0, self._timeout_s / LOOKS_A_TIMEOUT)):
            since, now = self._waiting_since, self._clock.monotonic()
            if self._has_heard:
                self._has_heard, heard_at = False, now
            if since is not None and now - max(since, heard_at) > self._timeout_s:
                self.has_stalled = True
                self._on_stall()
                return
