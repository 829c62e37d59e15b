"""Virtual time: what happens is an event at a time, and the order of events follows from the seed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random


class Schedule:
    """The events of one simulation that are still to come, its time, and the random numbers of its seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 100.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def repeat(self, mean_s: float, action: Callable[[], None]) -> None:
        """Again and again, at random times."""

        def once() -> None:
            action()
            self.after(2 * mean_s * self.random.random(), once)

        self.after(2 * mean_s * self.random.random(), once)

    def step(self, end: float) -> bool:
        """The next event happens, and it is as late as that event; False: no event is due by `end`."""
        if not self._events or self._events[0][0] > end:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True
