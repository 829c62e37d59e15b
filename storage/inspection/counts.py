"""Checks the count index of one segment against its batches, batch by batch, like the checks of the other
indexes.

A file that the node would not use (empty, or for another size or end of the segment) is no fault: the counts
are rebuilt.  In a file that it would use, every count must be right: a wrong count looks like any other
number.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from ...runtime.disk import Disk
from ...wire.errors import KafkaError
from ...wire.records import BatchHeader, ControlType, decode_marker
from ..segment.count_index import CountIndexInvalid, Run, StoredCounts, decode_count_index
from .findings import Finding
from .verification import StoredBatch


class CountIndexCheck:
    """Every entry says how many data records stand before it; every record of a transaction without a COMMIT
    marker in this segment is in exactly one run, and nothing else is."""

    def __init__(self, disk: Disk, path: Path, base_offset: int, segment_bytes: int) -> None:
        self._path = path
        self._base_offset = base_offset
        self._records = 0
        self._end = base_offset
        self._uncovered: dict[int, int] = {}
        self._wrong: Finding | None = None
        self._is_used = False
        self._stored: StoredCounts | None = None
        data = disk.read(path)
        if not data:
            return
        try:
            self._stored, index = decode_count_index(data, base_offset)
        except CountIndexInvalid as error:
            self._wrong, self._is_used = (
                Finding("count-index-damaged", path, str(error), 0, base_offset),
                True,
            )
            return
        self._is_used = self._stored.segment_bytes == segment_bytes
        self._entries = deque(index.entries())
        self._runs: dict[int, deque[list[int]]] = {}
        for run in sorted(self._stored.total.runs, key=lambda run: run.first):
            self._add_run(run)

    def _add_run(self, run: Run) -> None:
        mine = self._runs.setdefault(run.producer_id, deque())
        if mine and run.first <= mine[-1][1]:
            self._note(f"two runs of producer {run.producer_id} hold offset {run.first}", run.first)
        mine.append([run.first, run.last, run.records])

    def take(self, found: StoredBatch) -> None:
        if self._stored is None or self._wrong is not None:
            return
        header, position = found.header, found.position
        if position == self._stored.last_position and header.crc != self._stored.batch_crc:
            self._is_used = False
        if self._entries and self._entries[0].position <= position:
            entry = self._entries.popleft()
            if entry.position < position or not self._end <= entry.offset <= header.base_offset:
                self._note(
                    f"an entry points at byte {entry.position}, offset {entry.offset}: no batch begins there",
                    entry.offset,
                )
            elif entry.records != self._records:
                what = (
                    f"{entry.records} records are said to stand before byte {position}; there are "
                    f"{self._records}"
                )
                self._note(what, entry.offset)
        self._end = header.next_offset
        if header.is_control:
            self._take_marker(found)
        else:
            self._records += header.record_count
            if header.is_transactional and header.record_count:
                self._take_transactional(header)

    def _take_transactional(self, header: BatchHeader) -> None:
        runs = self._runs.get(header.producer_id, deque())
        while runs and runs[0][1] < header.base_offset:
            self._end_run(header.producer_id, runs.popleft())
        if runs and runs[0][0] <= header.base_offset:
            runs[0][2] -= header.record_count
        else:
            self._uncovered[header.producer_id] = (
                self._uncovered.get(header.producer_id, 0) + header.record_count
            )

    def _take_marker(self, found: StoredBatch) -> None:
        try:
            marker = decode_marker(found.view)
        except KafkaError:
            marker = None
        if marker is not None and marker.control_type is ControlType.COMMIT:
            self._uncovered.pop(found.header.producer_id, None)

    def _end_run(self, producer_id: int, run: list[int]) -> None:
        if run[2]:
            self._note(
                f"the run of producer {producer_id} from offset {run[0]} has {-run[2]} records more "
                "than it says",
                run[0],
            )

    def finish(self) -> Finding | None:
        """All batches of the segment were taken."""
        if self._stored is not None and self._wrong is None:
            for producer_id, runs in self._runs.items():
                for run in runs:
                    self._end_run(producer_id, run)
            for producer_id, records in self._uncovered.items():
                self._note(
                    f"{records} records of producer {producer_id} have no COMMIT marker here and are "
                    "in no run"
                )
            if self._records != self._stored.total.records:
                self._note(f"it says {self._stored.total.records} records, there are {self._records}")
            if self._entries:
                self._note(f"an entry points at byte {self._entries[0].position}, behind the last batch")
        return self._wrong if self._is_used else None

    def _note(self, detail: str, offset: int = -1) -> None:
        if self._wrong is None:
            self._wrong = Finding("count-index-wrong", self._path, detail, -1, max(offset, self._base_offset))
