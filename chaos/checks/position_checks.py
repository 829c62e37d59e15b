"""Checks on the order in which one client reads and writes a partition: no skip, no duplicate, no step
backwards.

Positions are indices of the version order (ranks among the offsets that hold data), so that the offset gaps
of control records and aborted transactions do not count.  Between two operations of a process
(docs/semantics.md V4):

* a failed operation does not move the position: its reader goes back to where it was;
* an undecided one leaves the position unknown, so the next read proves nothing;
* `Assign` keeps the position of partitions that stay, `Seek` forgets those that it names, and the group of a
  process that subscribes may move it at any time, so the check demands nothing from one of its operations to
  the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .anomaly import Anomaly, AnomalyKind, about
from .evidence import Evidence
from .history import Assign, CommitOffsets, Init, Op, OpOutcome, Partition, Poll, Seek, Send, Subscribe


@dataclass(slots=True)
class _Reader:
    """The position of one process between its operations, as far as the history proves it."""

    positions: dict[Partition, int] = field(default_factory=dict)
    subscribes: bool = False


def polls_within_operations(evidence: Evidence) -> Iterator[Anomaly]:
    """Successive reads of a partition inside one operation, and inside the final read, follow each other
    without a gap."""
    for op in evidence.history:
        last: dict[Partition, int] = {}
        for step in op.steps:
            match step:
                case Seek(partitions):
                    last = {
                        partition: index for partition, index in last.items() if partition not in partitions
                    }
                case Poll(records):
                    for partition, reads in records.items():
                        if partition not in op.rebalanced:
                            yield from _successive_reads(evidence, partition, reads, last, op)
                case Send() | CommitOffsets() | Init() | Assign() | Subscribe():
                    pass
    for partition, reads in evidence.final_logs.items():
        yield from _successive_reads(evidence, partition, reads, {}, None)


def _successive_reads(
    evidence: Evidence,
    partition: Partition,
    reads: Sequence[tuple[int, object]],
    last: dict[Partition, int],
    op: Op | None,
) -> Iterator[Anomaly]:
    order = evidence.orders[partition]
    reader = str(op) if op is not None else "the final read"
    for offset, value in reads:
        index = order.index_of_offset(offset)
        previous = last.get(partition)
        last[partition] = index
        if previous is None:
            continue
        if index <= previous:
            message = f"{reader} read {value!r} at offset {offset} after it had read further"
            yield about(AnomalyKind.INTERNAL_NONMONOTONIC_POLL, message, op, partition=partition)
        elif index > previous + 1:
            message = (
                f"{reader} read {value!r} at offset {offset} and skipped {index - previous - 1} records "
                "before it"
            )
            yield about(AnomalyKind.INTERNAL_POLL_SKIP, message, op, partition=partition)


def polls_between_operations(evidence: Evidence) -> Iterator[Anomaly]:
    """Each successful operation of a process reads on where the last successful one stopped."""
    readers: dict[str, _Reader] = {}
    for op in evidence.history:
        reader = readers.setdefault(op.process, _Reader())
        first_read: set[Partition] = set()
        positions = dict(reader.positions)
        for step in op.steps:
            match step:
                case Assign(partitions):
                    positions = {
                        partition: index for partition, index in positions.items() if partition in partitions
                    }
                    reader.positions = {p: index for p, index in reader.positions.items() if p in partitions}
                case Subscribe():
                    reader.subscribes = True
                case Seek(partitions):
                    positions = {
                        partition: index
                        for partition, index in positions.items()
                        if partition not in partitions
                    }
                    reader.positions = {
                        p: index for p, index in reader.positions.items() if p not in partitions
                    }
                case Poll(records):
                    for partition, reads in records.items():
                        if not reads:
                            continue
                        if (
                            partition not in first_read
                            and op.outcome is OpOutcome.OK
                            and not _may_move(reader, op, partition)
                        ):
                            yield from _continues(evidence, partition, reads[0], positions.get(partition), op)
                        first_read.add(partition)
                        positions[partition] = evidence.orders[partition].index_of_offset(reads[-1][0])
                case Send() | CommitOffsets() | Init():
                    pass
        if op.outcome is OpOutcome.OK:
            reader.positions = positions
        elif op.outcome is OpOutcome.INFO:
            reader.positions = {
                partition: index
                for partition, index in reader.positions.items()
                if partition not in first_read
            }


def _may_move(reader: _Reader, op: Op, partition: Partition) -> bool:
    return reader.subscribes or partition in op.rebalanced


def _continues(
    evidence: Evidence, partition: Partition, read: tuple[int, object], previous: int | None, op: Op
) -> Iterator[Anomaly]:
    if previous is None:
        return
    offset, value = read
    index = evidence.orders[partition].index_of_offset(offset)
    if index <= previous:
        message = f"{op} read {value!r} at offset {offset}, which {op.process} had passed before"
        yield about(AnomalyKind.NONMONOTONIC_POLL, message, op, partition=partition)
    elif index > previous + 1:
        message = (
            f"{op} read {value!r} at offset {offset}: {op.process} skipped {index - previous - 1} "
            "records before it"
        )
        yield about(AnomalyKind.POLL_SKIP, message, op, partition=partition)


def sends_in_order(evidence: Evidence) -> Iterator[Anomaly]:
    """What one process sends to a partition stands there in the order of sending, within and across its
    operations.

    Skips are no anomaly: other producers write in between.
    """
    last: dict[tuple[str, Partition], tuple[int, Op]] = {}
    for op in evidence.history:
        if op.outcome is OpOutcome.FAIL:
            continue
        for send in op.sends:
            index = _index_of_send(evidence, send)
            if index is None:
                continue
            place = (op.process, send.partition)
            if place in last and index <= last[place][0]:
                before = last[place][1]
                kind = (
                    AnomalyKind.INTERNAL_NONMONOTONIC_SEND if before is op else AnomalyKind.NONMONOTONIC_SEND
                )
                message = f"{send.value!r} of {op} stands before a record that {op.process} sent earlier"
                yield about(kind, message, before, op, partition=send.partition, value=send.value)
            last[place] = (index, op)


def _index_of_send(evidence: Evidence, send: Send) -> int | None:
    order = evidence.orders.get(send.partition)
    return None if order is None else order.first_index(send.value)
