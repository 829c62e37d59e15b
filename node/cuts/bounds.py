"""The bounds of a partition in a cut, by its leader's log: pure (docs/cuts.md, docs/semantics.md K4 and K5).

Read in one step, while no commit is decided.  What a reader of the cut gets rests on records below the high
watermark alone: a transaction whose ABORT marker lies above is named as well, because the next leader may not
have the marker.  One whose COMMIT marker lies above needs no name: its coordinator has decided.
"""

from __future__ import annotations

from ...proto import cuts_pb2 as pb
from ...storage.log.log import Log
from ...wire.errors import ErrorCode, KafkaError

UNDECIDED_MAX = 10_000
"""Of one partition."""


def require_settled(high_watermark: int, epoch_start_offset: int) -> None:
    """Raises OFFSET_NOT_AVAILABLE while a new leader may not know yet all that was acknowledged."""
    if high_watermark < epoch_start_offset:
        message = (
            f"the high watermark {high_watermark} has not reached the epoch's start {epoch_start_offset}"
        )
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, message)


def bounds_of(log: Log, leader_epoch: int, epoch_start_offset: int) -> pb.PartitionBounds:
    """Raises KafkaError."""
    end = log.high_watermark
    require_settled(end, epoch_start_offset)
    found = pb.PartitionBounds(
        leader_epoch=leader_epoch, log_start_offset=log.log_start_offset, high_watermark=end
    )
    for first_offset, producer_id in log.producers.open_transactions.items():
        if first_offset < end:
            found.open.add(producer_id=producer_id, first_offset=first_offset)
    for producer_id, first_offset in _aborted_above(log, end):
        if first_offset < end:
            found.aborting.add(producer_id=producer_id, first_offset=first_offset)
    if len(found.open) + len(found.aborting) > UNDECIDED_MAX:
        message = f"{len(found.open)} transactions are open in it: a cut names at most {UNDECIDED_MAX}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return found


def _aborted_above(log: Log, offset: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of those whose marker is at this offset or above."""
    return [
        (each.producer_id, each.first_offset) for each in log.aborted_transactions(offset, log.log_end_offset)
    ]
