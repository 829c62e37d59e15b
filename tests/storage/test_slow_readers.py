"""A reader that gets a range piece by piece, with one list of its aborted transactions, while the cleaner
goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.client.consuming.visibility import VisibilityFilter
from tidegate.storage.cleaning.cleaner import clean_now
from tidegate.storage.log.bulk_read import AbortedOfRange, begin_bulk_read
from tidegate.storage.log.log import Log
from tidegate.wire.records import decode_batch, iterate_headers

from .cleaning_history import COMPACTED, DELETE_RETENTION_MS, CleaningHistory, random_steps
from .workload import NOW_MS, append, append_marker, batch, marker, open_log

SEEDS = range(8)
PIECE_BYTES = 300


@dataclass
class SlowReader:
    """Of [log start, last stable offset), as a stream of the data service reads it (docs/semantics.md X4)."""

    log: Log
    seen: list[int] = field(default_factory=list)
    lists: int = 0

    def __post_init__(self) -> None:
        self.position, self.end = self.log.log_start_offset, self.log.last_stable_offset
        self._ask()

    def _ask(self) -> None:
        self._aborted = AbortedOfRange(self.log, self.position, self.end)
        self._visibility = VisibilityFilter(each[:2] for each in self._aborted.transactions)
        self.lists += 1

    def piece(self) -> None:
        if not self._aborted.is_right_from(self.position):
            self._ask()
        data, following = begin_bulk_read(self.log, self.position, PIECE_BYTES, self.end).run()
        for at, header in iterate_headers(data):
            if self._visibility.shows(header, memoryview(data), at):
                records = decode_batch(data, at)
                self.seen += [each.offset for each in records if self.position <= each.offset < self.end]
        self.position = following


class Cleaned(CleaningHistory):
    """What the cleaner leaves is held to its model elsewhere."""

    def check(self) -> None:
        pass


def read_while_cleaned(seed: int) -> int:
    """How many lists the readers took beyond their first."""
    history, further = Cleaned(keys=200), 0
    reader: SlowReader | None = None
    for operation, a, b in random_steps(seed, 300):
        if operation == "reopen":  # a node that was killed serves no reader
            continue
        history.step(operation, a, b)
        if reader is not None and reader.position >= reader.end:
            check(history, reader)
            further += reader.lists - 1
            reader = None
        elif reader is not None and b % 3 == 0:
            reader.piece()
        elif reader is None and history.log.last_stable_offset > history.log.log_start_offset:
            reader = SlowReader(history.log)
    return further


def check(history: CleaningHistory, reader: SlowReader) -> None:
    """What is there now was there all the time."""
    assert sorted(set(reader.seen)) == reader.seen
    for offset in reader.seen:
        pid = history.written[offset].pid
        assert pid < 0 or not history.is_aborted(offset, pid), f"the record at {offset} was aborted"
    there = {each.offset for each in history.read_committed(reader.end)}
    missing = {offset for offset in there if offset < reader.end} - set(reader.seen)
    assert not missing, f"the reader has missed {sorted(missing)}"


def test_it_sees_the_committed_records_and_no_other() -> None:
    further = sum(read_while_cleaned(seed) for seed in SEEDS)
    assert further > 0, "no marker went while a reader waited for it: the histories prove little"


def test_ablation_without_another_list_records_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AbortedOfRange, "is_right_from", lambda self, offset: True)
    with pytest.raises(AssertionError, match="the reader has missed"):
        for seed in SEEDS:
            read_while_cleaned(seed)


def test_a_list_of_cleaned_files_is_not_that_of_a_copy_from_before() -> None:
    """A log that moves to another folder uses the copy's files, which may have what the cleaner removed."""
    made = []
    for _ in range(2):
        disk = LyingDisk()
        log = open_log(disk, config=COMPACTED)
        append(log, batch(1, size=600, pid=7, epoch=0, sequence=0, transactional=True))
        append_marker(log, marker(7, 1, commit=False))
        append(log, batch(1, size=600, pid=7, epoch=1, sequence=0, transactional=True))
        append_marker(log, marker(7, 2, commit=True))
        for _ in range(3):
            append(log, batch(1, size=600))
        log.flush_now()
        log.set_high_watermark(log.log_end_offset)
        made.append((disk, log))
    (disk, log), (_, copy) = made
    horizon_ms = None
    for now_ms in (NOW_MS, NOW_MS + 10 * DELETE_RETENTION_MS):
        result = clean_now(log, disk, now_ms, horizon_ms=horizon_ms)
        assert result is not None
        horizon_ms = result.next_horizon_ms
    aborted = AbortedOfRange(log, 0, log.last_stable_offset)
    assert aborted.transactions == ()
    log.exchange_files(copy)
    assert not aborted.is_right_from(0)
    assert aborted.is_right_from(2)
