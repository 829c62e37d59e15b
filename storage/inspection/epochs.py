"""Checks the leader-epoch history against the batches (docs/semantics.md E3).

The history may know more than the batches: an epoch without a batch yet, at the log's end; of a compacted
log, epochs whose batches are gone.  It may begin later than the batches, at the log start.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from ...runtime.disk import Disk
from ..checkpoint import CheckpointInvalid, parse_checkpoint
from ..epoch_cache import EPOCH_CHECKPOINT_SHAPES, parse_epoch
from .findings import Finding


class EpochHistoryCheck:
    """Takes the epoch of every batch; compares at the end."""

    def __init__(self, *, is_compacted: bool) -> None:
        self._is_compacted = is_compacted
        self._seen: list[tuple[int, int]] = []
        self._is_reliable = True

    def lose_track(self) -> None:
        """Batches are missing or wrong: where an epoch begins is not known."""
        self._is_reliable = False

    def take(self, epoch: int, base_offset: int) -> None:
        if epoch >= 0 and (not self._seen or epoch > self._seen[-1][0]):
            self._seen.append((epoch, base_offset))

    def compare(
        self, disk: Disk, path: Path, end: int, first: int, log_start: int, limit: int, *, is_clean: bool,
        report: Callable[[Finding], None],
    ) -> None:  # fmt: skip
        """`limit`: above it, the history on the disk may be behind; below `log_start` it may be truncated,
        and after an unclean stop the log start may be higher than the noted one."""
        stored: list[tuple[int, int]] = []
        is_there = disk.exists(path)
        if is_there:
            try:
                stored = parse_checkpoint(disk.read(path), EPOCH_CHECKPOINT_SHAPES, parse_epoch)
            except CheckpointInvalid as error:
                report(Finding("epoch-history-damaged", path, str(error)))
                return
        wrong = _disorder(stored)
        if not wrong and self._is_reliable:
            wrong = self._difference(stored, end, first, log_start, limit, is_clean, is_there)
        if wrong:
            report(Finding("epoch-history-wrong", path, wrong[0], -1, wrong[1]))

    def _difference(
        self,
        stored: list[tuple[int, int]],
        end: int,
        first: int,
        log_start: int,
        limit: int,
        is_clean: bool,
        is_there: bool,
    ) -> tuple[str, int] | None:
        known = dict(stored)
        ends = [*(start for _epoch, start in self._seen[1:]), end][: len(self._seen)]
        oldest = stored[0] if stored else None
        for (epoch, start), epoch_end in zip(self._seen, ends, strict=True):
            if start >= limit:
                break
            if (
                oldest is not None
                and start < oldest[1] <= epoch_end
                and self._may_be_truncated(oldest[1], log_start, is_clean)
            ):
                if epoch < oldest[0] and epoch_end == oldest[1]:
                    continue  # it ended where the log starts
                if epoch == oldest[0]:
                    continue
            elif (
                oldest is not None
                and epoch < oldest[0]
                and self._may_be_truncated(epoch_end, log_start, is_clean)
            ):
                continue
            elif oldest is None and is_there and self._may_be_truncated(end, log_start, is_clean):
                continue  # the log start is the log's end
            noted = known.get(epoch)
            if noted is None:
                return f"epoch {epoch} begins at offset {start} and is not in the history", start
            if (
                noted != start
                and not (self._is_compacted and noted < start)
                and not (start == first and noted < start)
            ):
                return f"epoch {epoch} begins at offset {start}; the history says {noted}", start
        seen = {epoch for epoch, _start in self._seen}
        for epoch, start in stored:
            if epoch in seen or self._is_compacted or start < first or start >= min(end, limit):
                if is_clean and start > end:
                    return f"epoch {epoch} begins at offset {start}, beyond the log's end {end}", start
                continue
            return f"epoch {epoch} is said to begin at offset {start}, where another one wrote", start
        return None

    def _may_be_truncated(self, offset: int, log_start: int, is_clean: bool) -> bool:
        return offset <= log_start or not is_clean


def _disorder(stored: list[tuple[int, int]]) -> tuple[str, int] | None:
    for before, after in pairwise(stored):
        if after[0] <= before[0] or after[1] <= before[1]:
            return (
                f"epoch {after[0]} from {after[1]} stands behind epoch {before[0]} from {before[1]}",
                after[1],
            )
    return None
