"""A replacement waits for the disk in a thread, and the loop runs on: whatever happens between its steps, the
log says what it would say if the replacement had been made at once, or not at all; also after a crash."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk, PowerCut
from tidegate.storage.durability.flush import FlushTicket
from tidegate.storage.log.log import Log
from tidegate.storage.log.lookup import max_timestamp
from tidegate.storage.log.replacement import Replacement, Replacements, Stage
from tidegate.storage.segment.count_index import CountIndex
from tidegate.storage.segment.open_files import OpenFiles
from tidegate.storage.segment.segment import Segment
from tidegate.storage.segment.swap import swap_path
from tidegate.wire.errors import KafkaError

from .test_segments import clean, filled, headers, offsets, reopened
from .workload import FOLDER, append, batch

STEPS = ("begun", "decided", "switched", "carried out")
"""Behind each of them the loop runs on."""


class Work:
    """A replacement of the second and third segment, step by step; `meanwhile` happens on the loop behind
    `step`."""

    def __init__(self, disk: LyingDisk) -> None:
        self.disk = disk
        self.log = filled(disk)
        self.old = self.log.segments[1:3]
        self.new = clean(self.log, disk, self.old)
        self.before = offsets(self.log)
        lost = {h.base_offset for s in self.old for h in headers(s)} - {
            h.base_offset for h in headers(self.new)
        }
        self.after = [offset for offset in self.before if offset not in lost]
        self.refused = False

    def run(self, meanwhile: Callable[[Log], None], step: str) -> Replacement:
        replacement = self.log.local.replacements.begin(self.old, self.new)

        def behind(name: str) -> None:
            if name == step:
                meanwhile(self.log)

        behind("begun")
        replacement.decide()
        behind("decided")
        try:
            self.log.local.replacements.switch(replacement)
        except (ValueError, KafkaError):
            self.refused = True
            return replacement
        behind("switched")
        replacement.carry_out()
        behind("carried out")
        self.log.local.replacements.finish(replacement)
        for path in replacement.doomed:
            if self.disk.exists(path):  # a removal in between takes it away as well
                self.disk.remove(path)
        return replacement

    def check(
        self, log: Log, *, replaced: bool | None = None, appended: int = 0, end: int | None = None
    ) -> None:
        """All old batches, or the new ones; `replaced` says which when that is certain."""
        found = offsets(log)
        ways = {True: [self.after], False: [self.before], None: [self.before, self.after]}[replaced]
        last = self.before[-1]
        behind = [offset for offset in found if offset > last]
        assert len(behind) == appended
        assert [offset for offset in found if offset <= last] in [
            [o for o in way if end is None or o < end] for way in ways
        ]


def nothing(_log: Log) -> None:
    pass


def reads(log: Log) -> None:
    assert offsets(log)
    for offset in range(log.log_end_offset):
        assert log.read(offset, 1, upper_offset=log.log_end_offset).data
    assert max_timestamp(log) is not None


@pytest.mark.parametrize("step", STEPS)
def test_readers_see_whole_segments_at_every_step(step: str) -> None:
    work = Work(LyingDisk())
    work.run(reads, step)
    reads(work.log)
    work.check(work.log, replaced=True)
    assert work.log.size_bytes == sum(segment.size_bytes for segment in work.log.segments)


@pytest.mark.parametrize("forgets", [True, False])
def test_a_late_reader_of_a_replaced_segment_does_not_keep_its_file_cached(
    monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    """A reader took the old segment before the switch and opens its file after it: under the name that the
    new one gets. Ablation: the cache of open files does not learn that the name belongs to another file
    now."""
    work = Work(LyingDisk())

    def looks(_log: Log) -> None:
        assert work.old[0].base_offset == work.new.base_offset
        assert work.old[0].file.size()

    if not forgets:
        adopt = Segment.adopt

        def remember(segment: Segment) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(OpenFiles, "forget", lambda files, path: None)
                adopt(segment)

        monkeypatch.setattr(Segment, "adopt", remember)
    work.run(looks, "switched")
    if forgets:
        work.check(work.log, replaced=True)
    else:
        with pytest.raises(KafkaError, match="no batch of offset"):
            offsets(work.log)


@pytest.mark.parametrize("step", STEPS)
def test_appends_and_flushes_go_on_at_every_step(step: str) -> None:
    def appends(log: Log) -> None:
        for _ in range(12):
            append(log, batch(2, size=200))
        log.flush_now()

    work = Work(LyingDisk())
    work.run(appends, step)
    work.log.flush_now()
    work.check(work.log, replaced=True, appended=12)
    end = work.log.log_end_offset
    work.disk.crash(Random(1))
    work.check(reopened(work.disk, end), replaced=True, appended=12)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("below", [False, True])
def test_a_truncation_interrupted_at_any_step_leaves_no_truncated_batch(step: str, below: bool) -> None:
    """Also after a crash: a decision on the disk may not bring back what was cut."""
    work = Work(LyingDisk())
    cut = work.old[0].base_offset + 1 if below else work.log.segments[-1].base_offset

    def truncates(log: Log) -> None:
        log.truncate_to(cut)
        append(log, batch(2, size=200))
        log.flush_now()

    replacement = work.run(truncates, step)
    assert replacement.stage is (Stage.WITHDRAWN if step in ("begun", "decided") else Stage.DONE)
    found, end = offsets(work.log), work.log.log_end_offset
    assert work.refused == (step in ("begun", "decided"))
    way = work.before if work.refused else work.after
    assert [offset for offset in found if offset + 2 <= cut] == [
        offset for offset in way if offset + 2 <= cut
    ]
    assert len([offset for offset in found if offset + 2 > cut]) == 1  # what was appended since
    for seed in range(5):
        work.disk.crash(Random(seed))
        assert offsets(reopened(work.disk, end)) == found


@pytest.mark.parametrize("step", STEPS)
def test_a_removal_at_the_front_at_any_step_is_not_undone(step: str) -> None:
    work = Work(LyingDisk())
    start = work.log.segments[2].base_offset
    work.log.set_high_watermark(work.log.log_end_offset)
    work.run(lambda log: log.advance_log_start(start), step)
    end, found = work.log.log_end_offset, offsets(work.log)
    assert found[0] in (start, next(o for o in work.after if o >= start))
    assert work.log.log_start_offset == start
    for seed in range(5):
        work.disk.crash(Random(seed))
        again = reopened(work.disk, end)
        assert [offset for offset in offsets(again) if offset >= start] == found


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("clean_close", [False, True])
def test_a_close_at_any_step_leaves_a_log_that_opens(step: str, clean_close: bool) -> None:
    work = Work(LyingDisk())
    end = work.log.log_end_offset
    replacement = work.run(lambda log: log.close(clean=clean_close), step)
    assert replacement.is_over
    work.disk.kill()
    work.check(reopened(work.disk, end), replaced=None if step == "decided" else step != "begun")


@pytest.mark.parametrize("flush", ["begun", "waiting"])
@pytest.mark.parametrize("step", STEPS[:2])
def test_a_count_index_of_replaced_segments_is_not_written(step: str, flush: str) -> None:
    """It has the same name, and would be believed."""
    work = Work(LyingDisk())
    tickets: list[FlushTicket] = []

    def counts(log: Log) -> None:
        log.local.durability.add_counts(work.old[0], CountIndex(work.old[0].base_offset, 300), b"stale")
        if flush == "begun":
            tickets.append(log.begin_flush())

    replacement = work.run(counts, step)
    assert replacement.stage is (Stage.WITHDRAWN if flush == "begun" else Stage.DONE)
    for ticket in tickets:
        ticket.run()
        work.log.finish_flush(ticket)
    work.log.flush_now()
    path = FOLDER / f"{work.old[0].base_offset:020d}.countindex"
    assert (work.disk.read(path) == b"stale") == (flush == "begun")
    work.check(work.log, replaced=flush != "begun")


def test_a_second_replacement_waits_for_the_first() -> None:
    work = Work(LyingDisk())
    work.log.local.replacements.begin(work.old, work.new)
    with pytest.raises(ValueError, match="in progress"):
        work.log.local.replacements.begin(work.log.segments[:1], work.new)


def test_a_disk_that_fails_behind_the_switch_takes_the_log_offline() -> None:
    """What is on the disk is not known any more: only opening the log again finds out."""
    work = Work(LyingDisk())
    end = work.log.log_end_offset
    replacement = work.log.local.replacements.begin(work.old, work.new)
    replacement.decide()
    work.log.local.replacements.switch(replacement)
    work.disk.fail_after = 2
    with pytest.raises(OSError, match="no space left") as failure:
        replacement.carry_out()
    with pytest.raises(KafkaError):
        work.log.local.replacements.failed(replacement, failure.value)
    assert work.log.is_offline
    assert replacement.stage is Stage.UNKNOWN
    work.disk.kill()
    work.check(reopened(work.disk, end), replaced=True)


# ---- crashes -----------------------------------------------------------------------------------------------


def crash_everywhere(
    step: str,
    meanwhile: Callable[[Log], None],
    check: Callable[[Work, Log], None],
    point: Callable[[Work], int],
) -> int:
    """The power goes at every change of the disk, in `meanwhile` as well; `point` is the recovery point.
    Number of crashes."""
    for cut in range(1000):
        work = Work(LyingDisk())
        work.log.set_high_watermark(work.log.log_end_offset)
        work.disk.cut_after = cut
        done = False
        try:
            work.run(meanwhile, step)
            done = True
        except PowerCut:
            pass
        work.disk.crash(Random(cut))
        for _ in range(2):  # what recovery did must stand a crash, too
            check(work, reopened(work.disk, point(work)))
            work.disk.crash(Random(cut + 1))
        if done:
            return cut
    raise AssertionError("it never ended")


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_point_with_a_truncation_in_between(step: str) -> None:
    def truncates(log: Log) -> None:
        log.truncate_to(log.segments[1].base_offset + 1)

    def check(work: Work, log: Log) -> None:
        found, stays = offsets(log), work.before[: len(work.before) // 6]
        assert found[: len(stays)] == stays
        # a cut removes from the back, segment by segment
        assert found in (work.before[: len(found)], work.after[: len(found)])

    assert crash_everywhere(step, truncates, check, lambda work: work.before[len(work.before) // 6]) > 8


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_point_with_a_removal_in_between(step: str) -> None:
    def removes(log: Log) -> None:
        log.advance_log_start(log.segments[2].base_offset)

    def check(work: Work, log: Log) -> None:
        found = offsets(log)
        assert found[-6:] == work.before[-6:]
        assert found in [way[at:] for way in (work.before, work.after) for at in range(len(way))]

    assert crash_everywhere(step, removes, check, lambda work: work.before[-1] + 2) > 8


# ---- ablations ---------------------------------------------------------------------------------------------


def test_ablation_a_truncation_that_does_not_settle_first_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replacements, "settle", lambda self: None)
    with pytest.raises((AssertionError, KafkaError, FileNotFoundError)):
        test_a_truncation_interrupted_at_any_step_leaves_no_truncated_batch("decided", True)


def test_ablation_a_close_without_abandon_lets_a_thread_change_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Replacements, "abandon", lambda self: None)
    with pytest.raises(AssertionError):
        test_a_close_at_any_step_leaves_a_log_that_opens("begun", False)


def test_ablation_a_new_segment_that_does_not_hold_its_file_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Segment, next_offset: int) -> None:
        self.next_offset = next_offset
        self.close()

    monkeypatch.setattr(Segment, "stand_in", careless)
    with pytest.raises(KafkaError):
        test_readers_see_whole_segments_at_every_step("carried out")


def test_ablation_a_switch_before_the_decision_loses_it_in_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers would see what a crash takes back."""
    work = Work(LyingDisk())
    end = work.log.log_end_offset
    replacement = work.log.local.replacements.begin(work.old, work.new)
    with pytest.raises(ValueError, match="the replacement was withdrawn"):
        work.log.local.replacements.switch(replacement)
    monkeypatch.setattr(Replacement, "decide", lambda self: setattr(self, "stage", Stage.DECIDED))
    replacement.decide()
    work.log.local.replacements.switch(replacement)
    seen = offsets(work.log)
    work.disk.crash(Random(0))
    assert offsets(reopened(work.disk, end)) != seen
    assert not work.disk.exists(swap_path(FOLDER, work.old[0].base_offset))
