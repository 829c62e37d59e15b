"""The next step of a replica's move to another data folder, from the offsets of the two logs (KIP-113).
Pure.

The future replica is a follower of the log on the same node: it takes batches as they are, is truncated with
the log, and begins anew when the log begins above its end.  It takes the log's place when the rest to copy
fits into a turn of the loop.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

SWAP_BYTES_MAX = 64 * 1024
"""The bytes that a swap copies and flushes on the loop, while no record is appended; twice as much after each
try that found more."""
SWAP_BYTES_LIMIT = 4 * 1024 * 1024


class Step(enum.Enum):
    """The next step."""

    BEGIN = "begin"
    """Make the future replica anew, empty, from where the log begins."""
    TRUNCATE = "truncate"
    COPY = "copy"
    FLUSH = "flush"
    """Flush all that it has; then `replica-move` beside the log says that the log may leave
    (`move_state`)."""
    SWAP = "swap"


class View(NamedTuple):
    """The offsets of both logs.  Those of the future replica are -1 before it exists."""

    source_first: int
    """Where the log's first segment begins: below its log start there may be what transactions and producers
    still need."""
    source_start: int
    """The log start: in front of it the copy may have fewer segments, as they end elsewhere."""
    bytes_left: int
    """Bytes of the log from the future replica's end on."""
    future_first: int
    future_end: int
    truncated_to: int | None
    """The log was truncated to this offset since the future replica last agreed with it."""
    is_flushed: bool


def next_step(view: View, swap_bytes_max: int = SWAP_BYTES_MAX) -> Step:
    """See `Step`."""
    if view.future_end < view.source_first or view.future_first > max(view.source_first, view.source_start):
        return Step.BEGIN
    if view.truncated_to is not None and view.truncated_to < view.future_end:
        return Step.BEGIN if view.truncated_to <= view.future_first else Step.TRUNCATE
    if view.bytes_left > swap_bytes_max:
        return Step.COPY
    return Step.SWAP if view.is_flushed else Step.FLUSH


Epochs = Sequence[tuple[int, int]]


def agreeing_end(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int:
    """Up to which offset two logs were written by the same leader epochs, and so hold the same batches
    (KIP-101, KIP-279).

    Batches below the first epoch that either log knows count as equal.
    """
    end = min(my_end, their_end)
    if not mine or not theirs:
        return end if not mine and not theirs else min(end, max(_start(mine, end), _start(theirs, end)))
    first = max(mine[0][1], theirs[0][1])
    places = sorted({first, *(start for _epoch, start in (*mine, *theirs) if first < start < end)})
    for place in places:
        if place < end and _epoch_at(mine, place) != _epoch_at(theirs, place):
            return place
    return end


def _start(epochs: Epochs, otherwise: int) -> int:
    return epochs[0][1] if epochs else otherwise


def _epoch_at(epochs: Epochs, offset: int) -> int:
    for (epoch, _start_offset), (_next, following) in pairwise(epochs):
        if offset < following:
            return epoch
    return epochs[-1][0]
