"""The moment in which a log changes its data folder: what it holds on the disk is exchanged for what its future replica holds.

The log stays the same object, with its producers, guards and offsets, so who holds it notices nothing; what was its own goes to
the object of the future replica, to be closed.  This module is a part of `Log` that stands apart: it knows what is private there.
"""

from __future__ import annotations

from ...wire.errors import ErrorCode, KafkaError
from ..log.log import Log

_ON_DISK = ("_disk", "directory", "_segments", "_health", "_durability", "start_note", "replacements", "removals")


def settle(log: Log) -> None:
    """Nothing of the log is under way in another thread any more, but perhaps a flush.  Waits for the disk.  Raises
    KAFKA_STORAGE_ERROR."""
    log._health.require()
    with log._health.disk_at_work("a move to another data folder"):
        log.replacements.settle()
        log.removals.settle()


def is_flushing(log: Log) -> bool:
    """A flush is under way, and nobody knows yet how it ends."""
    return log._durability.running is not None


def epochs_of(log: Log) -> list[tuple[int, int]]:
    return log._epochs.entries()


def reach_end(log: Log, future: Log) -> None:
    """The log may end behind its last batch, in a hole of a compacted topic.  Raises KAFKA_STORAGE_ERROR."""
    if future.log_end_offset < log.log_end_offset:
        if not log.config.may_have_offset_gaps:
            missing = f"{future.log_end_offset} to {log.log_end_offset}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.name}: the copy lacks what is at offsets {missing}")
        future._roll(log.log_end_offset)


def take_over_start(log: Log, future: Log, *, also_wanted: bool) -> None:
    """The log start, and at the swap one that is wanted and not yet noted (`log_start`): before, it may still be withdrawn.
    Raises KAFKA_STORAGE_ERROR, OSError."""
    future.set_high_watermark(log.high_watermark)
    future.advance_log_start(min(log.log_start_offset, future.high_watermark))
    # Also one that only a checkpoint of the old folder has noted.
    wanted = max(log.start_note.wanted, log.log_start_offset) if also_wanted else log.log_start_offset
    future.start_note.want(min(wanted, future.log_end_offset))
    future.start_note.write()


def is_durable(future: Log) -> bool:
    return not future.needs_flush and not future._durability.complete and not future._durability.has_pending_files


def exchange(log: Log, future: Log) -> None:
    """Nothing in here can fail.  The caller has made sure that both hold the same, and that no flush is under way."""
    assert future.log_end_offset == log.log_end_offset and not is_flushing(log) and not is_flushing(future)
    known = future._epochs.entries()
    for name in _ON_DISK:
        mine, theirs = getattr(log, name), getattr(future, name)
        setattr(log, name, theirs)
        setattr(future, name, mine)
    log._health.on_offline, future._health.on_offline = log._went_offline, None
    if log._epochs.entries() != known:  # of an election that no record followed
        log._durability.epochs_changed(log.log_end_offset)
    log.cuts += 1  # who has taken down segments of the log finds others
    log.cleaned_to = 0  # the copy may have begun before a cleaning
