"""Limits for the log: one line counts an event that happens a thousand times, and only a long outage is a
WARNING.

When a node is killed, every request of the other nodes to it fails, and the node is back before an operator
has read the first line.  So an `Outage` (of a connection, of answers) has a line at INFO when it begins and
when it ends, and a WARNING only when it has lasted for `PATIENCE_S`; then again after twice that time, and so
on.  An event that comes for every partition (`RateLimitedLines`) has `LINES_MAX` lines in `WINDOW_S`, and one
line that counts the others.  At DEBUG every event has its line.

Neither has a clock or a timer: the caller gives the time, and calls `summarize` from time to time.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from .logs import EventLogger

PATIENCE_S: Final = 10.0
WINDOW_S: Final = 10.0
LINES_MAX: Final = 20


class Outage:
    """Something that fails again and again until it works."""

    __slots__ = ("_event", "_log", "_news", "_since_s", "_warn_at_s")

    def __init__(self, log: EventLogger, event: str) -> None:
        self._log = log
        self._event = event
        self._since_s: float | None = None
        self._warn_at_s = 0.0
        self._news: object = None

    @property
    def lasts(self) -> bool:
        """True from the first failure until `over`."""
        return self._since_s is not None

    def failed(self, now_s: float, /, *, news: object = None, **fields: object) -> None:
        """It failed (again).  When `news` differs from the last failure's, there is a line also within the
        outage."""
        if self._since_s is None:
            self._since_s, self._warn_at_s, self._news = now_s, now_s + PATIENCE_S, news
            say = self._log.info
        elif now_s >= self._warn_at_s:
            lasted_s = now_s - self._since_s
            self._warn_at_s, self._news = self._since_s + 2 * lasted_s, news
            self._log.warning(self._event, **fields, for_s=int(lasted_s))
            return
        elif news != self._news:
            self._news = news
            say = self._log.info
        else:
            say = self._log.debug
        say(self._event, **fields)

    def over(self, now_s: float, /, **fields: object) -> None:
        """It works again; no effect when there was no outage."""
        if self._since_s is None:
            return
        lasted_s, self._since_s = now_s - self._since_s, None
        say = self._log.info if lasted_s >= PATIENCE_S else self._log.debug
        say(f"{self._event}_over", **fields, after_s=int(lasted_s))


class RateLimitedLines:
    """At most `LINES_MAX` lines at INFO of one event in `WINDOW_S`."""

    __slots__ = ("_begin_s", "_event", "_lines", "_log", "_summary", "_suppressed")

    def __init__(self, log: EventLogger, event: str, summary: str) -> None:
        """`summary` is the event of the line that counts, by kind, the events without a line."""
        self._log = log
        self._event = event
        self._summary = summary
        self._begin_s = float("-inf")
        self._lines = 0
        self._suppressed: Counter[str] = Counter()

    def line(self, now_s: float, kind: str, /, **fields: object) -> None:
        """The event happened: writes its line, or counts it for the summary."""
        self.summarize(now_s)
        if self._lines < LINES_MAX:
            self._lines += 1
            self._log.info(self._event, **fields)
        else:
            self._suppressed[kind] += 1
            self._log.debug(self._event, **fields)

    def summarize(self, now_s: float, *, at_once: bool = False) -> None:
        """Writes the summary when the window has ended or, with `at_once`, now."""
        if not at_once and now_s - self._begin_s < WINDOW_S:
            return
        if now_s - self._begin_s >= WINDOW_S:
            self._begin_s, self._lines = now_s, 0
        if self._suppressed:
            self._log.info(self._summary, **self._suppressed)
            self._suppressed.clear()
