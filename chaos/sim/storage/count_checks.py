"""Counts of committed records against the model, which decodes every batch."""

from __future__ import annotations

from random import Random

from ....storage.log.counting import count_now
from ....storage.log.log import Log
from ....wire.records import decode_batch
from .model import LogModel


def check_counts(log: Log, model: LogModel, random: Random) -> None:
    """Of the whole log and of a few parts of it.  Raises AssertionError."""
    low = log.log_start_offset
    for committed, high in ((True, log.last_stable_offset), (False, log.high_watermark)):
        offsets = _data_offsets(model, committed=committed)
        for turn in range(4):
            start, end = (
                sorted((random.randint(low, high), random.randint(low, high))) if turn else (low, high)
            )
            wanted = sum(start <= offset < end for offset in offsets)
            found = count_now(log, start, end, committed=committed)
            what = "committed" if committed else "data"
            assert found == wanted, (
                f"{found} {what} records are counted in [{start}, {end}), there are {wanted}"
            )


def _data_offsets(model: LogModel, *, committed: bool) -> list[int]:
    aborted = [each for each in model.replay().ended if each.is_aborted] if committed else []
    found: list[int] = []
    for header, data in model.visible():
        void = header.is_transactional and any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset < each.marker_offset
            for each in aborted
        )
        if not header.is_control and not void:
            found += [record.offset for record in decode_batch(data)]
    return found
