"""A log whose `partition.metadata` is damaged or gone: the node does not guess its topic, and can set it
aside and fetch it again."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.directory.creation import PARTITION_METADATA
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.log import CorruptLog, LogConfig
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import NOW_MS, append, batch

DATA, ID = Path("/data"), UUID(int=7)
FILE = DATA / "t-0" / PARTITION_METADATA
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def opened(disk: LyingDisk) -> LogDirectory:
    directory = LogDirectory(disk, DATA, "c", 1)
    directory.open_all(now_ms=NOW_MS)
    return directory


def unidentified(content: bytes | None, *, clean: bool = True) -> LyingDisk:
    """A closed folder with a log of ten records whose identity is `content`, or gone."""
    disk = LyingDisk()
    directory = opened(disk)
    log = directory.create("t", ID, 0, SMALL, now_ms=NOW_MS)
    for _ in range(5):
        append(log, batch(2, size=200))
    log.flush_now()
    directory.sync_notes()
    directory.close(clean=clean, broker_epoch=1)
    disk.remove(FILE)
    if content is not None:
        disk.put(FILE, content)
    disk.kill()
    return disk


@pytest.mark.parametrize(
    "content", [None, b"", b"1\n1\n00000000-0000-0000-0000-000000000007\ncrc32c 00000000\n"]
)
def test_it_is_refused_with_what_to_do_and_makes_room_when_it_is_set_aside(content: bytes | None) -> None:
    disk = unidentified(content)
    folders = DataFolders(disk, [DATA], "c", 1, lambda: "d")
    report = folders.open_all(now_ms=NOW_MS)
    assert folders.damaged == {("t", 0): None}
    assert folders.topic_id_of("t", 0) is None
    assert list(report.failed) == [("t", 0)]
    assert report.failed["t", 0].code is ErrorCode.KAFKA_STORAGE_ERROR
    for topic_id in (ID, UUID(int=8)):
        with pytest.raises(
            KafkaError, match=r"t-0/partition.metadata .* copy the file from another partition"
        ):
            folders.create("t", topic_id, 0, SMALL, now_ms=NOW_MS)
    before = disk.read(DATA / "t-0" / f"{0:020d}.log")
    folders.set_aside("t", 0, now_ms=NOW_MS)
    fresh = folders.create("t", ID, 0, SMALL, now_ms=NOW_MS)
    assert fresh.log_end_offset == 0
    assert not folders.damaged
    assert disk.read(DATA / "0-damaged" / f"{0:020d}.log") == before
    append(fresh, batch(1))
    folders.close(clean=True, broker_epoch=2)
    assert opened(disk).logs["t", 0].log_end_offset == 1


def test_a_restored_identity_finds_its_log_and_its_flush_notes() -> None:
    disk = unidentified(None, clean=False)
    opened(disk).close(clean=False)
    disk.kill()
    whole = opened(LyingDisk())
    whole.create("t", ID, 1, SMALL, now_ms=NOW_MS)
    # as another partition has it
    disk.write_atomic(FILE, whole._disk.read(DATA / "t-1" / PARTITION_METADATA))
    last = sorted(name for name in disk.list_names(DATA / "t-0") if name.endswith(".log"))[-1]
    log_file = DATA / "t-0" / last
    disk.open(log_file).truncate(disk.size(log_file) - 1)
    again = LogDirectory(disk, DATA, "c", 1)
    report = again.open_all(now_ms=NOW_MS)
    assert isinstance(report.failed["t", 0], CorruptLog), "this tail had been flushed: it is not cut"


def test_a_used_log_without_batches_does_not_count_as_never_created() -> None:
    disk = LyingDisk()
    directory = opened(disk)
    log = directory.create("t", ID, 0, SMALL, now_ms=NOW_MS)
    log.truncate_fully_and_start_at(40)
    directory.close(clean=False)
    disk.remove(FILE)
    again = opened(disk)
    assert again.damaged == {("t", 0): None}
    assert disk.exists(DATA / "t-0")


def test_an_identity_listed_but_not_found_does_not_count_as_never_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = LyingDisk()
    directory = opened(disk)
    directory.create("t", ID, 0, SMALL, now_ms=NOW_MS)
    directory.close(clean=True, broker_epoch=1)
    exists = disk.exists
    monkeypatch.setattr(disk, "exists", lambda path: path != FILE and exists(path))
    assert opened(disk).damaged == {("t", 0): None}
    assert exists(FILE)
