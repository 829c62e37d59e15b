"""Recovery distinguishes damage to the newest flushed batches from a torn tail, and no note ever claims too
much (`flush_notes`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.chaos.sim.disk import SECTOR_BYTES, LyingDisk
from tidegate.chaos.sim.storage.log_history import StorageHistory
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.durability.flush import Durability
from tidegate.storage.durability.flush_notes import (
    FILE_BYTES_MAX,
    FLUSH_NOTES,
    RECORD_BYTES,
    FlushNotes,
    identity_of,
    read_flush_notes,
)
from tidegate.storage.log.log import CorruptLog, FlushTicket, Log, LogConfig
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.errors import KafkaError

from .test_histories import first_broken
from .workload import NOW_MS, append, batch

DATA = Path("/data")
NOTES = DATA / FLUSH_NOTES
TOPIC = UUID(int=7)
A, B = identity_of(TOPIC, 0), identity_of(TOPIC, 1)
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def opened(disk: LyingDisk) -> LogDirectory:
    directory = LogDirectory(disk, DATA, "c", 1)
    directory.open_all(now_ms=NOW_MS)
    return directory


def written(disk: LyingDisk, *, flushed: int, unflushed: int = 0) -> tuple[LogDirectory, Log]:
    """A log that was flushed since the last checkpoint only."""
    directory = opened(disk)
    log = directory.create("t", TOPIC, 0, CONFIG, now_ms=NOW_MS)
    directory.write_checkpoints()
    for _ in range(flushed):
        append(log, batch(2, size=100))
    log.flush_now()
    for _ in range(unflushed):
        append(log, batch(2, size=100))
    return directory, log


def reopened(disk: LyingDisk) -> tuple[LogDirectory, KafkaError | None]:
    disk.kill()
    directory = LogDirectory(disk, DATA, "c", 1)
    return directory, directory.open_all(now_ms=NOW_MS).failed.get(("t", 0))


def batches_of(log: Log) -> list[tuple[Path, int, int]]:
    """(file, position, base offset) of every batch."""
    from tidegate.storage.segment.batch_scan import scan_batches

    return [
        (segment.path("log"), at.position, at.header.base_offset)
        for segment in log.segments
        for at in scan_batches(segment.file, 0, segment.size_bytes)
    ]


# ---- damage and torn tails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 3, 11, -1])
def test_damage_flushed_since_the_checkpoint_is_named_and_not_truncated(which: int) -> None:
    disk = LyingDisk()
    _directory, log = written(disk, flushed=12, unflushed=2)
    path, position, offset = batches_of(log)[:12][which]
    sizes = {each: disk.size(each) for each, _position, _offset in batches_of(log)}
    disk.flip_bit(path, position + 70)
    _again, failed = reopened(disk)
    assert isinstance(failed, CorruptLog)
    assert (failed.path, failed.position, failed.offset) == (
        path,
        position,
        offset,
    )
    assert str(path) in str(failed)
    assert {each: disk.size(each) for each in sizes} == sizes
    again, failed = reopened(disk)  # it is not forgotten by the next start either
    assert ("t", 0) in again.damaged


def test_ablation_without_flush_notes_that_damage_is_truncated() -> None:
    disk = LyingDisk()
    _directory, log = written(disk, flushed=12)
    path, position, offset = batches_of(log)[3]
    disk.flip_bit(path, position + 70)
    disk.remove(NOTES)
    for sealed in [each for each in disk.files() if each.suffix == ".seal"]:
        disk.remove(sealed)
    again, failed = reopened(disk)
    assert failed is None
    assert again.logs["t", 0].log_end_offset == offset


def test_flushed_segments_that_are_gone_are_named_as_lost() -> None:
    disk = LyingDisk()
    _directory, log = written(disk, flushed=30)
    disk.remove(log.segments[-1].path("log"))
    _again, failed = reopened(disk)
    assert failed is not None
    assert f"up to offset {60} was flushed" in str(failed)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_valid_batches_behind_an_unflushed_bad_one_are_a_torn_tail(which: int) -> None:
    disk = LyingDisk()
    _directory, log = written(disk, flushed=12, unflushed=4)
    path, position, offset = batches_of(log)[12 + which]
    disk.flip_bit(path, position + 70)
    again, failed = reopened(disk)
    assert failed is None
    assert again.logs["t", 0].log_end_offset == offset


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["append", "append", "flush", "checkpoint", "cut", "roll"]), min_size=1, max_size=25
    ),
    st.integers(0, 1 << 16),
    st.booleans(),
)
def test_after_a_crash_what_was_flushed_is_there_or_said_to_be_damaged(
    steps: list[str], seed: int, power: bool
) -> None:
    """Whatever happened: a bit that flips in what was flushed is never cut, when only the process died; when
    the power went, it may be, above the last checkpoint; and without damage, nothing is ever said to be
    damaged."""
    for damage in (False, True):
        random, disk = Random(seed), LyingDisk()
        directory, log = written(disk, flushed=0)
        sure = 0  # by a checkpoint
        for step in steps:
            match step:
                case "append":
                    append(log, batch(random.randrange(1, 4), size=random.randrange(200)))
                case "flush":
                    log.flush_now()
                case "checkpoint":
                    directory.write_checkpoints()
                    sure = log.recovery_point
                case "roll":
                    log.roll()
                case "cut":
                    log.truncate_to(random.randrange(log.log_end_offset + 1))
                    sure = min(sure, log.log_end_offset)
                case _:
                    raise AssertionError(step)
        directory.notes.note_flush(B, 1)  # a flush of another log: what a cut has emptied is written again
        flushed = log.flushed_end_offset
        places = [place for place in batches_of(log) if place[2] < flushed]
        if damage and not places:
            return
        hit = random.choice(places) if damage else (DATA, 0, flushed)
        (disk.crash(random) if power else disk.kill())
        if damage:
            disk.flip_bit(hit[0], hit[1] + 70)
        # it vouches as well
        sure = max([sure, *(int(path.stem) for path in disk.files() if path.suffix == ".snapshot")])
        again = LogDirectory(disk, DATA, "c", 1)
        failed = again.open_all(now_ms=NOW_MS).failed
        if not damage:
            assert not failed
            assert again.logs["t", 0].log_end_offset >= flushed
        elif not failed:
            assert power or hit[2] < sure  # below the recovery point nothing is looked at
            assert again.logs["t", 0].log_end_offset in (hit[2], *range(flushed, log.log_end_offset + 1))


_CHILD = """
import os, signal, sys
from pathlib import Path
from uuid import UUID
from tidegate.tests.storage.workload import NOW_MS, append, batch
from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import LogConfig
from tidegate.storage.directory.log_directory import LogDirectory

directory = LogDirectory(RealDisk(), Path(sys.argv[1]), "c", 1)
directory.open_all(now_ms=NOW_MS)
log = directory.create("t", UUID(int=7), 0, LogConfig(), now_ms=NOW_MS)
directory.write_checkpoints()
for _ in range(5):
    append(log, batch(2, size=100))
    log.flush_now()
append(log, batch(2, size=100))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("damaged", [True, False])
def test_a_killed_process_leaves_its_notes_on_real_files(tmp_path: Path, damaged: bool) -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", _CHILD, str(tmp_path)], cwd=root, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    path = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    at = len(data) // 6 * (4 if damaged else 5) + 70  # of six batches, the last was not flushed
    data[at] ^= 1
    path.write_bytes(data)
    directory = LogDirectory(RealDisk(), tmp_path, "c", 1)
    report = directory.open_all(now_ms=NOW_MS)
    assert [*report.failed] == ([("t", 0)] if damaged else [])
    if not damaged:
        assert directory.logs["t", 0].log_end_offset == 10
    directory.close(clean=False)


def test_a_log_fetched_again_forgets_the_flush_notes_of_the_damaged_one() -> None:
    disk = LyingDisk()
    _directory, log = written(disk, flushed=12)
    path, position, _offset = batches_of(log)[3]
    disk.flip_bit(path, position + 70)
    again, _failed = reopened(disk)
    again.set_aside("t", 0)
    fresh = again.create("t", TOPIC, 0, CONFIG, now_ms=NOW_MS)
    append(fresh, batch(1))
    fresh.flush_now()
    disk.crash(Random(3))
    directory, failed = reopened(disk)
    assert failed is None
    assert directory.logs["t", 0].log_end_offset == 1


def test_a_log_whose_folder_was_moved_away_begins_anew() -> None:
    disk = LyingDisk()
    written(disk, flushed=12)
    disk.kill()
    disk.remove_tree(DATA / "t-0")
    directory, _failed = reopened(disk)
    directory.create("t", TOPIC, 0, CONFIG, now_ms=NOW_MS)
    disk.crash(Random(1))
    assert reopened(disk)[1] is None


# ---- the file ----------------------------------------------------------------------------------------------


def made(disk: LyingDisk, claims: dict[bytes, int] | None = None) -> FlushNotes:
    disk.make_directory(DATA)
    return FlushNotes(disk, NOTES, claims or {})


def test_the_highest_record_counts_and_damaged_ones_count_nothing() -> None:
    disk = LyingDisk()
    notes = made(disk)
    for end in (5, 9, 12):
        notes.note(A, end)
        notes.note(B, 2 * end)
    assert read_flush_notes(disk, NOTES) == {A: 12, B: 24}
    assert SECTOR_BYTES % RECORD_BYTES == 0
    for at in range(4 * RECORD_BYTES, 5 * RECORD_BYTES):
        disk.flip_bit(NOTES, at)
        assert read_flush_notes(disk, NOTES) == {A: 9, B: 24}
        disk.flip_bit(NOTES, at)
    disk.put(NOTES, bytes(RECORD_BYTES) + disk.read(NOTES)[: 5 * RECORD_BYTES + 7])
    assert read_flush_notes(disk, NOTES) == {A: 12, B: 18}
    assert read_flush_notes(disk, DATA / "none") == {}


def test_a_checkpoint_trims_what_it_has_made_needless() -> None:
    disk = LyingDisk()
    directory, log = written(disk, flushed=12)
    assert disk.size(NOTES) == RECORD_BYTES
    directory.write_checkpoints()
    assert disk.size(NOTES) == 0
    append(log, batch(2))
    log.flush_now()
    assert read_flush_notes(disk, NOTES) == {A: 26}


def test_a_checkpoint_keeps_notes_of_flushed_batches_without_an_index() -> None:
    """After a roll the recovery point stands at the segment whose index is not written; what is in it was
    flushed even so."""
    disk = LyingDisk()
    directory, log = written(disk, flushed=4)
    assert log.roll()
    directory.write_checkpoints()
    assert log.recovery_point == 0
    assert read_flush_notes(disk, NOTES) == {A: 8}
    disk.flip_bit(log.segments[0].path("log"), 70)
    assert reopened(disk)[1] is not None


def test_when_a_checkpoint_falls_back_the_notes_keep_the_flushed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one has made the note needless; a roll brings the recovery point down.  With the ablation."""
    for reported in (True, False):
        disk = LyingDisk()
        directory, log = written(disk, flushed=4)
        directory.write_checkpoints()
        assert read_flush_notes(disk, NOTES) == {}
        assert log.recovery_point == 8
        log.roll()
        if not reported:
            monkeypatch.setattr(Log, "report_flushed", lambda _self: None)
        directory.write_checkpoints()
        disk.flip_bit(log.segments[0].path("log"), 70)
        assert (reopened(disk)[1] is not None) == reported


def test_the_file_is_bounded_and_every_log_keeps_its_newest_record() -> None:
    disk = LyingDisk()
    notes = made(disk)
    for end in range(1, 3 * FILE_BYTES_MAX // RECORD_BYTES):
        notes.note(A, end)
        notes.note(identity_of(TOPIC, end % 50), 10 * end)
        assert disk.size(NOTES) <= FILE_BYTES_MAX
    claims = read_flush_notes(disk, NOTES)
    assert len(claims) == 50
    assert claims[identity_of(TOPIC, end % 50)] == 10 * end


def test_more_logs_than_fit_are_not_noted_until_the_next_checkpoint() -> None:
    disk = LyingDisk()
    notes = made(disk)
    most = FILE_BYTES_MAX // RECORD_BYTES
    for partition in range(most + 100):
        notes.note(identity_of(TOPIC, partition), 5)
    assert disk.size(NOTES) == FILE_BYTES_MAX
    assert len(read_flush_notes(disk, NOTES)) == most
    notes.trim(lambda _identity: 5)
    notes.note(A, 7)
    assert read_flush_notes(disk, NOTES) == {A: 7}


@pytest.mark.parametrize("seed", range(40))
def test_what_was_voided_never_returns_however_the_power_goes(seed: int) -> None:
    random, disk = Random(seed), LyingDisk()
    notes = made(disk, {A: 3})
    notes.note(A, 50)
    if seed % 4 == 1:
        notes.sync()
    if seed % 2:
        notes.trim(lambda _identity: 100)  # and its claim may still be on the disk
    notes.void(A, 20)
    for end in (21, 25):
        notes.note(A, end)
    disk.crash(random)
    assert read_flush_notes(disk, NOTES).get(A, 0) in (0, 20, 21, 25)


def test_notes_voided_by_a_truncation_return_with_any_logs_next_flush() -> None:
    disk = LyingDisk()
    notes = made(disk)
    notes.note(A, 50)
    notes.note(B, 7)
    notes.void(A, 20)
    assert read_flush_notes(disk, NOTES) == {}
    notes.note(B, 9)
    assert read_flush_notes(disk, NOTES) == {A: 20, B: 9}
    notes.void(B, 0)
    notes.trim(lambda _identity: 5)
    assert read_flush_notes(disk, NOTES) == {A: 20}


def test_a_truncation_above_every_claim_costs_no_sync() -> None:
    disk = LyingDisk()
    notes = made(disk)
    notes.note(A, 50)
    before = disk.syncs
    notes.void(A, 50)
    notes.void(B, 0)
    assert disk.syncs == before
    notes.void(A, 49)
    notes.void(A, 0)  # nothing is left to void
    assert disk.syncs == before + 1


def test_on_a_full_disk_nothing_is_noted_and_nothing_fails() -> None:
    disk = LyingDisk()
    notes = made(disk)
    disk.capacity = disk.used_bytes() + 40
    for end in (5, 9, 12):
        notes.note(A, end)
    assert read_flush_notes(disk, NOTES) == {A: 5}
    notes.void(A, 1)
    disk.capacity = 0
    FlushNotes(disk, NOTES, {B: 4}).note(A, 20)
    assert read_flush_notes(disk, NOTES) == {}
    disk.capacity = None


def test_a_failing_disk_takes_the_folder_offline() -> None:
    disk = LyingDisk()
    directory, log = written(disk, flushed=1)

    def fails(*_args: object) -> None:
        raise OSError(5, "no")

    directory.notes.note_flush = fails  # type: ignore[assignment]
    append(log, batch(1))
    log.flush_now()
    assert directory.is_offline
    assert log.is_offline


# ---- ablations ---------------------------------------------------------------------------------------------


def _never(_self: FlushNotes, _identity: bytes, _offset: int) -> None:
    """A cut voids nothing."""


def _unsynced(self: FlushNotes, identity: bytes, offset: int) -> None:
    """A cut empties the file, and does not wait until that is durable."""
    if self._file is not None and self._possible.get(identity, 0) > offset:
        self._file.truncate(0)
        self._noted.pop(identity, None)
        self._possible, self._size, self._is_due = {}, 0, True


def _what_is_read(self: FlushNotes, identity: bytes, offset: int) -> None:
    """A cut looks at the file as it is read, not at what may be on the disk."""
    if self._file is not None and self._noted.get(identity, 0) > offset:
        self._file.truncate(0)
        self._file.sync_data()
        self._noted.pop(identity, None)
        self._possible, self._size, self._is_due = {}, 0, True


@pytest.mark.parametrize("void", [_never, _unsynced, _what_is_read])
def test_ablation_claims_that_outlive_a_truncation_are_found(
    monkeypatch: pytest.MonkeyPatch, void: Callable[[FlushNotes, bytes, int], None]
) -> None:
    monkeypatch.setattr(FlushNotes, "void", void)
    assert first_broken(StorageHistory) is not None


def test_ablation_a_note_before_the_flush_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Log.begin_flush

    def noting(self: Log) -> FlushTicket:
        ticket = begin(self)
        self.local.hooks.flushed(ticket.end_offset)
        return ticket

    monkeypatch.setattr(Log, "begin_flush", noting)
    assert first_broken(StorageHistory) is not None


def test_ablation_a_file_that_is_not_made_anew_at_the_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last life dropped may return, and this one does not know of it."""

    def taken_over(self: FlushNotes, disk: LyingDisk, path: Path, claims: dict[bytes, int]) -> None:
        self._disk, self._path, self._noted, self._possible = disk, path, dict(claims), dict(claims)
        self._unsynced = self._is_due = False
        self._size = -(-disk.size(path) // RECORD_BYTES) * RECORD_BYTES if disk.exists(path) else 0
        self._file = disk.open(path, create=True)

    monkeypatch.setattr(FlushNotes, "__init__", taken_over)
    assert first_broken(StorageHistory) is not None


@pytest.mark.parametrize("mapped", [True, False])
def test_a_log_that_ends_in_a_hole_is_noted_up_to_its_last_batch(
    monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """A cut may leave the end in a gap of a compacted log; a restart finds the end of the last batch.  With
    the ablation."""
    disk = LyingDisk()
    directory = opened(disk)
    compacted = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    log = directory.create("t", TOPIC, 0, compacted, now_ms=NOW_MS)
    for offset in (0, 5, 9):
        log.append_follower(batch(1, base_offset=offset, leader_epoch=0))
    log.truncate_to(8)
    if not mapped:
        monkeypatch.setattr(Durability, "end_after_restart", lambda _self, offset: offset)
    log.flush_now()
    again, failed = reopened(disk)
    assert (failed is None) == mapped
    if mapped:
        assert log.flushed_end_offset == 8
        assert again.logs["t", 0].log_end_offset == 6
