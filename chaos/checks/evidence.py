"""What a history proves: the writer of a value, its offsets, the version order, and which operations must
have committed.

`Evidence` is built once per check and only read afterwards.  Everything in it is derived by docs/semantics.md
V1 and V2:

* The *version order* of a partition comes from the records that were read (by polls of any outcome, for a
  read_committed poll must be safe whatever the outcome of its transaction, and by the final read), and from
  acknowledged offsets only of writes that must have committed: the leader may have truncated an aborted write
  and given its offset to another.
* A transaction *must have committed* when it was acknowledged, or when its outcome is unknown and any reader
  read a record of it.  By that second clause, a single visible record requires all the others.
* Offsets have gaps (control records), so positions are compared by *index*: the rank among the offsets known
  to hold data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .history import HistoryError, Op, OpOutcome, Partition, Send, Value

FinalLogs = Mapping[Partition, Sequence[tuple[int, Value]]]
"""Per partition everything that a read_committed reader sees from the log's start to its end after the run
has come to rest."""

FinalOffsets = Mapping[str, Mapping[Partition, int]]
"""Per group the committed position of each partition after the run has come to rest."""


@dataclass(slots=True)
class VersionOrder:
    """The value at each offset of one partition.

    `at` and `where` keep the first value of an offset and the first offset of a value; contradictions go to
    `conflicts` and `copies`, which stay empty as long as the broker is right.
    """

    at: dict[int, Value] = field(default_factory=dict)
    where: dict[Value, int] = field(default_factory=dict)
    conflicts: dict[int, set[Value]] = field(default_factory=dict)
    copies: dict[Value, set[int]] = field(default_factory=dict)
    _index: dict[int, int] = field(default_factory=dict)

    def note(self, offset: int, value: Value) -> None:
        known = self.at.setdefault(offset, value)
        if known != value:
            self.conflicts.setdefault(offset, {known}).add(value)
        first = self.where.setdefault(value, offset)
        if first != offset:
            self.copies.setdefault(value, {first}).add(offset)

    def seal(self) -> None:
        """Ranks the offsets; called once, after the last `note`."""
        self._index = {offset: index for index, offset in enumerate(sorted(self.at))}

    def index_of_offset(self, offset: int) -> int:
        return self._index[offset]

    def first_index(self, value: Value) -> int | None:
        offset = self.where.get(value)
        return None if offset is None else self._index[min(self.copies.get(value, {offset}))]

    def last_index(self, value: Value) -> int | None:
        offset = self.where.get(value)
        return None if offset is None else self._index[max(self.copies.get(value, {offset}))]

    def in_order(self) -> Iterator[tuple[int, Value]]:
        for offset in self._index:
            yield offset, self.at[offset]


@dataclass(slots=True)
class Evidence:
    """The indices that the checks share.  Build it with `gather`."""

    history: Sequence[Op]
    final_logs: FinalLogs
    final_offsets: FinalOffsets | None
    writers: dict[tuple[Partition, Value], Op] = field(default_factory=dict)
    orders: dict[Partition, VersionOrder] = field(default_factory=dict)
    read: dict[Partition, set[Value]] = field(default_factory=dict)
    """Values read by a poll of any operation, or by the final read."""
    final: dict[Partition, set[Value]] = field(default_factory=dict)

    @classmethod
    def gather(
        cls, history: Sequence[Op], final_logs: FinalLogs, final_offsets: FinalOffsets | None
    ) -> Evidence:
        """Raises HistoryError when the history breaks the recorder's rules (a value sent twice to one
        partition)."""
        evidence = cls(history, final_logs, final_offsets)
        evidence._index_writers()
        evidence._index_reads()
        evidence._index_acknowledged_offsets()
        for order in evidence.orders.values():
            order.seal()
        return evidence

    def _index_writers(self) -> None:
        for op in self.history:
            for send in op.sends:
                identity = (send.partition, send.value)
                if identity in self.writers:
                    both = f"by {self.writers[identity]} and by {op}"
                    raise HistoryError(
                        f"{send.value!r} was sent twice to {send.partition}, {both}: values must be unique"
                    )
                self.writers[identity] = op

    def _index_reads(self) -> None:
        for op in self.history:
            for poll in op.polls:
                for partition, records in poll.records.items():
                    self._note_reads(partition, records)
        for partition, records in self.final_logs.items():
            self._note_reads(partition, records)
            self.final[partition] = {value for _, value in records}

    def _note_reads(self, partition: Partition, records: Sequence[tuple[int, Value]]) -> None:
        order = self.order(partition)
        for offset, value in records:
            order.note(offset, value)
        self.read.setdefault(partition, set()).update(value for _, value in records)

    def _index_acknowledged_offsets(self) -> None:
        for op in self.history:
            for send in self.committed_sends(op):
                if send.offset is not None:
                    self.order(send.partition).note(send.offset, send.value)

    def order(self, partition: Partition) -> VersionOrder:
        return self.orders.setdefault(partition, VersionOrder())

    def was_read(self, send: Send) -> bool:
        return send.value in self.read.get(send.partition, ())

    def must_have_committed(self, op: Op) -> bool:
        """True for an operation all of whose effects must be there (rule V1)."""
        if op.outcome is OpOutcome.INFO:
            return op.transactional_id is not None and any(self.was_read(send) for send in op.sends)
        return op.outcome is OpOutcome.OK

    def cannot_have_committed(self, op: Op) -> bool:
        """True when the operation failed, or when its outcome is unknown and the final logs have none of its
        records."""
        if op.outcome is OpOutcome.INFO:
            sends = list(op.sends)
            return bool(sends) and all(
                s.partition in self.final and s.value not in self.final[s.partition] for s in sends
            )
        return op.outcome is OpOutcome.FAIL

    def committed_sends(self, op: Op) -> Iterator[Send]:
        """The sends that must be there; without a transaction each stands for itself."""
        if self.must_have_committed(op):
            yield from op.sends
        elif op.outcome is OpOutcome.INFO:
            yield from (send for send in op.sends if self.was_read(send))
