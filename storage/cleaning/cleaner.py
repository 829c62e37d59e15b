"""Cleans one log: reads its segments in a thread, writes the records that stay into new ones, and swaps them
in on the loop.

    cleaning = begin_cleaning(log, now_ms)      on the loop: notes the segments, and the state that decides
                                                about their batches
    cleaning.run(disk, on_loop, ...)            any thread: per group of segments, one new, durable segment,
                                                which then takes their place (`replacement`), unless the log
                                                was truncated meanwhile
    cleaning.finish()                           on the loop: only now does the log count as clean up to there

Groups are swapped in the order of offsets.  So when a delete horizon is in the log, the records that the
tombstone or marker covers are gone already, and a cleaning that ends in between can be repeated: its first
half removed nothing that the repetition needs.

A truncation, a removal by retention, or the close of the log voids a cleaning (`ConcurrentTruncation`),
because its decisions may rest on records that are gone; so does a pin (`Log.pins`), which lets a replacement
that has begun come to its end.  It removes the files that it wrote; opening removes
those that a crash leaves (`segment.swap`).

The CRC of each batch is checked before its records are read: damage is reported (`InvalidBatch`), never
rewritten under a new CRC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from ...runtime import faults
from ...runtime.disk import Disk
from ...wire.records import BatchHeader
from ..log.log import Log
from ..log.replacement import Replacement, Stage
from ..segment.batch_scan import CHUNK_BYTES, ScannedBatch, scan_batches
from ..segment.segment import Segment
from ..segment.transaction_index import AbortedRanges
from .compaction import CleaningCounts, Compaction, KeyMap, note_keys
from .plan import Cleanable, SegmentFacts, group_segments, plan_cleaning
from .producers import offsets_to_keep

READ_BYTES = 1 << 20
WRITE_BYTES = 1 << 20
KEY_MAP_BYTES = 128 << 20
T = TypeVar("T")

Pace = Callable[[int], None]


class OnLoop(Protocol):
    """Calls something on the loop and waits for what it returns or raises."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


class ConcurrentTruncation(Exception):
    """The log was truncated, its start raised, or it was closed during the cleaning: no error, the cleaner
    tries again later."""


@dataclass(slots=True)
class CleaningResult:
    """What a cleaning did; `cleaned_to` is the offset below which the log is clean now."""

    cleaned_to: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    segments_before: int = 0
    segments_after: int = 0
    keys: int = 0
    map_was_full: bool = False
    next_horizon_ms: int | None = None
    """When the next tombstone or marker may go (`Compaction.next_horizon_ms`)."""
    counts: CleaningCounts = field(default_factory=CleaningCounts)


@dataclass(slots=True, frozen=True)
class _Source:
    """One segment as it was at the beginning: its bytes below `size_bytes` do not change."""

    segment: Segment
    facts: SegmentFacts


def cleanable_part(log: Log, now_ms: int, horizon_ms: int | None = None) -> Cleanable | None:
    """The part of the log that may be cleaned now; None when there is none.  `horizon_ms` is that of the last
    cleaning's result.  On the loop.  Raises OSError, InvalidBatch."""
    if log.pins:
        return None
    segments = log.segments
    return plan_cleaning(
        _facts(segments),
        log.config,
        cleaned_to=max(log.cleaned_to, log.log_start_offset),
        settled_offset=min(log.last_stable_offset, log.recovery_point),
        now_ms=now_ms,
        max_timestamp_of=lambda at: segments[at].load_max_timestamp(),
        first_timestamp_of=lambda at: segments[at].first_timestamp(),
        horizon_ms=horizon_ms,
    )


def _facts(segments: Sequence[Segment]) -> list[SegmentFacts]:
    return [SegmentFacts(each.base_offset, each.next_offset, each.size_bytes) for each in segments]


def begin_cleaning(log: Log, now_ms: int, horizon_ms: int | None = None) -> Cleaning | None:
    """On the loop; None when there is nothing to do.  Raises OSError, InvalidBatch."""
    part = cleanable_part(log, now_ms, horizon_ms)
    if part is None:
        return None
    log.note_cleaned(part.end_offset)
    return Cleaning(log, part, now_ms)


class Cleaning:
    """One cleaning of one log.  The module's text says which thread calls what."""

    def __init__(self, log: Log, part: Cleanable, now_ms: int) -> None:
        self.log = log
        self.part = part
        self.result = CleaningResult(segments_before=part.segment_count)
        self._now_ms = now_ms
        self._config = log.config
        self._truncations = log.truncations
        segments = log.segments[: part.segment_count]
        self._sources = [_Source(*pair) for pair in zip(segments, _facts(segments), strict=True)]
        # Of the whole log: a transaction's marker may stand in a segment that is not cleaned, or not in the
        # same group.
        self._aborted = AbortedRanges(entry for each in log.segments for entry in each.aborted.entries)
        self._live = frozenset(each.producer_id for each in log.producers.views())
        self._pending: list[Segment] = [source.segment for source in self._sources]
        self._pace: Pace = lambda _bytes: None

    # ---- on the loop ---------------------------------------------------------------------------------------

    def is_invalidated(self) -> bool:
        """Whether the log changed so that the state noted at the beginning no longer holds."""
        log = self.log
        if (
            log.is_offline
            or log.is_closed
            or log.truncations != self._truncations
            or len(log.segments) < len(self._pending)
        ):
            return True
        there = {id(segment) for segment in log.segments}
        return any(id(segment) not in there for segment in self._pending)

    def _require_unchanged(self) -> None:
        if self.is_invalidated():
            raise ConcurrentTruncation(f"{self.log.name} was cut while it was cleaned")

    def _begin_replacement(self, old: Sequence[Segment], new: Segment) -> Replacement:
        self._require_unchanged()
        if self.log.pins:
            raise ConcurrentTruncation(f"{self.log.name} was pinned while it was cleaned")
        try:
            return self.log.local.replacements.begin(old, new)
        except ValueError as error:
            raise ConcurrentTruncation(str(error)) from error

    def _switch(self, replacement: Replacement) -> None:
        self._require_unchanged()
        try:
            self.log.local.replacements.switch(replacement)
        except ValueError as error:
            raise ConcurrentTruncation(str(error)) from error
        gone = {id(segment) for segment in replacement.old}
        self._pending = [segment for segment in self._pending if id(segment) not in gone]

    def finish(self) -> CleaningResult:
        """After `run` returned: the log is clean up to the map's end.  Raises ConcurrentTruncation when it
        was truncated since."""
        if self.log.truncations != self._truncations:
            raise ConcurrentTruncation(f"{self.log.name} was cut while it was cleaned")
        self.log.cleaned_to = max(self.log.cleaned_to, self.result.cleaned_to)
        return self.result

    # ---- in a thread ---------------------------------------------------------------------------------------

    def run(
        self, disk: Disk, on_loop: OnLoop, pace: Pace | None = None, key_map_bytes: int = KEY_MAP_BYTES
    ) -> None:
        """Any thread.  Calls `pace` with the bytes of every piece of work; `pace` may wait, or raise to end
        the cleaning.  Raises ConcurrentTruncation, OSError, InvalidBatch, KafkaError."""
        self._pace = pace or self._pace
        keys = self._read_keys(key_map_bytes)
        sources = [source for source in self._sources if source.facts.base_offset < keys.end_offset]
        assert sources, "the map covers nothing"
        compaction = self._compaction(keys, sources)
        groups = group_segments([source.facts for source in sources], self._config.segment_bytes)
        for group in groups:
            self._clean_group(disk, on_loop, compaction, sources[group.start : group.stop])
        self.result.cleaned_to = keys.end_offset
        self.result.counts = compaction.counts
        self.result.next_horizon_ms = compaction.next_horizon_ms
        self.result.segments_after = self.result.segments_before - len(sources) + len(groups)

    def _compaction(self, keys: KeyMap, sources: Sequence[_Source]) -> Compaction:
        walks = (
            scan_batches(source.segment.file, 0, source.facts.size_bytes) for source in reversed(sources)
        )
        return Compaction(
            keys, self._aborted, offsets_to_keep(map(self._paced, walks), self._live), now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms, end_offset=sources[-1].facts.next_offset,
        )  # fmt: skip

    def _paced(self, walk: Iterator[ScannedBatch]) -> Iterator[ScannedBatch]:
        for batch in walk:
            read = min(batch.header.size_bytes, CHUNK_BYTES)  # of a large batch, one piece is read at a time
            self.result.bytes_read += read
            self._pace(read)
            yield batch

    def _read_keys(self, key_map_bytes: int) -> KeyMap:
        """The map over the dirty part, or over as much of it as fits."""
        start = self.part.first_dirty_offset
        keys = KeyMap(key_map_bytes, self.part.end_offset - start)
        keys.end_offset = start
        for source in self._sources:
            if source.facts.next_offset <= start:
                continue
            for view, header in self._batches(source):
                if not note_keys(keys, self._aborted, view, header, start):
                    self.result.keys, self.result.map_was_full = keys.size, True
                    return keys
            # of a cleaned segment, this may lie behind its last batch
            keys.end_offset = source.facts.next_offset
        self.result.keys = keys.size
        return keys

    def _batches(self, source: _Source) -> Iterator[tuple[memoryview, BatchHeader]]:
        file = source.segment.file
        for _position, header, view in scan_batches(
            file, 0, source.facts.size_bytes, check=True, chunk_bytes=READ_BYTES
        ):
            assert view is not None
            self.result.bytes_read += len(view)
            self._pace(len(view))
            yield view, header

    def _clean_group(
        self, disk: Disk, on_loop: OnLoop, compaction: Compaction, sources: Sequence[_Source]
    ) -> None:
        old = [source.segment for source in sources]
        new = self.log.segments.create_cleaned(old[0].base_offset, self._config.index_interval_bytes)
        try:
            changed = self._fill(new, compaction, sources)
            if not changed and len(old) == 1:
                new.remove()  # the new segment would equal the old ones
                self._pending.remove(old[0])
                return
            entries = [entry for segment in old for entry in segment.aborted.entries]
            kept = [entry for entry in entries if entry.last_offset in compaction.kept_markers]
            compaction.kept_markers.clear()
            if kept:
                new.aborted.append(kept)
            new.sync_cleaned(old[-1].next_offset)
        except BaseException:
            self._discard(new)
            raise
        faults.point("log.cleaned_unpublished", topic=self.log.topic, partition=self.log.partition)
        for path in self._replace(on_loop, old, new):
            try:
                disk.remove(path)
            except FileNotFoundError:
                continue  # the log was deleted meanwhile

    def _replace(self, on_loop: OnLoop, old: Sequence[Segment], new: Segment) -> list[Path]:
        """Puts `new` into the place of `old`; returns the files to unlink."""
        log = self.log
        try:
            replacement = on_loop(lambda: self._begin_replacement(old, new))
        except BaseException:
            self._discard(new)
            raise
        try:
            replacement.decide()
            faults.point("log.swap_unswitched", topic=log.topic, partition=log.partition)
            on_loop(lambda: self._switch(replacement))
            replacement.carry_out()
        except OSError as error:
            failure = error
            on_loop(lambda: log.local.replacements.failed(replacement, failure))
        finally:
            if replacement.stage is Stage.WITHDRAWN:
                # else the swap may be decided: then the new segment is the log's only copy
                self._discard(new)
        on_loop(lambda: log.local.replacements.finish(replacement))
        return replacement.doomed

    def _fill(self, new: Segment, compaction: Compaction, sources: Sequence[_Source]) -> bool:
        """Writes the records of `sources` that stay; whether any record was removed or changed."""
        changed_before = compaction.counts.batches_changed
        waiting = bytearray()
        for source in sources:
            for view, header in self._batches(source):
                kept = compaction.keep(view, header)
                if kept is not None:
                    waiting += kept
                if len(waiting) >= WRITE_BYTES:
                    self._write(new, waiting)
                    waiting = bytearray()
        if waiting:
            self._write(new, waiting)
        return compaction.counts.batches_changed > changed_before

    def _write(self, new: Segment, data: bytearray) -> None:
        new.append_batches(data)
        self.result.bytes_written += len(data)
        self._pace(len(data))

    @staticmethod
    def _discard(new: Segment) -> None:
        """The new segment is not part of the log.  Files that cannot be removed now are removed when the log
        is opened."""
        try:
            new.remove()
        except OSError:
            return


def clean_now(
    log: Log, disk: Disk, now_ms: int, *, key_map_bytes: int = KEY_MAP_BYTES, horizon_ms: int | None = None
) -> CleaningResult | None:
    """A cleaning that waits on the loop's thread: for tools and tests.  None when there is nothing to do."""
    cleaning = begin_cleaning(log, now_ms, horizon_ms)
    if cleaning is None:
        return None
    cleaning.run(disk, lambda work: work(), key_map_bytes=key_map_bytes)
    return cleaning.finish()
