"""Histories of logs that are cut again and again, with power cuts in the middle of that; and what the
safeguards are for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tidegate.chaos.sim.disk import LyingDisk, LyingFile
from tidegate.chaos.sim.runs import Broken, Step
from tidegate.chaos.sim.storage.log_history import Shape, StorageHistory
from tidegate.chaos.sim.storage.truncation_history import TruncationHistory
from tidegate.runtime.disk import Disk
from tidegate.storage.durability.flush import Durability
from tidegate.storage.segment.segment import Segment
from tidegate.storage.segment.segment_list import Segments

from .test_histories import first_broken, run_kind
from .workload import FOLDER, append, batch, open_log, stored


@pytest.mark.parametrize("first", range(900_000, 902_000, 500))
def test_logs_that_are_truncated_again_and_again_keep_their_promises(first: int) -> None:
    run_kind("truncations", first, 500, 22)


def first_broken_cut(seeds: int = 1500) -> Broken | None:
    return first_broken(TruncationHistory, seeds=seeds, length=25)


class _NoFolderSync:
    """A disk whose folder syncs do nothing, while it is asked through this."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def sync_directory(self, directory: Path) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def without_folder_sync(method: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Any, *args: Any, **rest: Any) -> Any:
        disk, self._disk = self._disk, _NoFolderSync(self._disk)
        try:
            return method(self, *args, **rest)
        finally:
            self._disk = disk

    return changed


def test_ablation_a_truncation_that_does_not_sync_its_folder_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Truncated data comes back."""
    monkeypatch.setattr(Segments, "_remove", without_folder_sync(Segments._remove))
    assert first_broken_cut() is not None


# Made short by `chaos/sim/shrink.py` from histories of random seeds.
CUTS_OF_HISTORIES: dict[int, tuple[int, Shape, list[Step]]] = {
    # Which sync is left out: the seed of the last crash, the shape, the steps.
    1: (
        124,
        Shape("delete", segment_bytes=500, index_interval_bytes=600, index_bytes_max=0,
              failed_sync_keeps_cache=True),
        [("cut", 948888, 0), ("cut", 0, 0), ("abort", 0, 0), ("append", 3, 0), ("abort", 0, 0),
            ("idempotent", 0, 0),
         ("follow", 1, 1), ("cut", 1, 237956), ("append", 1019493, 0), ("abort", 0, 0), ("checkpoint", 0, 0),
         ("cut", 3, 8),
         ("cut", 301563, 834180)],
    ),
    2: (
        177,
        Shape("delete", segment_bytes=2500, index_interval_bytes=200, files_max=2,
              failed_sync_keeps_cache=False),
        [("append", 1, 0), ("epoch", 0, 0), ("flush", 0, 0), ("truncate", 0, 1), ("idempotent", 0, 0)],
    ),
}  # fmt: skip


def _cut_history_without(sync: int) -> Callable[[Durability, int], None]:
    """As `Durability.truncate_history`, with one of its two folder syncs left out."""
    cut = Durability.truncate_history

    def changed(durability: Durability, end_offset: int) -> None:
        disk, count = durability._disk, 0

        class Counting(_NoFolderSync):
            def sync_directory(self, directory: Path) -> None:
                nonlocal count
                count += 1
                if count != sync:
                    disk.sync_directory(directory)

        durability._disk = Counting(disk)
        try:
            cut(durability, end_offset)
        finally:
            durability._disk = disk
        assert count == 2

    return changed


@pytest.mark.parametrize("sync", [1, 2])
def test_a_cut_of_the_epoch_history_needs_both_syncs_of_its_folder(
    monkeypatch: pytest.MonkeyPatch, sync: int
) -> None:
    """A history that is cut below a snapshot that is still there is not asked of the batches again; nor is
    one that comes back after batches were cut, and others have taken their offsets (docs/semantics.md E8).
    Ablation: the power goes without the sync."""
    seed, shape, steps = CUTS_OF_HISTORIES[sync]
    TruncationHistory(seed, shape=shape, steps=steps).run()
    monkeypatch.setattr(Durability, "truncate_history", _cut_history_without(sync))
    with pytest.raises(Broken, match="of leader epoch 1, and said to be of 0"):
        TruncationHistory(seed, shape=shape, steps=steps).run()


def test_a_flush_that_was_cancelled_has_synced_no_folder() -> None:
    """A truncation takes the result of a running flush away; the next one syncs the folder for both."""
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(2))
    log.roll()
    append(log, batch(2))
    log.begin_flush()
    log.truncate_to(3 if log.log_end_offset > 3 else 2)
    synced: list[Path] = []
    sync, disk.sync_directory = disk.sync_directory, synced.append  # type: ignore[assignment]
    append(log, batch(1))
    log.flush_now()
    disk.sync_directory = sync
    assert log.directory in synced


def test_a_new_segment_shows_nothing_of_what_its_file_held() -> None:
    """A leftover of a removal: it lies behind what is appended, and a restart after a kill would take it for
    batches."""
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(2))
    log.flush_now()
    left = batch(1, base_offset=3, leader_epoch=0)
    disk.put(FOLDER / f"{2:020d}.log", bytes(len(batch(1))) + left)  # as far behind as the next batch reaches
    log.roll()
    append(log, batch(1))
    disk.kill()
    assert [each.header.base_offset for each in stored(open_log(disk, recovery_point=2, flushed_end=2))] == [
        0,
        2,
    ]


def test_ablation_a_recovery_that_trusts_the_page_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "write_again", lambda *_: None)
    monkeypatch.setattr(LyingFile, "forget_cached", lambda *_: None)
    assert first_broken(StorageHistory) is not None
