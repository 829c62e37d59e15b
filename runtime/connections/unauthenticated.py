"""Connections whose client has not proved yet who it is: few, and not for long.

Any host can open a connection and send nothing.  So those connections have a limit of their own: one more,
and the oldest of them is closed, while clients that authenticate stay.  A client that is quick gets through
however many silent ones come.
"""

from __future__ import annotations

from collections.abc import Callable

Abort = Callable[[str], None]


class Unauthenticated:
    """See the module's text.  `keys` are the connections, in whatever form; used on one loop."""

    def __init__(self, limit: Callable[[], int], time_s: float, on_abort: Callable[[str], None]) -> None:
        """`limit()`: of connections; `time_s`: for each; `on_abort(reason)` is called for each that is
        closed."""
        self._limit = limit
        self._time_s = time_s
        self._on_abort = on_abort
        self._waiting: dict[object, tuple[float, Abort]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def began(self, key: object, now: float, abort: Abort) -> None:
        """A connection whose client must prove who it is.  `abort(reason)` closes it."""
        self._waiting[key] = now, abort
        while len(self._waiting) > max(1, self._limit()):
            self._abort(next(iter(self._waiting)), "too many clients have not authenticated: the oldest goes")

    def ended(self, key: object) -> None:
        """The client has authenticated, or its connection is closed."""
        self._waiting.pop(key, None)

    def look_after(self, now: float) -> None:
        """Closes those whose time is over."""
        late = [key for key, (began, _) in self._waiting.items() if now - began > self._time_s]
        for key in late:
            self._abort(key, f"the client has not authenticated within {self._time_s:g} s")

    def _abort(self, key: object, reason: str) -> None:
        _, abort = self._waiting.pop(key)
        self._on_abort(reason)
        abort(reason)
