"""Which part of a log may be cleaned, whether it is worth it, which log comes first, and which segments
become one.  Pure.

    log start        first dirty offset            first uncleanable offset
    |--- clean ------|--- dirty, may be cleaned ---|--- stays: recent, undecided, unflushed, active ---|

Only whole segments are cleaned, and only below the last stable offset (so below the high watermark), the
recovery point and the active segment (docs/semantics.md C1), and older than `min.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..segment.offset_index import OFFSET_SPAN_MAX
from ..topic_config import LogConfig

KeyT = TypeVar("KeyT")


class SegmentFacts(NamedTuple):
    """One segment as the plan sees it."""

    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(slots=True, frozen=True)
class Cleanable:
    """The first `segment_count` segments may be cleaned; `dirty_bytes` of them were not yet,
    `oldest_dirty_ms` is the timestamp of their first batch (None when there is no dirty data).
    `horizon_passed`: in the clean part are tombstones or markers that may go by now."""

    segment_count: int
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_ms: int | None
    horizon_passed: bool = False

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_overdue(self, config: LogConfig, now_ms: int) -> bool:
        """Whether max.compaction.lag.ms asks for a cleaning, however little there is to clean."""
        return (
            self.oldest_dirty_ms is not None and now_ms - self.oldest_dirty_ms > config.max_compaction_lag_ms
        )

    def is_due(self, config: LogConfig, now_ms: int) -> bool:
        worth_it = self.dirty_bytes > 0 and self.dirty_ratio >= config.min_cleanable_dirty_ratio
        return worth_it or self.horizon_passed or self.is_overdue(config, now_ms)


def plan_cleaning(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    cleaned_to: int,
    settled_offset: int,
    now_ms: int,
    max_timestamp_of: Callable[[int], int],
    first_timestamp_of: Callable[[int], int | None],
    horizon_ms: int | None = None,
) -> Cleanable | None:
    """`segments` in order, the active one last; `settled_offset` is the least of last stable offset and
    recovery point.

    The timestamps of a segment are asked for by its index, and only where they matter.  `horizon_ms` is the
    first delete horizon in the clean part, where one is known.  None when there is nothing to do.
    """
    count, clean_bytes, dirty_bytes = 0, 0, 0
    oldest_dirty_ms: int | None = None
    for at, segment in enumerate(segments[:-1]):
        if segment.next_offset > settled_offset:
            break
        if segment.next_offset <= cleaned_to:
            clean_bytes += segment.size_bytes
        else:
            if (
                config.min_compaction_lag_ms > 0
                and max_timestamp_of(at) > now_ms - config.min_compaction_lag_ms
            ):
                break
            dirty_bytes += segment.size_bytes
            if oldest_dirty_ms is None and segment.size_bytes:
                oldest_dirty_ms = first_timestamp_of(at)
        count = at + 1
    horizon_passed = horizon_ms is not None and horizon_ms <= now_ms and clean_bytes > 0
    if not dirty_bytes and not horizon_passed:
        return None
    end = segments[count - 1].next_offset
    first_dirty = min(max(cleaned_to, segments[0].base_offset), end)
    return Cleanable(count, first_dirty, end, clean_bytes, dirty_bytes, oldest_dirty_ms, horizon_passed)


def dirtiest(due: Iterable[tuple[KeyT, Cleanable, bool]]) -> KeyT | None:
    """The log to clean first, of (log, what may be cleaned, overdue or not): overdue ones, then the greatest
    dirty ratio."""
    best = max(due, key=lambda each: (each[2], each[1].dirty_ratio), default=None)
    return None if best is None else best[0]


def group_segments(segments: Sequence[SegmentFacts], segment_bytes: int) -> list[range]:
    """Neighbours that become one segment: together not larger than one may be before they are cleaned."""
    groups: list[range] = []
    first, size = 0, 0
    for at, segment in enumerate(segments):
        too_large = size + segment.size_bytes > segment_bytes
        if at > first and (too_large or segment.next_offset - segments[first].base_offset > OFFSET_SPAN_MAX):
            groups.append(range(first, at))
            first, size = at, 0
        size += segment.size_bytes
    if segments:
        groups.append(range(first, len(segments)))
    return groups
