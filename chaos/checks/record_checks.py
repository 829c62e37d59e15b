"""Checks on single records and on the transactions that wrote them: lost, duplicated, torn, aborted, or never
written.

Every function is pure, takes the evidence and yields anomalies; the definitions are those of
docs/semantics.md V1 to V3.
"""

from __future__ import annotations

from collections.abc import Iterator

from .anomaly import Anomaly, AnomalyKind, about
from .evidence import Evidence
from .history import Op, OpOutcome, Partition, Poll, Send, Value


def lost_writes(evidence: Evidence) -> Iterator[Anomaly]:
    """Records that must be visible and are not.

    With a final read of the partition: everything that must have committed must be in it. Without one, only
    what lies below an index that was read can be called lost (`unseen` reports the rest): the bound is the
    greatest *first* index of a read value, and a value is lost when its *last* index is not above it.
    """
    bounds = {
        partition: _read_bound(evidence, partition)
        for partition in evidence.orders
        if partition not in evidence.final
    }
    for op in evidence.history:
        for send in evidence.committed_sends(op):
            if send.partition in evidence.final:
                if send.value not in evidence.final[send.partition]:
                    yield _lost(
                        send,
                        op,
                        f"its transaction or send was {op.outcome}, and the final read does not have it",
                    )
            elif not evidence.was_read(send):
                index = evidence.order(send.partition).last_index(send.value)
                if index is not None and index <= bounds[send.partition]:
                    yield _lost(send, op, "no reader read it, although records above it were read")


def _lost(send: Send, op: Op, why: str) -> Anomaly:
    return about(
        AnomalyKind.LOST_WRITE,
        f"{send.value!r} of {op} is lost: {why}",
        op,
        partition=send.partition,
        value=send.value,
    )


def _read_bound(evidence: Evidence, partition: Partition) -> int:
    order = evidence.orders[partition]
    places = (order.first_index(value) for value in evidence.read.get(partition, ()))
    return max((place for place in places if place is not None), default=-1)


def unseen_writes(evidence: Evidence) -> Iterator[Anomaly]:
    """Records of successful operations that no reader read; in a partition with a final read they count as
    lost."""
    for op in evidence.history:
        if op.outcome is OpOutcome.OK:
            for send in op.sends:
                if send.partition not in evidence.final and not evidence.was_read(send):
                    message = f"{send.value!r} of {op} was never read"
                    yield about(AnomalyKind.UNSEEN, message, op, partition=send.partition, value=send.value)


def duplicates(evidence: Evidence) -> Iterator[Anomaly]:
    for partition, order in evidence.orders.items():
        for value, offsets in order.copies.items():
            writer = evidence.writers.get((partition, value))
            message = f"{value!r} stands at the offsets {sorted(offsets)}"
            yield about(AnomalyKind.DUPLICATE, message, writer, partition=partition, value=value)


def inconsistent_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    for partition, order in evidence.orders.items():
        for offset, values in order.conflicts.items():
            names = sorted(values, key=repr)
            writers = [evidence.writers.get((partition, value)) for value in names]
            yield about(
                AnomalyKind.INCONSISTENT_OFFSETS,
                f"offset {offset} was seen to hold {names}",
                *writers,
                partition=partition,
            )


def unwritten_values(evidence: Evidence) -> Iterator[Anomaly]:
    """Records read in a partition where no client wrote them: corruption, or a record in the wrong
    partition."""
    for partition, order in evidence.orders.items():
        for value, offset in order.where.items():
            if (partition, value) not in evidence.writers:
                message = f"{value!r} at offset {offset} was written by no client"
                yield about(AnomalyKind.UNWRITTEN_VALUE, message, partition=partition, value=value)


def aborted_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """G1a.  Polls of every outcome count: read_committed is a promise to the reader, not to its
    transaction."""
    for op in evidence.history:
        for poll in op.polls:
            for partition, records in poll.records.items():
                for offset, value in records:
                    yield from _aborted_read(evidence, partition, offset, value, op)
    for partition, records in evidence.final_logs.items():
        for offset, value in records:
            yield from _aborted_read(evidence, partition, offset, value, None)


def _aborted_read(
    evidence: Evidence, partition: Partition, offset: int, value: Value, reader: Op | None
) -> Iterator[Anomaly]:
    writer = evidence.writers.get((partition, value))
    if writer is not None and writer.outcome is OpOutcome.FAIL:
        message = (
            f"{value!r} at offset {offset} was read by {reader or 'the final read'}, but its writer, "
            f"{writer}, failed"
        )
        yield about(AnomalyKind.ABORTED_READ, message, writer, reader, partition=partition, value=value)


def precommitted_reads(evidence: Evidence) -> Iterator[Anomaly]:
    for op in evidence.history:
        if op.transactional_id is None:
            continue
        for partition, value in _values_read(op.polls):
            if evidence.writers.get((partition, value)) is op:
                message = f"{op} read {value!r}, which it wrote itself and had not committed"
                yield about(AnomalyKind.PRECOMMITTED_READ, message, op, partition=partition, value=value)


def _values_read(polls: Iterator[Poll]) -> Iterator[tuple[Partition, Value]]:
    for poll in polls:
        for partition, records in poll.records.items():
            for _, value in records:
                yield partition, value


def torn_transactions(evidence: Evidence) -> Iterator[Anomaly]:
    """Transactions with some of their records in the final read, and not all.  A partition without a final
    read cannot show a missing record."""
    for op in evidence.history:
        if op.transactional_id is None:
            continue
        judged = [send for send in op.sends if send.partition in evidence.final]
        missing = [send for send in judged if send.value not in evidence.final[send.partition]]
        if 0 < len(missing) < len(judged):
            first = missing[0]
            message = (
                f"{len(judged) - len(missing)} of the {len(judged)} records of {op} are there, "
                f"{first.value!r} is not"
            )
            yield about(
                AnomalyKind.TORN_TRANSACTION, message, op, partition=first.partition, value=first.value
            )
