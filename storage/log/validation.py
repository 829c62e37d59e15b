"""What holds of a log at every moment.  `Log.validate` asks; the simulators ask after every step, and a node
with `debug.validate` asks after every append, flush and fetch.

Each function yields sentences about what does not hold.  What they read is in memory; nothing here opens a
file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ..epoch_cache import EpochCache
from ..producers.producer_state import ProducerState
from ..segment.segment import Segment
from .local_log import LocalLog


def offset_violations(
    log_start: int, last_stable: int, high_watermark: int, log_end: int, local: LocalLog
) -> Iterator[str]:
    """log start <= last stable <= high watermark <= log end, and recovery point <= flushed end <= log end.

    The log start may be above the flushed end: with `flush.policy=os` records are committed, and deleted,
    before they are flushed.
    """
    if not 0 <= log_start <= last_stable <= high_watermark <= log_end:
        yield (
            f"not in order: log start {log_start}, last stable offset {last_stable}, "
            f"high watermark {high_watermark}, log end {log_end}"
        )
    durability = local.durability
    if not 0 <= durability.recovery_point <= durability.flushed_end <= log_end:
        yield (
            f"not in order: recovery point {durability.recovery_point}, "
            f"flushed end {durability.flushed_end}, log end {log_end}"
        )
    yield from durability.waits.violations()
    active = local.segments.active
    if active is not local.segments[-1]:
        yield f"the active segment, {active.base_offset}, is not the last one"
    if active.next_offset != log_end:
        yield f"the active segment ends at {active.next_offset}, the log at {log_end}"


def segment_violations(segments: Iterable[Segment], *, may_have_offset_gaps: bool) -> Iterator[str]:
    """Offsets rise from segment to segment, without a gap where none may be; indexes in memory stay within
    their segment."""
    for before, after in itertools.pairwise(segments):
        gap = after.base_offset - before.next_offset
        if gap < 0 or (gap and not may_have_offset_gaps):
            yield f"the segment {after.base_offset} follows one that ends at {before.next_offset}"
    for segment in segments:
        if not (segment.base_offset <= segment.next_offset and segment.size_bytes >= 0):
            yield f"the segment {segment.base_offset} ends at {segment.next_offset}"
        for problem in (
            *segment.indexes.violations(segment.size_bytes, segment.next_offset),
            *segment.aborted.violations(segment.next_offset),
        ):
            yield f"the segment {segment.base_offset}: {problem}"


def epoch_violations(epochs: EpochCache, log_end: int, *, whole: bool) -> Iterator[str]:
    """Leader epochs and their start offsets rise strictly, and none begins above the log's end."""
    entries = epochs.entries() if whole else list(zip(epochs.epochs[-2:], epochs.starts[-2:], strict=True))
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(entries):
        if not (epoch < next_epoch and start < next_start):
            yield f"leader epoch {next_epoch} from {next_start} follows epoch {epoch} from {start}"
    if entries and entries[-1][1] > log_end:
        yield f"leader epoch {entries[-1][0]} begins at {entries[-1][1]}, above the log's end {log_end}"


def producer_violations(producers: ProducerState, log_end: int, *, whole: bool) -> Iterator[str]:
    """The producer state is that of all batches, and of no others."""
    if producers.end_offset != log_end:
        yield f"the producer state ends at {producers.end_offset}, the log at {log_end}"
    yield from producers.violations(whole=whole)
