"""How many records of an internal topic fit into one batch: a log takes no batch over its topic's `max.message.bytes`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .outcome import CoordinatorRecord

BATCH_BYTES_MAX: Final = 1_000_000
"""What a shard may write at once where nothing else is known: below the 1,048,588 bytes that a log takes by default."""
BATCH_HEADER_BYTES: Final = 61
_RECORD_EXTRA_BYTES: Final = 24


def batch_bytes(written: Sequence[CoordinatorRecord]) -> int:
    """No less than the batch of these records has."""
    return sum(len(record.key) + len(record.value or b"") + _RECORD_EXTRA_BYTES for record in written)


def in_batches(units: Iterable[Sequence[CoordinatorRecord]], bytes_max: int) -> list[list[CoordinatorRecord]]:
    """The records in as few batches as the log takes; those of a unit stay in one."""
    batches: list[list[CoordinatorRecord]] = []
    room = 0
    for unit in units:
        size = batch_bytes(unit)
        if unit and (not batches or size > room):
            batches.append([])
            room = bytes_max
        if unit:
            batches[-1] += unit
            room -= size
    return batches
