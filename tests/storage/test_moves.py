"""A log moves to another data folder (KIP-113): what it has afterwards, and what an order, a cut, a deletion
does meanwhile."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.runs import Broken
from tidegate.chaos.sim.storage.moves_history import MovesHistory
from tidegate.storage.directory.log_directory import DirectoryRefused
from tidegate.storage.directory.move_state import (
    MoveState,
    TwinLogs,
    Verdict,
    resolve_twins,
    write_move_state,
)
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.moving import future_replica
from tidegate.storage.moving.future_replica import FutureReplica
from tidegate.storage.moving.plan import SWAP_BYTES_MAX, Step, View, agreeing_end, next_step
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import NOW_MS, append, batch

A, B, C = Path("/disk-a/data"), Path("/disk-b/data"), Path("/disk-c/data")
ID = UUID(int=1)
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=200)
_lives = count()


def opened(disk: LyingDisk, *paths: Path) -> DataFolders:
    life, names = next(_lives), count()
    folders = DataFolders(disk, paths or (A, B, C), "c", 1, lambda: f"id-{life}-{next(names)}")
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


def drive(future: FutureReplica | None, turns: int = 200, slice_bytes: int = 400) -> None:
    """Until it is over, or the turns are."""
    for _ in range(turns):
        if future is None or future.is_over:
            return
        future.swap_bytes_max = 200
        work = future.turn(slice_bytes)
        if work is not None:
            work()


def where(folders: DataFolders) -> Path:
    folder = folders.folder_of("t", 0)
    assert folder is not None
    return folder.path


def records(log: Log) -> bytes:
    at, found = log.log_start_offset, b""
    while at < log.log_end_offset:
        read = log.read(at, 1000, upper_offset=log.log_end_offset)
        found, at = found + bytes(read.data), read.next_offset
    return found


def derived(log: Log) -> tuple[object, ...]:
    return (
        log.last_stable_offset,
        log.log_start_offset,
        [each.producer_id for each in log.producers.views()],
        log.epoch_at(15),
    )


def code(call: Any, *arguments: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call(*arguments)
    return refused.value.code


# ---- the pure parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "some_failed", "verdicts"),
    [
        ("current future", False, "USE FUTURE"),
        ("leaving future", False, "USE_UNMARKED FUTURE"),
        ("leaving future", True, "USE_UNMARKED FUTURE"),
        ("leaving current", False, "REMOVE USE"),
        ("leaving current", True, "REMOVE USE"),
        ("stayed current", False, "USE_UNMARKED REMOVE"),
        ("stayed current", True, "USE REMOVE"),
        ("stayed future", False, "USE_UNMARKED REMOVE"),
        ("leaving", False, "USE_UNMARKED"),
        ("leaving", True, "HOLD"),
        ("future", False, "REMOVE"),
        ("future", True, "HOLD"),
        ("stayed", True, "USE"),
        ("unknown", False, "HOLD"),
        ("future current future", False, "FUTURE USE REMOVE"),
        ("current current", False, None),
        ("leaving leaving", False, None),
        ("unknown current", False, None),
    ],
)
def test_what_a_start_makes_of_logs_in_several_folders(
    states: str, some_failed: bool, verdicts: str | None
) -> None:
    found = {path: MoveState[word.upper()] for path, word in zip((A, B, C), states.split(), strict=False)}
    if verdicts is None:
        with pytest.raises(TwinLogs):
            resolve_twins(found, some_failed=some_failed)
        return
    wanted = [Verdict[word] for word in verdicts.split()]
    assert list(resolve_twins(found, some_failed=some_failed).values()) == wanted


VIEW = View(
    source_first=10,
    source_start=10,
    bytes_left=0,
    future_first=10,
    future_end=50,
    truncated_to=None,
    is_flushed=True,
)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, Step.SWAP),
        ({"is_flushed": False}, Step.FLUSH),
        ({"bytes_left": SWAP_BYTES_MAX}, Step.SWAP),
        ({"bytes_left": SWAP_BYTES_MAX + 1}, Step.COPY),
        ({"truncated_to": 49}, Step.TRUNCATE),
        ({"truncated_to": 50}, Step.SWAP),
        ({"truncated_to": 10}, Step.BEGIN),
        ({"truncated_to": 30, "bytes_left": 1 << 30}, Step.TRUNCATE),
        ({"source_first": 51}, Step.BEGIN),
        ({"source_first": 40}, Step.SWAP),
        ({"source_first": 9, "source_start": 9}, Step.BEGIN),
        ({"source_first": 9}, Step.SWAP),
        ({"future_first": -1, "future_end": -1}, Step.BEGIN),
    ],
)
def test_what_a_move_does_next(changes: dict[str, Any], step: Step) -> None:
    assert next_step(VIEW._replace(**changes)) is step


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "agreed"),
    [
        ([(0, 0)], 10, [(0, 0)], 20, 10),
        ([(0, 0), (2, 5)], 10, [(0, 0), (1, 5)], 20, 5),
        ([(0, 0), (2, 5)], 10, [(0, 0), (2, 7)], 20, 5),
        ([(0, 0), (1, 5)], 10, [(1, 5)], 10, 10),
        ([(0, 0)], 10, [(0, 0), (1, 10)], 10, 10),
        ([], 0, [(0, 0)], 10, 0),
        ([], 5, [], 3, 3),
    ],
)
def test_logs_agree_as_far_as_the_same_epochs_wrote_them(
    mine: Any, my_end: int, theirs: Any, their_end: int, agreed: int
) -> None:
    assert (
        agreeing_end(mine, my_end, theirs, their_end)
        == agreed
        == agreeing_end(theirs, their_end, mine, my_end)
    )


# ---- one move ----------------------------------------------------------------------------------------------


def test_a_moved_log_is_the_same_object_with_the_same_records() -> None:
    disk, folders, log = with_log()
    before = records(log)
    future = folders.move_to("t", 0, B)
    drive(future)
    assert future is not None
    assert future.is_over
    assert not folders.futures
    assert where(folders) == B
    assert log.directory == B / "t-0"
    assert folders.logs["t", 0] is log
    assert records(log) == before
    assert log.flushed_end_offset == 30
    append(log, batch(1))
    log.flush_now()
    assert "t-0" not in disk.list_names(A)
    disk.crash(Random(1))
    again = opened(disk)
    assert where(again) == B
    assert again.logs["t", 0].log_end_offset == 31


def test_what_is_appended_during_a_move_is_in_the_moved_log() -> None:
    _disk, folders, log = with_log()
    future = folders.move_to("t", 0, B)
    while folders.futures:
        drive(future, turns=1)
        append(log, batch(1))
    assert where(folders) == B
    assert log.log_end_offset > 40
    assert records(log).count(b"v" * 20) == log.log_end_offset


@pytest.mark.parametrize("ablated", [False, True])
def test_producers_transactions_epochs_and_the_log_start_are_as_before(
    monkeypatch: pytest.MonkeyPatch, ablated: bool
) -> None:
    disk, folders, log = with_log(records=0)
    append(log, batch(1, pid=5, epoch=0, sequence=0))  # of a producer whose records are deleted later
    append(log, batch(1, pid=7, epoch=0, sequence=0, transactional=True))
    for _ in range(20):
        append(log, batch(1), leader_epoch=3)
    log.flush_now()
    log.set_high_watermark(22)
    log.advance_log_start(9)
    assert log.segments[0].base_offset > 0, "segments with the first batches are gone"
    seen = derived(log)
    if ablated:  # the copy begins without what was known of producers before
        make = FutureReplica._make
        forgetful = lambda self, path, config, first, _known: make(self, path, config, first, None)  # noqa: E731
        monkeypatch.setattr(FutureReplica, "_make", forgetful)
    drive(folders.move_to("t", 0, B))
    assert where(folders) == B
    assert seen == derived(log)
    disk.crash(Random(3))
    again = opened(disk).logs["t", 0]
    again.set_high_watermark(22)
    if ablated:
        assert seen != derived(again)
        return
    assert seen == derived(again)
    append(again, batch(1, pid=5, epoch=0, sequence=1), leader_epoch=3)
    assert append(again, batch(1, pid=5, epoch=0, sequence=1), leader_epoch=3).duplicate


def test_a_guard_that_was_given_before_the_swap_holds_after_it() -> None:
    _disk, folders, log = with_log()
    guard = log.producers.start_verification(9, 0, 0)
    drive(folders.move_to("t", 0, B))
    assert where(folders) == B
    append(log, batch(1, pid=9, epoch=0, sequence=0, transactional=True), guard=guard)


def test_a_move_waits_for_the_running_flush_and_then_swaps() -> None:
    _disk, folders, log = with_log()
    future = folders.move_to("t", 0, B)
    drive(future, turns=3)
    assert folders.futures, "not there yet"
    append(log, batch(1))
    ticket = log.begin_flush()
    drive(future)
    assert where(folders) == A, "the outcome of that flush is unknown"
    ticket.run()
    log.finish_flush(ticket)
    assert where(folders) == B
    assert log.flushed_end_offset == 31


def test_an_order_redirects_a_move_and_one_for_the_present_folder_ends_it() -> None:
    disk, folders, log = with_log()
    drive(folders.move_to("t", 0, B), turns=3)
    assert "t-0" in disk.list_names(B)
    future = folders.move_to("t", 0, C)
    assert future is folders.move_to("t", 0, C)
    assert "t-0" not in disk.list_names(B)
    drive(future, turns=3)
    assert folders.move_to("t", 0, A) is None
    assert not folders.futures
    assert "t-0" not in disk.list_names(C)
    assert where(folders) == A
    append(log, batch(1))
    assert log.log_end_offset == 31


def test_orders_that_cannot_be_followed_are_answered_as_by_kafka() -> None:
    _disk, folders, log = with_log()
    assert code(folders.move_to, "t", 0, Path("/nowhere")) is ErrorCode.LOG_DIR_NOT_FOUND
    assert code(folders.move_to, "u", 0, C) is ErrorCode.REPLICA_NOT_AVAILABLE
    folders.create("u", UUID(int=2), 0, SMALL)
    folder = folders.folder_of("u", 0)
    assert folder is not None, "it is remembered where the replica is to be"
    assert folder.path == C, "it is remembered where the replica is to be"
    folders.folders[1].go_offline(OSError(5, "gone"))
    assert code(folders.move_to, "t", 0, B) is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.is_offline


def test_a_move_goes_on_after_a_restart_with_what_is_there() -> None:
    disk, folders, _log = with_log()
    future = folders.move_to("t", 0, B)
    drive(future, turns=8)
    assert future is not None
    assert future.size_bytes > 0
    folders.close(clean=True, broker_epoch=1)
    disk.kill()
    again = opened(disk)
    future = again.futures["t", 0]
    work = future.turn()
    assert work is not None
    work()
    assert future.size_bytes > 0, "it does not begin anew"
    drive(future)
    assert where(again) == B
    assert again.logs["t", 0].log_end_offset == 30


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("ablated", [False, True])
def test_a_cut_of_the_log_cuts_the_copy_before_a_restart_and_after_it(
    monkeypatch: pytest.MonkeyPatch, restarts: bool, ablated: bool
) -> None:
    disk, folders, log = with_log()
    future = folders.move_to("t", 0, B)
    drive(future, turns=5)
    assert future is not None
    assert not future.is_over
    assert future.offset_lag < 20
    if ablated:
        monkeypatch.setattr(FutureReplica, "source_truncated", lambda self, offset: None)
        monkeypatch.setattr(
            future_replica, "agreeing_end", lambda mine, my_end, theirs, their_end: min(my_end, their_end)
        )
    log.truncate_to(5)
    for _ in range(30):
        append(log, batch(1, size=33), leader_epoch=4)
    log.flush_now()
    wanted = records(log)
    if restarts:
        disk.kill()
        folders = opened(disk)
        log, future = folders.logs["t", 0], folders.futures["t", 0]
    drive(future)
    assert (where(folders) == B and records(log) == wanted) is not ablated


def test_a_deletion_takes_the_copy_with_it_and_the_name_is_free_again() -> None:
    disk, folders, _log = with_log()
    drive(folders.move_to("t", 0, B), turns=5)
    folders.delete("t", 0)
    assert not folders.futures
    assert "t-0" not in [*disk.list_names(A), *disk.list_names(B)]
    assert folders.create("t", UUID(int=9), 0, SMALL).log_end_offset == 0


def test_a_folder_that_fails_ends_the_moves_to_it_and_the_log_goes_on() -> None:
    disk, folders, log = with_log()
    drive(folders.move_to("t", 0, B), turns=5)
    folders.folders[1].go_offline(OSError(5, "gone"))
    assert not folders.futures
    assert not log.is_offline
    append(log, batch(1))
    log.flush_now()
    disk.crash(Random(5))
    again = opened(disk)
    drive(again.futures["t", 0])
    assert where(again) == B
    assert again.logs["t", 0].log_end_offset == 31


def test_a_failed_decision_leaves_the_log_in_its_folder_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, folders, log = with_log()

    def failing(disk: LyingDisk, directory: Path, standing: MoveState) -> None:
        write_move_state(disk, directory, standing)
        if standing is MoveState.CURRENT:
            raise OSError(5, "whether it exists is unknown", str(directory))

    monkeypatch.setattr(future_replica, "write_move_state", failing)
    future = folders.move_to("t", 0, B)
    with pytest.raises(OSError, match="is unknown"):
        drive(future)
    assert where(folders) == A
    assert not log.is_offline
    assert folders.offline_folders == [B]
    append(log, batch(1))
    log.flush_now()
    disk.crash(Random(6))
    again = opened(disk)
    assert where(again) == A
    assert again.logs["t", 0].log_end_offset == 31
    assert "t-0" not in disk.list_names(B)
    monkeypatch.undo()
    drive(again.move_to("t", 0, B))
    assert where(again) == B


def test_a_leaving_log_is_not_used_while_the_other_folder_is_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, _folders, _log = with_log()
    write_move_state(disk, A / "t-0", MoveState.LEAVING)
    disk.kill()
    listed = LyingDisk.list_names

    def fails(self: LyingDisk, path: Path) -> list[str]:
        if path == B:
            raise OSError(5, "the disk is gone")
        return listed(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(LyingDisk, "list_names", fails)
        held = opened(disk)
    assert ("t", 0) not in held.logs
    assert held.folder_of("t", 0) is held.folders[0]
    assert code(held.create, "t", ID, 0, SMALL) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.kill()
    assert opened(disk).logs["t", 0].log_end_offset == 30


def test_two_logs_of_one_name_that_did_not_move_are_refused() -> None:
    disk, _folders, _log = with_log()
    disk.make_directory(B / "t-0")
    disk.kill()
    with pytest.raises(DirectoryRefused, match="Move one of them away"):
        opened(disk)


# ---- ablations ---------------------------------------------------------------------------------------------


def broken(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, instead: Any, *, seeds: int = 400
) -> bool:
    monkeypatch.setattr(where, name, instead)
    for seed in range(seeds):
        try:
            MovesHistory(seed, length=60).run()
        except Broken:
            return True
    return False


def test_ablation_a_swap_before_all_is_copied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_replica.FutureReplica, "_rest", lambda self, source, future: None)
    monkeypatch.setattr(future_replica, "reach_end", lambda log, future: future.skip_to(log.log_end_offset))
    assert broken(monkeypatch, future_replica, "bytes_from", lambda log, offset: 0)


def test_ablation_a_decision_before_the_copy_is_flushed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_replica, "is_durable", lambda future: True)
    assert broken(monkeypatch, Log, "has_unflushed_records", property(lambda self: False))


def test_ablation_an_old_folder_that_does_not_say_that_it_leaves_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(disk: Any, directory: Path, standing: MoveState) -> None:
        if standing is not MoveState.LEAVING:
            write_move_state(disk, directory, standing)

    assert broken(monkeypatch, future_replica, "write_move_state", silent)


def test_ablation_an_old_folder_renamed_before_the_decision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = FutureReplica._decide

    def late(self: FutureReplica) -> None:
        self.origin.renamed_folders.take_name_away(self.key, self.topic_id, "-delete")
        decide(self)

    assert broken(monkeypatch, FutureReplica, "_decide", late)


def test_a_copy_that_was_refused_by_a_full_disk_is_made_again() -> None:
    steps = [
        ("create", 0, 0),
        ("move", 0, 1),
        ("produce", 0, 0),
        ("carry_on", 0, 0),
        ("full", 64, 1),
        ("carry_on", 0, 0),
    ]
    MovesHistory(5355, steps=steps).run()


def test_a_seed_always_gives_the_same_history_of_moves() -> None:
    def image(seed: int) -> list[tuple[Path, bytes]]:
        history = MovesHistory(seed, length=60)
        history.run()
        return [(path, disk.read(path)) for disk in history.disk.disks.values() for path in disk.files()]

    assert image(11) == image(11)


def test_histories_do_move_logs_and_clean_them_meanwhile() -> None:
    moved = rewritten = 0
    for seed in range(20):
        history = partial(MovesHistory, length=60)(seed)
        history.run()
        moved, rewritten = moved + history.swaps, rewritten + history.rewritten
    assert moved > 10
    assert rewritten > 10
