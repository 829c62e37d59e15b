"""The batches of a range that a reader gets: no control batches and, at read_committed and at a cut, no
aborted transactions.

The rule is that of Kafka's consumer (docs/semantics.md F3, X4), batch by batch in offset order:

1. every aborted transaction whose first offset is at or below the batch's last offset becomes *active*;
2. a control batch is never shown; an ABORT marker ends the active transaction of its producer;
3. a transactional batch of an active producer is dropped; everything else is shown.

At a cut the transactions that it leaves out are dropped like aborted ones, whether they were committed since
or not (rule X11): each transactional batch of such a producer, from the first offset of its transaction on.
The end of the range is at most that of the cut, so that no later transaction of this producer lies in it.

A transaction may begin before the range: its entry then is active from the first batch on.  The list of the
whole range must be known before the first batch is judged, and a filter serves one uninterrupted pass: a
reader that resumes elsewhere asks for the list again and starts a new filter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...wire.records import BatchHeader, ControlType, decode_marker

Transaction = tuple[int, int]  # producer id, first offset


@dataclass(frozen=True, slots=True)
class AtCut:
    """What a range at a cut shows: all committed transactions but these, or, with `only`, of all records
    those of these transactions alone.

    `settled_end`: below it everything was decided at the cut.  A leader refuses the read when a record above
    it may have let the cleaner take away one that is inside; None: such a loss is accepted."""

    transactions: tuple[Transaction, ...] = ()
    only: bool = False
    settled_end: int | None = None

    def __post_init__(self) -> None:
        assert self.transactions or not self.only, "only these transactions, and none is named"


class VisibilityFilter:
    """Judges the batches of one pass over a range, in offset order."""

    __slots__ = ("_active", "_first_offsets", "_next", "_only", "_pending")

    def __init__(self, aborted: Iterable[Transaction] = (), at_cut: AtCut | None = None) -> None:
        """`aborted`: none for a read_uncommitted reader."""
        self._first_offsets = dict(at_cut.transactions) if at_cut is not None else {}
        self._only = at_cut is not None and at_cut.only
        self._pending = sorted((first_offset, producer_id) for producer_id, first_offset in aborted)
        self._next = 0
        self._active: set[int] = set()

    def shows(self, header: BatchHeader, view: memoryview, position: int) -> bool:
        """Whether the records of the batch at `view[position:]` may be seen."""
        pending = self._pending
        while self._next < len(pending) and pending[self._next][0] <= header.last_offset:
            self._active.add(pending[self._next][1])
            self._next += 1
        if header.is_control:
            if self._active and header.record_count:
                marker = decode_marker(view, position)
                if marker is not None and marker.control_type == ControlType.ABORT:
                    self._active.discard(header.producer_id)
            return False
        producer_id = header.producer_id
        if header.is_transactional and producer_id in self._active:
            return False
        if self._first_offsets:
            first = self._first_offsets.get(producer_id)
            is_named = header.is_transactional and first is not None and header.last_offset >= first
            if is_named is not self._only:
                return False
        return header.record_count > 0
