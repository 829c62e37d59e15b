"""How far a node has come in opening its logs: the threads that open them count, and the node reports the
count while it starts.

The node may be asked to stop meanwhile: then no further log is opened, and `open_all` raises OpeningStopped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OpeningStopped(Exception):
    """The node was asked to stop before all logs were open; the logs that were open are closed again."""


class OpeningProgress:
    """`found`: all logs; `opened`: the logs that were tried, with those that could not be opened."""

    def __init__(self) -> None:
        self.found = 0
        self.opened = 0
        self._stop_wanted = False
        self._lock = threading.Lock()

    def stop(self) -> None:
        self._stop_wanted = True

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around the opening of one log.  Raises OpeningStopped."""
        if self._stop_wanted:
            raise OpeningStopped("a stop was requested while logs were opened")
        yield
        with self._lock:
            self.opened += 1
