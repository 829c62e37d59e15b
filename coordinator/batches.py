"""How many records of an internal topic fit into one batch: a log takes no batch over its topic's
`max.message.bytes`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .outcome import CoordinatorRecord

BATCH_BYTES_MAX: Final = 1_000_000
"""The largest batch of a shard that does not know its topic's setting: below the default of 1,048,588
bytes."""
BATCH_HEADER_BYTES: Final = 61
_RECORD_EXTRA_BYTES: Final = 24


def batch_bytes(written: Sequence[CoordinatorRecord]) -> int:
    """An upper bound of the size of the batch of these records."""
    return sum(len(record.key) + len(record.value or b"") + _RECORD_EXTRA_BYTES for record in written)


def in_batches(units: Iterable[Sequence[CoordinatorRecord]], bytes_max: int) -> list[list[CoordinatorRecord]]:
    """The records in as few batches of `bytes_max` as possible; the records of one unit stay in one batch."""
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
