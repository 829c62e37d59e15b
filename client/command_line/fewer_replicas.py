"""Reassignments that reduce the number of replicas of a partition.

A list of brokers does not show that the user left one out by mistake, and fewer replicas are lost more
easily: so `tidegate partitions reassign` requires `--allow-fewer-replicas`.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..administration.descriptions import TopicDescription
    from ..administration.operations import PartitionMove

MIN_IN_SYNC_REPLICAS = "min.insync.replicas"
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Reduction:
    """A partition with `before` replicas now (without those that a running move adds) and `after` replicas
    then; acks=all needs `min_in_sync` of them."""

    topic: str
    partition: int
    before: int
    after: int
    min_in_sync: int

    def __str__(self) -> str:
        text = f"{self.topic}:{self.partition} has {_replicas(self.before)} and would have {self.after}"
        if self.after < self.min_in_sync:
            text += (
                f", fewer than {MIN_IN_SYNC_REPLICAS}={self.min_in_sync} of the topic: acks=all would "
                f"wait for {self.after}"
            )
        return text


def reductions(
    topics: Iterable[TopicDescription],
    moves: Iterable[PartitionMove],
    targets: Mapping[tuple[str, int], Sequence[int] | None],
) -> list[Reduction]:
    """Those of `targets` (None: cancel a move) with fewer replicas; `topics` describes every topic that is
    named."""
    added = {(move.topic, move.partition): len(move.adding) for move in moves}
    found: list[Reduction] = []
    for topic in topics:
        settings = {entry.name: entry.value for entry in topic.config}
        for part in topic.partitions:
            key = (topic.name, part.partition)
            target = targets.get(key)
            before = len(part.replicas) - added.get(key, 0)
            if target is not None and len(target) < before:
                least = min(int(settings.get(MIN_IN_SYNC_REPLICAS) or 1), before)
                found.append(Reduction(*key, before, len(target), least))
    return found


def in_words(found: Sequence[Reduction]) -> str:
    """One sentence for all of them."""
    more = len(found) - SHOWN_MAX
    return "; ".join(str(each) for each in found[:SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def _replicas(count: int) -> str:
    return f"{count} replica" + ("s" if count > 1 else "")
