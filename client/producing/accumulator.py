"""The records that a producer holds: batches per partition, their sequence numbers, and the batches that may
be sent.

A pure core: no I/O, no clock (`now_s` is given), no event loop.  The sender asks `drain` what to send, and
reports the outcome of each batch with exactly one of `succeeded`, `retry`, `rejected_out_of_order`,
`rejected_unknown_producer`, `rejected`, `split` or `failed`.

Promises, per partition:

* Records reach the log in the order of `append`.  At most `in_flight_max` batches of a partition are in
  flight.  A batch keeps its sequence numbers for as long as a broker may hold a copy of it.  A resent batch
  is in flight alone: then it is either new to the broker, or an exact duplicate of one of the five batches
  that the broker remembers (docs/semantics.md I2).
* A batch whose sequence numbers will never be in the log leaves a sequence gap, and the broker accepts no
  later number.  If it was the last numbered batch and was sent only once, the next batch gets its numbers.
  Otherwise the partition's sequence is *unresolved*: the partition first waits for the outcome of every
  numbered batch under its old numbers, and then continues from sequence 0 under a new identity
  (`needs_identity`, rule I4).
* A batch that the broker rejected while the partition's sequence is unresolved is sent again under the new
  identity only if every earlier attempt was answered.  After a lost answer, an old copy may still be in the
  network behind its missing predecessor, and the broker would append both copies: such a batch is reported as
  failed.
* A broker that does not know the producer (the topic was created again, or the producer's state expired) has
  none of the batches that it rejects for this reason: a batch in the log keeps the producer's state there for
  longer than a delivery takes.  All these batches are sent again, in order, under a new identity from
  sequence 0.
* A partition changes to a new (producer id, epoch) only when it has no numbered batch without an outcome.

Memory: `append` rejects a record that does not fit into `memory_bytes`; the producer then waits for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ...wire.records import EncodedRecords, NewRecord
from ..requests.transaction_requests import NO_IDENTITY, Identity

SEQUENCE_MASK: Final = 0x7FFFFFFF  # after 2^31-1 comes 0 (rule I3)
BATCH_OVERHEAD_BYTES: Final = 61
RECORD_OVERHEAD_BYTES: Final = 16  # lengths, deltas and attributes; an upper estimate for small records
HEADER_OVERHEAD_BYTES: Final = 10

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the accumulator.  With `numbered` off (no idempotence) batches carry no sequence and travel
    one at a time."""

    batch_bytes: int = 16_384
    linger_s: float = 0.005
    memory_bytes: int = 32 << 20
    in_flight_max: int = 5
    delivery_timeout_s: float = 120.0
    numbered: bool = True


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records of one partition that are sent together and have one outcome.  `tokens`: the caller's, one for
    each record, or none where records are appended encoded."""

    topic: str
    partition: int
    # position among the partition's batches; never changes, unlike sequence numbers it does not wrap
    order: int
    born: int  # how many batches were started before, on all partitions
    created_s: float
    deadline_s: float
    records: list[NewRecord] | EncodedRecords = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    size_bytes: int = BATCH_OVERHEAD_BYTES
    identity: Identity = NO_IDENTITY
    base_sequence: int = -1
    attempts: int = 0
    not_before_s: float = 0.0
    closed: bool = False
    # an attempt was never answered: a copy may be in the log, or still in the network
    uncertain: bool = False
    needs_renumbering: bool = False  # certainly not in the log under these numbers: waits for a new identity
    encoded: bytes | None = None  # kept for resending; dropped when the numbers change

    @property
    def next_sequence(self) -> int:
        return (self.base_sequence + len(self.records)) & SEQUENCE_MASK

    @property
    def numbered(self) -> bool:
        return self.base_sequence >= 0

    def unnumber(self) -> None:
        """Resets the batch to never sent; only for a batch that is certainly not in the log."""
        self.identity, self.base_sequence, self.encoded = NO_IDENTITY, -1, None
        self.needs_renumbering, self.uncertain, self.attempts = False, False, 0


@dataclass(slots=True)
class _Partition:
    queue: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    identity: Identity = NO_IDENTITY
    next_sequence: int = 0
    acknowledged_next: int = 0  # the sequence that the broker expects, as far as its answers say
    next_order: int = 0
    unresolved: bool = False
    producer_unknown: bool = False  # the broker lost its state of this producer; implies `unresolved`

    @property
    def settled(self) -> bool:
        """No numbered batch can still reach the log: none is in flight, and none can follow one with
        `needs_renumbering`."""
        head = self.queue[0] if self.queue else None
        return not self.in_flight and (head is None or not head.numbered or head.needs_renumbering)


class Accumulator:
    """See the module's text.  All methods are synchronous; times are seconds of one monotonic clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._identity = NO_IDENTITY
        self._used_bytes = 0
        self._incomplete: set[ProducerBatch] = set()
        self._flushes = 0
        self.started_count = 0
        self.acknowledged_count = 0  # records

    # ---- the buffered batches ------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def identity(self) -> Identity:
        return self._identity

    def incomplete(self) -> set[ProducerBatch]:
        """A snapshot of the batches that are neither acknowledged nor failed."""
        return set(self._incomplete)

    def incomplete_before(self, started_count: int) -> bool:
        """Whether a batch that was started when `started_count` had this value has no outcome yet."""
        return any(batch.born < started_count for batch in self._incomplete)

    def in_flight_count(self) -> int:
        return sum(len(partition.in_flight) for partition in self._partitions.values())

    def waiting(self) -> list[TopicPartition]:
        """Partitions with something to send, now or later."""
        return [key for key, partition in self._partitions.items() if partition.queue]

    def has_room(self, size_bytes: int) -> bool:
        """Whether a record of this size fits now, in a batch of its own if need be."""
        return self._used_bytes + size_bytes + BATCH_OVERHEAD_BYTES <= self._limits.memory_bytes

    def could_hold(self, size_bytes: int) -> bool:
        """Whether a record of this size would fit if nothing else were here."""
        return size_bytes + BATCH_OVERHEAD_BYTES <= self._limits.memory_bytes

    @staticmethod
    def size_of(record: NewRecord) -> int:
        """A record's share of a batch, before compression.  Raises UnicodeEncodeError."""
        size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            size += HEADER_OVERHEAD_BYTES + len(name.encode()) + len(value or b"")
        return size

    # ---- filling -------------------------------------------------------------------------------------------

    def append(
        self, topic: str, partition_number: int, record: NewRecord, token: object, now_s: float
    ) -> bool:
        """Adds a record.  True when a batch becomes sendable by it: then the caller wakes the sender."""
        size = self.size_of(record)
        batch, started = self._open_batch(topic, partition_number, size, now_s, list)
        assert isinstance(batch.records, list)
        batch.records.append(record)
        batch.tokens.append(token)
        return self._grown(batch, size) or started

    def append_encoded(
        self,
        topic: str,
        partition_number: int,
        size_first: int,
        encode: Callable[[EncodedRecords, int], int],
        now_s: float,
    ) -> bool:
        """Adds the records that `encode(records, room)` appends to a batch's: the first one, of `size_first`
        bytes, and more as long as all together have at most `room`.  It returns their size.  True as of
        `append`."""
        batch, started = self._open_batch(topic, partition_number, size_first, now_s, EncodedRecords)
        assert isinstance(batch.records, EncodedRecords)
        size = encode(batch.records, self._limits.batch_bytes - batch.size_bytes)
        return self._grown(batch, size) or started

    def _open_batch(
        self,
        topic: str,
        partition_number: int,
        size: int,
        now_s: float,
        make_records: Callable[[], list[NewRecord] | EncodedRecords],
    ) -> tuple[ProducerBatch, bool]:
        """A batch with room for a record of `size`, and whether it is new."""
        key = (topic, partition_number)
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = _Partition()
        batch = partition.queue[-1] if partition.queue else None
        if batch is not None and not batch.closed and batch.size_bytes + size <= self._limits.batch_bytes:
            return batch, False
        if batch is not None:
            batch.closed = True
        deadline = now_s + self._limits.delivery_timeout_s
        batch = ProducerBatch(
            topic, partition_number, partition.next_order, self.started_count, now_s, deadline, make_records()
        )
        partition.next_order += 1
        self.started_count += 1
        partition.queue.append(batch)
        self._incomplete.add(batch)
        self._used_bytes += BATCH_OVERHEAD_BYTES
        return batch, True

    def _grown(self, batch: ProducerBatch, size: int) -> bool:
        """Whether the batch is full now."""
        batch.size_bytes += size
        self._used_bytes += size
        if batch.size_bytes >= self._limits.batch_bytes:
            batch.closed = True
        return batch.closed

    def begin_flush(self) -> None:
        """Until `end_flush`, batches do not linger.  Nests."""
        self._flushes += 1

    def end_flush(self) -> None:
        assert self._flushes > 0, "end_flush without begin_flush"
        self._flushes -= 1

    # ---- sending -------------------------------------------------------------------------------------------

    def set_identity(self, identity: Identity) -> None:
        """A new producer id or epoch: each partition adopts it when it has no numbered batch without an
        outcome."""
        self._identity = identity

    @property
    def has_unresolved_sequences(self) -> bool:
        """Some partition gives out no sequence numbers under the present identity."""
        return any(p.unresolved and p.identity == self._identity for p in self._partitions.values())

    def needs_identity(self) -> bool:
        """Some partition can continue only under an identity newer than the present one."""
        return any(
            p.unresolved and p.queue and p.settled and p.identity == self._identity
            for p in self._partitions.values()
        )

    def drain(
        self, partitions: Iterable[TopicPartition], max_bytes: int, now_s: float
    ) -> list[ProducerBatch]:
        """The batches for one request to the leader of `partitions`: at most one for each, numbered, from now
        on in flight.

        The first batch is returned with any size (the leader decides whether it is too large).
        """
        batches: list[ProducerBatch] = []
        total = 0
        for key in partitions:
            partition = self._partitions.get(key)
            if partition is None or not self._sendable(partition, now_s):
                continue
            batch = partition.queue[0]
            if batches and total + batch.size_bytes > max_bytes:
                continue
            total += batch.size_bytes
            partition.queue.popleft()
            if self._limits.numbered and not batch.numbered:
                batch.identity = partition.identity
                batch.base_sequence = partition.next_sequence
                partition.next_sequence = batch.next_sequence
            batch.closed = True
            batch.attempts += 1
            partition.in_flight.append(batch)
            batches.append(batch)
        return batches

    def next_due_s(self, now_s: float) -> float | None:
        """When the next batch becomes sendable by the passing of time alone; None when no batch waits for a
        time."""
        due: float | None = None
        for partition in self._partitions.values():
            if not partition.queue:
                continue
            self._resolve(partition)
            head = partition.queue[0]
            if not self._may_send_more(partition, head):
                continue
            at = head.not_before_s
            if not self._full(partition):
                at = max(at, head.created_s + self._limits.linger_s)
            due = at if due is None else min(due, at)
        return due

    def _sendable(self, partition: _Partition, now_s: float) -> bool:
        if not partition.queue:
            return False
        self._resolve(partition)
        head = partition.queue[0]
        if not self._may_send_more(partition, head) or head.not_before_s > now_s:
            return False
        return self._full(partition) or now_s >= head.created_s + self._limits.linger_s

    def _full(self, partition: _Partition) -> bool:
        head = partition.queue[0]
        pressed = self._flushes > 0 or self._used_bytes >= self._limits.memory_bytes * 3 // 4
        return head.closed or head.attempts > 0 or len(partition.queue) > 1 or pressed

    def _may_send_more(self, partition: _Partition, head: ProducerBatch) -> bool:
        if not self._limits.numbered:
            return not partition.in_flight
        if head.numbered:  # it was sent before: alone, and not while it waits for a new identity
            return not partition.in_flight and not head.needs_renumbering
        if partition.unresolved or partition.identity != self._identity or self._identity == NO_IDENTITY:
            return False
        if any(batch.attempts > 1 for batch in partition.in_flight):
            return False
        return len(partition.in_flight) < self._limits.in_flight_max

    def _resolve(self, partition: _Partition) -> None:
        """Adopts the present identity once no numbered batch is without an outcome under the old one."""
        if self._limits.numbered and partition.identity != self._identity and partition.settled:
            for batch in partition.queue:
                batch.unnumber()
            partition.identity = self._identity
            partition.next_sequence = partition.acknowledged_next = 0
            partition.unresolved = partition.producer_unknown = False

    # ---- outcomes of batches -------------------------------------------------------------------------------

    def succeeded(self, batch: ProducerBatch) -> None:
        """The batch is in the log and acknowledged."""
        partition = self._take_from_flight(batch)
        if batch.identity == partition.identity and batch.numbered:
            partition.acknowledged_next = batch.next_sequence
        self.acknowledged_count += len(batch.records)
        self._complete(batch)

    def retry(self, batch: ProducerBatch, not_before_s: float, *, uncertain: bool) -> None:
        """The batch must be sent again with the same numbers.  `uncertain`: no answer came, it may be in the
        log."""
        partition = self._take_from_flight(batch)
        batch.not_before_s = not_before_s
        batch.uncertain |= uncertain
        self._requeue(partition, batch)

    def rejected_out_of_order(self, batch: ProducerBatch, not_before_s: float) -> bool:
        """OUT_OF_ORDER_SEQUENCE_NUMBER.  True: the batch will be sent again, after the batch before it or
        under a new identity. False: the accumulator has removed it, and the caller reports it as failed."""
        partition = self._partitions[batch.topic, batch.partition]
        if not partition.unresolved and batch.base_sequence != partition.acknowledged_next:
            self.retry(batch, not_before_s, uncertain=False)  # a batch before it is still to be sent again
            return True
        if partition.unresolved and not batch.uncertain:
            self.retry(batch, not_before_s, uncertain=False)
            batch.needs_renumbering = True
            return True
        # The broker lost acknowledged data or its state of this producer; or a copy may still be in the
        # network.
        self.failed(batch)
        return False

    def rejected_unknown_producer(self, batch: ProducerBatch, not_before_s: float) -> bool:
        """UNKNOWN_PRODUCER_ID: the leader has no state of this producer and accepts only sequence 0.  True:
        the batch is sent again, after the batch before it or under a new identity.  False: it is removed, and
        the caller reports it as failed."""
        partition = self._partitions[batch.topic, batch.partition]
        if batch.base_sequence == 0:
            self.failed(batch)  # no batch is missing before it: another identity would not help
            return False
        if not partition.producer_unknown and batch.base_sequence != partition.acknowledged_next:
            # its predecessor has not arrived, or never will
            return self.rejected_out_of_order(batch, not_before_s)
        # The batches before it were acknowledged: the leader had the state and lost it.
        partition.producer_unknown = partition.unresolved = True
        self.retry(batch, not_before_s, uncertain=False)
        batch.needs_renumbering = True
        return True

    def rejected(self, batch: ProducerBatch) -> None:
        """The broker did not append this batch and never will: the caller reports it as failed."""
        partition = self._take_from_flight(batch)
        if batch.numbered:
            later = any(other.numbered and other.order > batch.order for other in _all(partition))
            if batch.attempts == 1 and not later and not partition.unresolved:
                partition.next_sequence = batch.base_sequence
            else:
                partition.unresolved = True
        self._complete(batch)

    def failed(self, batch: ProducerBatch) -> None:
        """The producer gives the batch up although it may be in the log: the caller reports it as failed."""
        partition = self._take_from_flight(batch)
        partition.unresolved |= batch.numbered
        self._complete(batch)

    def split(self, batch: ProducerBatch) -> bool:
        """Halves a batch that the broker rejected as too large, with its sequence numbers; False when it is a
        single record."""
        if len(batch.records) < 2:
            return False
        partition = self._take_from_flight(batch)
        middle = len(batch.records) // 2
        halves = []
        for records, tokens in (
            (batch.records[middle:], batch.tokens[middle:]),
            (batch.records[:middle], batch.tokens[:middle]),
        ):
            half = ProducerBatch(
                batch.topic,
                batch.partition,
                batch.order,
                batch.born,
                batch.created_s,
                batch.deadline_s,
                records,
                tokens,
            )
            if isinstance(records, EncodedRecords):
                half.size_bytes += records.size_bytes
            else:
                half.size_bytes += sum(self.size_of(record) for record in records)
            half.closed, half.attempts, half.uncertain = True, batch.attempts, batch.uncertain
            halves.append(half)
        if batch.numbered:
            second, first = halves
            first.identity = second.identity = batch.identity
            first.base_sequence, second.base_sequence = batch.base_sequence, -1
            second.base_sequence = first.next_sequence
        self._complete(batch)
        # the second first: both have the same order, and each goes in front of its equals
        for half in halves:
            self._requeue(partition, half)
            self._incomplete.add(half)
            self._used_bytes += half.size_bytes
        return True

    def expire(self, now_s: float) -> list[ProducerBatch]:
        """Removes the waiting batches whose delivery timeout has passed; the caller reports them as
        failed."""
        expired: list[ProducerBatch] = []
        for partition in self._partitions.values():
            while partition.queue and partition.queue[0].deadline_s <= now_s:
                batch = partition.queue.popleft()
                partition.unresolved |= batch.numbered
                self._complete(batch)
                expired.append(batch)
        return expired

    def drop_waiting(self) -> list[ProducerBatch]:
        """Removes all batches that are not in flight (the transaction is being aborted); the caller reports
        them as failed.

        The identity must change before the next send: the numbered ones of these batches may be in the log.
        """
        dropped: list[ProducerBatch] = []
        for partition in self._partitions.values():
            partition.unresolved |= any(batch.numbered for batch in partition.queue)
            dropped.extend(partition.queue)
            partition.queue.clear()
        for batch in dropped:
            self._complete(batch)
        return dropped

    def abandon(self) -> list[ProducerBatch]:
        """Removes all batches: nothing more is sent.  The caller reports them as failed, and ignores answers
        still to come."""
        left = sorted(self._incomplete, key=lambda batch: batch.born)
        self._partitions.clear()
        self._incomplete.clear()
        self._used_bytes = 0
        return left

    def _take_from_flight(self, batch: ProducerBatch) -> _Partition:
        partition = self._partitions[batch.topic, batch.partition]
        partition.in_flight.remove(batch)
        return partition

    @staticmethod
    def _requeue(partition: _Partition, batch: ProducerBatch) -> None:
        position = 0
        while position < len(partition.queue) and partition.queue[position].order < batch.order:
            position += 1
        partition.queue.insert(position, batch)

    def _complete(self, batch: ProducerBatch) -> None:
        self._incomplete.discard(batch)
        self._used_bytes -= batch.size_bytes

    def forget_idle(self, keep: Callable[[TopicPartition], bool]) -> None:
        """Drops the state of partitions that no longer exist and hold no batch."""
        for key in [
            k for k, p in self._partitions.items() if not p.queue and not p.in_flight and not keep(k)
        ]:
            del self._partitions[key]

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        for partition in self._partitions.values():
            assert len(partition.in_flight) <= (self._limits.in_flight_max if self._limits.numbered else 1)
            orders = [batch.order for batch in partition.queue]
            assert orders == sorted(orders), orders
            for batch in _all(partition):
                assert batch in self._incomplete
        assert self._used_bytes == sum(batch.size_bytes for batch in self._incomplete)


def _all(partition: _Partition) -> Iterator[ProducerBatch]:
    yield from partition.in_flight
    yield from partition.queue
