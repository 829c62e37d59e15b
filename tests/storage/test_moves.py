"""A log moves to another data folder (KIP-113): what it has afterwards, and what a request, a cut or a deletion does meanwhile."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.data_folders import DataFolders
from tidegate.storage.log import Log, LogConfig
from tidegate.storage.moving.future_replica import FutureReplica
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import NOW_MS, append, batch

A, B, C = Path("/disk-a/data"), Path("/disk-b/data"), Path("/disk-c/data")
ID = UUID(int=1)
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=200)


def opened(disk: LyingDisk, *paths: Path) -> DataFolders:
    names = count(Random(len(disk.files())).randrange(1 << 30))
    folders = DataFolders(disk, paths or (A, B, C), "c", 1, lambda: f"id-{next(names)}")
    folders.open_all(now_ms=NOW_MS)
    return folders


def with_log(records: int = 30, config: LogConfig = SMALL) -> tuple[LyingDisk, DataFolders, Log]:
    disk = LyingDisk()
    folders = opened(disk)
    log = folders.create("t", ID, 0, config, now_ms=NOW_MS)
    for _ in range(records):
        append(log, batch(1))
    log.flush_now()
    return disk, folders, log


def drive(future: FutureReplica | None, turns: int = 100, slice_bytes: int = 400) -> None:
    """Until it is over, or the turns are."""
    for _ in range(turns):
        if future is None or future.is_over:
            return
        work = future.turn(slice_bytes)
        if work is not None:
            work()


def records(log: Log) -> bytes:
    return b"".join(
        bytes(log.read(at, 1 << 20, upper_offset=log.log_end_offset).data) for at in range(log.log_start_offset, log.log_end_offset)
    )


def where(folders: DataFolders) -> Path:
    folder = folders.folder_of("t", 0)
    assert folder is not None
    return folder.path


def test_a_moved_log_is_the_same_object_with_the_same_records_in_the_other_folder() -> None:
    disk, folders, log = with_log()
    before = records(log)
    future = folders.move_to("t", 0, B)
    drive(future)
    assert future is not None and future.is_over and not folders.futures
    assert where(folders) == B and log.directory == B / "t-0" and folders.logs["t", 0] is log
    assert records(log) == before and log.flushed_end_offset == 30
    append(log, batch(1))
    log.flush_now()
    assert disk.list_names(A) and "t-0" not in disk.list_names(A)
    disk.crash(Random(1))
    again = opened(disk)
    assert where(again) == B and again.logs["t", 0].log_end_offset == 31
