"""Shortens a list of steps that breaks a promise: five steps show the defect better than sixty.

Pieces of the list are left out, large ones first, then the numbers of each step are made small, as long as
the history still breaks *in the same way*: a shorter list that shows another defect would hide the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .runs import Step

RUNS_MAX = 3000
"""Shrinking ends after so many histories, with the shortest one found by then."""
_SMALL = (0, 1, 2, 3, 5, 8, 64)


def kind_of(what: str) -> str:
    """The kind of a failure, which shrinking must not change: the words of its message without numbers."""
    return re.sub(r"\d+|\[.*\]|\{.*\}", "#", what.splitlines()[0].partition(": ")[2])[:60]


def shrink(steps: Sequence[Step], fails: Callable[[list[Step]], str | None]) -> list[Step]:
    """A short list of steps for which `fails` gives the same kind of answer as for `steps`; None is: nothing
    broke."""
    first = fails(list(steps))
    if first is None:
        return list(steps)
    wanted, runs = kind_of(first), 0

    def still(candidate: list[Step]) -> bool:
        nonlocal runs
        runs += 1
        what = fails(candidate) if runs <= RUNS_MAX else None
        return what is not None and kind_of(what) == wanted

    best = _without_pieces(list(steps), still)
    best = _with_small_numbers(best, still)
    return _without_pieces(best, still)


def _without_pieces(best: list[Step], still: Callable[[list[Step]], bool]) -> list[Step]:
    size = max(1, len(best) // 2)
    while size:
        at = 0
        while at < len(best):
            candidate = best[:at] + best[at + size :]
            if still(candidate):
                best = candidate
            else:
                at += size
        size //= 2
    return best


def _with_small_numbers(best: list[Step], still: Callable[[list[Step]], bool]) -> list[Step]:
    for at in range(len(best)):
        for is_first in (True, False):
            for number in _SMALL:
                name, a, b = best[at]
                if number >= (a if is_first else b):
                    break
                candidate = [
                    *best[:at],
                    (name, number, b) if is_first else (name, a, number),
                    *best[at + 1 :],
                ]
                if still(candidate):
                    best = candidate
                    break
    return best
