"""The offset up to which each log was cleaned, noted in its data folder (`cleaner-offset-checkpoint`) for the
next life of the node.

A row is (topic id, partition, offset, leader epoch of the record before it, next delete horizon or -1).  A
log that was truncated below the offset and has grown past it again holds another epoch there, so an outdated
note that survived a crash is not used. Without a usable note the next cleaning covers the whole log; there is
no other harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from ..checkpoint import RowShapes, encode_checkpoint, parse_checkpoint
from ..log.log import Log

CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEANER_CHECKPOINT_SHAPES = RowShapes({1: 5}, writes=1)
PositionKey = tuple[UUID, int]


class CleanerPosition(NamedTuple):
    """`epoch` is the leader epoch of the last offset below `offset`; at `horizon_ms`, unless it is -1, more
    records below may be removed."""

    offset: int
    epoch: int
    horizon_ms: int = -1


def position_of(log: Log, horizon_ms: int | None) -> CleanerPosition:
    epoch = log.epoch_at(log.cleaned_to - 1) if log.cleaned_to > log.log_start_offset else -1
    return CleanerPosition(log.cleaned_to, epoch, -1 if horizon_ms is None else horizon_ms)


def believed_offset(log: Log, noted: CleanerPosition) -> int:
    """The offset up to which `log` counts as clean by a note of an earlier life; its start when the note
    belongs to another history."""
    start = log.log_start_offset
    if not start < noted.offset <= log.log_end_offset or log.epoch_at(noted.offset - 1) != noted.epoch:
        return start
    return noted.offset


def encode_positions(positions: Mapping[PositionKey, CleanerPosition]) -> bytes:
    rows: Iterable[tuple[object, ...]] = (
        (topic_id, partition, *position)
        for (topic_id, partition), position in sorted(
            positions.items(), key=lambda row: (row[0][0].bytes, row[0][1])
        )
    )
    return encode_checkpoint(rows, CLEANER_CHECKPOINT_SHAPES.writes)


def decode_positions(data: bytes) -> dict[PositionKey, CleanerPosition]:
    """Raises CheckpointInvalid for every defect."""
    return dict(parse_checkpoint(data, CLEANER_CHECKPOINT_SHAPES, _parse_row))


def _parse_row(topic_id: str, partition: str, *position: str) -> tuple[PositionKey, CleanerPosition]:
    return (UUID(topic_id), int(partition)), CleanerPosition(*map(int, position))
