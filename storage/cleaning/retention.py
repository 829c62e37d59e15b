"""Which segments are old enough, or too many, and where the log starts without them.

    retention.ms      a segment goes when its greatest timestamp is older; order is kept: the first one that
                      stays ends the search
    retention.bytes   the oldest segments go as long as what is left is not smaller than the limit

No segment goes that a pinned cut names (`Log.pins`), nor one at or above the last stable offset, which is
never above the high watermark: records that are not decided and replicated cannot be too old.  When the whole
active segment is too old it is completed first, so that a topic without writers becomes empty.  A segment
without any timestamp never goes by time.

Only the leader decides; followers take over its log start with their fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..log.log import Log
from ..segment.time_index import NO_TIMESTAMP
from ..topic_config import CleanupPolicy, LogConfig
from .plan import SegmentFacts


def retained_start(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    stable_offset: int,
    now_ms: int,
    max_timestamp_of: Callable[[int], int],
) -> int:
    """The offset at which the log should start; that of the first segment when nothing may go.  Pure.

    `segments` in order; timestamps are asked for by index, only as far as they matter.
    """
    excess = (
        sum(each.size_bytes for each in segments) - config.retention_bytes
        if config.retention_bytes >= 0
        else -1
    )
    start = segments[0].base_offset
    for at, segment in enumerate(segments):
        if segment.next_offset > stable_offset:
            break
        too_large = excess >= segment.size_bytes > 0
        if segment.size_bytes and not too_large and not _is_too_old(max_timestamp_of(at), config, now_ms):
            break
        excess -= segment.size_bytes
        start = segment.next_offset
    return start


def _is_too_old(max_timestamp_ms: int, config: LogConfig, now_ms: int) -> bool:
    return (
        config.retention_ms >= 0
        and max_timestamp_ms != NO_TIMESTAMP
        and now_ms - max_timestamp_ms > config.retention_ms
    )


def apply_retention(log: Log, now_ms: int) -> Iterator[int]:
    """Raises the log start, one segment at each step, so that the caller can let others run in between;
    yields each new start.

    On the loop.  Raises KAFKA_STORAGE_ERROR.
    """
    if CleanupPolicy.DELETE not in log.config.cleanup_policy:
        return
    segments = log.segments
    facts = [SegmentFacts(each.base_offset, each.next_offset, each.size_bytes) for each in segments]
    start = retained_start(
        facts, log.config, stable_offset=log.last_stable_offset, now_ms=now_ms,
        max_timestamp_of=lambda at: segments[at].load_max_timestamp(),
    )  # fmt: skip
    if min(start, log.deletable_end) == log.log_end_offset and facts[-1].size_bytes:
        log.roll()
    for segment in facts:
        stays = min(start, log.last_stable_offset, log.deletable_end)
        if log.log_start_offset < segment.next_offset <= stays:
            log.advance_log_start(segment.next_offset)
            yield segment.next_offset
