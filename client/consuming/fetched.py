"""From fetched batches to a user's records: the read_committed filter, lazily, batch by batch.

docs/semantics.md F3: the broker sends the aborted transactions of the range, by first offset.  At each batch
those that have begun (`first_offset <= batch.last_offset`) join the active set; the filter drops a
transactional batch of an active producer id; the ABORT marker removes the producer id.  Control batches are
never delivered.  Offsets have gaps (rule L8): the position after a batch is the batch's `next_offset`, never
"last record + 1".

Records are decoded when the consumer takes them, not when they arrive: prefetched data stays compressed, and
a seek drops bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...wire.errors import KafkaError
from ...wire.records import (
    ControlType,
    Record,
    decode_batch,
    decode_marker,
    iterate_headers,
    validate_batch,
)


class ConsumerRecord(NamedTuple):
    """One consumed record.  `timestamp_ms` is the producer's or the broker's, by the topic's timestamp
    type."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    leader_epoch: int


class AbortedTransactions:
    """Which producer ids are inside an aborted transaction at the current batch."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        """`aborted`: (producer id, first offset) of each aborted transaction that overlaps the range."""
        self._coming = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._active: set[int] = set()

    def reach(self, last_offset: int) -> None:
        """The next batch ends at `last_offset`."""
        while self._coming and self._coming[-1][1] <= last_offset:
            self._active.add(self._coming.pop()[0])

    def leave(self, producer_id: int) -> None:
        """The reader passed the ABORT marker of this producer id."""
        self._active.discard(producer_id)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._active


class FetchedRecords:
    """The answer of one fetch for one partition, while the consumer takes its records.

    `position` is the offset that the consumer reads next: it moves with each record taken, and past batches
    that the filter drops.  `aborted` is None for read_uncommitted.  Raises KafkaError(CORRUPT_MESSAGE) when a
    batch fails its CRC.
    """

    __slots__ = (
        "_aborted",
        "_error",
        "_records",
        "_view",
        "next_fetch_offset",
        "partition",
        "position",
        "size_bytes",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        fetch_offset: int,
        data: bytes | memoryview,
        aborted: Sequence[tuple[int, int]] | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.position = fetch_offset
        self.size_bytes = len(data)
        self._view = memoryview(data).toreadonly()
        self.next_fetch_offset = fetch_offset
        for _, header in iterate_headers(self._view):
            self.next_fetch_offset = max(self.next_fetch_offset, header.next_offset)
        self._aborted = None if aborted is None else AbortedTransactions(aborted)
        self._records = self._walk()
        self._error: KafkaError | None = None

    @property
    def exhausted(self) -> bool:
        return self.position >= self.next_fetch_offset

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records; fewer only at the end of this answer, or before a corrupt batch: then the
        next call raises."""
        if self._error is not None:
            raise self._error
        taken: list[ConsumerRecord] = []
        try:
            for record in self._records:
                taken.append(record)
                self.position = record.offset + 1
                if len(taken) >= count:
                    break
            else:
                self.position = self.next_fetch_offset
        except KafkaError as error:
            # a generator that raised has ended: without this, the consumer would skip the rest
            self._error = error
            if not taken:
                raise
        return taken

    def _walk(self) -> Iterator[ConsumerRecord]:
        topic, partition, start = self.topic, self.partition, self.position
        for place, header in iterate_headers(self._view):
            if header.last_offset < start:
                continue
            validate_batch(self._view, place)
            if self._aborted is not None:
                self._aborted.reach(header.last_offset)
            if header.is_control:
                marker = decode_marker(self._view, place)
                if (
                    self._aborted is not None
                    and marker is not None
                    and marker.control_type is ControlType.ABORT
                ):
                    self._aborted.leave(header.producer_id)
            elif not (
                self._aborted is not None and header.is_transactional and header.producer_id in self._aborted
            ):
                epoch = header.partition_leader_epoch
                for record in decode_batch(self._view, place):
                    if record.offset >= start:
                        yield shown(topic, partition, record, epoch)
            self.position = header.next_offset


def shown(topic: str, partition: int, record: Record, epoch: int) -> ConsumerRecord:
    """As the application gets it."""
    return ConsumerRecord(
        topic, partition, record.offset, record.timestamp_ms, record.key, record.value, record.headers, epoch
    )
