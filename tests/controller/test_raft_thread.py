"""The quorum member's thread: what it hears first after it stood still, and that it forgives others what was
its own absence."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.controller.raft import thread as module
from tidegate.controller.raft.contract import RaftTimings, Role
from tidegate.controller.raft.failure import RaftFatal
from tidegate.controller.raft.messages import AppendEntries, VoteRequest
from tidegate.controller.raft.thread import Inspect, RaftThread, Stop, in_order
from tidegate.controller.raft.transport import PeerUp, Received

LEADERS_NEWS = Received(1, 1, AppendEntries(3, 1, 7, 3, ()))
MAY_I_STAND = Received(2, 1, VoteRequest(4, 7, 3, preliminary=True))
VOTE_FOR_ME = Received(2, 1, VoteRequest(4, 7, 3, preliminary=False))


def test_a_paused_voter_handles_the_leaders_frames_before_pre_votes() -> None:
    assert in_order([PeerUp(2, 1), MAY_I_STAND, LEADERS_NEWS]) == [PeerUp(2, 1), LEADERS_NEWS, MAY_I_STAND]


def test_all_else_is_handled_as_it_came() -> None:
    came = [VOTE_FOR_ME, LEADERS_NEWS, PeerUp(2, 2), LEADERS_NEWS]
    assert in_order(came) == came  # type: ignore[arg-type]


class Core:
    """Counts its ticks."""

    def __init__(self, role: Role = Role.FOLLOWER) -> None:
        self.role, self.term = role, 3
        self.timings = RaftTimings()
        self.calls: list[str] = []
        self.fails = False
        self.lost_leader = False

    def sync(self) -> None:
        self.calls.append("sync")

    def tick(self) -> bool:
        if self.fails:
            raise RaftFatal("no")
        self.calls.append("tick")
        return False

    def validate(self) -> None:
        raise AssertionError("commit 7, last 5")

    def seconds_to_wake(self) -> float:
        return 3600.0

    def close(self) -> None:
        self.calls.append("close")


class Alarmed:
    """A thread's loop with a manual clock; `alarms` has its timers."""

    def __init__(self, core: Core) -> None:
        self.now = 100.0
        self.alarms: list[SimpleNamespace] = []
        self.thread = RaftThread(core, lambda _reason: None)  # type: ignore[arg-type]
        self.thread._loop = self  # type: ignore[assignment]
        self.thread._sleep(0.5)

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, callback: Any) -> SimpleNamespace:
        self.alarms.append(SimpleNamespace(when=lambda: due, cancel=lambda: None, callback=callback))
        return self.alarms[-1]

    def call_soon(self, callback: Any) -> None:
        callback()

    def call_soon_threadsafe(self, callback: Any) -> None:
        callback()

    def ring(self, late_s: float) -> None:
        alarm = self.alarms.pop()
        self.now = alarm.when() + late_s
        alarm.callback()


def test_a_paused_follower_waits_for_two_heartbeats_before_an_election() -> None:
    core = Core()
    alarmed = Alarmed(core)
    alarmed.ring(late_s=0.4)
    assert core.calls == []
    assert alarmed.alarms[-1].when() == alarmed.now + 2 * core.timings.heartbeat_s


def test_a_late_follower_waits_only_once_before_an_election() -> None:
    core = Core()
    alarmed = Alarmed(core)
    alarmed.ring(late_s=0.4)
    alarmed.ring(late_s=0.4)
    assert core.calls == ["sync", "tick"]


def test_a_follower_on_time_starts_its_election_at_once() -> None:
    core = Core()
    Alarmed(core).ring(late_s=0.001)
    assert core.calls == ["sync", "tick"]


def test_a_follower_that_lost_the_leaders_connection_does_not_wait() -> None:
    core = Core()
    core.lost_leader = True
    Alarmed(core).ring(late_s=0.4)
    assert core.calls == ["sync", "tick"]


def test_a_leader_that_stood_still_sends_its_heartbeat_at_once() -> None:
    core = Core(Role.LEADER)
    Alarmed(core).ring(late_s=0.4)
    assert core.calls == ["sync", "tick"]


def test_a_received_frame_lets_a_late_follower_wait_again() -> None:
    core = Core()
    alarmed = Alarmed(core)
    alarmed.ring(late_s=0.4)
    alarmed.thread.post(Inspect(lambda _core: None))
    core.calls.clear()
    alarmed.ring(late_s=0.4)
    assert core.calls == []


def test_ablation_a_paused_follower_starts_an_election_as_it_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_S", 3600.0)
    core = Core()
    Alarmed(core).ring(late_s=0.4)
    assert core.calls == ["sync", "tick"]


async def started(core: Core, died: list[str]) -> RaftThread:
    thread = RaftThread(core, died.append)  # type: ignore[arg-type]
    thread.start()
    return thread


async def test_events_of_any_thread_run_on_the_raft_thread_until_stop() -> None:
    core, died = Core(), list[str]()
    thread = await started(core, died)
    ran_on: list[int] = []
    thread.post(Inspect(lambda _core: ran_on.append(threading.get_ident())))
    where = await asyncio.wrap_future(thread.run(_ident()))
    thread.post(Stop())
    assert await asyncio.to_thread(thread.join, 10.0)
    assert ran_on == [where] != [threading.get_ident()]
    assert core.calls[-1] == "close"
    assert not died
    assert thread.post(Stop()), "the thread has ended, and the poster need not know"


async def test_a_broken_rule_ends_the_process_and_nothing_is_synced_after_it() -> None:
    core, died = Core(), list[str]()
    core.fails = True
    thread = await started(core, died)
    assert await asyncio.to_thread(thread.join, 10.0)
    assert died == ["the metadata quorum member failed: no"]
    assert core.calls == ["sync"]


async def test_with_validation_a_broken_invariant_ends_the_process() -> None:
    core, died = Core(), list[str]()
    thread = RaftThread(core, died.append, validate=True)  # type: ignore[arg-type]
    thread.start()
    assert await asyncio.to_thread(thread.join, 10.0)
    assert died == ["the metadata quorum member failed: commit 7, last 5"]
    assert core.calls == ["sync", "tick"]


async def _ident() -> int:
    return threading.get_ident()
