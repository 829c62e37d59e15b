"""What a pinned cut keeps of a log: from retention, from the cleaner, and what it finds lost already."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.cleaning import cleaner
from tidegate.storage.cleaning.cleaner import ConcurrentTruncation, begin_cleaning, clean_now
from tidegate.storage.cleaning.retention import apply_retention
from tidegate.storage.log.log import Log
from tidegate.storage.log.pins import Pin
from tidegate.wire.records import decode_batch

from .cleaning_history import COMPACTED
from .test_retention import HOUR_MS, configured, filled, retain
from .workload import NOW_MS, append, append_marker, batch, marker, open_log, stored


def pinned(log: Log, start: int, end: int, settled_end: int | None = None, name: str = "cut") -> Pin:
    pin = Pin(name, start, end, end if settled_end is None else settled_end)
    log.pins = (*log.pins, pin)
    return pin


def test_retention_by_time_and_by_size_leaves_what_the_lowest_pin_names() -> None:
    for config in ({"retention_ms": 1}, {"retention_bytes": 0}):
        log = filled()
        configured(log, **config)
        third = log.segments[2].base_offset
        pinned(log, log.segments[4].base_offset, log.log_end_offset, name="later")
        pinned(log, third + 1, log.log_end_offset)
        retain(log, NOW_MS + HOUR_MS)
        assert log.log_start_offset == third == log.segments[0].base_offset
        log.pins = ()
        retain(log, NOW_MS + HOUR_MS)
        assert log.log_start_offset == log.log_end_offset


def test_a_pin_between_two_steps_of_retention_stops_it() -> None:
    log = filled()
    configured(log, retention_ms=1)
    steps = apply_retention(log, NOW_MS + HOUR_MS)
    first = next(steps)
    pin = pinned(log, first, log.log_end_offset)
    assert list(steps) == []
    assert log.log_start_offset == first
    assert log.pin_problem(pin) is None


def test_a_pinned_log_is_not_completed_to_become_empty() -> None:
    log = filled()
    configured(log, retention_ms=HOUR_MS)
    pinned(log, 5, log.log_end_offset)
    segments = len(log.segments)
    retain(log, NOW_MS + 2 * HOUR_MS)
    assert log.segments[-1].size_bytes > 0
    assert len(log.segments) <= segments


def compacted(batches: int = 30, **options: object) -> Log:
    """Batches of the keys key0 and key1."""
    log = open_log(LyingDisk(), config=replace(COMPACTED, min_cleanable_dirty_ratio=0.0), **options)  # type: ignore[arg-type]
    fill(log, batches)
    return log


def fill(log: Log, batches: int) -> None:
    for _ in range(batches):
        append(log, batch(2, size=100))
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)


def clean(log: Log) -> bool:
    return clean_now(log, LyingDisk(), NOW_MS) is not None


def test_the_cleaner_leaves_a_pinned_log() -> None:
    log = compacted()
    pin = pinned(log, 0, log.log_end_offset)
    before = [each.data for each in stored(log)]
    fill(log, 30)
    assert not clean(log)
    assert [each.data for each in stored(log)][: len(before)] == before
    assert log.pin_problem(pin) is None
    log.pins = ()
    assert clean(log)
    assert [each.data for each in stored(log)][: len(before)] != before


def test_a_pin_ends_a_cleaning_that_has_begun() -> None:
    log = compacted()
    cleaning = begin_cleaning(log, NOW_MS)
    assert cleaning is not None
    pinned(log, 0, log.log_end_offset)
    before = [each.data for each in stored(log)]
    with pytest.raises(ConcurrentTruncation, match="pinned"):
        cleaning.run(LyingDisk(), lambda work: work())
    assert [each.data for each in stored(log)] == before


@pytest.mark.parametrize("start", [2, 3, 4])
def test_a_log_that_starts_above_the_cut_says_so(start: int) -> None:
    for moved in (
        lambda log: log.advance_log_start(start),
        lambda log: log.local.start_note.want(start),  # a DeleteRecords whose note is being written
    ):
        log = filled()
        moved(log)
        found = log.pin_problem(Pin("cut", 3, log.log_end_offset, log.log_end_offset))
        assert (found is None) == (start <= 3)


def test_a_log_that_was_cleaned_with_records_outside_of_the_cut_says_so() -> None:
    log = compacted()
    cut = Pin("cut", 0, log.log_end_offset, log.log_end_offset)
    undecided = cut._replace(settled_end=10)
    assert clean(log)
    assert log.pin_problem(cut) is None, "by records that are inside"
    assert "compacted" in str(log.pin_problem(undecided))
    fill(log, 30)
    assert log.pin_problem(cut) is None
    assert clean(log)
    assert "compacted" in str(log.pin_problem(cut))


def test_a_confirmed_pin_vouches_for_a_log_that_is_opened_or_copied() -> None:
    log = compacted()
    pin = Pin("cut", 0, 20, 10, is_confirmed=True)
    log.note_cleaned(40)
    assert log.pin_problem(pin) is not None
    log.keep((pin._replace(is_confirmed=False),))
    assert log.pin_problem(pin) is not None
    log.keep((pin,))
    assert log.pin_problem(pin) is None
    log.note_cleaned(50)
    log.keep(())
    assert log.pin_problem(pin) is None, "also right after it has gone"
    assert clean(log)
    assert log.pin_problem(pin) is not None


def test_a_cleaning_that_has_only_begun_may_have_removed_records() -> None:
    log = compacted()
    cut = Pin("cut", 0, 20, 20)
    assert begin_cleaning(log, NOW_MS) is not None
    assert log.pin_problem(cut) is not None


def test_after_a_restart_a_compacted_log_may_have_been_cleaned_up_to_what_was_decided() -> None:
    disk = LyingDisk()
    log = open_log(disk, config=COMPACTED)
    fill(log, 10)
    append(log, batch(2, pid=7, epoch=0, sequence=0, transactional=True))
    fill(log, 10)
    end = log.log_end_offset
    log.close(clean=True)
    again = open_log(disk, config=COMPACTED, clean=True, recovery_point=end)
    assert (again.cleaned_at_most, again.log_end_offset) == (20, end)
    assert again.pin_problem(Pin("cut", 0, end, 20)) is None, "taken since, with the open transaction outside"
    assert again.pin_problem(Pin("cut", 0, 18, 18)) is not None
    plain = filled()
    assert plain.cleaned_at_most == 0, "never compacted"


class History:
    """Random lives of a compacted log in which a cut is taken and, some time later, pinned: what a reader at
    the cut finds at the first time, it finds until the end."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = LyingDisk()
        self.log = open_log(self.disk, config=replace(COMPACTED, min_cleanable_dirty_ratio=0.0))
        self.open: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.cut: Pin | None = None
        self.excluded: dict[int, int] = {}
        self.seen: dict[bytes, bytes] | None = None
        self.is_pinned = False
        self.pinned_times = 0

    def write(self) -> None:
        pid = self.random.randrange(1, 4)
        if self.random.random() < 0.4:
            append(self.log, self.keyed(-1))
        elif pid in self.open and self.random.random() < 0.6:
            append_marker(self.log, marker(pid, 0, commit=self.random.random() < 0.6), version=1)
            del self.open[pid]
        else:
            first = append(self.log, self.keyed(pid)).first_offset
            self.open.setdefault(pid, first)
        self.log.flush_now()
        self.log.set_high_watermark(self.log.log_end_offset)

    def keyed(self, pid: int) -> bytes:
        count, size = self.random.randint(1, 3), 20 + self.log.log_end_offset  # each value is another one
        if pid < 0:
            return batch(count, size=size)
        sequence = self.sequences.get(pid, 0)
        self.sequences[pid] = sequence + count
        return batch(count, size=size, pid=pid, epoch=0, sequence=sequence, transactional=True)

    def clean(self) -> None:
        clean_now(self.log, self.disk, NOW_MS + self.random.randrange(10_000))

    def restart(self) -> None:
        end, pins = self.log.log_end_offset, self.log.pins
        self.log.close(clean=True)
        self.log = open_log(
            self.disk, config=self.log.config, clean=True, recovery_point=end, high_watermark=end
        )
        self.log.keep(pins)

    def take(self) -> None:
        """As a cut taker does: bounded by the high watermark, without what is open."""
        self.excluded = dict(self.open)
        end = self.log.log_end_offset
        self.cut = Pin("cut", self.log.log_start_offset, end, min((end, *self.open.values())))
        self.seen, self.is_pinned, self.log.pins = self.read(), False, ()

    def pin(self) -> None:
        if self.cut is not None and not self.is_pinned:
            self.log.pins = (self.cut,)
            self.is_pinned = self.log.pin_problem(self.cut) is None
            self.pinned_times += self.is_pinned
            if self.is_pinned:
                self.log.keep((self.cut._replace(is_confirmed=True),))
            else:
                self.log.pins, self.cut = (), None

    def read(self) -> dict[bytes, bytes]:
        """The newest value of each key, as a reader at the cut finds it."""
        cut = self.cut
        assert cut is not None
        newest: dict[bytes, bytes] = {}
        aborted = self.log.aborted_transactions(cut.start, cut.end)
        active = set[int]()
        for each in stored(self.log, upper=cut.end):
            header, pid = each.header, each.header.producer_id
            while aborted and aborted[0].first_offset <= header.last_offset:
                active.add(aborted.pop(0).producer_id)
            if header.is_control:
                active.discard(pid)
            elif header.is_transactional and (
                pid in active or header.base_offset >= self.excluded.get(pid, cut.end)
            ):
                continue
            else:
                newest.update((one.key or b"", one.value or b"") for one in decode_batch(each.data))
        return newest

    def run(self, steps: int = 80) -> int:
        """How often a cut was pinned."""
        actions: list[Callable[[], None]] = [self.write] * 12
        actions += [self.clean] * 3 + [self.take, self.pin, self.pin, self.restart]
        for _ in range(steps):
            self.random.choice(actions)()
            if self.is_pinned and self.cut is not None:
                assert self.read() == self.seen, "a reader at the pinned cut finds something else"
                assert self.log.pin_problem(self.cut) is None, "a reader at the pinned cut is refused"
        return self.pinned_times


SEEDS = range(60)


def test_what_a_reader_at_a_pinned_cut_finds_stays() -> None:
    assert sum(History(seed).run() for seed in SEEDS) > 60


def goes_red() -> bool:
    for seed in itertools.chain(SEEDS, range(1000, 1060)):
        try:
            History(seed).run()
        except AssertionError:
            return True
    return False


def test_ablation_a_pinned_log_that_is_cleaned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unpinned(tuple[Pin, ...]):
        def __bool__(self) -> bool:
            return False

    monkeypatch.setattr(History, "pin", unpinned(History.pin, Unpinned))
    assert goes_red()


def unpinned(pin: Callable[[History], None], empty: type[tuple[Pin, ...]]) -> Callable[[History], None]:
    def without(self: History) -> None:
        pin(self)
        self.log.pins = empty(self.log.pins)

    return without


def test_ablation_cleanings_before_the_pin_that_are_forgotten_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Log, "pin_problem", lambda self, pin: None)
    assert goes_red()


def test_ablation_undecided_transactions_that_are_not_looked_at_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pin_problem = Log.pin_problem
    monkeypatch.setattr(
        Log, "pin_problem", lambda self, pin: pin_problem(self, pin._replace(settled_end=pin.end))
    )
    assert goes_red()


def test_ablation_cleanings_of_the_former_life_that_are_forgotten_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Log, "decided_end", 0)
    assert goes_red()


def test_ablation_cleanings_that_leave_no_trace_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = cleaner.begin_cleaning

    def forgetful(log: Log, now_ms: int, horizon_ms: int | None = None) -> cleaner.Cleaning | None:
        before = log.cleaned_at_most
        found = begin(log, now_ms, horizon_ms)
        log.cleaned_at_most = before
        return found

    monkeypatch.setattr(cleaner, "begin_cleaning", forgetful)
    assert goes_red()
