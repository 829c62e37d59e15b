"""The batches of each producer that a cleaning must keep, so that a replay of the rest knows the producer's
epoch and sequence.

A log may later be truncated, to any place at or above the end of what is cleaned now (nothing below the high
watermark is ever truncated), and be opened without producer snapshots.  A replay then sees what the cleaning
has left, and what follows up to that place; so what it must find is the state **at the end of the cleaned
part**, however much newer batches say.  It is learned from the batches of that part alone (docs/semantics.md
C5): of each live producer

    the last batch with sequences, when no other epoch follows on it     epoch and sequence
    else the last batch or marker of any kind                            epoch, and that its sequences begin
                                                                      anew

The newest segment is walked first, over headers only, and the walk ends when it has found every live
producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from ...wire.records import decode_marker
from ..producers.producer_state import NO_EPOCH
from ..segment.batch_scan import ScannedBatch

NOTHING = -1


@dataclass(slots=True)
class _Trail:
    """The last batches of one producer in one segment that are of one epoch."""

    epoch: int = NO_EPOCH
    last_offset: int = NOTHING
    with_sequence: int = NOTHING
    """Last offset of the last batch with sequences among them."""
    begins_here: bool = False
    """Before them, in the same segment, stand batches of another epoch."""

    def take(self, epoch: int, last_offset: int, has_sequence: bool) -> None:
        if epoch != self.epoch:
            self.begins_here = self.last_offset != NOTHING
            self.epoch, self.with_sequence = epoch, NOTHING
        self.last_offset = last_offset
        if has_sequence:
            self.with_sequence = last_offset


def offsets_to_keep(newest_first: Iterable[Iterator[ScannedBatch]], live: Set[int]) -> frozenset[int]:
    """The last offsets of the batches that must stay for the producers `live`; at most one of each.

    `newest_first`: per segment of the cleaned part, the last one first, its batches in order.  Raises what
    walking them raises.
    """
    missing = set(live)
    found: set[int] = set()
    later: dict[int, _Trail] = {}
    for batches in newest_first if missing else ():
        for producer_id, here in _trails(batches, missing).items():
            newer = later.setdefault(producer_id, here)
            if here.epoch == newer.epoch and here.with_sequence != NOTHING:
                found.add(here.with_sequence)
            elif here.epoch != newer.epoch or here.begins_here:
                found.add(newer.last_offset)
            else:
                continue  # an older batch of the same epoch may have its sequence
            missing.remove(producer_id)
            del later[producer_id]
        if not missing:
            break
    return frozenset(found | {newer.last_offset for newer in later.values()})


def _trails(batches: Iterator[ScannedBatch], wanted: Set[int]) -> dict[int, _Trail]:
    trails: dict[int, _Trail] = {}
    for batch in batches:
        header = batch.header
        if header.producer_id not in wanted:
            continue
        if header.is_control and (batch.view is None or decode_marker(batch.view) is None):
            continue  # emptied, or of a kind that we do not know: no replay takes notice of it (rule L4)
        trail = trails.setdefault(header.producer_id, _Trail())
        trail.take(
            header.producer_epoch, header.last_offset, header.base_sequence >= 0 and not header.is_control
        )
    return trails
