"""Random histories of one log on a disk that keeps only what was synced, against a plain model.

What must hold after any crash: what was flushed is there, byte for byte; what was truncated does not return; nothing torn or
invented is readable; producer state, aborted transactions and last stable offset are those of a replay from zero.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate.chaos.sim.disk import Lie, LyingDisk, PowerCut
from tidegate.storage.log import Log
from tidegate.storage.producer_state import ProducerState
from tidegate.storage.recovery import replay_producers
from tidegate.wire.errors import KafkaError

from .workload import SMALL, Model, Stored, append, append_marker, batch, marker, open_log, stored

OPERATIONS = (
    "append", "append", "idempotent", "transaction", "transaction", "commit", "abort", "flush", "truncate", "high_watermark",
    "checkpoint", "epoch", "full", "close", "kill", "crash", "cut",
)  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 40), st.integers(0, 1_000_000)), min_size=1, max_size=40)


class History:
    """One log, its disk, and what has been promised about it."""

    def __init__(self, disk: LyingDisk | None = None) -> None:
        self.disk = disk or LyingDisk()
        self.noted_point = 0
        self.watermark = 0
        self.leader_epoch = 0
        self.model: list[Stored] = []
        self.log = self.open(clean=False)

    def open(self, *, clean: bool) -> Log:
        log = open_log(self.disk, config=SMALL, clean=clean, recovery_point=self.noted_point, high_watermark=self.watermark)
        log.before_cut = self.lower
        return log

    def lower(self, _log: Log, offset: int) -> None:
        self.noted_point = min(self.noted_point, offset)

    # -- one step

    def step(self, operation: str, size: int, seed: int) -> None:
        if operation == "cut":
            self.power_cut_during(OPERATIONS[seed % (OPERATIONS.index("high_watermark"))], size, seed)
        elif operation in ("close", "kill", "crash"):
            getattr(self, operation)(seed)
        else:
            getattr(self, operation)(size, seed)
            self.learn()
            self.check()

    def learn(self) -> None:
        """The model after an undisturbed step: what the log says now, which must extend or cut what it said before."""
        now = stored(self.log)
        shared = min(len(now), len(self.model))
        assert [b.data for b in now[:shared]] == [b.data for b in self.model[:shared]]
        self.model = now

    def append(self, size: int, seed: int) -> None:
        append(self.log, batch(1 + seed % 3, size=size * 10), leader_epoch=self.leader_epoch)

    def _next(self, pid: int) -> tuple[int, int]:
        entry = self.log._producers.get(pid)
        return (0, 0) if entry is None else (max(0, entry.epoch), entry.last_sequence + 1)

    def idempotent(self, size: int, seed: int) -> None:
        epoch, sequence = self._next(100 + seed % 2)
        data = batch(1 + seed % 3, size=size, pid=100 + seed % 2, epoch=epoch, sequence=sequence)
        info = append(self.log, data, leader_epoch=self.leader_epoch)
        again = append(self.log, data, leader_epoch=self.leader_epoch)
        assert again.duplicate and (again.first_offset, again.last_offset) == (info.first_offset, info.last_offset)

    def transaction(self, size: int, seed: int) -> None:
        pid = 200 + seed % 3
        epoch, sequence = self._next(pid)
        data = batch(1 + seed % 3, size=size, pid=pid, epoch=epoch, sequence=sequence, transactional=True)
        append(self.log, data, leader_epoch=self.leader_epoch)

    def commit(self, _size: int, seed: int) -> None:
        self._end(seed, commit=True)

    def abort(self, _size: int, seed: int) -> None:
        self._end(seed, commit=False)

    def _end(self, seed: int, *, commit: bool) -> None:
        pid = 200 + seed % 3
        epoch, _ = self._next(pid)
        append_marker(self.log, marker(pid, epoch + 1, commit=commit), leader_epoch=self.leader_epoch)

    def flush(self, _size: int, _seed: int) -> None:
        self.log.flush_now()

    def truncate(self, _size: int, seed: int) -> None:
        self.log.truncate_to(seed % (self.log.log_end_offset + 1))
        self.watermark = min(self.watermark, self.log.log_end_offset)

    def high_watermark(self, _size: int, seed: int) -> None:
        self.log.set_high_watermark(seed % (self.log.log_end_offset + 1))
        self.watermark = self.log.high_watermark

    def checkpoint(self, _size: int, _seed: int) -> None:
        self.noted_point = self.log.recovery_point

    def epoch(self, _size: int, _seed: int) -> None:
        self.leader_epoch += 1
        self.log.assign_epoch(self.leader_epoch, self.log.log_end_offset)

    def full(self, size: int, seed: int) -> None:
        """A write that does not fit: refused, and nothing has changed."""
        before = (self.log.describe(), self.log._producers.as_comparable())
        self.disk.capacity = self.disk.used_bytes() + size
        with pytest.raises(KafkaError):
            epoch, sequence = self._next(100)
            append(self.log, batch(2, size=300, pid=100, epoch=epoch, sequence=sequence), leader_epoch=self.leader_epoch)
        self.disk.capacity = None
        assert before == (self.log.describe(), self.log._producers.as_comparable())

    # -- ends

    def close(self, _seed: int) -> None:
        self.log.close(clean=True)
        self.noted_point = self.log.log_end_offset
        self.disk.kill()
        self.log = self.open(clean=True)
        assert not self.log.recovered
        assert [b.data for b in stored(self.log)] == [b.data for b in self.model]
        self.check()

    def kill(self, _seed: int) -> None:
        """Only the process is gone: nothing written is lost."""
        self.disk.kill()
        self.log = self.open(clean=False)
        assert [b.data for b in stored(self.log)] == [b.data for b in self.model]
        self.check()

    def crash(self, seed: int) -> None:
        flushed = self.log.flushed_end_offset
        self.disk.crash(Random(seed))
        self.reopen(flushed, extra=0)

    def power_cut_during(self, operation: str, size: int, seed: int) -> None:
        """The power goes at some write, sync or removal of an operation."""
        flushed = self.log.flushed_end_offset
        self.disk.cut_after = seed % 7
        try:
            getattr(self, operation)(size, seed)
        except PowerCut:
            pass
        if operation == "truncate":
            flushed = min(flushed, seed % (len(self.model) and self.model[-1].header.next_offset + 1 or 1))
            flushed = max((b.header.next_offset for b in self.model if b.header.next_offset <= flushed), default=0)
        self.disk.crash(Random(seed))
        self.reopen(flushed, extra=2)

    def reopen(self, flushed: int, *, extra: int) -> None:
        self.log = self.open(clean=False)
        found = stored(self.log)
        shared = min(len(found), len(self.model))
        assert [b.data for b in found[:shared]] == [b.data for b in self.model[:shared]], "other batches than were written"
        assert len(found) <= len(self.model) + extra, "batches that nobody wrote, or that were truncated"
        assert self.log.log_end_offset >= flushed, f"flushed up to {flushed}, only {self.log.log_end_offset} is left"
        assert self.log.flushed_end_offset == self.log.log_end_offset
        self.model = found
        self.watermark = self.log.high_watermark
        self.check()

    # -- what always holds

    def check(self) -> None:
        log, end = self.log, self.log.log_end_offset
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= end
        assert log.recovery_point <= log.flushed_end_offset <= end
        replayed = ProducerState()
        replay_producers(log._segments, replayed, end)
        replayed.set_high_watermark(log.high_watermark)
        assert log._producers.as_comparable() == replayed.as_comparable()
        model = Model(self.model)
        assert log.last_stable_offset == model.last_stable_offset(log.high_watermark)
        for start in range(0, end, max(1, end // 4)):
            upper = (start + end + 1) // 2
            assert [tuple(t) for t in log.aborted_transactions(start, upper)] == model.aborted(start, upper)
            expected = [b.data for b in self.model if b.header.next_offset > start and b.header.next_offset <= upper]
            assert [b.data for b in stored(log, start, upper=upper, max_bytes=start * 37 % 900)] == expected
        for epoch, start in log._epochs.entries():
            assert log.epoch_end(epoch).end_offset > start or start == end


def run(steps: list[tuple[str, int, int]], history: History | None = None) -> None:
    history = history or History()
    for operation, size, seed in steps:
        history.step(operation, size, seed)
    history.crash(len(steps))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_what_was_flushed_survives_any_crash_and_nothing_else_appears(steps: list[tuple[str, int, int]]) -> None:
    run(steps)


def random_steps(seed: int, length: int) -> list[tuple[str, int, int]]:
    random = Random(seed)
    return [(random.choice(OPERATIONS), random.randrange(41), random.randrange(1_000_001)) for _ in range(length)]


@pytest.mark.parametrize("seed", [*range(40), 110])  # 110: a stale index behind the recovery point
def test_long_random_histories(seed: int) -> None:
    run(random_steps(seed, 120))


def first_failure(history: type[History], seeds: range) -> int | None:
    """The first seed whose history breaks a promise."""
    for seed in seeds:
        try:
            run(random_steps(seed, 120), history())
        except (AssertionError, KafkaError):
            return seed
    return None


def test_ablation_a_flushed_end_that_moves_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSync(History):
        def flush(self, _size: int, _seed: int) -> None:
            ticket = self.log.begin_flush()
            ticket.ran = True  # as if it had run
            self.log.finish_flush(ticket)

    assert first_failure(NoSync, range(30)) is not None


def test_ablation_without_the_folder_sync_flushed_segments_vanish() -> None:
    class NoFolderSync(History):
        def __init__(self) -> None:
            super().__init__(LyingDisk(Lie.FOLDER_SYNC))

    assert first_failure(NoFolderSync, range(30)) is not None


def test_ablation_publishing_before_the_append_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are not copied are changed by the check of a batch whose write then fails."""
    from tidegate.storage.producer_state import ProducerEntry

    monkeypatch.setattr(ProducerEntry, "copy", lambda self: self)
    assert first_failure(History, range(30)) is not None


def test_ablation_a_last_stable_offset_without_unreplicated_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerState, "_note_unreplicated", lambda self, first, marker_offset: None)
    assert first_failure(History, range(30)) is not None


def test_ablation_snapshots_left_behind_by_a_truncation_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.storage.flush import Durability

    monkeypatch.setattr(Durability, "drop_snapshots", lambda self, which: None)
    assert first_failure(History, range(60)) is not None
