"""Every wait for a flush: what it holds back, that a flush ends it, and what a truncation leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.durability.waits import Waits
from tidegate.storage.log.counting import count_now
from tidegate.storage.log.log import Log

from .workload import append, batch, open_log


class Wait(NamedTuple):
    """How one begins in a log that is flushed, and whether it holds back the recovery point; the flushed end
    waits for no batch then."""

    begin: Callable[[Log], object]
    holds_back: bool


def remove_unflushed(log: Log) -> None:
    append(log, batch(3, size=300))
    log.roll()
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(log.log_end_offset)


def lose_counts(log: Log) -> None:
    first = log.segments[0]
    log.local.disk.remove(first.path("countindex"))
    first.counts_are_durable()
    assert count_now(log, 0, first.next_offset - 1) == first.next_offset - 1


WAITS = {
    "complete": Wait(Log.roll, True),
    "derived": Wait(Log.roll, True),
    "epochs_from": Wait(lambda log: log.assign_epoch(9, log.log_end_offset - 1), True),
    "rebuilt_counts": Wait(lose_counts, False),
    "removed_unflushed": Wait(remove_unflushed, False),
    "folder_changed": Wait(Log.roll, True),
}


def waiting(log: Log) -> dict[str, object]:
    found = {each.name: getattr(log.local.durability.waits, each.name) for each in fields(Waits)}
    return {name: wait for name, wait in found.items() if wait or (wait == 0 and wait is not False)}


def flushed() -> Log:
    log = open_log(LyingDisk())
    for _ in range(8):
        append(log, batch(3, size=300))
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    assert not waiting(log)
    assert log.recovery_point == log.flushed_end_offset == log.log_end_offset
    return log


def test_every_wait_is_played() -> None:
    assert WAITS.keys() == {each.name for each in fields(Waits)}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_holds_back_what_it_should_until_a_flush_ends_it(name: str) -> None:
    log = flushed()
    WAITS[name].begin(log)
    assert name in waiting(log)
    assert (log.recovery_point < log.flushed_end_offset) == WAITS[name].holds_back
    log.flush_now()
    assert not waiting(log)
    assert log.recovery_point == log.flushed_end_offset == log.log_end_offset


@pytest.mark.parametrize("name", WAITS)
def test_a_truncation_leaves_no_wait_for_what_is_gone(name: str) -> None:
    log = flushed()
    WAITS[name].begin(log)
    log.truncate_fully_and_start_at(100)
    assert waiting(log).keys() <= {"folder_changed", "removed_unflushed"}
    append(log, batch(3))
    log.flush_now()
    assert not waiting(log)
    log.validate(whole=True)
