"""Threads that take turns by a seed: parallel code runs in a repeatable order.

A thread yields at calls of the disk (`LyingDisk.on_call`); the seed chooses the next thread.  Only one runs
at any time, so the seed determines a history with threads as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from random import Random
from typing import Any


class SeededThreads(Executor):
    """`map` as a pool of threads has it; `hand_on` is for the disk."""

    def __init__(self, threads: int, random: Random) -> None:
        self._threads = threads
        self._random = random
        self._mine = threading.local()
        self._waiting: dict[int, threading.Semaphore] = {}
        self._over = threading.Semaphore(0)
        self.handed_on = 0

    def hand_on(self) -> None:
        """Another thread may run first; does nothing outside of `map`."""
        number = getattr(self._mine, "number", None)
        if number is None:
            return
        following = self._random.choice(sorted(self._waiting))
        if following != number:
            self.handed_on += 1
            self._waiting[following].release()
            self._waiting[number].acquire()

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """All results in order, or the first error in this order, once all are over."""
        items = list(zip(*iterables, strict=True))
        results: list[Any] = [None] * len(items)
        errors: list[BaseException | None] = [None] * len(items)
        due = list(range(len(items)))

        def work(number: int) -> None:
            self._mine.number = number
            self._waiting[number].acquire()
            while due:
                at = due.pop(0)
                try:
                    results[at] = fn(*items[at])
                except BaseException as error:  # also a power cut; raised below, where the caller is
                    errors[at] = error
                self.hand_on()
            del self._waiting[number]
            if self._waiting:
                self._waiting[self._random.choice(sorted(self._waiting))].release()
            else:
                self._over.release()

        count = min(self._threads, len(items))
        self._waiting = {number: threading.Semaphore(0) for number in range(count)}
        threads = [
            threading.Thread(target=work, args=(number,), name=f"turn-{number}") for number in range(count)
        ]
        for thread in threads:
            thread.start()
        self._waiting[self._random.randrange(count)].release()
        self._over.acquire()
        for thread in threads:
            thread.join()
        for error in errors:
            if error is not None:
                raise error
        return iter(results)
