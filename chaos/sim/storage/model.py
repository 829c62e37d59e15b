"""The answers that a partition's log must give, computed in the plain way from all batches that were appended
and not truncated.

The model knows nothing of files, segments, indexes, snapshots or caches.  It holds every batch as it must be
stored, byte for byte, and computes all else from zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ....wire.records import (
    BatchHeader,
    ControlType,
    Record,
    decode_batch,
    decode_marker,
    iterate_headers,
    parse_header,
)

BATCHES_REMEMBERED = 5


class StoredBatch(NamedTuple):
    """One batch as the log has it."""

    header: BatchHeader
    data: bytes


class Ended(NamedTuple):
    """A transaction with its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    is_aborted: bool


@dataclass(slots=True)
class ModelProducer:
    """The state of one producer; `batches` are (last sequence, last offset, offset delta, timestamp)."""

    epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1
    first_offset: int | None = None
    batches: tuple[tuple[int, int, int, int], ...] = ()

    def take(self, header: BatchHeader) -> None:
        self.move_to(header.producer_epoch)
        if header.base_sequence >= 0:
            last = (header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
            self.batches = (*self.batches[1 - BATCHES_REMEMBERED :], last)
        self.last_timestamp_ms = header.max_timestamp
        if header.is_transactional and self.first_offset is None:
            self.first_offset = header.base_offset

    def move_to(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.batches = epoch, ()


@dataclass(slots=True)
class Replay:
    """The effect of all batches, from zero."""

    producers: dict[int, ModelProducer] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)

    def take(self, batch: StoredBatch) -> None:
        header, data = batch
        if header.producer_id < 0:
            return
        producer = self.producers.setdefault(header.producer_id, ModelProducer())
        if not header.is_control:
            producer.take(header)
            return
        marker = decode_marker(data)
        if marker is None:
            return
        if producer.first_offset is not None:
            aborted = marker.control_type is ControlType.ABORT
            self.ended.append(Ended(header.producer_id, producer.first_offset, header.base_offset, aborted))
        producer.move_to(header.producer_epoch)
        producer.first_offset = None
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp_ms = header.max_timestamp

    def last_stable_offset(self, high_watermark: int, replicated_to: int, log_start: int) -> int:
        open_ones = [p.first_offset for p in self.producers.values() if p.first_offset is not None]
        undecided = [each.first_offset for each in self.ended if each.marker_offset >= replicated_to]
        return max(min([high_watermark, *open_ones, *undecided]), min(log_start, high_watermark))

    def aborted(self, start: int, upper: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap [start, upper), by first
        offset."""
        found = [
            e for e in self.ended if e.is_aborted and e.marker_offset >= start and e.first_offset < upper
        ]
        return sorted(((e.producer_id, e.first_offset) for e in found), key=lambda pair: pair[1])


class LogModel:
    """See the module's text.  `start` is where readers may begin; batches below it are kept for the replay.

    `batches` are as they were appended; `_cleaned` has what a cleaning left of them.
    """

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.cleaned_to = 0
        """Below this offset, readers may see less than was appended."""
        self._cleaned: dict[int, bytes] = {}
        self.hidden_to = 0
        """Batches that end below this offset were below the log start when they were cleaned: the model does
        not know which of their records remain."""
        self.start = 0
        self.watermark_most = 0
        self.start_most = 0
        """The greatest log start so far."""
        self.forgotten_to = 0
        """The producer state from below this offset is lost."""
        self.end = 0
        self._replay: Replay | None = None
        self._replayed = 0

    def append(self, data: bytes | bytearray) -> None:
        for position, header in iterate_headers(data):
            self.batches.append(StoredBatch(header, bytes(data[position : position + header.size_bytes])))
            self.end = header.next_offset

    def truncate(self, offset: int) -> None:
        """No batch ends above `offset`; below the start, the log begins anew."""
        if offset >= self.end:
            return
        if offset < self.start:
            self.restart(offset)
            return
        self.end = offset
        while self.batches and self.batches[-1].header.next_offset > offset:
            cut = self.batches.pop()
            if self.is_stored(cut):
                self.end = min(offset, cut.header.base_offset)
        self.start = min(self.start, self.end)
        self.watermark_most = min(self.watermark_most, self.end)
        self.cleaned_to = min(self.cleaned_to, self.end)
        self._replay = None

    def forget_below(self, offset: int) -> None:
        """The replay begins at `offset` from now on."""
        self.batches = [batch for batch in self.batches if batch.header.next_offset > offset]
        self.forgotten_to, self._replay = offset, None

    def restart(self, offset: int) -> None:
        self.batches.clear()
        self._cleaned.clear()
        self.start = self.end = self.start_most = self.watermark_most = offset
        self.cleaned_to = 0
        self._replay = None

    def store_cleaned(self, data_at: dict[int, bytes], limit: int) -> None:
        """The batches that readers see now, by base offset; below `limit` there may be fewer records than
        before."""
        self._cleaned = data_at
        self.hidden_to = self.start
        self.cleaned_to = max(self.cleaned_to, limit)

    def is_stored(self, batch: StoredBatch) -> bool:
        """Whether a part of the batch is left."""
        return batch.header.base_offset >= self.cleaned_to or batch.header.base_offset in self._cleaned

    def keep(self, count: int, end: int) -> None:
        """Keeps only the first `count` batches; the log ends at `end`."""
        if count < len(self.batches) or end < self.end:
            del self.batches[count:]
            self._replay = None
        self.end = end
        self.watermark_most = min(self.watermark_most, end)
        self.cleaned_to = min(self.cleaned_to, end)

    def visible(self) -> list[StoredBatch]:
        """The batches that readers may see: all that do not end at or below the start."""
        batches, low = self.batches, 0
        if self.start > (batches[0].header.base_offset if batches else 0):
            while low < len(batches) and batches[low].header.next_offset <= self.start:
                low += 1
        if not self.cleaned_to:
            return batches[low:]
        found: list[StoredBatch] = []
        for batch in batches[low:]:
            base = batch.header.base_offset
            if base >= self.cleaned_to:
                found.append(batch)
            elif base in self._cleaned:
                data = self._cleaned[base]
                found.append(StoredBatch(parse_header(data), data))
        return found

    def replay(self) -> Replay:
        if self._replay is None:
            self._replay, self._replayed = Replay(), 0
        for batch in self.batches[self._replayed :]:
            self._replay.take(batch)
        self._replayed = len(self.batches)
        return self._replay

    def records(self) -> list[Record]:
        """Data records at or above the start."""
        found: list[Record] = []
        for header, data in self.visible():
            if not header.is_control:
                found += [record for record in decode_batch(data) if record.offset >= self.start]
        return found
