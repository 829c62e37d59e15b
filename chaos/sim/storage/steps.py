"""Shared by all storage histories: the report of a broken promise, and their clock."""

from __future__ import annotations

from typing import NoReturn

from ..runs import Broken, Step

NOW_MS = 1_700_000_000_000


def broken(seed: int, done: list[Step], error: BaseException) -> NoReturn:
    raise Broken(f"seed {seed}: {type(error).__name__}: {error}\nsteps = {done}") from error
