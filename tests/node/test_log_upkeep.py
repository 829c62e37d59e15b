"""Retention and cleaner as the node runs them: beside the loop, log after log, and no trouble of one log
reaches another."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tidegate.node.upkeep.log_upkeep import LogUpkeep
from tidegate.replication.replica.replica import Role
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.storage.cleaning.positions import CLEANER_CHECKPOINT
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.tests.eventually import eventually
from tidegate.wire.records import NewRecord, decode_batch, encode_batch, iterate_headers

from .test_configuration import loaded

COMPACTED = LogConfig(segment_bytes=2000, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
HOUR_MS = 3_600_000


@dataclass
class Replica:
    """What the upkeep asks of a replica."""

    log: Log
    topic: str
    topic_id: UUID = field(default_factory=uuid4)
    partition: int = 0
    role: Role = Role.LEADER

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER


class Folder:
    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.clock = SystemClock()
        self.disk: RealDisk = RealDisk()
        self.commit = GroupCommit(1)
        self.replicas: list[Replica] = []
        self.failures: list[BaseException] = []
        self.settings = {f"log__cleaner__{key}": value for key, value in settings.items()}
        self.open()

    def open(self) -> None:
        self.directory = LogDirectory(self.disk, self.path, "test", 1)
        self.directory.open_all(now_ms=0)
        configuration = loaded(**{"log__cleaner__backoff__ms": 10, **self.settings})
        self.upkeep = LogUpkeep(
            configuration,
            self.disk,
            self.clock,
            lambda: self.replicas,  # type: ignore[arg-type, return-value]
            self.commit.request,
            configuration.integer,
            self.failures.append,
        )

    def topic(self, name: str, config: LogConfig = COMPACTED, *, fill: int = 40, age_ms: int = 0) -> Replica:
        topic_id = uuid4()
        replica = Replica(self.directory.create(name, topic_id, 0, config), name, topic_id)
        self.replicas.append(replica)
        self.fill(replica, fill, age_ms)
        return replica

    def fill(self, replica: Replica, count: int, age_ms: int = 0) -> None:
        now_ms = self.clock.wall_ms()
        for number in range(count):
            data = encode_batch([NewRecord(b"key%d" % (number % 3), b"v" * 200, (), now_ms - age_ms)])
            replica.log.append_leader(data, leader_epoch=4, origin=AppendOrigin.CLIENT, now_ms=now_ms)
        replica.log.flush_now()
        replica.log.set_high_watermark(replica.log.log_end_offset)

    async def close(self, *, clean: bool = True) -> None:
        await self.upkeep.stop()
        self.directory.close(clean=clean)


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Folder]:
    made = Folder(tmp_path)
    yield made
    await made.close(clean=False)
    made.commit.close()


def offsets(log: Log) -> list[int]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20, upper_offset=log.log_end_offset)
        found += [
            record.offset
            for at, _ in iterate_headers(result.data)
            for record in decode_batch(result.data, at)
        ]
        offset = result.next_offset
    return found


async def test_a_compacted_log_is_cleaned_while_the_loop_runs(folder: Folder) -> None:
    cleaned, plain = folder.topic("changes"), folder.topic("events", LogConfig(segment_bytes=2000))
    before = cleaned.log.size_bytes
    folder.upkeep.start()
    await eventually(lambda: folder.upkeep.view().cleanings == 1)
    await eventually(lambda: cleaned.log.cleaned_to > 0)
    assert cleaned.log.size_bytes < before / 2
    assert len(offsets(cleaned.log)) < 20
    assert len(offsets(plain.log)) == 40
    view = folder.upkeep.view()
    assert view.bytes_read > view.bytes_written > 0
    assert view.records_removed > 20
    assert view.uncleanable_partitions == 0
    await eventually(lambda: (folder.path / CLEANER_CHECKPOINT).exists())


async def test_the_dirtiest_log_comes_first(folder: Folder) -> None:
    first, second = folder.topic("first"), folder.topic("second")
    assert await folder.upkeep.clean_once()
    assert await folder.upkeep.clean_once()
    folder.fill(first, 30)
    folder.fill(second, 200)
    positions = first.log.cleaned_to, second.log.cleaned_to
    assert await folder.upkeep.clean_once()
    assert first.log.cleaned_to == positions[0]
    assert second.log.cleaned_to > positions[1]


async def test_a_damaged_log_is_left_alone_and_the_others_are_cleaned(folder: Folder) -> None:
    damaged, sound = folder.topic("damaged", fill=80), folder.topic("sound")
    path = damaged.log.segments[1].path("log")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert not await folder.upkeep.clean_once()
    assert folder.upkeep.view().uncleanable_partitions == 1
    assert await folder.upkeep.clean_once()
    assert sound.log.cleaned_to > 0
    assert not damaged.log.is_offline
    assert not damaged.log.cleaned_to
    assert not list(damaged.log.directory.glob("*.cleaned"))
    assert folder.upkeep.view().oldest_dirty_age_s >= 0


async def test_an_unexpected_error_concerns_one_log_only(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.topic("changes")
    monkeypatch.setattr("tidegate.storage.cleaning.cleaner.group_segments", lambda *_: 1 / 0)
    assert not await folder.upkeep.clean_once()
    assert folder.upkeep.view().uncleanable_partitions == 1


async def test_a_full_disk_is_no_reason_to_give_a_log_up(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = folder.topic("changes")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr("tidegate.storage.segment.segment.Segment.append_batches", full)
        assert not await folder.upkeep.clean_once()
    assert folder.upkeep.view().uncleanable_partitions == 0
    assert not replica.log.is_offline
    assert not await folder.upkeep.clean_once()  # it waits a little
    assert not list(replica.log.directory.glob("*.cleaned"))


async def test_a_truncation_meanwhile_ends_a_cleaning_without_harm(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What superseded a record may have been cut off: nothing that was decided before may be carried out."""
    replica = folder.topic("changes")
    before = offsets(replica.log)
    reached, go_on = threading.Event(), threading.Event()
    from tidegate.storage.segment.segment import Segment

    sealed = Segment.sync_cleaned

    def wait(self: Segment, end_offset: int) -> None:
        reached.set()
        assert go_on.wait(10)
        sealed(self, end_offset)

    monkeypatch.setattr(Segment, "sync_cleaned", wait)
    task = asyncio.create_task(folder.upkeep.clean_once())
    await asyncio.to_thread(reached.wait, 10)
    cut = replica.log.segments[-2].base_offset + 1
    replica.log.truncate_to(cut)
    folder.fill(replica, 20)
    go_on.set()
    assert not await task
    assert offsets(replica.log)[: cut - 1] == before[: cut - 1]
    assert folder.upkeep.view().uncleanable_partitions == 0
    assert not replica.log.cleaned_to
    assert await folder.upkeep.clean_once()  # the next one finds the log as it is


async def test_a_node_that_stops_does_not_wait_for_the_end_of_a_cleaning(tmp_path: Path) -> None:
    folder = Folder(tmp_path, io__max__bytes__per__second=100)  # 10 KiB would take minutes
    replica = folder.topic("changes", fill=200)
    folder.upkeep.start()
    await eventually(
        lambda: list(replica.log.directory.glob("*.cleaned")) or folder.upkeep._cleaning is not None
    )
    began = folder.clock.monotonic()
    await folder.close()
    assert folder.clock.monotonic() - began < 20
    folder.commit.close()


async def test_positions_survive_a_restart_and_hold_for_that_history_only(folder: Folder) -> None:
    replica = folder.topic("changes")
    assert await folder.upkeep.clean_once()
    await folder.upkeep._note_positions()
    cleaned_to = replica.log.cleaned_to
    await folder.upkeep.stop()
    folder.directory.close(clean=True)

    for leader_epoch, expected in ((4, cleaned_to), (5, 0)):
        folder.open()
        log = folder.directory.logs["changes", 0]
        log.update_config(COMPACTED)
        log.set_high_watermark(log.log_end_offset)
        folder.replicas = [replace(replica, log=log)]
        if leader_epoch == 5:  # another leader's records took the place of those that were cleaned
            end = log.log_end_offset
            log.truncate_fully_and_start_at(0)
            data = encode_batch([NewRecord(b"k", b"v", (), 0)] * end)
            log.append_leader(data, leader_epoch=5, origin=AppendOrigin.CLIENT, now_ms=0)
            log.flush_now()
        await folder.upkeep._due()
        assert log.cleaned_to == expected
        await folder.upkeep.stop()
        folder.directory.close(clean=True)
    folder.open()


async def test_an_idle_log_is_cleaned_when_its_greatest_lag_has_passed(folder: Folder) -> None:
    config = replace(
        COMPACTED, segment_bytes=1 << 20, max_compaction_lag_ms=HOUR_MS, min_cleanable_dirty_ratio=1.0
    )
    young, old = folder.topic("young", config), folder.topic("old", config, age_ms=2 * HOUR_MS)
    folder.upkeep.start()
    await eventually(lambda: old.log.cleaned_to > 0)
    assert offsets(old.log) == [37, 38, 39]
    assert len(offsets(young.log)) == 40
    assert len(young.log.segments) == 1


async def test_only_leaders_decide_what_is_too_old(folder: Folder) -> None:
    config = LogConfig(segment_bytes=2000, retention_ms=HOUR_MS)
    leader, follower = (
        folder.topic("led", config, age_ms=2 * HOUR_MS),
        folder.topic("followed", config, age_ms=2 * HOUR_MS),
    )
    young = folder.topic("young", config)
    follower.role = Role.FOLLOWER
    await folder.upkeep.retain_once()
    assert [replica.log.log_start_offset for replica in (leader, follower, young)] == [40, 0, 0]
    assert folder.upkeep.view().segments_expired > 3


async def test_ablation_a_swap_in_the_wrong_history_would_lose_records(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.storage.cleaning.cleaner import Cleaning

    monkeypatch.setattr(Cleaning, "is_invalidated", lambda self: False)
    with pytest.raises((AssertionError, ValueError)):
        await test_a_truncation_meanwhile_ends_a_cleaning_without_harm(folder, monkeypatch)


async def test_records_that_are_deleted_meanwhile_end_a_cleaning_without_harm(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.storage.segment.segment import Segment

    replica = folder.topic("changes", replace(COMPACTED, min_cleanable_dirty_ratio=0.0))
    reached, go_on = threading.Event(), threading.Event()
    sealed = Segment.sync_cleaned

    def wait(self: Segment, end_offset: int) -> None:
        reached.set()
        assert go_on.wait(10)
        sealed(self, end_offset)

    monkeypatch.setattr(Segment, "sync_cleaned", wait)
    task = asyncio.create_task(folder.upkeep.clean_once())
    await asyncio.to_thread(reached.wait, 10)
    replica.log.advance_log_start(replica.log.segments[2].base_offset)
    go_on.set()
    assert not await task
    assert folder.upkeep.view().uncleanable_partitions == 0
    assert await folder.upkeep.clean_once()
    assert offsets(replica.log)[-3:] == [37, 38, 39]


async def test_the_cleaner_keeps_to_its_rate(tmp_path: Path) -> None:
    folder = Folder(tmp_path, io__max__bytes__per__second=100_000)
    folder.topic("changes", fill=60)
    began = folder.clock.monotonic()
    assert await folder.upkeep.clean_once()
    seconds, view = folder.clock.monotonic() - began, folder.upkeep.view()
    assert seconds > 0.9 * (view.bytes_read + view.bytes_written) / 100_000 > 0.1
    await folder.close()
    folder.commit.close()
