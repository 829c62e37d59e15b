"""The kinds of storage histories, for the command and the tests that run them by their seeds (`runs`).

A history that breaks a promise is shortened (`shrink`) before it is reported: its seed repeats the long
history, its steps the short one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ..runs import Broken, Step
from ..shrink import shrink
from .folders_history import FoldersHistory
from .log_history import StorageHistory
from .moves_history import MovesHistory
from .rot_history import RotHistory
from .truncation_history import TruncationHistory

SHRUNK_MAX = 3
"""Histories of a run that are shortened: each takes thousands of runs."""


class History(Protocol):
    """One history, as `run_seeds` needs it."""

    steps: list[Step]
    crashes: int

    def run(self) -> None: ...


class HistoryType(Protocol):
    """Makes a history from a seed, or from a seed and a list of steps."""

    def __call__(self, seed: int, *, length: int = ..., steps: Sequence[Step] | None = ...) -> History: ...


KINDS: dict[str, HistoryType] = {
    "log": StorageHistory, "truncations": TruncationHistory, "folders": FoldersHistory, "moves": MovesHistory,
    "rot": RotHistory,
}  # fmt: skip
"""One log; a log that is mostly truncated; several data folders whose partitions are created and deleted; the
same with logs that move between folders; one log with a bit flip in its folder at the end."""


def history_of(kind: str, length: int) -> Callable[[int], Mapping[str, int]]:
    """The function that `run_seeds` runs."""
    made, shrunk = KINDS[kind], 0

    def history(seed: int) -> dict[str, int]:
        nonlocal shrunk
        whole = made(seed, length=length)
        try:
            whole.run()
        except Broken as broken:
            shrunk += 1
            if shrunk > SHRUNK_MAX:
                raise
            raise Broken(f"{broken}\nshort = {shortened(made, seed, whole.steps)}") from broken
        return {"crashes": whole.crashes}

    return history


def shortened(made: HistoryType, seed: int, steps: Sequence[Step]) -> list[Step]:
    """The fewest steps, as far as is found, that break the history of this seed in the same way."""

    def fails(steps: list[Step]) -> str | None:
        try:
            made(seed, steps=steps).run()
        except Broken as broken:
            return str(broken)
        return None

    return shrink(steps, fails)
