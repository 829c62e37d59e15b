"""Old segments go from the log at once and from the disk in a thread: whatever happens in between, and after
a crash, the log has no gap, and nothing comes back that a checkpoint hides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from tidegate.chaos.sim.disk import LyingDisk, PowerCut
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.async_delete import AsyncFileDeleter
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions
from tidegate.storage.log.hooks import DETACHED, Done, Work
from tidegate.storage.log.log import Log
from tidegate.storage.log.removal import Removal, Removals
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import KafkaError

from .workload import FOLDER, NOW_MS, SMALL, append, append_marker, batch, marker, open_log, stored


class Later:
    """A log whose removals wait until the test runs them, as in a thread that has not reached them."""

    def __init__(self, disk: LyingDisk | None = None) -> None:
        self.disk = disk or LyingDisk()
        self.log = open_log(self.disk)
        for sequence in range(24):
            append(self.log, batch(2, size=200, pid=7, epoch=0, sequence=2 * sequence))
        self.waiting: list[tuple[Work, Done]] = []
        self.log.local.attach(replace(DETACHED, in_background=self.take))

    def take(self, work: Work, done: Done) -> bool:
        self.waiting.append((work, done))
        return True

    def work(self) -> None:
        """The thread comes to what waits."""
        for work, done in self.waiting:
            work()
            done(None)
        self.waiting.clear()

    def settled(self) -> Later:
        self.log.flush_now()
        self.log.set_high_watermark(self.log.log_end_offset)
        return self

    def remove(self, segments: int = 2) -> int:
        start = self.log.segments[segments].base_offset
        self.log.advance_log_start(start)
        return start


def offsets(log: Log) -> list[int]:
    return [each.header.base_offset for each in stored(log)]


def log_files(disk: LyingDisk) -> list[int]:
    return sorted(int(name[:-4]) for name in disk.list_names(FOLDER) if name.endswith(".log"))


def test_readers_lose_old_segments_at_once_and_the_disk_later() -> None:
    later = Later().settled()
    before = log_files(later.disk)
    start = later.remove()
    assert offsets(later.log)[0] == start == later.log.log_start_offset
    assert log_files(later.disk) == before
    later.work()
    assert log_files(later.disk) == before[2:]
    assert not [name for name in later.disk.list_names(FOLDER) if name.endswith(".deleted")]
    stale = [name for name in later.disk.list_names(FOLDER) if name[:20].isdigit() and int(name[:20]) < start]
    assert not stale, "snapshots and indexes of what is gone"


@pytest.mark.parametrize("flush", ["none", "begun", "ran"])
def test_a_flush_in_flight_neither_fails_nor_loses_anything(flush: str) -> None:
    """It may have yet to sync what is removed under it."""
    later = Later()
    later.log.set_high_watermark(later.log.log_end_offset)
    ticket = later.log.begin_flush() if flush != "none" else None
    if ticket is not None and flush == "ran":
        ticket.run()
    start = later.remove()
    if ticket is not None and flush == "begun":
        later.work()
        ticket.run()
    if ticket is not None:
        later.log.finish_flush(ticket)
        assert later.log.flushed_end_offset == later.log.log_end_offset
    later.work()
    later.log.flush_now()
    assert not later.log.is_offline
    end, found = later.log.log_end_offset, offsets(later.log)
    names = later.disk.list_names(FOLDER)
    assert not [name for name in names if name[:20].isdigit() and int(name[:20]) < start], (
        "a flush wrote files of what is gone"
    )
    later.disk.crash(Random(3))
    again = open_log(later.disk, recovery_point=end)
    assert offsets(again) == found
    assert again.producers.views()[0].last_sequence == 47


def test_what_is_known_of_producers_by_what_goes_is_written_first() -> None:
    """Retention may take the last batch of a producer before any flush has written the snapshot behind it."""
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(1, size=1500, pid=9, epoch=3, sequence=0))
    append(log, batch(1, size=1500))
    append(log, batch(1, size=1500))
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(log.segments[1].base_offset)
    disk.crash(Random(0))
    assert [
        (each.producer_id, each.epoch) for each in open_log(disk, recovery_point=1).producers.views()
    ] == [(9, 3)]


EVENTS: dict[str, Callable[[Log], None]] = {
    "truncation": lambda log: log.truncate_to(log.log_end_offset - 3),
    "beginning anew": lambda log: log.truncate_fully_and_start_at(500),
    "another removal": lambda log: log.advance_log_start(log.segments[2].base_offset),
    "clean close": lambda log: log.close(clean=True),
    "close": lambda log: log.close(clean=False),
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_crash_at_any_point_around_a_removal_leaves_no_hole(event: str) -> None:
    for cut in range(200):
        later = Later().settled()
        before, end = offsets(later.log), later.log.log_end_offset
        later.disk.cut_after = cut
        done = False
        try:
            later.remove()
            EVENTS[event](later.log)
            later.work()
            done = True
        except PowerCut:
            pass
        later.disk.crash(Random(cut))
        # A log that is cut lowers its recovery point first (`before_truncation`).
        point = {"truncation": end - 10, "beginning anew": 1}.get(event, end)
        try:
            found = offsets(open_log(later.disk, recovery_point=min(point, end)))
        except KafkaError:
            assert event == "beginning anew"  # all segments may be gone: its recovery point was noted at 0
            found = []
        assert found == [offset for offset in before if found[0] <= offset <= found[-1]] if found else True, (
            "a gap"
        )
        if event not in ("truncation", "beginning anew"):
            assert found[-1] == before[-1]
        elif event == "truncation":
            assert found[-1] in (before[-1], before[-3], before[-2])
        if done:
            assert cut > 3 or event == "close"
            return
    raise AssertionError("it never ended")


@pytest.mark.parametrize("event", ["truncation", "beginning anew"])
def test_a_log_that_changes_otherwise_waits_for_its_removals(event: str) -> None:
    later = Later().settled()
    later.remove()
    EVENTS[event](later.log)
    assert log_files(later.disk) == [segment.base_offset for segment in later.log.segments]
    later.work()  # the thread finds that all is done, and unlinks
    assert not [name for name in later.disk.list_names(FOLDER) if name.endswith(".deleted")]


def test_ablation_a_log_begun_anew_over_old_segments_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Removals, "settle", lambda self: None)
    with pytest.raises(AssertionError):
        test_a_log_that_changes_otherwise_waits_for_its_removals("beginning anew")


def test_ablation_a_flush_that_loses_its_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.storage.segment.segment_files import SegmentFiles

    monkeypatch.setattr(SegmentFiles, "hold", SegmentFiles.release)
    with pytest.raises(FileNotFoundError):
        test_a_flush_in_flight_neither_fails_nor_loses_anything("begun")


def test_a_closed_log_is_not_touched_any_more() -> None:
    later = Later().settled()
    later.remove()
    later.log.close(clean=False)
    before = later.disk.changes
    later.work()
    assert later.disk.changes == before
    again = open_log(later.disk, recovery_point=48, log_start_offset=16)
    assert offsets(again)[0] == 16


def test_a_disk_that_fails_takes_the_log_offline() -> None:
    later = Later().settled()
    later.remove()
    later.disk.fail_sync = True
    ((work, done),) = later.waiting
    with pytest.raises(OSError, match="the sync fails") as failure:
        work()
    done(failure.value)
    assert later.log.is_offline


def test_a_full_disk_becomes_emptier_even_without_room_for_a_snapshot() -> None:
    later = Later()
    later.log.set_high_watermark(later.log.log_end_offset)
    later.remove()
    before = later.disk.used_bytes()
    later.disk.capacity = before
    later.work()
    assert later.disk.used_bytes() < before - 3000
    assert not later.log.is_offline
    later.disk.capacity = None
    later.log.flush_now()
    first = later.log.segments[0].base_offset
    assert later.disk.exists(FOLDER / f"{first:020d}.snapshot"), (
        "what found no room is written when there is some"
    )


# ---- in its thread -----------------------------------------------------------------------------------------


class Watched(RealDisk):
    """Notes in which threads files lose their names, and waits for `go_on` before it unlinks."""

    def __init__(self) -> None:
        self.threads: dict[str, set[str]] = {}
        self.go_on = threading.Event()
        self.go_on.set()

    def _note(self, what: str) -> None:
        self.threads.setdefault(what, set()).add(threading.current_thread().name.rsplit("_", 1)[0])

    def rename(self, source: Path, target: Path) -> None:
        if target.name.endswith(".deleted"):
            self._note("rename")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        if path.name.endswith(".deleted"):
            self._note("unlink")
            assert self.go_on.wait(10)
        super().remove(path)

    def remove_tree(self, directory: Path) -> None:
        self._note("tree")
        super().remove_tree(directory)


def directory_at(path: Path, disk: RealDisk, file_deleter: AsyncFileDeleter | None) -> LogDirectory:
    directory = LogDirectory(disk, path, "test", 1, options=FolderOptions(file_deleter=file_deleter))
    directory.open_all(now_ms=NOW_MS)
    return directory


def filled(directory: LogDirectory, topic: str) -> Log:
    log = directory.create(topic, uuid4(), 0, SMALL)
    for _ in range(30):
        append(log, batch(2, size=200))
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    return log


async def test_nothing_is_unlinked_on_the_loops_thread(tmp_path: Path) -> None:
    disk, file_deleter = Watched(), AsyncFileDeleter()
    directory = directory_at(tmp_path, disk, file_deleter)
    log, other = filled(directory, "a"), filled(directory, "b")
    log.advance_log_start(log.segments[3].base_offset)
    directory.delete("b", 0)
    assert other.is_closed
    assert not (tmp_path / "b-0").exists()
    await eventually(lambda: not file_deleter.waiting)
    assert disk.threads == {"rename": {"file_deleter"}, "unlink": {"file_deleter"}, "tree": {"file_deleter"}}
    assert sorted(int(path.stem) for path in (tmp_path / "a-0").glob("*.log")) == [
        s.base_offset for s in log.segments
    ]
    assert not list(tmp_path.glob("*-delete"))
    assert not list(tmp_path.rglob("*.deleted"))
    file_deleter.close()
    directory.close(clean=True)


async def test_what_waits_is_bounded_and_the_rest_is_done_at_once(tmp_path: Path) -> None:
    disk, file_deleter = Watched(), AsyncFileDeleter(jobs_max=1)
    directory = directory_at(tmp_path, disk, file_deleter)
    first, second = filled(directory, "a"), filled(directory, "b")
    disk.go_on.clear()
    first.advance_log_start(first.segments[1].base_offset)
    threading.Timer(0.05, disk.go_on.set).start()
    second.advance_log_start(second.segments[1].base_offset)
    assert "MainThread" in disk.threads["rename"]
    await eventually(lambda: not file_deleter.waiting)
    file_deleter.close()
    directory.close(clean=False)


async def test_a_stop_waits_for_no_queue_and_the_next_start_finishes_it(tmp_path: Path) -> None:
    disk, file_deleter = Watched(), AsyncFileDeleter()
    directory = directory_at(tmp_path, disk, file_deleter)
    log, other = filled(directory, "a"), filled(directory, "b")
    disk.go_on.clear()
    log.advance_log_start(log.segments[1].base_offset)
    await eventually(lambda: "unlink" in disk.threads)
    start = other.segments[2].base_offset
    other.advance_log_start(start)
    threading.Timer(0.05, disk.go_on.set).start()
    file_deleter.close()
    directory.close(clean=True)
    assert not list((tmp_path / "b-0").glob(f"{0:020d}.log")), "a clean close settles what waits"
    again = directory_at(tmp_path, RealDisk(), None)
    assert not list(tmp_path.rglob("*.deleted"))
    assert again.logs["b", 0].log_start_offset == start
    assert again.logs["b", 0].segments[0].base_offset == start
    again.close(clean=True)


async def test_after_the_eraser_is_closed_the_remover_waits(tmp_path: Path) -> None:
    disk, file_deleter = Watched(), AsyncFileDeleter()
    directory = directory_at(tmp_path, disk, file_deleter)
    log = filled(directory, "a")
    file_deleter.close()
    log.advance_log_start(log.segments[1].base_offset)
    assert disk.threads["unlink"] == {"MainThread"}
    directory.close(clean=False)


def hanging_after_a_removal_without_room(disk_crashes: int) -> int:
    """How many restarts find a transaction open whose marker was removed: the snapshot that knew it as ended
    found no room, and an older one came back."""
    hanging = 0
    for seed in range(disk_crashes):
        disk = LyingDisk()
        log = open_log(disk)
        append(log, batch(2, pid=1, epoch=0, sequence=0, transactional=True))
        log.roll()
        log.flush_now()
        append_marker(log, marker(1, 1, commit=False))
        append(log, batch(3))
        log.roll()
        append(log, batch(4))
        log.set_high_watermark(log.log_end_offset)
        disk.full_after = 0
        log.advance_log_start(6)
        disk.full_after = None
        disk.crash(Random(seed))
        again = open_log(disk, recovery_point=1, log_start_offset=0)
        again.set_high_watermark(again.log_end_offset)
        hanging += again.last_stable_offset != again.log_end_offset and again.log_start_offset >= 6
    return hanging


def test_no_transaction_is_open_again_for_lack_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md L1: no marker would ever come for it."""
    assert hanging_after_a_removal_without_room(60) == 0
    monkeypatch.setattr(Removal, "_drop_snapshots", lambda _removal: None)
    assert hanging_after_a_removal_without_room(60) > 0, "ablation: the older snapshot stays"
