"""What else happens to a node while a log moves between its data folders (KIP-113): settings, failing disks,
wrong folders."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.directory.log_directory import DirectoryRefused
from tidegate.storage.directory.move_state import MoveState, read_move_state, write_move_state
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.log import Log
from tidegate.storage.log.replacement import Stage
from tidegate.storage.moving import future_replica
from tidegate.storage.moving.future_replica import FutureReplica
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.errors import ErrorCode, KafkaError

from .test_moves import ID, SMALL, A, B, C, drive, opened, records, where, with_log
from .workload import NOW_MS, append, batch

COMPACTED = replace(SMALL, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))


def ready(folders: DataFolders, to: Path = B) -> FutureReplica:
    """A move of which only the swap is left: the log says that it may leave."""
    future = folders.move_to("t", 0, to)
    assert future is not None
    for _ in range(100):
        future.swap_bytes_max = 200
        if read_move_state(folders.folders[0]._disk, A / "t-0") is MoveState.LEAVING:
            return future
        work = future.turn(400)
        assert work is not None
        work()
    raise AssertionError("it does not get there")


def failing_at(monkeypatch: pytest.MonkeyPatch, place: Path, *methods: str) -> None:
    """Every one of these calls for a path at `place` fails from now on, as on a disk that died."""

    def failing(call: Callable[..., object]) -> Callable[..., object]:
        def called(disk: LyingDisk, path: Path, *rest: object) -> object:
            if path.is_relative_to(place):
                raise OSError(5, "the disk is gone", str(path))
            return call(disk, path, *rest)

        return called

    for method in methods:
        monkeypatch.setattr(LyingDisk, method, failing(getattr(LyingDisk, method)))


# ---- configuration -----------------------------------------------------------------------------------------


def test_a_policy_changed_after_the_last_copied_byte_moves_too() -> None:
    disk, folders, log = with_log()
    future = ready(folders)
    log.update_config(COMPACTED)
    drive(future)
    assert where(folders) == B
    disk.crash(Random(1))
    assert opened(disk).logs["t", 0].config.may_have_offset_gaps, "or else gaps would pass for damage"


def test_a_compacted_logs_configuration_is_not_written_with_every_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _disk, folders, _log = with_log(config=COMPACTED)
    written: list[Path] = []
    write = LyingDisk.write_atomic

    def noting(disk: LyingDisk, path: Path, data: bytes) -> None:
        written.append(path)
        write(disk, path, data)

    monkeypatch.setattr(LyingDisk, "write_atomic", noting)
    drive(folders.move_to("t", 0, B))
    assert where(folders) == B
    assert len([path for path in written if path.name == "log-config"]) <= 2


def test_a_withdrawn_deletion_of_records_deletes_nothing_after_a_move() -> None:
    disk, folders, log = with_log()
    log.set_high_watermark(30)
    log.local.start_note.want(20)
    future = ready(folders)
    log.local.start_note.withdraw(20)  # there was no room to note it
    drive(future)
    assert where(folders) == B
    disk.crash(Random(1))
    assert opened(disk).logs["t", 0].log_start_offset == 0


async def test_a_log_start_refused_by_the_old_disk_in_the_swap_is_on_the_new() -> None:
    disk, folders, log = with_log()
    log.set_high_watermark(30)
    future = ready(folders)
    log.local.start_note.want(20)

    class Meanwhile(ThreadPoolExecutor):
        def submit(self, work: Any, /, *rest: Any, **names: Any) -> Any:
            if where(folders) == B:
                return super().submit(work)
            drive(future)
            failed: Future[None] = Future()
            failed.set_exception(OSError(5, "the old disk is gone"))
            return failed

    commit = GroupCommit(executor=Meanwhile(1))
    await commit.note_start(log)
    commit.close()
    assert where(folders) == B
    assert log.noted_start_offset == 20
    assert not log.is_offline
    disk.crash(Random(1))
    assert opened(disk).logs["t", 0].log_start_offset == 20


def test_a_cleaning_refused_by_the_old_disk_is_not_the_new_disks_fault() -> None:
    _disk, folders, log = with_log()
    future = ready(folders)
    old = log.segments[0]
    new = log.segments.create_cleaned(old.base_offset, 200)
    new.sync_cleaned(old.next_offset)
    replacement = log.local.replacements.begin([old], new)
    drive(future)
    assert where(folders) == B
    assert replacement.stage is Stage.WITHDRAWN
    with pytest.raises(KafkaError):
        log.local.replacements.failed(replacement, OSError(5, "the old disk is gone"))
    assert not log.is_offline


def test_a_log_that_begins_anew_during_its_copy_takes_no_old_producers() -> None:
    disk, folders, log = with_log(records=0)
    append(log, batch(1, pid=5, epoch=0, sequence=0))
    for _ in range(20):
        append(log, batch(1))
    log.flush_now()
    log.set_high_watermark(21)
    log.advance_log_start(9)
    future = folders.move_to("t", 0, B)
    assert future is not None
    work = future.turn()
    assert work is not None
    log.truncate_fully_and_start_at(log.segments[0].base_offset)
    work()
    append(log, batch(1))
    drive(future)
    assert where(folders) == B
    disk.crash(Random(1))
    assert opened(disk).logs["t", 0].producers.views() == []


# ---- the end -----------------------------------------------------------------------------------------------


def test_a_log_start_in_a_large_segment_does_not_restart_the_copy_for_ever() -> None:
    _disk, folders, log = with_log(config=replace(SMALL, segment_bytes=1 << 20))
    log.set_high_watermark(30)
    log.advance_log_start(20)
    log.update_config(SMALL)
    append(log, batch(1))
    log.set_high_watermark(31)
    wanted = records(log)
    drive(folders.move_to("t", 0, B))
    assert where(folders) == B
    assert log.log_start_offset == 20
    assert records(log) == wanted


def test_a_log_that_is_written_fast_moves_even_so() -> None:
    _disk, folders, log = with_log()
    future = ready(folders)
    for _ in range(10):
        ticket = log.begin_flush()
        while (work := future.turn(4000)) is not None:
            work()
        for _ in range(10):  # more than the swap would copy, in the time of each flush
            append(log, batch(1))
        ticket.run()
        log.finish_flush(ticket)
        if future.is_over:
            break
    assert where(folders) == B


def test_a_flush_without_progress_swaps_nothing_in_a_checkpoint() -> None:
    """The checkpoint walks through the logs of the folder, and tells of flushes again."""
    _disk, folders, log = with_log()
    future = ready(folders)
    log.assign_epoch(7, 30)
    ticket = log.begin_flush()  # of the epoch only
    assert future.turn() is None
    assert folders.folders[0].after_flush
    log.local.durability.cancel()
    assert log.recovery_point <= log.flushed_end_offset
    log.local.durability.epochs_changed(5)
    folders.write_checkpoints()
    ticket.run()
    drive(future)
    assert where(folders) == B


def test_a_refused_swap_at_a_flushs_end_does_not_delay_its_waiters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _disk, folders, log = with_log()
    future = ready(folders)
    append(log, batch(1))
    ticket = log.begin_flush()
    future.swap_bytes_max = 10_000
    assert future.turn() is None
    failing_at(monkeypatch, B, "write_atomic", "rename", "sync_directory", "remove")
    monkeypatch.setattr(
        future_replica, "take_over_start", lambda _log, future, **_: future.go_offline(OSError(5, "gone"))
    )
    ticket.run()
    log.finish_flush(ticket)
    assert log.flushed_end_offset == 31
    assert where(folders) == A
    assert not log.is_offline


# ---- failing folders ---------------------------------------------------------------------------------------


def test_a_log_is_used_when_the_folder_died_to_which_it_was_about_to_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, folders, log = with_log()
    ready(folders)
    folders.folders[1].go_offline(OSError(5, "gone"))
    append(log, batch(1))
    log.flush_now()
    disk.crash(Random(1))
    failing_at(monkeypatch, B, "list_names")
    again = opened(disk)
    assert again.logs["t", 0].log_end_offset == 31, "nothing was decided: it has all that was acknowledged"


def test_a_clean_stop_before_the_decision_leaves_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, folders, _log = with_log()
    ready(folders)
    folders.close(clean=True, broker_epoch=1)
    disk.kill()
    failing_at(monkeypatch, B, "list_names")
    assert opened(disk).logs["t", 0].log_end_offset == 30


def test_a_move_that_cannot_be_undone_is_the_refusing_disks_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _disk, folders, _log = with_log()
    ready(folders)
    failing_at(monkeypatch, A, "remove")
    with pytest.raises(KafkaError) as refused:
        folders.move_to("t", 0, A)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert folders.offline_folders == [A]


def test_a_folder_that_cannot_settle_a_move_at_the_start_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, folders, _log = with_log()
    folders.create("u", UUID(int=2), 0, SMALL)
    ready(folders)
    disk.kill()
    failing_at(monkeypatch, A / "t-0", "remove")
    again = opened(disk)
    assert again.offline_folders == [A]
    assert not again.logs["u", 0].is_offline


# ---- wrong folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [MoveState.LEAVING, MoveState.FUTURE])
def test_no_log_goes_before_it_is_known_that_the_other_folder_is_the_nodes(word: MoveState) -> None:
    disk, _folders, _log = with_log()
    write_move_state(disk, A / "t-0", word)
    disk.kill()
    names = count()
    strange = Path("/disk-z/data")
    foreign = DataFolders(disk, [strange], "another cluster", 1, lambda: f"other-{next(names)}")
    foreign.open_all(now_ms=NOW_MS)
    foreign.create("t", UUID(int=5), 0, SMALL)
    foreign.close(clean=True)
    disk.kill()
    before = disk.list_names(A / "t-0")
    with pytest.raises(DirectoryRefused):
        opened(disk, A, strange)
    assert disk.list_names(A / "t-0") == before


# ---- futures of logs that do not open ----------------------------------------------------------------------


@pytest.mark.parametrize("why", ["damaged", "late"])
def test_a_copy_of_a_log_that_does_not_open_is_in_nobodys_way(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    disk, folders, _log = with_log()
    drive(folders.move_to("t", 0, B), turns=5)
    disk.kill()
    if why == "damaged":
        disk.write_atomic(A / "t-0" / "damaged", b"it was found damaged")
        again = opened(disk)
        again.set_aside("t", 0, now_ms=NOW_MS)
    else:
        opening = Log.open
        with monkeypatch.context() as patched:

            def full(disk: LyingDisk, directory: Path, **rest: object) -> Log:
                if directory == A / "t-0":
                    raise OSError(28, "no room", str(directory))
                return opening(disk, directory, **rest)  # type: ignore[arg-type]

            patched.setattr(Log, "open", full)
            again = opened(disk)
        assert ("t", 0) not in again.logs
        again.delete("t", 0)
    assert "t-0" not in disk.list_names(B)
    for path in (A, C):  # so that it would come into the folder with the copy
        for n in range(3):
            again.folders[[A, B, C].index(path)].create(
                f"x{n}", UUID(int=90 + n + (path == C) * 10), 0, SMALL
            )
    assert again.create("t", UUID(int=7), 0, SMALL).log_end_offset == 0
    assert where(again) == B


def test_a_log_that_opens_late_moves_with_what_it_has_then(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, folders, _log = with_log()
    drive(folders.move_to("t", 0, B), turns=8)
    disk.kill()
    opening = Log.open
    with monkeypatch.context() as patched:

        def full(disk: LyingDisk, directory: Path, **rest: object) -> Log:
            if directory == A / "t-0":
                raise OSError(28, "no room", str(directory))
            return opening(disk, directory, **rest)  # type: ignore[arg-type]

        patched.setattr(Log, "open", full)
        again = opened(disk)
    future = again.futures["t", 0]
    assert future.turn() is None
    log = again.create("t", ID, 0, SMALL)
    wanted = records(log)
    drive(future)
    assert where(again) == B
    assert records(log) == wanted


def test_two_turns_at_once_open_the_copy_once() -> None:
    disk, folders, _log = with_log()
    drive(folders.move_to("t", 0, B), turns=5)
    disk.kill()
    again = opened(disk)
    future = again.futures["t", 0]
    first, second = future.turn(), future.turn()
    assert first is not None
    assert second is not None
    first()
    known = future._log
    second()
    assert future._log is known
