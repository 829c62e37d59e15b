"""Leader epochs in which nothing was written: they go when another leader continues the log, and stay away
(KIP-101, KIP-279).

Such an epoch is noted where the log ended at the election.  When the next leader had more of an older epoch,
the log goes on with batches of that one, and the note is wrong from then on: a leader with it sends its
followers into a circle of cuts and fetches.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.runtime.disk import Disk
from tidegate.storage.durability.flush import Durability
from tidegate.storage.epoch_cache import EpochCache
from tidegate.storage.log.log import Log
from tidegate.storage.segment.pending_indexes import PendingIndexFiles

from .workload import append, batch, open_log

OLD_EPOCH, EMPTY_EPOCH = 3, 4
SHARED = 2
"""Batches that both replicas have."""


def longer_log() -> Log:
    """Of the leader that wrote in the old epoch: two batches more than the other replica has."""
    log = open_log(LyingDisk())
    for sequence in range(SHARED + 2):
        append(log, batch(1, pid=1, epoch=0, sequence=sequence), leader_epoch=OLD_EPOCH)
    return log


def copy(leader: Log, log: Log, end: int) -> None:
    log.append_follower(leader.read(log.log_end_offset, 1 << 20, upper_offset=end).data)


def led_in_vain(disk: LyingDisk, leader: Log) -> Log:
    """The shorter log, with all but its last epoch as `leader` has them: it led, and no client wrote."""
    log = open_log(disk)
    copy(leader, log, SHARED)
    log.assign_epoch(EMPTY_EPOCH, SHARED)
    log.flush_now()
    return log


def killed(disk: LyingDisk, log: Log) -> Log:
    """The log of the next process: SIGKILL leaves what was written, and nothing is written that was not."""
    recovery_point, flushed_end = log.recovery_point, log.flushed_end_offset
    disk.kill()
    return open_log(disk, recovery_point=recovery_point, flushed_end=flushed_end)


def after_a_clean_start() -> list[tuple[int, int]]:
    disk, leader = LyingDisk(), longer_log()
    log = led_in_vain(disk, leader)
    log.close(clean=True)
    log = open_log(disk, clean=True, recovery_point=SHARED)
    assert log.latest_epoch == OLD_EPOCH
    copy(leader, log, SHARED + 1)
    log.roll()
    copy(leader, log, SHARED + 2)
    log.flush_now()
    assert log.recovery_point == SHARED + 2, "the next start has no reason to look at the batches"
    return killed(disk, log)._epochs.entries()


def after_a_cut_of_nothing() -> list[tuple[int, int]]:
    disk, leader = LyingDisk(), longer_log()
    log = led_in_vain(disk, leader)
    log.truncate_to(SHARED)
    assert log.latest_epoch == OLD_EPOCH
    copy(leader, log, SHARED + 2)
    return killed(disk, log)._epochs.entries()


def test_an_epoch_dropped_by_a_clean_start_stays_dropped_after_a_crash() -> None:
    assert after_a_clean_start() == [(OLD_EPOCH, 0)]


def test_an_epoch_dropped_by_a_truncation_stays_dropped_after_a_crash() -> None:
    assert after_a_cut_of_nothing() == [(OLD_EPOCH, 0)]


def test_ablation_a_flush_that_does_not_rewrite_the_history_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Durability.__init__

    def forgetful(
        self: Durability, disk: Disk, directory: Path, end: int, size: int, unwritten: PendingIndexFiles
    ) -> None:
        unwritten.epochs_from = None
        begin(self, disk, directory, end, size, unwritten)

    monkeypatch.setattr(Durability, "__init__", forgetful)
    assert after_a_clean_start() == [(OLD_EPOCH, 0), (EMPTY_EPOCH, SHARED)]


def test_ablation_without_a_look_at_the_batches_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpochCache, "deny", lambda cache, epoch, since, offset: None)
    assert after_a_cut_of_nothing() == [(OLD_EPOCH, 0), (EMPTY_EPOCH, SHARED)]


@pytest.mark.parametrize(
    ("epoch", "since", "offset", "left"),
    [
        (0, 10, 10, [(0, 0), (5, 12), (7, 30)]),
        # a gap before the batch: whatever is noted to begin in it had no data either
        (0, 10, 12, [(0, 0), (7, 30)]),
        (2, 10, 10, [(0, 0), (2, 10), (5, 12), (7, 30)]),  # it is the one that is noted
        (5, 12, 12, [(0, 0), (2, 10), (5, 12), (7, 30)]),
        # an odd batch says nothing of what begins before it
        (0, 14, 15, [(0, 0), (2, 10), (5, 12), (7, 30)]),
    ],
)
def test_a_batch_denies_newer_epochs_that_are_noted_to_begin_with_it(
    epoch: int, since: int, offset: int, left: list[tuple[int, int]]
) -> None:
    cache = EpochCache([(0, 0), (2, 10), (5, 12), (7, 30)])
    cache.deny(epoch, since, offset)
    assert cache.entries() == left
