"""What of one log waits for a flush, besides its batches (`Durability.flushed_end`).

Each wait ends in `Durability.finish`, when the ticket of `Durability.begin` had it.  Acknowledgements wait
for the flushed end, and a restart trusts all below the recovery point: each wait says which of the two it
holds back.  No wait has a default, so a new one is a type error until it is said how a log begins with it,
and what a truncation makes of it; `tests/storage/test_waits.py` fails until it plays the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..segment.pending_indexes import PendingIndexFiles
from ..segment.segment import Segment
from ..segment.swap import INDEX_SUFFIXES


@dataclass(slots=True)
class Waits:
    """See the module's text."""

    complete: list[Segment]
    """Complete segments, in order: from a roll, a clean close, or a start on a full disk, until the segment
    is synced and none of its files waits.  Holds back the recovery point."""
    derived: dict[Path, bytes]
    """Files of complete segments, and snapshots, until they are written.  Holds back its segment."""
    epochs_from: int | None
    """The epoch history on the disk is right below this offset only: from a new leader epoch, or one that is
    removed, until the history as it is now is written.  Holds back the recovery point."""
    rebuilt_counts: dict[Path, Segment]
    """Of those in `derived`, the counts that a question has built; hold back nothing."""
    removed_unflushed: list[Segment]
    """Segments that the log removed before they were flushed, until they are synced.  Until their files are
    gone, durably, a restart may find them, and the notes of the next flush vouch for all batches below its
    end.  Holds back nothing."""
    folder_changed: bool
    """From a roll, or a cancelled flush, until the folder is synced.  Holds back the flushed end."""

    @classmethod
    def at_start(cls, pending: PendingIndexFiles) -> Waits:
        """`pending`: the derived files that opening the log could not write; they are taken over."""
        return cls(
            complete=pending.segments, derived=pending.derived, epochs_from=pending.epochs_from,
            rebuilt_counts={}, removed_unflushed=[], folder_changed=False,
        )  # fmt: skip

    def truncated(self, segments: Sequence[Segment]) -> Waits:
        """What still waits when the log has these segments, and the last one takes batches again."""
        kept = set(segments[:-1])
        complete = [segment for segment in self.complete if segment in kept]
        wanted = {segment.path(suffix) for segment in complete for suffix in INDEX_SUFFIXES}
        return Waits(
            complete=complete,
            derived={
                path: data
                for path, data in self.derived.items()
                if path in wanted or path.suffix == ".snapshot"
            },
            epochs_from=self.epochs_from,
            rebuilt_counts={},
            removed_unflushed=self.removed_unflushed,
            folder_changed=self.folder_changed,
        )

    def least(self, flushed_end: int) -> int:
        """The recovery point of a log that is flushed up to there."""
        point = min(flushed_end, self.complete[0].base_offset) if self.complete else flushed_end
        return point if self.epochs_from is None else min(point, self.epochs_from)

    @property
    def has_pending_files(self) -> bool:
        return bool(self.derived) or self.epochs_from is not None

    def has_pending(self, segment: Segment) -> bool:
        return any(segment.path(suffix) in self.derived for suffix in INDEX_SUFFIXES)

    def violations(self) -> Iterator[str]:
        """What does not hold (`validation`)."""
        twice = [each.base_offset for each in self.complete if each in self.removed_unflushed]
        if twice:
            yield f"the segments {twice} are removed, and wait to be complete"
        if any(path not in self.derived for path in self.rebuilt_counts):
            yield f"rebuilt counts that no flush writes: {sorted(map(str, self.rebuilt_counts))}"
        if any(before.base_offset >= each.base_offset for before, each in pairwise(self.complete)):
            yield f"segments wait out of order: {[each.base_offset for each in self.complete]}"
