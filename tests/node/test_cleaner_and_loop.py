"""The cleaner waits for the disk in its thread, and what happens on the loop between two of its steps does no
harm; what it is asked for by a topic's configuration, and what the metrics say of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from tidegate.node.observation import metrics
from tidegate.node.upkeep.log_upkeep import UpkeepView
from tidegate.runtime.disk import RealDisk
from tidegate.storage.cleaning import cleaner
from tidegate.storage.log.log import AppendOrigin, Log
from tidegate.storage.log.replacement import Replacement
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.records import NewRecord, encode_batch

from .test_log_upkeep import COMPACTED, HOUR_MS, Folder, Replica, folder, offsets

__all__ = ["folder"]
BOTH = replace(
    COMPACTED, cleanup_policy=frozenset({CleanupPolicy.COMPACT, CleanupPolicy.DELETE}), retention_ms=HOUR_MS
)


class ThreadsOf(RealDisk):
    """Notes which kinds of changes are made in the main thread."""

    def __init__(self) -> None:
        self.on_loop: set[str] = set()

    def _note(self, what: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.on_loop.add(what)

    def write_atomic(self, path: Path, data: bytes) -> None:
        self._note("write_atomic")
        super().write_atomic(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._note("remove")
        super().remove(path)

    def sync_directory(self, directory: Path) -> None:
        self._note("sync_directory")
        super().sync_directory(directory)


class WatchedFolder(Folder):
    disk: ThreadsOf

    def open(self) -> None:
        self.disk = ThreadsOf()
        super().open()


async def test_a_cleaning_changes_nothing_of_the_disk_on_the_loop(tmp_path: Path) -> None:
    watched = WatchedFolder(tmp_path)
    replica = watched.topic("changes")
    watched.disk.on_loop.clear()
    assert await watched.upkeep.clean_once()
    assert len(offsets(replica.log)) < 20
    assert not watched.disk.on_loop
    await watched.close()
    watched.commit.close()


# ---- between two steps of a swap ---------------------------------------------------------------------------


@pytest.fixture(params=["decide", "carry_out"])
async def halted(
    request: pytest.FixtureRequest, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Halted]:
    """A cleaning whose thread stands still behind the first `decide`, or `carry_out`."""
    replica = folder.topic("changes")
    made = Halted(folder, replica, request.param)
    step: Callable[[Replacement], None] = getattr(Replacement, request.param)

    def halt(self: Replacement) -> None:
        step(self)
        if not made.reached.is_set():
            made.reached.set()
            assert made.go_on.wait(10)

    monkeypatch.setattr(Replacement, request.param, halt)
    made.task = asyncio.create_task(folder.upkeep.clean_once())
    await asyncio.to_thread(made.reached.wait, 10)
    yield made
    made.go_on.set()
    await asyncio.gather(made.task, return_exceptions=True)


class Halted:
    def __init__(self, folder: Folder, replica: Replica, step: str) -> None:
        self.folder, self.replica, self.step = folder, replica, step
        self.log: Log = replica.log
        self.before = offsets(replica.log)
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.task: asyncio.Task[bool]

    async def ends(self) -> bool:
        self.go_on.set()
        return await self.task

    def no_harm(self) -> None:
        assert self.folder.upkeep.view().uncleanable_partitions == 0
        assert not self.log.is_offline
        names = [path.name for path in self.log.directory.iterdir()] if self.log.directory.exists() else []
        assert not [name for name in names if name.endswith((".swap", ".cleaned"))]


async def test_appends_and_reads_go_on_between_two_steps(halted: Halted) -> None:
    halted.folder.fill(halted.replica, 10)
    assert offsets(halted.log)[-10:] == list(range(40, 50))
    assert await halted.ends()
    assert len(offsets(halted.log)) < 25
    assert offsets(halted.log)[-10:] == list(range(40, 50))
    halted.no_harm()


async def test_a_truncation_between_two_steps_voids_the_cleaning(halted: Halted) -> None:
    cut = halted.log.segments[-2].base_offset
    halted.log.truncate_to(cut)
    halted.folder.fill(halted.replica, 5)
    assert not await halted.ends()
    assert not halted.log.cleaned_to
    halted.no_harm()
    newest = {number % 3: number for number in range(cut)} | {number % 3: cut + number for number in range(5)}
    assert await halted.folder.upkeep.clean_once()
    assert set(newest.values()) <= set(offsets(halted.log))


async def test_a_log_begun_anew_between_two_steps_stays_what_it_is(halted: Halted) -> None:
    halted.log.truncate_fully_and_start_at(1000)
    assert not await halted.ends()
    assert [path.name for path in halted.log.directory.glob("*.log")] == [f"{1000:020d}.log"]
    halted.no_harm()


async def test_a_topic_that_is_deleted_between_two_steps_is_gone(halted: Halted) -> None:
    halted.folder.directory.delete("changes", 0)
    halted.folder.replicas.clear()
    again = halted.folder.directory.create("changes", halted.replica.topic_id, 0, COMPACTED)
    assert not await halted.ends()
    await halted.folder.upkeep._due()
    assert not again.log_end_offset
    assert [path.name for path in again.directory.glob("*.log*")] == [f"{0:020d}.log"]
    halted.no_harm()


async def test_records_that_are_deleted_between_two_steps_stay_deleted(halted: Halted) -> None:
    start = halted.log.segments[-2].base_offset
    halted.log.advance_log_start(start)
    await halted.ends()
    assert [offset for offset in offsets(halted.log) if offset < start] == []
    assert len(list(halted.log.directory.glob("*.log"))) == len(halted.log.segments)
    halted.no_harm()


async def test_a_folder_that_fails_between_two_steps_stays_offline(halted: Halted) -> None:
    halted.folder.directory.go_offline(OSError(5, "the disk is gone"))
    assert not await halted.ends()
    assert halted.log.is_offline
    assert halted.folder.upkeep.view().uncleanable_partitions == 0


async def test_a_stop_between_two_steps_leaves_a_log_that_opens(halted: Halted) -> None:
    folder = halted.folder
    threading.Timer(0.05, halted.go_on.set).start()
    await folder.upkeep.stop()
    folder.directory.close(clean=True)
    folder.open()
    again = folder.directory.logs["changes", 0]
    assert again.log_end_offset == 40
    assert {37, 38, 39} <= set(offsets(again))
    folder.replicas.clear()


async def test_a_changed_configuration_counts_from_the_next_cleaning(halted: Halted) -> None:
    halted.log.update_config(replace(COMPACTED, cleanup_policy=frozenset({CleanupPolicy.DELETE})))
    assert await halted.ends()  # what was decided by the old one is as good as if it had been a moment faster
    halted.folder.fill(halted.replica, 40)
    assert not await halted.folder.upkeep.clean_once()
    halted.no_harm()


# ---- settings of topics ------------------------------------------------------------------------------------


async def test_a_topic_can_be_compacted_and_lose_what_is_old(folder: Folder) -> None:
    replica = folder.topic("both", BOTH, age_ms=2 * HOUR_MS)
    folder.fill(replica, 40)
    assert await folder.upkeep.clean_once()
    assert len(offsets(replica.log)) < 20, "compacted"
    await folder.upkeep.retain_once()
    start = replica.log.log_start_offset
    assert 40 <= start <= offsets(replica.log)[0]
    assert len(list(replica.log.directory.glob("*.log"))) == len(replica.log.segments)
    assert {77, 78, 79} <= set(offsets(replica.log)), "what is young stays"
    folder.fill(replica, 40)
    assert await folder.upkeep.clean_once(), "and it is cleaned again, from its new start"
    compacted_only = folder.topic(
        "compacted", replace(BOTH, cleanup_policy=COMPACTED.cleanup_policy), age_ms=2 * HOUR_MS
    )
    await folder.upkeep.retain_once()
    assert not compacted_only.log.log_start_offset


async def test_what_is_younger_than_the_least_lag_is_not_cleaned(folder: Folder) -> None:
    config = replace(COMPACTED, min_compaction_lag_ms=HOUR_MS)
    young, old = folder.topic("young", config), folder.topic("old", config, age_ms=2 * HOUR_MS)
    assert await folder.upkeep.clean_once()
    assert not await folder.upkeep.clean_once()
    assert len(offsets(young.log)) == 40
    assert len(offsets(old.log)) < 20


async def test_a_log_that_is_hardly_dirty_waits(folder: Folder) -> None:
    patient, eager = (
        folder.topic(name, replace(COMPACTED, min_cleanable_dirty_ratio=ratio))
        for name, ratio in (("p", 0.95), ("e", 0.05))
    )
    assert await folder.upkeep.clean_once()
    assert await folder.upkeep.clean_once()
    for replica in (patient, eager):
        folder.fill(replica, 20)
    positions = patient.log.cleaned_to, eager.log.cleaned_to
    assert await folder.upkeep.clean_once()
    assert not await folder.upkeep.clean_once()
    assert patient.log.cleaned_to == positions[0]
    assert eager.log.cleaned_to > positions[1]


async def test_tombstones_go_when_their_retention_has_passed_and_not_before(folder: Folder) -> None:
    def deletes(name: str, retention_ms: int) -> Replica:
        replica = folder.topic(name, replace(COMPACTED, delete_retention_ms=retention_ms), fill=0)
        for key in (b"a", b"b", b"c"):
            data = encode_batch([NewRecord(key, None, (), folder.clock.wall_ms())])
            replica.log.append_leader(
                data, leader_epoch=4, origin=AppendOrigin.CLIENT, now_ms=folder.clock.wall_ms()
            )
        folder.fill(replica, 40)
        return replica

    long, short = deletes("long", HOUR_MS), deletes("short", 1)
    assert await folder.upkeep.clean_once()
    assert await folder.upkeep.clean_once()
    assert {0, 1, 2} <= set(offsets(long.log)), "the first cleaning sets the horizon"
    assert {0, 1, 2} <= set(offsets(short.log)), "the first cleaning sets the horizon"
    await asyncio.sleep(0.002)
    assert await folder.upkeep.clean_once(), "that it has passed is reason enough"
    assert {0, 1, 2} <= set(offsets(long.log))
    assert not {0, 1, 2} & set(offsets(short.log))


# ---- the metrics -------------------------------------------------------------------------------------------


async def test_the_age_of_the_oldest_dirty_record_shows_until_it_is_cleaned(folder: Folder) -> None:
    folder.topic("old", replace(COMPACTED, min_cleanable_dirty_ratio=0.99), age_ms=2 * HOUR_MS)
    folder.topic("young")
    assert folder.upkeep.view().oldest_dirty_age_s == 0
    await folder.upkeep._due()
    view = folder.upkeep.view()
    assert 7200 <= view.oldest_dirty_age_s < 7260
    assert view.dirty_ratio_max == 1.0
    assert await folder.upkeep.clean_once()
    assert await folder.upkeep.clean_once()
    await folder.upkeep._due()
    assert folder.upkeep.view().oldest_dirty_age_s < 60
    assert not folder.upkeep.view().dirty_ratio_max


async def test_a_log_that_cannot_be_cleaned_goes_on_counting_as_dirty(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.topic("damaged", age_ms=2 * HOUR_MS)

    def fails(*_: object) -> None:
        raise ValueError("nobody foresaw this")

    monkeypatch.setattr(cleaner, "note_keys", fails)
    assert not await folder.upkeep.clean_once()
    assert not await folder.upkeep.clean_once()
    view = folder.upkeep.view()
    assert view.uncleanable_partitions == 1
    assert view.oldest_dirty_age_s >= 7200
    assert view.cleanings == 1


async def test_a_log_that_is_gone_counts_no_more(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    await test_a_log_that_cannot_be_cleaned_goes_on_counting_as_dirty(folder, monkeypatch)
    folder.replicas.clear()
    await folder.upkeep._due()
    assert folder.upkeep.view().uncleanable_partitions == 0
    assert not folder.upkeep.view().oldest_dirty_age_s


def test_every_number_of_the_upkeep_has_a_metric_of_its_own() -> None:
    names = [each.name for each in fields(UpkeepView)]
    view = UpkeepView(**{name: 100 + number for number, name in enumerate(names)})
    page: list[Metric] = list(metrics._upkeep(view))
    assert {metric.samples[0].value for metric in page} == {100 + number for number in range(len(names))}
    assert {"tidegate_cleaner_uncleanable_partitions", "tidegate_cleaner_oldest_dirty_age_seconds"} <= {
        m.name for m in page
    }


def test_the_metrics_that_need_an_operator_are_documented() -> None:
    text = (Path(metrics.__file__).parents[2] / "docs" / "operations.md").read_text()
    for name in ("tidegate_cleaner_uncleanable_partitions", "tidegate_cleaner_oldest_dirty_age_seconds"):
        assert f"`{name}`" in text
