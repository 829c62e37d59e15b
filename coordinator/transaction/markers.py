"""The marker queue: which markers are still to be written where, for all prepared transactions that this node coordinates.

Pure: the node asks `take` what to send, reports with `complete` or `failed`, and gets back what that led to.

Promises
- Entries are keyed by `TransactionIdentity`, an object that names one PREPARE under one coordinator epoch.  A late answer about
  an older transaction of this transactional id finds nothing to remove (KAFKA-16352).
- A marker's leader is looked up when it is sent, and again for every retry (docs/semantics.md T16).
- A marker is given up only on `partition_gone` (the controller's metadata, newer than the enlistment, says so), on fencing
  (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED) or when this node stops coordinating; never on stale metadata.
- At most one request per broker is under way, and a request holds at most one transaction per producer id, so that an answer,
  which names only producer id and partition, is never ambiguous.

Order:  SendMarkers effect -> add -> take -> the node sends -> complete / failed -> ... -> MarkersWritten -> the node submits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...wire.errors import ErrorCode
from .events import MarkersWritten, SendMarkers, TransactionIdentity
from .state import TransactionPartition

# Anything else than these is retried: a marker that is not written leaves readers hanging, so no error is a reason to forget it.
CANCELLING = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})


@dataclass(slots=True, frozen=True)
class BatchedMarkers:
    """The markers of one transaction for one broker."""

    send: SendMarkers
    partitions: tuple[TransactionPartition, ...]


@dataclass(slots=True, frozen=True)
class MarkerBatch:
    """One WriteTxnMarkers request.  `number` tells this attempt from all others."""

    node_id: int
    number: int
    transactions: tuple[BatchedMarkers, ...]


@dataclass(slots=True, frozen=True)
class MarkerResult:
    """What an answer led to: `state_partition` is where each MarkersWritten event must be submitted."""

    written: tuple[tuple[int, MarkersWritten], ...] = ()
    cancelled: tuple[SendMarkers, ...] = ()
    retried: int = 0


@dataclass(slots=True)
class _Pending:
    """A prepared transaction: partitions not yet acknowledged, and those of them that are not under way."""

    state_partition: int
    send: SendMarkers
    remaining: set[TransactionPartition]
    queued: dict[TransactionPartition, int] = field(default_factory=dict)  # -> not before (ms)


class MarkerQueue:
    """One per node.  leader_of(partition) answers the leader's node id, or None while nobody is known to lead it."""

    def __init__(
        self,
        leader_of: Callable[[TransactionPartition], int | None],
        *,
        markers_per_batch_max: int = 5_000,
        retry_backoff_ms: int = 20,
        blocked_wait_ms: int = 50,
    ) -> None:
        """`blocked_wait_ms`: what waits for another request's answer looks this often whether its leader has moved."""
        self._leader_of = leader_of
        self._batch_max = markers_per_batch_max
        self._backoff_ms = retry_backoff_ms
        self._blocked_wait_ms = blocked_wait_ms
        self._next_ms: int | None = None
        self._pending: dict[TransactionIdentity, _Pending] = {}
        self._in_flight: dict[int, MarkerBatch] = {}
        self._last_number = 0

    def add(self, state_partition: int, send: SendMarkers) -> MarkerResult:
        """Takes up a prepared transaction; one without partitions is written at once."""
        if not send.partitions:
            return MarkerResult(((state_partition, MarkersWritten(send.identity)),))
        if send.identity not in self._pending:
            partitions = set(send.partitions)
            self._pending[send.identity] = _Pending(state_partition, send, partitions, dict.fromkeys(send.partitions, 0))
        return MarkerResult()

    def take(self, now_ms: int) -> list[MarkerBatch]:
        """Everything that can be sent now: at most one batch for each broker that has none under way."""
        chosen: dict[int, dict[int, tuple[_Pending, list[TransactionPartition]]]] = {}
        counts: dict[int, int] = {}
        self._next_ms = None
        for pending in self._pending.values():
            for partition, not_before_ms in list(pending.queued.items()):
                if not_before_ms > now_ms:
                    self._look_again(not_before_ms)
                    continue
                node_id = self._leader_of(partition)
                if node_id is None:
                    pending.queued[partition] = now_ms + self._backoff_ms
                    self._look_again(now_ms + self._backoff_ms)
                    continue
                if node_id in self._in_flight or counts.get(node_id, 0) >= self._batch_max:
                    self._look_again(now_ms + self._blocked_wait_ms)
                    continue
                entry = chosen.setdefault(node_id, {}).setdefault(pending.send.producer_id, (pending, []))
                if entry[0] is not pending:  # another transaction of this producer id is in the batch: next time
                    self._look_again(now_ms + self._blocked_wait_ms)
                    continue
                entry[1].append(partition)
                del pending.queued[partition]
                counts[node_id] = counts.get(node_id, 0) + 1
        return [self._batch(node_id, list(by_producer.values())) for node_id, by_producer in chosen.items()]

    def _look_again(self, at_ms: int) -> None:
        self._next_ms = at_ms if self._next_ms is None else min(self._next_ms, at_ms)

    def _batch(self, node_id: int, entries: list[tuple[_Pending, list[TransactionPartition]]]) -> MarkerBatch:
        self._last_number += 1
        transactions = tuple(BatchedMarkers(pending.send, tuple(partitions)) for pending, partitions in entries)
        batch = MarkerBatch(node_id, self._last_number, transactions)
        self._in_flight[node_id] = batch
        return batch

    def complete(self, batch: MarkerBatch, errors: Mapping[tuple[int, str, int], ErrorCode], now_ms: int) -> MarkerResult:
        """The broker answered; `errors` by (producer id, topic, partition).  What it left out is sent again."""
        self._land(batch)
        written: list[tuple[int, MarkersWritten]] = []
        cancelled: list[SendMarkers] = []
        retried = 0
        for entry in batch.transactions:
            pending = self._pending.get(entry.send.identity)
            if pending is None:
                continue  # cancelled, or this node does not coordinate it any more
            for partition in entry.partitions:
                key = (entry.send.producer_id, partition.topic, partition.partition)
                code = errors.get(key, ErrorCode.NETWORK_EXCEPTION)
                if code is ErrorCode.NONE:
                    pending.remaining.discard(partition)
                elif code in CANCELLING:
                    self._remove(pending)
                    cancelled.append(pending.send)
                    break
                elif partition in pending.remaining:
                    pending.queued[partition] = now_ms + self._backoff_ms
                    retried += 1
            else:
                written += self._finished(pending)
        return MarkerResult(tuple(written), tuple(cancelled), retried)

    def failed(self, batch: MarkerBatch, now_ms: int) -> MarkerResult:
        """No answer: disconnected or timed out.  The markers may have been written; writing them again is harmless."""
        return self.complete(batch, {}, now_ms)

    def _land(self, batch: MarkerBatch) -> None:
        if self._in_flight.get(batch.node_id) is batch:
            del self._in_flight[batch.node_id]

    def _finished(self, pending: _Pending) -> list[tuple[int, MarkersWritten]]:
        if pending.remaining:
            return []
        self._remove(pending)
        return [(pending.state_partition, MarkersWritten(pending.send.identity))]

    def _remove(self, pending: _Pending) -> None:
        """Compare and remove: only the very entry, never whatever stands under the same transactional id."""
        if self._pending.get(pending.send.identity) is pending:
            del self._pending[pending.send.identity]

    def partition_gone(self, partition: TransactionPartition) -> MarkerResult:
        """The controller's metadata, newer than this queue, says that nobody can take this marker any more."""
        written: list[tuple[int, MarkersWritten]] = []
        for pending in list(self._pending.values()):
            if partition in pending.remaining:
                pending.remaining.remove(partition)
                pending.queued.pop(partition, None)
                written += self._finished(pending)
        return MarkerResult(tuple(written))

    def cancel_state_partition(self, state_partition: int) -> int:
        """This node stopped coordinating the partition, or is about to load it anew; returns how many were cancelled."""
        gone = [pending for pending in self._pending.values() if pending.state_partition == state_partition]
        for pending in gone:
            self._remove(pending)
        return len(gone)

    def waiting_partitions(self) -> Iterable[TransactionPartition]:
        """Partitions that still need a marker: for metrics, and to find those whose topic may be gone."""
        return {partition for pending in self._pending.values() for partition in pending.remaining}

    def next_attempt_ms(self) -> int | None:
        """When the next `take` may have something that this one had not, without an answer arriving; None: never."""
        return self._next_ms

    def __len__(self) -> int:
        return len(self._pending)
