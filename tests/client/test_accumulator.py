"""The accumulator: order, sequence numbers and no duplicates, whatever the network does; memory and time
bounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.client.producing.accumulator import Accumulator, Limits, ProducerBatch
from tidegate.client.requests.transaction_requests import Identity
from tidegate.wire.records import EncodedRecords, NewRecord, encode_records

TP = ("t", 0)
FIRST = Identity(7, 0)


def record(number: int) -> NewRecord:
    return NewRecord(None, b"%06d" % number)


def filled(count: int, *, per_batch: int = 1, limits: Limits | None = None) -> Accumulator:
    """An accumulator with `count` records, `per_batch` to a batch, ready to be drained."""
    size = Accumulator.size_of(record(0))
    accumulator = Accumulator(limits or Limits(batch_bytes=61 + per_batch * size, linger_s=0.0))
    accumulator.set_identity(FIRST)
    for number in range(count):
        accumulator.append(*TP, record(number), number, 0.0)
    return accumulator


def drain_all(accumulator: Accumulator, now_s: float = 0.0) -> list[ProducerBatch]:
    batches: list[ProducerBatch] = []
    while found := accumulator.drain([TP], 1 << 20, now_s):
        batches += found
    return batches


def test_batches_are_numbered_in_order_and_at_most_five_are_in_flight() -> None:
    accumulator = filled(7)
    batches = drain_all(accumulator)
    assert [batch.base_sequence for batch in batches] == [0, 1, 2, 3, 4]
    accumulator.succeeded(batches[0])
    assert [batch.base_sequence for batch in drain_all(accumulator)] == [5]


def test_a_batch_lingers_until_it_is_full_flushed_or_old_enough() -> None:
    size = Accumulator.size_of(record(0))
    accumulator = Accumulator(Limits(batch_bytes=61 + 3 * size, linger_s=0.010))
    accumulator.set_identity(FIRST)
    assert accumulator.append(*TP, record(0), 0, 100.0)  # started: the sender must set its timer
    assert accumulator.drain([TP], 1 << 20, 100.0) == []
    assert accumulator.next_due_s(100.0) == pytest.approx(100.010)
    accumulator.begin_flush()
    assert len(accumulator.drain([TP], 1 << 20, 100.0)) == 1
    accumulator.end_flush()
    for number in range(3):
        accumulator.append(*TP, record(number), number, 200.0)
    assert len(accumulator.drain([TP], 1 << 20, 200.0)) == 1  # full
    accumulator.append(*TP, record(9), 9, 300.0)
    assert len(accumulator.drain([TP], 1 << 20, 300.010)) == 1  # old enough


def test_resent_batches_keep_their_numbers_and_travel_alone_in_order() -> None:
    accumulator = filled(5)
    batches = drain_all(accumulator)
    for batch in (batches[1], batches[0], batches[2]):  # answers of a broken connection come in any order
        accumulator.retry(batch, 0.0, uncertain=True)
    assert drain_all(accumulator) == []  # 3 and 4 are still on their way
    accumulator.rejected_out_of_order(batches[3], 0.0)
    accumulator.rejected_out_of_order(batches[4], 0.0)
    for expected in batches:
        assert drain_all(accumulator) == [expected]
        accumulator.succeeded(expected)
    assert [batch.base_sequence for batch in batches] == [0, 1, 2, 3, 4]
    assert accumulator.used_bytes == 0


def test_numbers_of_a_rejected_last_batch_are_taken_back() -> None:
    accumulator = filled(1)
    (batch,) = drain_all(accumulator)
    accumulator.rejected(batch)
    accumulator.append(*TP, record(1), 1, 0.0)
    assert [later.base_sequence for later in drain_all(accumulator)] == [0]


def test_after_a_batch_of_unknown_outcome_a_new_identity_is_needed() -> None:
    accumulator = filled(3)
    first, second = accumulator.drain([TP], 1 << 20, 0.0)[0], accumulator.drain([TP], 1 << 20, 0.0)[0]
    accumulator.failed(first)
    assert drain_all(accumulator) == []
    assert not accumulator.needs_identity()
    assert accumulator.rejected_out_of_order(second, 0.0)
    assert accumulator.needs_identity()
    accumulator.set_identity(Identity(8, 0))
    assert not accumulator.needs_identity()
    resent = drain_all(accumulator)
    assert [(batch.identity.producer_id, batch.base_sequence) for batch in resent] == [(8, 0), (8, 1)]
    assert resent[0] is second


def test_a_rejected_batch_with_an_unanswered_attempt_fails_when_unresolved() -> None:
    accumulator = filled(2)
    first, second = drain_all(accumulator)
    accumulator.retry(second, 0.0, uncertain=True)
    accumulator.failed(first)
    assert drain_all(accumulator) == [second]
    assert not accumulator.rejected_out_of_order(second, 0.0)


def test_out_of_order_for_the_very_next_sequence_means_that_data_was_lost() -> None:
    accumulator = filled(1)
    (batch,) = drain_all(accumulator)
    assert not accumulator.rejected_out_of_order(batch, 0.0)
    assert accumulator.incomplete() == set()


def test_a_broker_that_lost_the_producer_gets_the_rest_in_order_from_zero() -> None:
    accumulator = filled(4)
    first, second, third, fourth = drain_all(accumulator)
    accumulator.succeeded(first)
    accumulator.retry(third, 0.0, uncertain=True)  # its answer was lost, its fate is the same
    assert accumulator.rejected_unknown_producer(second, 0.0)
    assert not accumulator.needs_identity()
    assert accumulator.rejected_unknown_producer(fourth, 0.0)
    assert drain_all(accumulator) == []
    assert accumulator.needs_identity()
    accumulator.set_identity(Identity(8, 0))
    again = drain_all(accumulator)
    assert again == [second, third, fourth]
    assert [(batch.identity, batch.base_sequence) for batch in again] == [
        (Identity(8, 0), n) for n in range(3)
    ]


def test_an_unknown_producer_whose_first_batch_is_late_keeps_its_numbers() -> None:
    accumulator = filled(2)
    first, second = drain_all(accumulator)
    accumulator.retry(first, 0.0, uncertain=False)
    assert accumulator.rejected_unknown_producer(second, 0.0)
    assert not accumulator.needs_identity()
    assert drain_all(accumulator) == [first]
    accumulator.succeeded(first)
    assert drain_all(accumulator) == [second]
    assert second.base_sequence == 1


def test_an_unknown_producer_at_sequence_zero_fails_instead_of_retrying() -> None:
    accumulator = filled(1)
    (batch,) = drain_all(accumulator)
    assert not accumulator.rejected_unknown_producer(batch, 0.0)
    assert accumulator.incomplete() == set()


def test_a_batch_that_is_too_large_is_halved_with_its_numbers() -> None:
    accumulator = filled(4, per_batch=4)
    (batch,) = drain_all(accumulator)
    assert accumulator.split(batch)
    (first,) = drain_all(accumulator)
    assert (first.base_sequence, first.tokens) == (0, [0, 1])
    accumulator.succeeded(first)
    (second,) = drain_all(accumulator)
    assert (second.base_sequence, second.tokens) == (2, [2, 3])
    assert accumulator.split(second)
    (third,) = drain_all(accumulator)
    assert not accumulator.split(third)
    accumulator.check()


def test_encoded_records_are_counted_bounded_and_halved_as_others() -> None:
    size = Accumulator.size_of(record(0))
    accumulator = Accumulator(Limits(batch_bytes=61 + 4 * size, linger_s=0.0))
    accumulator.set_identity(FIRST)
    left = [record(number) for number in range(6)]

    def encode(records: EncodedRecords, room: int) -> int:
        some = [left.pop(0) for _ in range(min(len(left), room // size))]
        for each in some:
            piece, latest = encode_records([each], len(records), each.timestamp_ms)
            records.append(piece, 1, each.timestamp_ms, latest)
        return len(some) * size

    while left:
        assert accumulator.append_encoded(*TP, size, encode, 0.0)
    assert accumulator.used_bytes == 2 * 61 + 6 * size
    first, second = drain_all(accumulator)
    assert (len(first.records), first.base_sequence, second.base_sequence) == (4, 0, 4)
    accumulator.succeeded(second)
    assert accumulator.acknowledged_count == 2
    assert accumulator.split(first)
    for base_sequence in (0, 2):
        (half,) = accumulator.drain([TP], 1 << 20, 0.0)
        assert half.base_sequence == base_sequence
        assert list(half.records) == [record(base_sequence), record(base_sequence + 1)]
        assert isinstance(half.records, EncodedRecords)  # no objects for as long as it waits
        accumulator.check()
        accumulator.succeeded(half)
    assert (accumulator.acknowledged_count, accumulator.used_bytes) == (6, 0)


def test_sequences_wrap_to_zero_after_the_largest() -> None:
    accumulator = filled(2)
    (first,) = accumulator.drain([TP], 1 << 20, 0.0)
    first.base_sequence = 2**31 - 1
    assert first.next_sequence == 0


def test_memory_is_bounded_and_given_back() -> None:
    size = Accumulator.size_of(record(0))
    accumulator = filled(3, limits=Limits(batch_bytes=61 + size, linger_s=0.0, memory_bytes=3 * (61 + size)))
    assert not accumulator.has_room(size)
    (batch,) = accumulator.drain([TP], 1 << 20, 0.0)
    accumulator.succeeded(batch)
    assert accumulator.has_room(size)
    assert accumulator.could_hold(3 * size)
    assert not accumulator.could_hold(3 * (61 + size))
    assert len(accumulator.abandon()) == 2
    assert accumulator.used_bytes == 0
    assert accumulator.incomplete() == set()


def test_delivery_timeout_takes_out_what_waits() -> None:
    accumulator = filled(2, limits=Limits(batch_bytes=80, linger_s=0.0, delivery_timeout_s=5.0))
    assert accumulator.expire(4.9) == []
    assert len(accumulator.expire(5.0)) == 2
    assert accumulator.used_bytes == 0


def test_without_numbers_a_partition_has_one_batch_in_flight() -> None:
    accumulator = Accumulator(Limits(batch_bytes=80, linger_s=0.0, numbered=False))
    for number in range(3):
        accumulator.append(*TP, record(number), number, 0.0)
    (batch,) = drain_all(accumulator)
    assert batch.base_sequence == -1
    accumulator.retry(batch, 0.0, uncertain=True)
    assert drain_all(accumulator) == [batch]


def test_nothing_is_sent_before_there_is_an_identity() -> None:
    accumulator = Accumulator(Limits(batch_bytes=80, linger_s=0.0))
    accumulator.append(*TP, record(0), 0, 0.0)
    assert drain_all(accumulator) == []
    accumulator.set_identity(FIRST)
    assert len(drain_all(accumulator)) == 1


# ---- against a model broker --------------------------------------------------------------------------------


@dataclass
class ModelPartition:
    """One partition's log with the rules of idempotence (docs/semantics.md I1 to I5), and connections that
    lose answers and deliver late."""

    deduplicates: bool = True
    log: list[int] = field(default_factory=list)
    producers: dict[Identity, tuple[deque[tuple[int, int, int]], int]] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)

    def recreate(self) -> None:
        self.deleted |= set(self.log)
        self.log.clear()
        self.producers.clear()

    def knows(self, identity: Identity) -> bool:
        return identity in self.producers

    def receive(self, identity: Identity, base: int, values: list[int]) -> bool:
        last, (known, expected) = base + len(values) - 1, self.producers.get(identity, (deque(maxlen=5), 0))
        if self.deduplicates and any((b, e) == (base, last) for b, e, _ in known):
            return True
        if base != expected and self.deduplicates:
            return False
        known.append((base, last, len(self.log)))
        self.producers[identity] = (known, last + 1)
        self.log.extend(values)
        return True


@dataclass
class Run:
    """A producer against the model: records are numbers, appended in order."""

    accumulator: Accumulator
    broker: ModelPartition
    sent: int = 0
    now_s: float = 0.0
    wire: deque[ProducerBatch] = field(default_factory=deque)  # the live connection, in order
    # broken connections' undelivered copies
    late: list[deque[tuple[Identity, int, list[int]]]] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    next_id: int = 8

    def step(self, event: int) -> None:
        match event:
            case 0 | 1:
                self.accumulator.append(*TP, record(self.sent), self.sent, self.now_s)
                self.sent += 1
            case 2 | 3:
                self.drain()
            case 4 | 5:
                self.deliver()
            case 6:  # the leader says: not me; nothing was appended
                if self.wire:
                    self.accumulator.retry(self.wire.popleft(), self.now_s, uncertain=False)
            case 7 | 8:
                self.break_connection(delivered=event == 8)
            case 9:  # a copy from a broken connection arrives after all
                for connection in self.late:
                    if connection:
                        self.broker.receive(*connection.popleft())
                        break
            case 10:
                self.now_s += 3.0
                for batch in self.accumulator.expire(self.now_s):
                    self.failed += batch.tokens
            case 11:
                if self.wire:
                    batch = self.wire.popleft()
                    self.accumulator.rejected(batch)
                    self.failed += batch.tokens
            case 12:  # the topic is deleted and made anew; no copy on the way outlives that
                self.broker.recreate()
                self.late.clear()
            case 13:  # the producer's state expires: far later than any copy is on its way
                if not self.late and not any(batch.uncertain for batch in self.accumulator.incomplete()):
                    self.broker.producers.clear()
            case _:
                raise AssertionError(event)
        self.renew()
        self.accumulator.check()

    def renew(self) -> None:
        if self.accumulator.needs_identity():
            self.accumulator.set_identity(Identity(self.next_id, 0))
            self.next_id += 1

    def drain(self) -> None:
        self.wire.extend(self.accumulator.drain([TP], 1 << 20, self.now_s))

    def deliver(self) -> None:
        if not self.wire:
            return
        batch = self.wire.popleft()
        if self.broker.receive(batch.identity, batch.base_sequence, list(batch.tokens)):
            self.accumulator.succeeded(batch)
            self.acknowledged += batch.tokens
            return
        known = self.broker.knows(batch.identity)
        refused = (
            self.accumulator.rejected_out_of_order if known else self.accumulator.rejected_unknown_producer
        )
        if not refused(batch, self.now_s):
            self.failed += batch.tokens

    def break_connection(self, *, delivered: bool) -> None:
        """All answers on the way are lost; the first request may have been taken, the others arrive late or
        never."""
        copies = deque((batch.identity, batch.base_sequence, list(batch.tokens)) for batch in self.wire)
        if copies and delivered:
            self.broker.receive(*copies.popleft())
        if copies:
            self.late.append(copies)
        while self.wire:
            self.accumulator.retry(self.wire.popleft(), self.now_s, uncertain=True)

    def settle(self) -> None:
        """The network heals: everything that is left must get through, or be reported."""
        for _ in range(20 * (self.sent + 5)):
            if not self.accumulator.incomplete():
                return
            self.renew()
            self.drain()
            self.deliver()
        raise AssertionError("no progress on a healed network")

    def verify(self) -> None:
        assert sorted(self.acknowledged + self.failed) == list(range(self.sent)), (
            "every record has exactly one fate"
        )
        assert len(set(self.broker.log)) == len(self.broker.log), f"duplicate in {self.broker.log}"
        assert set(self.acknowledged) <= set(self.broker.log) | self.broker.deleted, "acknowledged and lost"
        positions = {value: place for place, value in enumerate(self.broker.log)}
        there = [value for value in self.acknowledged if value in positions]
        assert sorted(there, key=positions.__getitem__) == sorted(there), "order"


def play(events: list[int], *, deduplicates: bool = True) -> Run:
    size = Accumulator.size_of(record(0))
    run = Run(Accumulator(Limits(61 + 2 * size, 0.0, delivery_timeout_s=8.0)), ModelPartition(deduplicates))
    run.accumulator.set_identity(FIRST)
    for event in events:
        run.step(event)
    run.settle()
    for connection in run.late:
        while connection:
            run.broker.receive(*connection.popleft())
    run.verify()
    return run


@given(st.lists(st.integers(0, 13), max_size=120))
@settings(max_examples=400, deadline=None)
def test_no_record_is_lost_duplicated_or_reordered_by_any_network(events: list[int]) -> None:
    play(events)


def test_the_model_detects_a_broker_without_deduplication() -> None:
    with pytest.raises(AssertionError, match="duplicate"):
        play([0, 0, 2, 8], deduplicates=False)


def test_the_model_detects_uncertain_batches_resent_under_a_new_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule is needed: without it a late copy and the resent batch are both appended."""
    honest = Accumulator.rejected_out_of_order

    def careless(self: Accumulator, batch: ProducerBatch, not_before_s: float) -> bool:
        batch.uncertain = False
        return honest(self, batch, not_before_s)

    # Two batches leave, the connection breaks with both undelivered; the first is given up, the second
    # refused; then both arrive.
    events = [0, 0, 2, 0, 0, 2, 7, 10, 10, 10]

    def doomed() -> None:
        size = Accumulator.size_of(record(0))
        run = Run(Accumulator(Limits(61 + 2 * size, 0.0, delivery_timeout_s=8.0)), ModelPartition())
        run.accumulator.set_identity(FIRST)
        for event in events[:7]:
            run.step(event)
        first = run.accumulator.drain([TP], 1 << 20, 0.0)[0]
        run.accumulator.failed(first)
        run.failed += first.tokens
        run.settle()
        for copy in run.late[0]:
            run.broker.receive(*copy)
        run.verify()

    doomed()
    monkeypatch.setattr(Accumulator, "rejected_out_of_order", careless)
    with pytest.raises(AssertionError, match="duplicate"):
        doomed()
