"""Loads what reads requests and writes answers: a class for each structure of each version, which takes 2 to
10 ms a version.

Before the node is ready those in the newest version, in which most clients ask; the others after that, one at
a time, with pauses as long as `DUTY_MAX` wants: by the time that one takes, so that a node which gets little
of the processor leaves it to its work. What is not loaded yet when its first request comes is loaded then, on
the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ...wire import codec
from ...wire.api import ApiKey, advertised

DUTY_MAX: Final = 0.0005
_BY_HAND: Final = (ApiKey.PRODUCE, ApiKey.FETCH)


class Codecs:
    """Of the requests with these keys.  May be used in any thread, in one at a time."""

    def __init__(self, keys: Iterable[int], now: Callable[[], float]) -> None:
        """`now`: monotonic seconds."""
        self._now = now
        self._next_at = now()
        versions = [
            (high - version, key, version)
            for key, low, high in advertised(keys)
            for version in range(low, high + 1)
        ]
        self._left = sorted((each for each in versions if each[1] not in _BY_HAND), reverse=True)

    @property
    def left(self) -> int:
        return len(self._left)

    def load_newest(self) -> None:
        """About 0.2 s."""
        while self._left and self._left[-1][0] == 0:
            self._load_one()

    @property
    def is_due(self) -> bool:
        return bool(self._left) and self._now() >= self._next_at

    def load_next(self) -> None:
        """The newer ones first."""
        begun = self._now()
        self._load_one()
        self._next_at = self._now() + (self._now() - begun) / DUTY_MAX

    def _load_one(self) -> None:
        _age, key, version = self._left.pop()
        codec.load(key, version)
