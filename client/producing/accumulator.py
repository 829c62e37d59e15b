"""The records that a producer holds: batches per partition, their sequence numbers, and what may be sent when.

A pure core: no I/O, no clock (`now_s` is given), no event loop.  The sender asks `drain` what to send, and reports each batch's
fate with exactly one of `succeeded`, `retry`, `refused_out_of_order`, `refused_as_unknown`, `rejected`, `split` or `failed`.

Promises, per partition:

* Records reach the log in the order of `append`, at most `in_flight_max` batches are on the way at once, and a batch keeps its
  sequence numbers for as long as a broker may hold a copy of it.  A resent batch travels alone, so that it can only be new, or
  an exact duplicate among the five that the broker remembers (docs/semantics.md I2).
* A batch whose numbers will never be in the log leaves a gap that no later number may cross.  If it was the last numbered one
  and was sent only once, its numbers are taken back.  Else the partition becomes *doubtful*: what is numbered is settled under
  its old numbers first, and only then does the partition go on, under a new identity (`needs_identity`), from sequence 0
  (rule I4).
* A batch that was refused while its partition is doubtful is sent again under the new identity only if every earlier attempt
  was answered.  After a lost answer an old copy may still be on its way behind its missing predecessor, and both would be
  appended: such a batch is reported as failed.
* A broker that does not know the producer any more (the topic was made anew, or its state expired) has none of the batches that
  it refuses for this reason: a copy in the log would have left a trace there, for longer than a delivery takes.  All of them
  are sent again, in order, under a new identity from sequence 0.
* A partition changes to a new (producer id, epoch) only when nothing numbered is open there.

Memory: `append` refuses what does not fit into `memory_bytes`; the producer then waits for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ...wire.records import NewRecord
from ..requests.transaction_requests import NO_IDENTITY, Identity

SEQUENCE_MASK: Final = 0x7FFFFFFF  # after 2^31-1 comes 0 (rule I3)
BATCH_OVERHEAD_BYTES: Final = 61
RECORD_OVERHEAD_BYTES: Final = 16  # lengths, deltas and attributes; an upper estimate for small records

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the accumulator.  With `numbered` off (no idempotence) batches carry no sequence and travel one at a time."""

    batch_bytes: int = 16_384
    linger_s: float = 0.005
    memory_bytes: int = 32 << 20
    in_flight_max: int = 5
    delivery_timeout_s: float = 120.0
    numbered: bool = True


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records of one partition that travel and succeed or fail together.  `tokens` belong to the caller, one a record."""

    topic: str
    partition: int
    order: int  # position among the partition's batches; never changes, unlike sequence numbers it does not wrap
    born: int  # how many batches were started before, on all partitions
    created_s: float
    deadline_s: float
    records: list[NewRecord] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    size_bytes: int = BATCH_OVERHEAD_BYTES
    identity: Identity = NO_IDENTITY
    base_sequence: int = -1
    attempts: int = 0
    not_before_s: float = 0.0
    closed: bool = False
    uncertain: bool = False  # some attempt was never answered: a copy may be in the log, or still on its way
    refused: bool = False  # certainly not in the log under its numbers: waits for a new identity
    encoded: bytes | None = None  # kept for resending; dropped when the numbers change

    @property
    def next_sequence(self) -> int:
        return (self.base_sequence + len(self.records)) & SEQUENCE_MASK

    @property
    def numbered(self) -> bool:
        return self.base_sequence >= 0

    def unnumber(self) -> None:
        """As if it had never been sent; only for what is certainly not in the log."""
        self.identity, self.base_sequence, self.encoded = NO_IDENTITY, -1, None
        self.refused, self.uncertain, self.attempts = False, False, 0


@dataclass(slots=True)
class _Partition:
    queue: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    identity: Identity = NO_IDENTITY
    next_sequence: int = 0
    acknowledged_next: int = 0  # the sequence that the broker expects, as far as its answers say
    next_order: int = 0
    doubtful: bool = False
    forgotten: bool = False  # the broker's state of this producer is gone; implies doubtful

    @property
    def settled(self) -> bool:
        """Nothing numbered may be, or get, in the log.  Behind a refused batch nothing can: the number before it is missing."""
        head = self.queue[0] if self.queue else None
        return not self.in_flight and (head is None or not head.numbered or head.refused)


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

    # ------------------------------------------------------------------ what is here

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
        """Whether a batch that was started when `started_count` had this value has no fate yet."""
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
        """A record's share of a batch, before compression."""
        size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            size += 10 + len(name) + len(value or b"")
        return size

    # ------------------------------------------------------------------ filling

    def append(self, topic: str, partition_number: int, record: NewRecord, token: object, now_s: float) -> bool:
        """Adds a record; True when something may now be sent that could not before (the sender should look)."""
        key = (topic, partition_number)
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = _Partition()
        size = self.size_of(record)
        limit = self._limits.batch_bytes
        batch = partition.queue[-1] if partition.queue else None
        started = batch is None or batch.closed or batch.size_bytes + size > limit
        if batch is None or started:
            if batch is not None:
                batch.closed = True
            deadline = now_s + self._limits.delivery_timeout_s
            batch = ProducerBatch(topic, partition_number, partition.next_order, self.started_count, now_s, deadline)
            partition.next_order += 1
            self.started_count += 1
            partition.queue.append(batch)
            self._incomplete.add(batch)
            self._used_bytes += BATCH_OVERHEAD_BYTES
        batch.records.append(record)
        batch.tokens.append(token)
        batch.size_bytes += size
        self._used_bytes += size
        if batch.size_bytes >= limit:
            batch.closed = True
        return started or batch.closed

    def begin_flush(self) -> None:
        """Until `end_flush`, batches do not linger.  Nests."""
        self._flushes += 1

    def end_flush(self) -> None:
        assert self._flushes > 0, "end_flush without begin_flush"
        self._flushes -= 1

    # ------------------------------------------------------------------ sending

    def set_identity(self, identity: Identity) -> None:
        """A new producer id or epoch: each partition adopts it when nothing numbered is left there."""
        self._identity = identity

    @property
    def doubtful(self) -> bool:
        """Some partition takes no new numbers under the present identity."""
        return any(p.doubtful and p.identity == self._identity for p in self._partitions.values())

    def needs_identity(self) -> bool:
        """Some partition can only go on under an identity newer than the present one."""
        return any(p.doubtful and p.queue and p.settled and p.identity == self._identity for p in self._partitions.values())

    def drain(self, partitions: Iterable[TopicPartition], max_bytes: int, now_s: float) -> list[ProducerBatch]:
        """What may be sent to the leader of `partitions` in one request: at most one batch each, numbered, now in flight.

        The first batch is given whatever its size (a leader decides whether it is too large).
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
        """When the next batch becomes sendable by the passing of time alone; None when nothing waits for time."""
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
            return not partition.in_flight and not head.refused
        if partition.doubtful or partition.identity != self._identity or self._identity == NO_IDENTITY:
            return False
        if any(batch.attempts > 1 for batch in partition.in_flight):
            return False
        return len(partition.in_flight) < self._limits.in_flight_max

    def _resolve(self, partition: _Partition) -> None:
        """Adopts the present identity once nothing is open under the old one."""
        if self._limits.numbered and partition.identity != self._identity and partition.settled:
            for batch in partition.queue:
                batch.unnumber()
            partition.identity = self._identity
            partition.next_sequence = partition.acknowledged_next = 0
            partition.doubtful = partition.forgotten = False

    # ------------------------------------------------------------------ fates

    def succeeded(self, batch: ProducerBatch) -> None:
        """The batch is in the log and acknowledged."""
        partition = self._take_from_flight(batch)
        if batch.identity == partition.identity and batch.numbered:
            partition.acknowledged_next = batch.next_sequence
        self._complete(batch)

    def retry(self, batch: ProducerBatch, not_before_s: float, *, uncertain: bool) -> None:
        """The batch must be sent again with the same numbers.  `uncertain`: no answer came, it may be in the log."""
        partition = self._take_from_flight(batch)
        batch.not_before_s = not_before_s
        batch.uncertain |= uncertain
        self._requeue(partition, batch)

    def refused_out_of_order(self, batch: ProducerBatch, not_before_s: float) -> bool:
        """OUT_OF_ORDER_SEQUENCE_NUMBER.  True: it will be sent again, after the batch before it or under a new identity.
        False: it is out of the accumulator and must be reported as failed."""
        partition = self._partitions[batch.topic, batch.partition]
        if not partition.doubtful and batch.base_sequence != partition.acknowledged_next:
            self.retry(batch, not_before_s, uncertain=False)  # a batch before it is still to be sent again
            return True
        if partition.doubtful and not batch.uncertain:
            self.retry(batch, not_before_s, uncertain=False)
            batch.refused = True
            return True
        # The broker lost acknowledged data or its memory of this producer; or a copy may still be on its way.
        self.failed(batch)
        return False

    def refused_as_unknown(self, batch: ProducerBatch, not_before_s: float) -> bool:
        """UNKNOWN_PRODUCER_ID: the partition's leader has nothing of this producer, so only sequence 0 can follow.  True: it will
        be sent again, after the batch before it or under a new identity.  False: it is out, and must be reported as failed."""
        partition = self._partitions[batch.topic, batch.partition]
        if batch.base_sequence == 0:
            self.failed(batch)  # nothing is missing before it: another identity would fare no better
            return False
        if not partition.forgotten and batch.base_sequence != partition.acknowledged_next:
            return self.refused_out_of_order(batch, not_before_s)  # its predecessor has not come yet, or never will
        # What came before it was acknowledged: the state was there, and is gone.
        partition.forgotten = partition.doubtful = True
        self.retry(batch, not_before_s, uncertain=False)
        batch.refused = True
        return True

    def rejected(self, batch: ProducerBatch) -> None:
        """The broker will never take this batch and did not: report it as failed."""
        partition = self._take_from_flight(batch)
        if batch.numbered:
            later = any(other.numbered and other.order > batch.order for other in _all(partition))
            if batch.attempts == 1 and not later and not partition.doubtful:
                partition.next_sequence = batch.base_sequence
            else:
                partition.doubtful = True
        self._complete(batch)

    def failed(self, batch: ProducerBatch) -> None:
        """The batch is given up although it may be in the log: report it as failed."""
        partition = self._take_from_flight(batch)
        partition.doubtful |= batch.numbered
        self._complete(batch)

    def split(self, batch: ProducerBatch) -> bool:
        """A batch that was rejected as too large is halved, numbers and all; False when it is a single record."""
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
                batch.topic, batch.partition, batch.order, batch.born, batch.created_s, batch.deadline_s, records, tokens
            )
            half.size_bytes += sum(self.size_of(record) for record in records)
            half.closed, half.attempts, half.uncertain = True, batch.attempts, batch.uncertain
            halves.append(half)
        if batch.numbered:
            second, first = halves
            first.identity = second.identity = batch.identity
            first.base_sequence, second.base_sequence = batch.base_sequence, -1
            second.base_sequence = first.next_sequence
        self._complete(batch)
        for half in halves:  # the second first: both have the same order, and each goes in front of its equals
            self._requeue(partition, half)
            self._incomplete.add(half)
            self._used_bytes += half.size_bytes
        return True

    def expire(self, now_s: float) -> list[ProducerBatch]:
        """Takes out the waiting batches whose delivery timeout has passed; the caller reports them as failed."""
        expired: list[ProducerBatch] = []
        for partition in self._partitions.values():
            while partition.queue and partition.queue[0].deadline_s <= now_s:
                batch = partition.queue.popleft()
                partition.doubtful |= batch.numbered
                self._complete(batch)
                expired.append(batch)
        return expired

    def drop_waiting(self) -> list[ProducerBatch]:
        """Takes out everything that is not in flight (a transaction is being aborted); the caller reports it as failed.

        The identity must change before anything is sent again: what was numbered here may be in the log.
        """
        dropped: list[ProducerBatch] = []
        for partition in self._partitions.values():
            partition.doubtful |= any(batch.numbered for batch in partition.queue)
            dropped.extend(partition.queue)
            partition.queue.clear()
        for batch in dropped:
            self._complete(batch)
        return dropped

    def abandon(self) -> list[ProducerBatch]:
        """Takes out everything: nothing more is sent.  The caller reports it as failed, and passes over answers still to come."""
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
        """Drops the books of partitions that no longer exist and hold nothing."""
        for key in [k for k, p in self._partitions.items() if not p.queue and not p.in_flight and not keep(k)]:
            del self._partitions[key]

    def check(self) -> None:
        """Asserts what must always hold; for tests."""
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
