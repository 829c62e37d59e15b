"""The producer state of one partition: sequences, epochs, open transactions, guards.  Pure: no I/O, no clock.

This file decides whether a batch is a duplicate, a gap, from a zombie, or a late one of a finished
transaction (docs/semantics.md, chapters I and L).

Order in which things must happen, for one append:

1. `prepare()` gives a `PreparedAppend`.  Each batch is checked against it in order (`check_batch`); it works
   on **copies** of the entries it touches, so a refusal, or a write that fails later, leaves this object as
   it was (rule I8).
2. The caller writes the batches, then the aborted-transaction entries, to the files.
3. `publish(prepared, next_offset)` puts the copies in place, in one step that cannot fail.

Transactions of a partition are in one of three states here:

    open          first batch appended, no marker yet: bounds the last stable offset at its first offset
    unreplicated  marker appended, but not below the high watermark: still bounds it, because a reader must
                  not see the records of a transaction whose outcome could still be lost (rule L1)
    done          forgotten here; an abort stands in the transaction index

A *verification guard* is an object that stands for one question to the transaction coordinator: "does this
transaction hold this partition?".  It is compared by identity at the append.  A state ("verified") would not
do: between the answer and the append, the transaction may have been aborted and a next one begun, whose state
looks the same (the ABA problem of KIP-890, rule T9).
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple

from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader, ControlType, Marker, next_sequence

BATCHES_REMEMBERED = 5
"""Batches a producer may have in flight; as many are remembered to recognise duplicates (rule I1)."""
NO_EPOCH = -1
NO_SEQUENCE = -1


class AppendOrigin(enum.Enum):
    """The source of an append, which decides what is checked (rule I7)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class BatchMetadata(NamedTuple):
    """One remembered batch; its first sequence and offset follow from the last ones."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & 0x7FFFFFFF

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True, eq=False)
class ProducerEntry:
    """One producer at one partition.  `batches` is an immutable tuple, so that a copy is cheap.

    Fields with `init` are of the log: a copy, a comparison and a snapshot have all of them.
    """

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = NO_EPOCH
    last_timestamp_ms: int = -1
    transaction_first_offset: int | None = None
    batches: tuple[BatchMetadata, ...] = ()
    idle_since_ms: int = field(default=-1, init=False)
    """When `expire` first found it without an append since (-1: not yet).  It belongs to this process, and a
    copy, which is made to append, begins without it."""

    def copy(self) -> ProducerEntry:
        return ProducerEntry(*_fields_of_the_log(self))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """The remembered batch that `header` repeats: same epoch and exactly the same sequences (rule I2)."""
        if header.producer_epoch != self.epoch:
            return None
        last, delta = header.last_sequence, header.last_offset_delta
        for batch in self.batches:
            if batch.last_sequence == last and batch.offset_delta == delta:
                return batch
        return None

    def move_to_epoch(self, epoch: int) -> None:
        """A new epoch forgets the batches of the old one (rule I4)."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches = ()

    def as_tuple(self) -> tuple[object, ...]:
        """All that the log says of it, for comparisons."""
        return _fields_of_the_log(self)


_fields_of_the_log: Callable[[ProducerEntry], tuple[Any, ...]] = attrgetter(
    *(each.name for each in fields(ProducerEntry) if each.init)
)


class VerificationGuard:
    """A question to the coordinator about (producer id, epoch).  Equal only to itself; see the module's
    text."""

    __slots__ = ("epoch", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch


@dataclass(slots=True)
class _Verification:
    guard: VerificationGuard
    lowest_sequence: int


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended.  `last_offset` is the marker's; `last_stable_offset` is the one that
    holds after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int


@dataclass(slots=True, frozen=True)
class ProducerView:
    """A producer as DescribeProducers shows it (KIP-664)."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int | None


@dataclass(slots=True)
class PreparedAppend:
    """The effect of batches that are checked but not yet written: copies of entries, and transactions that
    begin and end."""

    state: ProducerState
    origin: AppendOrigin
    guard: VerificationGuard | None
    transaction_version: int
    entries: dict[int, ProducerEntry] = field(default_factory=dict)
    opened: dict[int, int] = field(default_factory=dict)
    """First offset -> producer id, of transactions that begin in this append and do not end in it."""
    completed: list[CompletedTransaction] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    """First offsets of published open transactions that this append ends."""
    verified: dict[int, int] = field(default_factory=dict)
    """Producer id -> the newest epoch whose guard was used: its transaction is open now, or over."""
    warnings: list[str] = field(default_factory=list)

    def check_batch(self, header: BatchHeader, first_offset: int, marker: Marker | None = None) -> None:
        """Checks one batch that would start at `first_offset` and notes its effect.

        `header`'s own base offset is not looked at.  `marker` is the decoded marker of a control batch; None
        for emptied control batches and unknown control types, which have no effect (rule L4).  Raises
        KafkaError; then drop this object.
        """
        if header.producer_id < 0:
            return
        if header.is_control:
            if marker is not None:
                self._check_marker(header, marker, first_offset)
        else:
            self._check_data(header, first_offset)

    def _entry(self, producer_id: int) -> ProducerEntry:
        entry = self.entries.get(producer_id)
        if entry is None:
            known = self.state.get(producer_id)
            entry = (
                known.copy()
                if known is not None
                else self.state.fresh_entry(producer_id, self.origin, len(self.entries))
            )
            self.entries[producer_id] = entry
        return entry

    # ---- data ----------------------------------------------------------------------------------------------

    def _check_data(self, header: BatchHeader, first_offset: int) -> None:
        entry = self._entry(header.producer_id)
        if self.origin is not AppendOrigin.REPLICATION:
            # first: clients recover from it, not from a missing guard
            self._check_producer_epoch(header, entry)
            self._check_guard(header, entry)
            if self.origin is AppendOrigin.CLIENT:
                self._check_sequence(header, entry)
            self._check_transaction(header, entry)
        elif header.producer_epoch < entry.epoch:
            self.warnings.append(
                f"producer {header.producer_id}: epoch {header.producer_epoch} after {entry.epoch} "
                f"at {first_offset}"
            )
        entry.move_to_epoch(header.producer_epoch)
        last_offset = first_offset + header.last_offset_delta
        if header.base_sequence >= 0:
            batch = BatchMetadata(
                header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp
            )
            entry.batches = (*entry.batches[1 - BATCHES_REMEMBERED :], batch)
        entry.last_timestamp_ms = header.max_timestamp
        if header.is_transactional:
            self.verified[header.producer_id] = header.producer_epoch
            if entry.transaction_first_offset is None:
                entry.transaction_first_offset = first_offset
                self.opened[first_offset] = header.producer_id

    def _check_guard(self, header: BatchHeader, entry: ProducerEntry) -> None:
        """The first batch of a transaction needs the coordinator's confirmation that the transaction contains
        this partition (KIP-890)."""
        if not header.is_transactional:
            return
        if entry.transaction_first_offset is not None and entry.epoch == header.producer_epoch:
            return
        if self.origin is AppendOrigin.COORDINATOR and self.guard is None:
            return  # the coordinator of this very log has enlisted it
        if not self.state.guard_holds(self.guard, header.producer_id, header.producer_epoch):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} epoch {header.producer_epoch} has no open transaction here, "
                "and the append carries no valid proof that one was begun",
            )

    def _check_producer_epoch(self, header: BatchHeader, entry: ProducerEntry) -> None:
        if header.producer_epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {header.producer_epoch}; epoch "
                f"{entry.epoch} was seen: "
                "a newer instance of this producer has taken over",
            )

    def _check_sequence(self, header: BatchHeader, entry: ProducerEntry) -> None:
        sequence = header.base_sequence
        if header.producer_epoch != entry.epoch or not entry.batches:
            # A new epoch, an unknown producer, or one known by its markers only: all begin at 0 (rules I4 and
            # I5).
            expected = 0
        else:
            expected = next_sequence(entry.last_sequence)
        lowest = self.state.lowest_verified_sequence(header.producer_id, header.producer_epoch)
        if sequence and entry.epoch == NO_EPOCH and lowest is None:
            # Forgotten, or the topic was created again.  Accepting any sequence could hide a gap; out of
            # order would be fatal to clients.  This error they know: they take a new epoch, and send what was
            # not acknowledged again from 0.
            raise KafkaError(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"producer {header.producer_id} epoch {header.producer_epoch} begins with sequence "
                f"{sequence}, and nothing is "
                "known of it here",
            )
        if sequence != expected or (
            lowest is not None and sequence > lowest and entry.transaction_first_offset is None
        ):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} epoch {header.producer_epoch}: sequence {sequence} where "
                f"{expected if lowest is None else min(expected, lowest)} was expected",
            )

    def _check_transaction(self, header: BatchHeader, entry: ProducerEntry) -> None:
        if entry.transaction_first_offset is None:
            return
        if not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction (first offset "
                f"{entry.transaction_first_offset}) "
                "and sent a batch outside of it",
            )
        if header.producer_epoch != entry.epoch:
            # Its predecessor's transaction has no marker yet: to go on would merge two transactions into one.
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} epoch {header.producer_epoch}: the transaction of "
                f"epoch {entry.epoch} is "
                "still open",
            )

    # ---- markers -------------------------------------------------------------------------------------------

    def _check_marker(self, header: BatchHeader, marker: Marker, offset: int) -> None:
        """A marker ends the open transaction, if any, and raises the epochs (rules L2 to L4)."""
        entry = self._entry(header.producer_id)
        if self.origin is not AppendOrigin.REPLICATION:
            self._check_marker_epoch(header, entry)
            self._check_coordinator_epoch(header, marker, entry)
        elif header.producer_epoch < entry.epoch or marker.coordinator_epoch < entry.coordinator_epoch:
            # A follower must accept what the leader accepted (rule I7).
            self.warnings.append(
                f"producer {header.producer_id}: marker of epoch "
                f"{header.producer_epoch}/{marker.coordinator_epoch} "
                f"after {entry.epoch}/{entry.coordinator_epoch} at {offset}"
            )
        first_offset = entry.transaction_first_offset
        if first_offset is not None:
            self._complete(header.producer_id, first_offset, offset, marker.control_type is ControlType.ABORT)
        entry.move_to_epoch(header.producer_epoch)
        entry.transaction_first_offset = None
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = header.max_timestamp
        # With TV2 a marker carries the epoch after its transaction's: a guard of that epoch waits for the
        # next transaction, which the client may have begun before the marker came.
        self.verified[header.producer_id] = header.producer_epoch - (
            1 if self.transaction_version >= 2 else 0
        )

    def _check_marker_epoch(self, header: BatchHeader, entry: ProducerEntry) -> None:
        if header.producer_epoch > entry.epoch:
            return
        if header.producer_epoch == entry.epoch and (
            self.transaction_version < 2 or entry.transaction_first_offset is None
        ):
            return  # with TV2: the retry of a marker that is already here (KAFKA-19999)
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"a marker of epoch {header.producer_epoch} for producer {header.producer_id} whose "
            f"epoch here is {entry.epoch} "
            f"(transaction version {self.transaction_version})",
        )

    def _check_coordinator_epoch(self, header: BatchHeader, marker: Marker, entry: ProducerEntry) -> None:
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker for producer {header.producer_id} from coordinator epoch "
                f"{marker.coordinator_epoch}; epoch "
                f"{entry.coordinator_epoch} has already spoken",
            )

    def _complete(self, producer_id: int, first_offset: int, marker_offset: int, is_aborted: bool) -> None:
        if self.opened.pop(first_offset, None) is None:
            self.closed.add(first_offset)
        stable = self.state.first_open_offset_without(self.closed)
        if stable is None:
            stable = next(iter(self.opened), marker_offset + 1)
        self.completed.append(
            CompletedTransaction(producer_id, first_offset, marker_offset, is_aborted, stable)
        )


class ProducerState:
    """All producers of one partition.  An append changes it by `publish` alone; `set_high_watermark`,
    `expire`, guards, and what opening and replacing a log do (`restore`, `adopt_unknown`) stand beside
    that."""

    def __init__(self, *, max_producer_ids: int = 100_000, expiration_ms: int = 86_400_000) -> None:
        self.max_producer_ids = max_producer_ids
        self.expiration_ms = expiration_ms
        self.end_offset = 0
        """This state is the effect of the log's batches below this offset."""
        self._entries: OrderedDict[int, ProducerEntry] = OrderedDict()  # least recently used first
        # first offset -> producer id, in order of first offsets
        self._open: OrderedDict[int, int] = OrderedDict()
        # Ended transactions (first offset, marker offset), both rising: one whose first offset is above that
        # of a later marker leaves earlier and bounds nothing, so it is not kept.
        self._unreplicated: list[tuple[int, int]] = []
        self._verifications: OrderedDict[int, _Verification] = OrderedDict()
        self.first_unstable_offset: int | None = None

    # ---- reading -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> Iterator[ProducerEntry]:
        """Least recently used first."""
        return iter(self._entries.values())

    def views(self) -> list[ProducerView]:
        return [
            ProducerView(
                e.producer_id,
                e.epoch,
                e.last_sequence,
                e.last_timestamp_ms,
                e.coordinator_epoch,
                e.transaction_first_offset,
            )
            for e in self._entries.values()
        ]

    @property
    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id, in order."""
        return dict(self._open)

    @property
    def first_open_offset(self) -> int | None:
        return next(iter(self._open), None)

    @property
    def unreplicated(self) -> list[tuple[int, int]]:
        """(first offset, marker offset) of the ended transactions that still bound the last stable offset."""
        return list(self._unreplicated)

    def has_open_transaction(self, producer_id: int, epoch: int | None = None) -> bool:
        entry = self._entries.get(producer_id)
        return (
            entry is not None
            and entry.transaction_first_offset is not None
            and (epoch is None or entry.epoch == epoch)
        )

    def first_open_offset_without(self, closed: set[int]) -> int | None:
        """The first offset of the oldest open transaction that is not in `closed`."""
        for first_offset in self._open:
            if first_offset not in closed:
                return first_offset
        return None

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        entry = self._entries.get(header.producer_id)
        return entry.duplicate_of(header) if entry is not None else None

    # ---- changing ------------------------------------------------------------------------------------------

    def prepare(
        self, origin: AppendOrigin, guard: VerificationGuard | None = None, transaction_version: int = 0
    ) -> PreparedAppend:
        return PreparedAppend(self, origin, guard, transaction_version)

    def fresh_entry(self, producer_id: int, origin: AppendOrigin, pending: int) -> ProducerEntry:
        """An entry for an unknown producer; THROTTLING_QUOTA_EXCEEDED when every remembered producer has a
        transaction open."""
        full = len(self._entries) + pending >= self.max_producer_ids
        if full and origin is AppendOrigin.CLIENT and len(self._open) >= self.max_producer_ids:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{len(self._open)} producers have a transaction open at this partition, as many "
                "as are allowed",
            )
        return ProducerEntry(producer_id)

    def publish(self, prepared: PreparedAppend, next_offset: int) -> None:
        """Puts the effect of written batches in place.  Cannot fail."""
        self.end_offset = next_offset
        for producer_id, entry in prepared.entries.items():
            self._entries[producer_id] = entry
            self._entries.move_to_end(producer_id)
        for producer_id, epoch in prepared.verified.items():
            known = self._verifications.get(producer_id)
            if known is not None and known.guard.epoch <= epoch:
                del self._verifications[producer_id]
        if prepared.closed or prepared.opened or prepared.completed:
            for first_offset in prepared.closed:
                del self._open[first_offset]
            self._open.update(prepared.opened)
            for transaction in prepared.completed:
                self._note_unreplicated(transaction.first_offset, transaction.last_offset)
            self._refresh()
        if len(self._entries) > self.max_producer_ids:
            self._evict()

    def _note_unreplicated(self, first_offset: int, marker_offset: int) -> None:
        while self._unreplicated and self._unreplicated[-1][0] >= first_offset:
            self._unreplicated.pop()
        self._unreplicated.append((first_offset, marker_offset))

    def set_high_watermark(self, high_watermark: int) -> None:
        """Forgets ended transactions whose marker is below the high watermark."""
        replicated = 0
        while replicated < len(self._unreplicated) and self._unreplicated[replicated][1] < high_watermark:
            replicated += 1
        if replicated:
            del self._unreplicated[:replicated]
            self._refresh()

    def _refresh(self) -> None:
        first = next(iter(self._open), None)
        if self._unreplicated and (first is None or self._unreplicated[0][0] < first):
            first = self._unreplicated[0][0]
        self.first_unstable_offset = first

    def expire(self, now_ms: int) -> int:
        """Forgets producers idle for the expiration time and without an open transaction (rule I11); returns
        how many.

        To be called from time to time with a clock that never goes back.  What counts is when this process
        saw the last append or marker, never the timestamps in the records, which clients make up: a producer
        of old data is not idle (KAFKA-9144). A producer may be kept for one interval of calls, or one life of
        the process, too long; never too short.
        """
        idle = []
        for entry in self._entries.values():
            if entry.idle_since_ms < 0:
                entry.idle_since_ms = now_ms
            elif (
                now_ms - entry.idle_since_ms >= self.expiration_ms and entry.transaction_first_offset is None
            ):
                idle.append(entry.producer_id)
        for producer_id in idle:
            del self._entries[producer_id]
        return len(idle)

    def _evict(self) -> None:
        """Holds the bound on producers: the least recently used without an open transaction go first."""
        for producer_id in list(self._entries):
            if len(self._entries) <= self.max_producer_ids:
                return
            if self._entries[producer_id].transaction_first_offset is None:
                del self._entries[producer_id]

    def restore(
        self, entries: Iterable[ProducerEntry], unreplicated: Iterable[tuple[int, int]], end_offset: int
    ) -> None:
        """Takes over a snapshot's content.  Only for a new, empty state."""
        assert not self._entries, "a snapshot is loaded into an empty state only"
        for entry in entries:
            self._entries[entry.producer_id] = entry
        opened = sorted(
            (e.transaction_first_offset, e.producer_id)
            for e in self._entries.values()
            if e.transaction_first_offset is not None
        )
        self._open.update(opened)
        self._unreplicated.extend(unreplicated)
        self.end_offset = end_offset
        self._refresh()

    def adopt_unknown(self, older: ProducerState) -> None:
        """Takes over the producers that only `older`, a snapshot, knows: no remaining batch has them."""
        missing = [entry for entry in older.entries() if entry.producer_id not in self._entries]
        for entry in reversed(missing):
            self._entries[entry.producer_id] = entry
            self._entries.move_to_end(entry.producer_id, last=False)
        opened = [
            (e.transaction_first_offset, e.producer_id)
            for e in missing
            if e.transaction_first_offset is not None
        ]
        self._open = OrderedDict(sorted([*self._open.items(), *opened]))
        self._refresh()

    def violations(self, *, whole: bool) -> Iterator[str]:
        """What does not hold of this state; with `whole`, of every producer, otherwise of the oldest and
        newest open transactions."""
        first = next(iter(self._open), None)
        if self._unreplicated and (first is None or self._unreplicated[0][0] < first):
            first = self._unreplicated[0][0]
        if self.first_unstable_offset != first:
            yield f"the first unstable offset is {first}, not {self.first_unstable_offset}"
        if whole or len(self._open) < 3:
            opened = list(self._open)
        else:
            opened = [next(iter(self._open)), next(reversed(self._open))]
        if any(before >= after for before, after in itertools.pairwise(opened)):
            yield f"open transactions are not in order: {opened}"
        if opened and opened[-1] >= self.end_offset:
            yield f"a transaction is open from {opened[-1]} on, the log ends at {self.end_offset}"
        for offset in opened:
            entry = self._entries.get(self._open[offset])
            if entry is None or entry.transaction_first_offset != offset:
                yield f"the transaction from {offset} on is not that of its producer"
        if whole:
            for entry in self._entries.values():
                began = entry.transaction_first_offset
                if began is not None and began not in self._open:
                    yield f"producer {entry.producer_id} has a transaction from {began} on that is not open"
                if entry.batches and entry.batches[-1].last_offset >= self.end_offset:
                    yield f"producer {entry.producer_id} has a batch at {entry.batches[-1].last_offset}"
            for (left, marker), (first_offset, next_marker) in itertools.pairwise(self._unreplicated):
                if not (left < first_offset and marker < next_marker):
                    yield f"ended transactions are not in order: {self._unreplicated}"

    def as_comparable(self) -> tuple[object, ...]:
        """The state that a replay must reproduce (guards are not part of a log)."""
        return (
            {producer_id: entry.as_tuple() for producer_id, entry in self._entries.items()},
            tuple(self._open.items()),
            tuple(self._unreplicated),
        )

    # ---- verification --------------------------------------------------------------------------------------

    def start_verification(self, producer_id: int, epoch: int, sequence: int) -> VerificationGuard:
        """A guard for the first append of a transaction; requests of one transaction that come together share
        it.

        Raises INVALID_PRODUCER_EPOCH for an epoch below one that is known here.
        """
        known = self._verifications.get(producer_id)
        entry = self._entries.get(producer_id)
        newest = max(known.guard.epoch if known else NO_EPOCH, entry.epoch if entry else NO_EPOCH)
        if epoch < newest:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {epoch}; epoch {newest} was seen: it is fenced",
            )
        if known is None or epoch > known.guard.epoch:
            known = _Verification(VerificationGuard(producer_id, epoch), sequence)
            self._verifications[producer_id] = known
            if len(self._verifications) > self.max_producer_ids:
                # its append will be rejected, and the client may retry it
                self._verifications.popitem(last=False)
        elif 0 <= sequence < known.lowest_sequence:
            known.lowest_sequence = sequence
        self._verifications.move_to_end(producer_id)
        return known.guard

    def guard_holds(self, guard: VerificationGuard | None, producer_id: int, epoch: int) -> bool:
        """Whether `guard` is the very object that waits for this producer's first append."""
        known = self._verifications.get(producer_id)
        return known is not None and guard is known.guard and guard.epoch == epoch

    def lowest_verified_sequence(self, producer_id: int, epoch: int) -> int | None:
        known = self._verifications.get(producer_id)
        return (
            known.lowest_sequence
            if known is not None and known.guard.epoch == epoch and known.lowest_sequence >= 0
            else None
        )
