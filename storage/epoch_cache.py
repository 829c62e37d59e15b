"""The history of leader epochs in one log: which epoch begins at which offset (docs/semantics.md E3).  Pure.

A follower truncates a diverged log by this history and never by the high watermark.  Both columns rise
strictly: a leader may only write at the end, so a higher epoch begins at a higher offset; an entry that an
assignment contradicts never had data and is dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from .checkpoint import RowShapes, encode_checkpoint

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"  # the file
EPOCH_CHECKPOINT_SHAPES = RowShapes({1: 2}, writes=1)
UNDEFINED = -1


def parse_epoch(epoch: str, start_offset: str) -> tuple[int, int]:
    """A row of the file."""
    return int(epoch), int(start_offset)


class EpochEnd(NamedTuple):
    """The answer to "where does this epoch end": an epoch, and its exclusive end; see `EpochCache.end_of`."""

    epoch: int
    end_offset: int


class EpochCache:
    """Epochs with their start offsets; `epochs` and `starts` are parallel and rise strictly."""

    __slots__ = ("epochs", "starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.epochs: list[int] = []
        self.starts: list[int] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def latest(self) -> int:
        return self.epochs[-1] if self.epochs else UNDEFINED

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.starts, strict=True))

    def encode(self) -> bytes:
        """The file."""
        return encode_checkpoint(self.entries(), EPOCH_CHECKPOINT_SHAPES.writes)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Notes that `epoch` begins at `start_offset`; True when the history changed.

        An epoch that is known, or older than the latest, changes nothing: its batches are already accounted
        for.  Entries that would begin at or above `start_offset` have no data and go.
        """
        if epoch <= self.latest or epoch < 0:
            return False
        while self.starts and self.starts[-1] >= start_offset:
            self.starts.pop()
            self.epochs.pop()
        self.epochs.append(epoch)
        self.starts.append(start_offset)
        return True

    def deny(self, epoch: int, since: int, offset: int) -> None:
        """The first batch from `since` on is at `offset` and has `epoch`: newer epochs that the history
        begins between the two had no data, and a leader that never knew them continued the log."""
        first = bisect_right(self.epochs, epoch)
        denied = [at for at in range(first, len(self.starts)) if since <= self.starts[at] <= offset]
        for at in reversed(denied):
            del self.epochs[at], self.starts[at]

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Where `epoch` ends in this log (rule E3).

        latest -> (latest, log end); above the latest -> undefined (-1, -1); below the first -> (epoch, start
        of the first); else the largest known epoch not above it, and the start of the next.
        """
        if epoch < 0 or not self.epochs or epoch > self.epochs[-1]:
            return EpochEnd(UNDEFINED, UNDEFINED)
        if epoch == self.epochs[-1]:
            return EpochEnd(epoch, log_end_offset)
        higher = bisect_right(self.epochs, epoch)
        if higher == 0:
            return EpochEnd(epoch, self.starts[0])
        return EpochEnd(self.epochs[higher - 1], self.starts[higher])

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 when unknown."""
        index = bisect_right(self.starts, offset)
        return self.epochs[index - 1] if index else UNDEFINED

    def below(self, end_offset: int) -> EpochCache:
        """A copy, as `truncate_from_end` would leave it."""
        copy = EpochCache(self.entries())
        copy.truncate_from_end(end_offset)
        return copy

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drops entries that begin at or above the new log end; True when the history changed."""
        changed = False
        while self.starts and self.starts[-1] >= end_offset:
            self.starts.pop()
            self.epochs.pop()
            changed = True
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Drops epochs that end at or below the log start; the one that spans it begins there from now on."""
        spanning = bisect_right(self.starts, start_offset) - 1
        if spanning < 0 or (spanning == 0 and self.starts[0] == start_offset):
            return False
        del self.epochs[:spanning]
        del self.starts[:spanning]
        self.starts[0] = start_offset
        return True
