"""The marker queue: which markers are still to be written where, for all decided transactions that this node
coordinates.

Pure: the node sends the batches that `take` returns, reports each answer to `complete` or `failed`, and
submits the `MarkersWritten` events of the result.

Promises
- Entries are keyed by `TransactionIdentity`, which names one PREPARE under one coordinator epoch.  A late
  answer about an older transaction of the same transactional id removes nothing (KAFKA-16352).
- The queue looks up a partition's leader when it sends the marker, and again for every retry
  (docs/semantics.md T16).
- The queue gives up a marker only on `partition_gone` (the controller's metadata, newer than the enlistment,
  says so), on fencing (INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED) or when this node stops
  coordinating; never on stale metadata.
- At most one request per broker is in flight, and a request holds at most one transaction per producer id, so
  that an answer, which names only producer id and partition, is never ambiguous.

Order:  SendMarkers effect -> add -> take -> the node sends -> complete / failed -> ... -> MarkersWritten ->
the node submits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...wire.errors import ErrorCode
from .events import MarkersWritten, SendMarkers, TransactionIdentity
from .state import TransactionPartition

# Any other error is retried: without the marker the last stable offset stands still, and read_committed
# readers wait.
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
    """The result of an answer.  `written`: the partition of __transaction_state and the event to submit
    there."""

    written: tuple[tuple[int, MarkersWritten], ...] = ()
    cancelled: tuple[SendMarkers, ...] = ()
    retried: int = 0


@dataclass(slots=True)
class _Pending:
    """A decided transaction: its partitions without an acknowledged marker, and those of them that are not
    in flight."""

    state_partition: int
    send: SendMarkers
    remaining: set[TransactionPartition]
    queued: dict[TransactionPartition, int] = field(default_factory=dict)  # -> not before (ms)


class MarkerQueue:
    """One per node.  leader_of(partition) returns the leader's node id, or None while no leader is known."""

    def __init__(
        self,
        leader_of: Callable[[TransactionPartition], int | None],
        *,
        markers_per_batch_max: int = 5_000,
        retry_backoff_ms: int = 20,
        blocked_wait_ms: int = 50,
    ) -> None:
        """`blocked_wait_ms`: how often a marker that waits for another request's answer looks up its leader
        again."""
        self._leader_of = leader_of
        self._batch_max = markers_per_batch_max
        self._backoff_ms = retry_backoff_ms
        self._blocked_wait_ms = blocked_wait_ms
        self._next_ms: int | None = None
        self._pending: dict[TransactionIdentity, _Pending] = {}
        self._in_flight: dict[int, MarkerBatch] = {}
        self._last_number = 0

    def add(self, state_partition: int, send: SendMarkers) -> MarkerResult:
        """Adds a decided transaction; one without partitions needs no marker and is written at once."""
        if not send.partitions:
            return MarkerResult(((state_partition, MarkersWritten(send.identity)),))
        if send.identity not in self._pending:
            partitions = set(send.partitions)
            self._pending[send.identity] = _Pending(
                state_partition, send, partitions, dict.fromkeys(send.partitions, 0)
            )
        return MarkerResult()

    def take(self, now_ms: int) -> list[MarkerBatch]:
        """All batches that can be sent now: at most one for each broker without a batch in flight."""
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
                # the batch has another transaction of this producer id: the next batch takes this one
                if entry[0] is not pending:
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
        transactions = tuple(
            BatchedMarkers(pending.send, tuple(partitions)) for pending, partitions in entries
        )
        batch = MarkerBatch(node_id, self._last_number, transactions)
        self._in_flight[node_id] = batch
        return batch

    def complete(
        self, batch: MarkerBatch, errors: Mapping[tuple[int, str, int], ErrorCode], now_ms: int
    ) -> MarkerResult:
        """The broker answered; `errors` by (producer id, topic, partition).  Markers without an error code
        are sent again."""
        self._land(batch)
        written: list[tuple[int, MarkersWritten]] = []
        cancelled: list[SendMarkers] = []
        retried = 0
        for entry in batch.transactions:
            pending = self._pending.get(entry.send.identity)
            if pending is None:
                continue  # cancelled, or this node no longer coordinates the transaction
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
        """The broker did not answer (disconnected, timed out).  It may have written the markers; a second
        copy ends no transaction but, under TV1, a later one of the same producer (docs/limits.md)."""
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
        """Compare and remove: only this entry, never another one of the same transactional id."""
        if self._pending.get(pending.send.identity) is pending:
            del self._pending[pending.send.identity]

    def partition_gone(self, partition: TransactionPartition) -> MarkerResult:
        """The controller's metadata, newer than this queue, says that the partition is deleted: it needs no
        marker."""
        written: list[tuple[int, MarkersWritten]] = []
        for pending in list(self._pending.values()):
            if partition in pending.remaining:
                pending.remaining.remove(partition)
                pending.queued.pop(partition, None)
                written += self._finished(pending)
        return MarkerResult(tuple(written))

    def cancel_state_partition(self, state_partition: int) -> int:
        """This node stops coordinating the partition, or loads it anew; returns the number of transactions
        that are cancelled."""
        gone = [pending for pending in self._pending.values() if pending.state_partition == state_partition]
        for pending in gone:
            self._remove(pending)
        return len(gone)

    def waiting_partitions(self) -> Iterable[TransactionPartition]:
        """Partitions that still need a marker: for metrics, and to find those whose topic may be gone."""
        return {partition for pending in self._pending.values() for partition in pending.remaining}

    def next_attempt_ms(self) -> int | None:
        """When the next `take` may return a batch although no answer has arrived; None: never."""
        return self._next_ms

    def __len__(self) -> int:
        return len(self._pending)
