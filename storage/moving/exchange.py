"""The moment in which a log changes its data folder: what must hold before the log exchanges its files for
those of its future replica (`Log.exchange_files`).

The log stays the same object, with its producers, guards and offsets, so its holders notice nothing.  Its old
files go to the object of the future replica, which is then closed.
"""

from __future__ import annotations

from ...wire.errors import ErrorCode, KafkaError
from ..log.log import Log


def settle(log: Log) -> None:
    """No removal or replacement of the log runs in another thread any more; a flush may.  Waits for the disk.
    Raises KAFKA_STORAGE_ERROR."""
    log.local.health.require()
    log.local.settle("a move to another data folder")


def is_flushing(log: Log) -> bool:
    """A flush runs, and its outcome is not known yet."""
    return log.local.durability.running is not None


def reach_end(log: Log, future: Log) -> None:
    """Moves the end of the future replica to the log's end, which may lie behind the last batch, in an offset
    gap of a compacted topic.  Raises KAFKA_STORAGE_ERROR."""
    if future.log_end_offset < log.log_end_offset:
        if not log.config.may_have_offset_gaps:
            missing = f"{future.log_end_offset} to {log.log_end_offset}"
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name}: the copy lacks what is at offsets {missing}"
            )
        future.skip_to(log.log_end_offset)


def take_over_start(log: Log, future: Log, *, also_wanted: bool) -> None:
    """The log start; at the swap also a requested log start without a note yet (`log_start`), which may be
    withdrawn before that. Raises KAFKA_STORAGE_ERROR, OSError."""
    future.set_high_watermark(log.high_watermark)
    future.advance_log_start(min(log.log_start_offset, future.high_watermark))
    # Also a log start that only a checkpoint of the old folder has.
    wanted = max(log.local.start_note.wanted, log.log_start_offset) if also_wanted else log.log_start_offset
    future.local.start_note.want(min(wanted, future.log_end_offset))
    future.local.start_note.write()


def is_durable(future: Log) -> bool:
    return (
        not future.has_unflushed_records
        and not future.local.durability.waits.complete
        and not future.local.durability.waits.has_pending_files
    )
