"""What all storage histories share: their steps, how they say that a promise is broken, and their time."""

from __future__ import annotations

from typing import NoReturn

from .runs import Broken

NOW_MS = 1_700_000_000_000
Step = tuple[str, int, int]
"""An operation, and two numbers that choose sizes, offsets, places and fates."""


def broken(seed: int, done: list[Step], error: BaseException) -> NoReturn:
    raise Broken(f"seed {seed}: {type(error).__name__}: {error}\nsteps = {done}") from error
