"""The batches of a range that a reader gets: no control batches and, at read_committed, no aborted
transactions.

The rule is that of Kafka's consumer (docs/semantics.md F3, X4), batch by batch in offset order:

1. every aborted transaction whose first offset is at or below the batch's last offset becomes *active*;
2. a control batch is never shown; an ABORT marker ends the active transaction of its producer;
3. a transactional batch of an active producer is dropped; everything else is shown.

A transaction may begin before the range: its entry then is active from the first batch on.  The list of the
whole range must be known before the first batch is judged, and a filter serves one uninterrupted pass: a
reader that resumes elsewhere asks for the list again and starts a new filter.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..wire.records import BatchHeader, ControlType, decode_marker


class VisibilityFilter:
    """Judges the batches of one pass over a range, in offset order."""

    __slots__ = ("_active", "_next", "_pending")

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """`aborted` holds (producer id, first offset) pairs; none for a read_uncommitted reader."""
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
        return (
            not (header.is_transactional and header.producer_id in self._active) and header.record_count > 0
        )
