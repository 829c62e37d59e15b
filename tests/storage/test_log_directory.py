"""A data folder: whose it is, what a restart begins with, and what happens when its disk fails."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.runtime.disk import Disk, RealDisk
from tidegate.storage.directory.folder_notes import PARTITION_CHECKPOINT, FolderNotes
from tidegate.storage.directory.log_directory import DirectoryRefused, LogDirectory, OpenReport
from tidegate.storage.directory.log_loader import FolderOptions
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import NOW_MS, SMALL, append, batch, stored

ROOT = Path("/data/node-1")
ID, OTHER_ID = UUID(int=1), UUID(int=2)


def opened(
    disk: Disk, root: Path = ROOT, *, cluster: str = "tide", node: int = 1
) -> tuple[LogDirectory, OpenReport]:
    directory = LogDirectory(disk, root, cluster, node)
    return directory, directory.open_all(lambda _topic: SMALL, now_ms=NOW_MS)


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


def test_a_clean_restart_needs_no_recovery_and_knows_its_broker_epoch(tmp_path: Path) -> None:
    disk = RealDisk()
    directory, report = opened(disk, tmp_path / "data")
    assert not report.clean
    assert report.opened == 0
    log = directory.create("my-topic", ID, 3, SMALL, now_ms=NOW_MS)
    for _ in range(12):
        append(log, batch(2, size=300))
    log.set_high_watermark(20)
    before = stored(log)
    directory.close(clean=True, broker_epoch=77)
    directory, report = opened(disk, tmp_path / "data")
    assert (report.opened, report.clean, report.recovered, report.failed) == (1, True, [], {})
    assert directory.previous_broker_epoch == 77
    assert directory.topic_ids == {("my-topic", 3): ID}
    again = directory.logs["my-topic", 3]
    assert stored(again) == before
    assert again.high_watermark == 20
    directory.close(clean=False)


class Watched(RealDisk):
    """Knows which threads wrote what; one log's snapshots cannot be written."""

    def __init__(self, broken: str = "") -> None:
        self.threads: dict[str, set[int]] = {}
        self.broken = broken

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.threads.setdefault(path.suffix, set()).add(threading.get_ident())
        if path.parent.name == self.broken and path.suffix == ".snapshot":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        super().write_atomic(path, data)


@pytest.mark.parametrize("recovery_threads", [1, 2])
def test_logs_that_have_nothing_to_flush_are_closed_in_threads(tmp_path: Path, recovery_threads: int) -> None:
    """Thousands of them would wait for thousands of syncs, one after the other."""
    disk = Watched()
    directory = LogDirectory(
        disk, tmp_path / "data", "tide", 1, options=FolderOptions(recovery_threads=recovery_threads)
    )
    directory.open_all(now_ms=NOW_MS)
    for number in range(40):
        log = directory.create("t", ID, number, SMALL, now_ms=NOW_MS)
        append(log, batch(2, size=300))
        if number % 4:
            log.flush_now()
    disk.threads.clear()
    directory.close(clean=True, broker_epoch=7)
    assert (len(disk.threads[".snapshot"]) > 1) is (recovery_threads > 1)
    directory, report = opened(disk, tmp_path / "data")
    assert (report.opened, report.clean, report.recovered, report.failed) == (40, True, [], {})
    assert all(log.log_end_offset == 2 for log in directory.logs.values())
    directory.close(clean=False)


def test_a_failed_close_in_a_thread_leaves_no_clean_mark_and_is_reported(tmp_path: Path) -> None:
    disk = Watched()
    directory = LogDirectory(disk, tmp_path / "data", "tide", 1, options=FolderOptions(recovery_threads=2))
    directory.open_all(now_ms=NOW_MS)
    for number in range(10):
        directory.create("t", ID, number, SMALL, now_ms=NOW_MS)
    reports: list[int] = []
    directory.on_offline = lambda _directory, _error: reports.append(threading.get_ident())
    disk.broken = "t-6"
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        directory.close(clean=True, broker_epoch=7)
    assert reports == [threading.get_ident()]
    assert directory.is_offline
    disk.broken = ""
    directory, report = opened(disk, tmp_path / "data")
    assert report.opened == 10
    assert not report.clean
    directory.close(clean=False)


def test_the_clean_mark_is_good_for_one_start() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    directory.create("flights", ID, 0, SMALL)
    directory.close(clean=True, broker_epoch=5)
    for _ in range(2):  # the removal of the mark is durable before anything else happens
        directory, report = opened(disk)
        assert report.clean == (directory.previous_broker_epoch == 5)
        disk.crash(Random(1))
    assert not report.clean
    assert directory.previous_broker_epoch is None
    assert report.recovered == ["flights-0"]


@pytest.mark.parametrize(("cluster", "node", "says"), [("other", 1, "cluster.id"), ("tide", 2, "node.id")])
def test_a_foreign_folder_is_refused(cluster: str, node: int, says: str) -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    directory.close(clean=True)
    with pytest.raises(DirectoryRefused, match=says):
        opened(disk, cluster=cluster, node=node)
    opened(disk)[0].close(clean=False)


def test_a_folder_with_partitions_and_no_owner_file_is_refused() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    directory.create("flights", ID, 0, SMALL)
    directory.close(clean=True)
    disk.remove(ROOT / "meta.properties")
    with pytest.raises(DirectoryRefused, match="whose"):
        opened(disk)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    directory, _ = opened(RealDisk(), tmp_path)
    with pytest.raises(DirectoryRefused, match="in use"):
        opened(RealDisk(), tmp_path)
    directory.close(clean=False)
    opened(RealDisk(), tmp_path)[0].close(clean=False)


def test_after_a_crash_only_what_lies_past_the_checkpoint_is_in_doubt() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    log = directory.create("flights", ID, 0, SMALL)
    for _ in range(10):
        append(log, batch(1, size=300))
    log.flush_now()
    log.set_high_watermark(8)
    directory.write_checkpoints()
    flushed = stored(log)
    append(log, batch(1, size=300))
    disk.crash(Random(3))
    directory, report = opened(disk)
    again = directory.logs["flights", 0]
    assert report.recovered == ["flights-0"]
    assert stored(again)[:10] == flushed
    assert again.high_watermark == 8


def test_damage_keeps_one_partition_closed_and_the_others_in_use() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    for partition in range(3):
        log = directory.create("flights", ID, partition, SMALL)
        append(log, batch(1, size=300))
        log.flush_now()
    directory.write_checkpoints()
    disk.kill()
    disk.flip_bit(ROOT / "flights-1" / f"{0:020d}.log", 100)
    directory, report = opened(disk)
    assert sorted(directory.logs) == [("flights", 0), ("flights", 2)]
    assert report.failed["flights", 1].code == ErrorCode.KAFKA_STORAGE_ERROR
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        directory.create("flights", ID, 1, SMALL)
    directory.write_checkpoints()
    disk.kill()
    assert list(opened(disk)[1].failed) == [("flights", 1)], (
        "the damage is still known after the next checkpoint"
    )


def test_a_deleted_topic_leaves_nothing_behind() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    append(directory.create("flights", ID, 0, SMALL), batch())
    directory.write_checkpoints()
    directory.delete("flights", 0)
    disk.crash(Random(0))
    directory, report = opened(disk)
    assert not report.opened
    assert not report.failed
    assert directory.logs == {}


class FullDisk(RealDisk):
    """Takes no byte more while it is full; names change and files go."""

    full = False

    def write_atomic(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write_atomic(path, data)


def test_a_topic_deleted_on_a_full_disk_leaves_its_successor_no_checkpoint(tmp_path: Path) -> None:
    """The space must come free at once: there may be no other way to make room."""
    disk = FullDisk()
    directory, _ = opened(disk, tmp_path / "data")
    log = directory.create("flights", ID, 0, SMALL)
    append(log, batch())
    directory.write_checkpoints()
    before = (tmp_path / "data" / PARTITION_CHECKPOINT).read_bytes()
    assert b"flights" in before
    disk.full = True
    directory.delete("flights", 0)
    assert not [path for path in (tmp_path / "data").rglob("*") if path.suffix == ".log"]
    assert (tmp_path / "data" / PARTITION_CHECKPOINT).read_bytes() == before
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        directory.create("flights", OTHER_ID, 0, SMALL)
    disk.full = False
    directory.create("flights", OTHER_ID, 0, SMALL)
    assert b"flights" not in (tmp_path / "data" / PARTITION_CHECKPOINT).read_bytes()


def test_the_next_checkpoint_forgets_a_topic_deleted_on_a_full_disk(tmp_path: Path) -> None:
    disk = FullDisk()
    directory, _ = opened(disk, tmp_path / "data")
    append(directory.create("flights", ID, 0, SMALL), batch())
    directory.write_checkpoints()
    disk.full = True
    directory.delete("flights", 0)
    disk.full = False
    directory.write_checkpoints()
    assert b"flights" not in (tmp_path / "data" / PARTITION_CHECKPOINT).read_bytes()


@pytest.mark.parametrize("name", ["flights", "flights-0.5", "f" * 249])
def test_a_start_forgets_the_row_of_a_log_whose_deletion_a_crash_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = tmp_path / "data"
    directory, _ = opened(RealDisk(), root)
    for each in (name, "kept"):
        append(directory.create(each, UUID(int=len(each)), 0, SMALL), batch())
    directory.write_checkpoints()

    class Cut(Exception):
        pass

    def cut(*_arguments: object) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(FolderNotes, "forget_if_room", cut)
        with pytest.raises(Cut):
            directory.delete(name, 0)
    directory.close(clean=False)
    assert name in (root / PARTITION_CHECKPOINT).read_text()
    directory, report = opened(RealDisk(), root)
    assert (report.opened, report.failed) == (1, {})
    assert name not in (root / PARTITION_CHECKPOINT).read_text()
    assert "kept" in (root / PARTITION_CHECKPOINT).read_text()
    assert not list(root.glob("*-delete"))
    directory.close(clean=False)


def test_a_topic_created_again_under_its_name_begins_empty() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    first = directory.create("flights", ID, 0, SMALL)
    append(first, batch())
    assert directory.create("flights", ID, 0, SMALL) is first
    second = directory.create("flights", OTHER_ID, 0, SMALL)
    assert second.log_end_offset == 0
    assert directory.topic_ids["flights", 0] == OTHER_ID
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        append(first, batch())


def test_a_half_created_partition_is_removed() -> None:
    disk = LyingDisk()
    opened(disk)[0].close(clean=False)
    disk.make_directory(ROOT / "flights-0")
    directory, report = opened(disk)
    assert not report.failed
    assert not disk.exists(ROOT / "flights-0")
    directory.create("flights", ID, 0, SMALL)


def test_a_partition_that_has_lost_its_identity_keeps_its_batches() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    append(directory.create("flights", ID, 0, SMALL), batch(3))
    directory.close(clean=True, broker_epoch=1)
    identity = disk.read(ROOT / "flights-0" / "partition.metadata")
    disk.remove(ROOT / "flights-0" / "partition.metadata")
    directory, report = opened(disk)
    assert "partition.metadata is missing" in str(report.failed["flights", 0])
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        directory.create("flights", ID, 0, SMALL)
    directory.close(clean=False)
    disk.write_atomic(ROOT / "flights-0" / "partition.metadata", identity)
    assert opened(disk)[0].logs["flights", 0].log_end_offset == 3


def truncated_below_the_checkpoint() -> OpenReport:
    disk = LyingDisk()
    directory, _ = opened(disk)
    log = directory.create("flights", ID, 0, SMALL)
    for _ in range(5):
        append(log, batch(2))
    log.flush_now()
    directory.write_checkpoints()
    log.truncate_to(4)
    disk.crash(Random(2))
    return opened(disk)[1]


def test_a_truncation_below_the_checkpoint_is_no_loss_after_a_crash() -> None:
    report = truncated_below_the_checkpoint()
    assert not report.failed
    assert report.opened == 1


def test_ablation_without_lowering_the_recovery_point_first_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderNotes, "lower", lambda self, key, offset: None)
    assert truncated_below_the_checkpoint().failed


@pytest.mark.parametrize("content", [b"", b"garbage\n", b"1\n1\nflights 0 9 9 9\ncrc32c 00000000\n"])
def test_without_a_readable_checkpoint_every_log_is_scanned_in_full(content: bytes) -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    append(directory.create("flights", ID, 0, SMALL), batch(2))
    directory.close(clean=True)
    disk.write_atomic(ROOT / "partition-checkpoint", content)
    directory, report = opened(disk)
    assert report.recovered == ["flights-0"]
    assert directory.logs["flights", 0].log_end_offset == 2


def test_a_failing_disk_takes_the_whole_folder_down_once() -> None:
    disk, reports = LyingDisk(), []
    directory, _ = opened(disk)
    directory.on_offline = lambda failed, error: reports.append((failed, error.errno))
    logs = [directory.create("flights", ID, partition, SMALL) for partition in range(3)]
    append(logs[1], batch())
    disk.fail_sync = True
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        logs[1].flush_now()
    disk.fail_sync = False
    assert directory.is_offline
    assert all(log.is_offline for log in logs)
    assert len(reports) == 1
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        directory.create("flights", ID, 4, SMALL)
    with pytest.raises(OSError, match="the sync fails"):
        directory.close(clean=True)
    assert not disk.exists(ROOT / "clean-shutdown")
    disk.kill()
    assert not opened(disk)[1].clean


def test_a_full_disk_does_not_pretend_a_clean_close() -> None:
    disk = LyingDisk()
    directory, _ = opened(disk)
    append(directory.create("flights", ID, 0, SMALL), batch())
    disk.capacity = 0
    with pytest.raises((KafkaError, OSError)):
        directory.close(clean=True)
    disk.capacity = None
    disk.kill()
    directory, report = opened(disk)
    assert not report.clean
    assert directory.logs["flights", 0].log_end_offset == 1
