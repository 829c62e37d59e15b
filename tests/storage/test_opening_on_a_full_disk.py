"""A node that was killed on a full disk starts on it: what is there is read, and the rest follows when there
is room."""

from __future__ import annotations

from copy import deepcopy
from itertools import count
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.mounts import Mounts
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.durability.flush_notes import FLUSH_NOTES, FlushNotes, read_flush_notes
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.folders.folder_ids import DATA_FOLDERS
from tidegate.storage.log.log import CorruptLog, Log
from tidegate.storage.segment.pending_indexes import PendingIndexFiles
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import FOLDER, NOW_MS, SMALL, Stored, append, append_marker, batch, marker, open_log, stored

A, B = Path("/a/data"), Path("/b/data")
ROOT = Path("/data")


def written(log: Log, random: Random | None = None) -> None:
    """Several segments, two epochs, producers, an aborted transaction in the active segment; some of it
    unflushed."""
    for number in range(12):
        append(log, batch(3, pid=7, epoch=0, sequence=3 * number), leader_epoch=number // 8)
        if number == 5 or (random is not None and random.random() < 0.2):
            log.flush_now()
    append(log, batch(2, pid=8, epoch=0, sequence=0, transactional=True), leader_epoch=1)
    append_marker(log, marker(8, 1, commit=False), leader_epoch=1)
    append(log, batch(1), leader_epoch=1)


def seen(log: Log) -> tuple[list[Stored], list[tuple[int, int]], list[int], object]:
    """What readers and producers can know of a log."""
    end = log.log_end_offset
    aborted = [(each.producer_id, each.first_offset) for each in log.aborted_transactions(0, end)]
    return stored(log), aborted, [log.epoch_at(offset) for offset in range(0, end, 5)], log.producers.views()


def fill(disk: LyingDisk) -> None:
    disk.capacity = disk.used_bytes()


def used_in_full(disk: LyingDisk) -> None:
    """Opens the log on the full disk, as it would be found with room, refuses an append, and opens it once
    more."""
    reference = open_log(deepcopy(disk))
    expected, end = seen(reference), reference.log_end_offset
    for _ in range(2):
        fill(disk)
        log = open_log(disk)
        assert seen(log) == expected
        assert log.flushed_end_offset == end
        with pytest.raises(KafkaError) as refused:
            append(log, batch(40), leader_epoch=1)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not log.is_offline
        assert seen(log) == expected
        disk.kill()
    log = open_log(disk)
    disk.capacity = None
    log.flush_now()
    assert log.recovery_point == end
    assert not log.local.flush_due
    point = log.recovery_point
    disk.crash(Random(1))
    assert seen(open_log(disk, recovery_point=point)) == expected


def test_a_log_is_opened_on_the_disk_that_its_writer_has_filled() -> None:
    disk = LyingDisk()
    written(open_log(disk))
    disk.kill()
    used_in_full(disk)


@pytest.mark.parametrize("seed", range(30))
def test_a_log_is_opened_on_a_full_disk_after_a_power_cut(seed: int) -> None:
    disk = LyingDisk()
    written(open_log(disk), Random(seed))
    disk.crash(Random(seed))
    # The transaction index alone cannot wait; see below for one that has lost its room.
    roomy = deepcopy(disk)
    open_log(roomy)
    for path in (path for path in roomy.files() if path.suffix == ".txnindex"):
        disk.put(path, bytes(roomy.size(path)))
    used_in_full(disk)


def test_what_waits_for_room_holds_the_recovery_point_back() -> None:
    disk = LyingDisk()
    written(open_log(disk))
    disk.kill()
    fill(disk)
    log = open_log(disk)
    assert log.recovery_point == 0 < log.flushed_end_offset
    assert log.local.flush_due
    log.flush_now()  # there is still no room
    assert log.recovery_point == 0
    assert not log.is_offline


def test_ablation_a_recovery_point_that_does_not_wait_loses_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk()
    written(open_log(disk))
    disk.kill()
    fill(disk)
    monkeypatch.setattr(PendingIndexFiles, "write_indexes", lambda unwritten, segment, end: None)
    monkeypatch.setattr(PendingIndexFiles, "_has_room_for", lambda unwritten, path, data: True)
    log = open_log(disk)
    disk.capacity = None
    log.flush_now()
    point = log.recovery_point
    assert point == log.log_end_offset
    expected = seen(log)
    disk.crash(Random(1))
    assert seen(open_log(disk, recovery_point=point)) != expected


# ---- folders -----------------------------------------------------------------------------------------------


def opened(disks: Mounts) -> DataFolders:
    numbers = count()
    folders = DataFolders(
        disks, (A, B), "c", 1, lambda: f"id-{next(numbers)}", essential=(A, "it is the metadata quorum's")
    )
    folders.open_all(lambda topic: SMALL, now_ms=NOW_MS)
    return folders


@pytest.mark.parametrize("which", ["/a", "/b"])
def test_a_full_folder_is_not_a_failed_one(which: str) -> None:
    parts = {Path("/a"): LyingDisk(), Path("/b"): LyingDisk()}
    disks, full = Mounts(parts), parts[Path(which)]
    folders = opened(disks)
    for number in range(4):
        written(folders.create(f"t{number}", UUID(int=number), 0, SMALL, now_ms=NOW_MS))
    identity = folders.directory_id
    expected = {key: seen(log) for key, log in folders.logs.items()}
    disks.kill()
    fill(full)
    folders = opened(disks)
    assert not folders.offline_folders
    assert folders.directory_id == identity
    assert {key: seen(log) for key, log in folders.logs.items()} == expected
    full.capacity = None
    for log in folders.logs.values():
        append(log, batch(1), leader_epoch=1)
        log.flush_now()
        assert log.recovery_point == log.log_end_offset
    folders.write_checkpoints()
    folders.close(clean=True, broker_epoch=5)


def test_a_full_folder_gets_the_note_of_the_others_later() -> None:
    parts = {Path("/a"): LyingDisk(), Path("/b"): LyingDisk()}
    disks = Mounts(parts)
    alone = DataFolders(disks, (A,), "c", 1, lambda: "first")
    alone.open_all(now_ms=NOW_MS)
    alone.close(clean=True)
    before = disks.read(A / DATA_FOLDERS)
    fill(parts[Path("/a")])
    folders = opened(disks)
    assert disks.read(A / DATA_FOLDERS) == before != disks.read(B / DATA_FOLDERS)
    parts[Path("/a")].capacity = None
    folders.write_checkpoints()
    assert disks.read(A / DATA_FOLDERS) == disks.read(B / DATA_FOLDERS)


def directory(disk: LyingDisk) -> LogDirectory:
    opened = LogDirectory(disk, ROOT, "c", 1, "id")
    opened.open_all(lambda topic: SMALL, now_ms=NOW_MS)
    return opened


def test_what_was_noted_of_flushes_is_not_forgotten_on_a_full_disk() -> None:
    disk = LyingDisk()
    log = directory(disk).create("flights", UUID(int=1), 0, SMALL, now_ms=NOW_MS)
    append(log, batch(3))
    log.flush_now()
    disk.kill()
    fill(disk)
    assert directory(disk).logs
    disk.kill()
    disk.capacity = None
    disk.put(FOLDER / f"{0:020d}.log", b"")
    again = directory(disk)
    assert isinstance(again.unusable[("flights", 0)], str)
    assert ("flights", 0) in again.damaged


def test_flushes_are_noted_on_a_full_disk_where_older_notes_have_room() -> None:
    disk = LyingDisk()
    one, other = b"1" * 20, b"2" * 20
    disk.make_directory(ROOT)
    first = FlushNotes(disk, ROOT / FLUSH_NOTES, {})
    first.note(one, 5)
    first.note(other, 6)
    disk.kill()
    fill(disk)
    second = FlushNotes(disk, ROOT / FLUSH_NOTES, {one: 5})
    second.note(one, 9)

    assert read_flush_notes(disk, ROOT / FLUSH_NOTES) == {one: 9}
    second.void(one, 3)
    assert read_flush_notes(disk, ROOT / FLUSH_NOTES) == {}


def test_a_log_that_needs_room_to_be_opened_is_opened_when_there_is_some() -> None:
    disk = LyingDisk()
    folder = directory(disk)
    for number in range(2):
        written(folder.create("flights", UUID(int=1), number, SMALL, now_ms=NOW_MS))
    expected = seen(folder.logs[("flights", 0)])
    assert expected[1], "no transaction index: nothing would need room"
    disk.kill()
    (index,) = (path for path in disk.files() if path.parent == FOLDER and path.suffix == ".txnindex")
    disk.put(index, b"")  # what a power cut may have left
    fill(disk)
    folder = directory(disk)
    assert list(folder.logs) == [("flights", 1)]
    assert not folder.is_offline
    assert not folder.damaged
    for _ in range(2):
        with pytest.raises(KafkaError, match="no room to open flights-0") as refused:
            folder.create("flights", UUID(int=1), 0, SMALL, now_ms=NOW_MS)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not isinstance(refused.value, CorruptLog)
    disk.capacity = None
    assert seen(folder.create("flights", UUID(int=1), 0, SMALL, now_ms=NOW_MS)) == expected
    assert not folder.unusable
    folder.close(clean=True)


def test_a_stop_before_such_a_log_was_opened_is_no_clean_one() -> None:
    disk = LyingDisk()
    folder = directory(disk)
    written(folder.create("flights", UUID(int=1), 0, SMALL, now_ms=NOW_MS))
    disk.kill()
    (index,) = (path for path in disk.files() if path.suffix == ".txnindex")
    disk.put(index, b"")
    fill(disk)
    folder = directory(disk)
    disk.capacity = None
    with pytest.raises(KafkaError, match="no room"):
        folder.close(clean=True)
    assert directory(disk).previous_broker_epoch is None
