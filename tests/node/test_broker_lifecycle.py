"""The session is the lease on leadership: it ends here before it ends at the controller, and comes back with
a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.remote.metadata_follower import SILENCE_S_MAX
from tidegate.controller.service.service import keep_alive_s
from tidegate.node.lifecycle.broker_lifecycle import (
    EARLY_IN_FLIGHT_MAX,
    EARLY_S_MIN,
    IN_FLIGHT_MAX,
    BrokerLifecycle,
    metadata_silence_s,
)
from tidegate.proto import controller_pb2 as pb
from tidegate.runtime.clock import ManualClock
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

SESSION_S = 6.0


class Controller:
    """Answers heartbeats as the test says; `gate` holds answers back."""

    def __init__(self) -> None:
        self.requests: list[pb.HeartbeatRequest] = []
        self.answer: pb.HeartbeatReply | Exception = pb.HeartbeatReply(fenced=False)
        self.gate = asyncio.Event()
        self.gate.set()

    async def register_broker(self, request: Any, timeout_s: float) -> pb.RegisterBrokerReply:
        return pb.RegisterBrokerReply(
            broker_epoch=7, cluster_id="test", session_timeout_ms=int(SESSION_S * 1000)
        )

    async def heartbeat(
        self, request: pb.HeartbeatRequest, timeout_s: float, patience_s: float
    ) -> pb.HeartbeatReply:
        self.requests.append(request)
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Watched:
    """A lifecycle, and the parts of its broker: none but notices."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.controller = Controller()
        self.notices: list[str] = []
        self.applied_index = 42
        self.lifecycle = BrokerLifecycle(
            3,
            cast(ControllerClient, self.controller),
            self.clock,
            session_timeout_s=60.0,
            heartbeat_interval_s=0.01,
            applied_index=lambda: self.applied_index,
            on_superseded=lambda reason: self.notices.append(f"superseded: {reason}"),
        )

    def suspend_leadership(self, reason: str) -> None:
        self.notices.append("lost")

    def resume_leadership(self) -> None:
        self.notices.append("regained")

    def offline_replicas(self) -> Iterable[tuple[bytes, int]]:
        return ()

    damaged_replicas = offline_replicas

    def pin_reports(self) -> dict[str, str]:
        return {}

    async def until(self, notices: str) -> None:
        await eventually(lambda: self.notices and self.notices[-1].startswith(notices))

    async def beats(self, count: int = 2) -> None:
        """That many further heartbeats were sent."""
        wanted = len(self.controller.requests) + count
        await eventually(lambda: len(self.controller.requests) >= wanted)

    async def pass_time(self, seconds: float) -> None:
        """Lets the watcher see time pass in small steps."""
        for _ in range(int(seconds / 0.1)):
            self.clock.advance(0.1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    found = Watched()
    await found.lifecycle.register(pb.RegisterBrokerRequest(), 1.0)
    found.lifecycle.start(found, found)
    async with asyncio.timeout(10):
        await found.lifecycle.unfenced.wait()
    yield found
    await found.lifecycle.stop()


async def test_registration_takes_the_epoch_and_the_shorter_session(watched: Watched) -> None:
    assert watched.lifecycle.broker_epoch == 7
    watched.controller.answer = KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut off")
    await watched.beats()
    await watched.pass_time(SESSION_S + 0.2)
    await watched.until("lost")


async def test_a_heartbeat_carries_the_broker_id_epoch_and_metadata_index(watched: Watched) -> None:
    await watched.beats(1)
    last = watched.controller.requests[-1]
    assert (last.node_id, last.broker_epoch, last.applied_index, last.wants_shutdown) == (3, 7, 42, False)


async def test_a_lost_session_suspends_leadership_until_the_next_answer(watched: Watched) -> None:
    watched.controller.answer = KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut off")
    await watched.beats()
    await watched.pass_time(SESSION_S - 0.5)
    assert watched.notices == []
    await watched.pass_time(1.0)
    await watched.until("lost")
    await watched.pass_time(5.0)
    assert watched.notices == ["lost"]
    watched.controller.answer = pb.HeartbeatReply(fenced=False)
    await watched.until("regained")
    assert watched.notices == ["lost", "regained"]


async def test_a_broker_whose_heartbeats_end_by_a_defect_ends(watched: Watched) -> None:
    """It would be fenced for good, and serve nothing, while a supervisor sees its process run."""
    watched.controller.answer = ValueError("a defect")
    await watched.until("superseded: its heartbeats failed")


async def test_a_process_that_slept_holds_no_session_even_before_its_timers_run(watched: Watched) -> None:
    """Requests that came meanwhile are served first: the lease goes by the clock, not by the task that
    noticed its end."""
    assert watched.lifecycle.holds_session
    watched.clock._now += SESSION_S + 1
    assert not watched.lifecycle.holds_session
    assert watched.notices == []
    # a heartbeat that is answered renews the session, but not without having ended it first
    await watched.beats()
    await watched.until("regained")
    assert watched.notices == ["lost", "regained"]
    assert watched.lifecycle.holds_session


async def test_leadership_comes_back_only_with_the_controllers_metadata(watched: Watched) -> None:
    """A node that was paused would lead again by elections that are over."""
    watched.controller.answer = KafkaError(ErrorCode.NETWORK_EXCEPTION, "paused")
    await watched.beats()
    await watched.pass_time(SESSION_S + 0.2)
    await watched.until("lost")
    watched.controller.answer = pb.HeartbeatReply(fenced=False, metadata_index=50)
    await watched.beats(3)
    # it goes on; the first answer counts
    watched.controller.answer = pb.HeartbeatReply(fenced=False, metadata_index=60)
    watched.applied_index = 49
    await watched.beats(3)
    assert watched.notices == ["lost"]
    watched.applied_index = 50
    await watched.until("regained")


async def test_a_new_controller_renews_no_session_before_its_metadata_is_here(watched: Watched) -> None:
    """It may have fenced this broker, and had others elected, while a deposed one that did not know it
    answered all the while."""
    watched.controller.answer = pb.HeartbeatReply(status=pb.Status(controller_epoch=2), metadata_index=50)
    await watched.beats(3)
    assert watched.notices == [], "what the former controller granted is good until it ends"
    await watched.pass_time(SESSION_S + 0.2)
    await watched.until("lost")
    await watched.beats(3)
    assert watched.notices == ["lost"]
    watched.applied_index = 50
    await watched.until("regained")
    watched.controller.answer = pb.HeartbeatReply(status=pb.Status(controller_epoch=2), metadata_index=60)
    for _ in range(int(2 * SESSION_S)):  # what it does from now on it does after a session of silence
        await watched.beats(1)
        await watched.pass_time(1.0)
    assert watched.notices == ["lost", "regained"]


def test_a_silent_metadata_stream_is_closed_before_the_session_ends() -> None:
    """A controller that stands still takes its stream along: the next one's metadata must not come too late
    for the session."""
    for session_s in (2.0, 3.0, 6.0, 9.0, 60.0):
        silence_s = metadata_silence_s(session_s)
        assert 3 * keep_alive_s(session_s) <= silence_s <= min(SILENCE_S_MAX, 0.75 * session_s)


async def test_a_session_lost_again_needs_newer_metadata(watched: Watched) -> None:
    """There may have been elections again: what the controller had at the first answer does not count any
    more."""
    cut_off = KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut off")
    watched.controller.answer = cut_off
    await watched.beats()
    await watched.pass_time(SESSION_S + 0.2)
    await watched.until("lost")
    watched.controller.answer = pb.HeartbeatReply(fenced=False, metadata_index=50)
    await watched.beats(3)
    watched.controller.answer = cut_off
    await watched.beats()
    await watched.pass_time(SESSION_S + 0.2)
    watched.controller.answer = pb.HeartbeatReply(fenced=False, metadata_index=60)
    watched.applied_index = 50
    await watched.beats(3)
    assert watched.notices == ["lost"]
    watched.applied_index = 60
    await watched.until("regained")


async def test_a_fenced_broker_does_not_get_its_leadership_back(watched: Watched) -> None:
    watched.controller.answer = KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut off")
    await watched.beats()
    await watched.pass_time(SESSION_S + 0.2)
    await watched.until("lost")
    watched.controller.answer = pb.HeartbeatReply(fenced=True)
    await watched.beats(3)
    assert watched.notices == ["lost"]
    assert not watched.lifecycle.unfenced.is_set()


async def test_the_session_counts_from_the_sending_of_the_heartbeat(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller's clock started no later than when it was sent."""
    sent, answer_now = asyncio.Event(), asyncio.Event()

    async def refuse(request: pb.HeartbeatRequest, timeout_s: float, patience_s: float) -> pb.HeartbeatReply:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut off")

    async def answer_late(
        request: pb.HeartbeatRequest, timeout_s: float, patience_s: float
    ) -> pb.HeartbeatReply:
        sent.set()
        await answer_now.wait()
        monkeypatch.setattr(watched.controller, "heartbeat", refuse)
        return pb.HeartbeatReply(fenced=False)

    monkeypatch.setattr(watched.controller, "heartbeat", answer_late)
    async with asyncio.timeout(10):
        await sent.wait()
    await watched.pass_time(SESSION_S - 0.5)
    answer_now.set()
    await asyncio.sleep(0.02)
    assert watched.notices == []
    await watched.pass_time(1.0)
    await asyncio.sleep(0.02)
    assert watched.notices == ["lost"]


async def test_heartbeats_go_out_on_time_while_others_wait_for_their_answers(watched: Watched) -> None:
    watched.controller.gate.clear()
    await watched.beats(5)
    numbers = [request.number for request in watched.controller.requests]
    assert numbers == sorted(set(numbers))
    assert watched.lifecycle.in_flight >= 4
    watched.controller.gate.set()
    await watched.beats(2)
    assert watched.lifecycle.in_flight <= 2


async def test_of_too_many_heartbeats_without_an_answer_the_oldest_is_given_up(watched: Watched) -> None:
    watched.controller.gate.clear()
    await watched.beats(IN_FLIGHT_MAX + 5)
    assert watched.lifecycle.in_flight <= IN_FLIGHT_MAX
    assert watched.notices == []
    watched.controller.gate.set()
    await watched.beats(2)


async def test_a_controller_that_answers_late_costs_no_session(watched: Watched) -> None:
    """Each answer takes four fifths of a session: with one heartbeat at a time the lease would end between
    two of them."""
    answers: list[asyncio.Future[None]] = []

    async def late(request: pb.HeartbeatRequest, timeout_s: float, patience_s: float) -> pb.HeartbeatReply:
        due = asyncio.get_running_loop().create_future()
        answers.append(due)
        watched.clock.call_later(0.8 * SESSION_S, lambda: due.done() or due.set_result(None))  # type: ignore[arg-type]
        await due
        return pb.HeartbeatReply(fenced=False)

    watched.controller.heartbeat = late
    for _ in range(60):
        sent = len(answers)
        await eventually(lambda sent=sent: len(answers) != sent)  # type: ignore[misc]
        await watched.pass_time(0.5)
    assert watched.notices == []


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.DUPLICATE_BROKER_REGISTRATION])
async def test_a_newer_life_of_this_node_ends_this_one(watched: Watched, code: ErrorCode) -> None:
    watched.controller.answer = KafkaError(code, "a newer incarnation is registered")
    await watched.until("superseded")


async def test_a_new_controllers_shorter_session_is_the_lease_at_once(watched: Watched) -> None:
    """Its metadata is not here yet, so it renews nothing: what the former controller granted ends by the
    shorter session."""
    status = pb.Status(controller_epoch=2)
    watched.controller.answer = pb.HeartbeatReply(status=status, metadata_index=50, session_timeout_ms=2000)
    short = watched.controller.answer
    await watched.beats(3)
    watched.controller.answer = KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut off")
    await watched.beats(2)
    await watched.pass_time(2.2)
    await watched.until("lost")
    assert watched.clock.monotonic() < SESSION_S / 2
    watched.applied_index, watched.controller.answer = 50, short
    await watched.until("regained")


async def test_early_heartbeats_never_flood_the_controller(watched: Watched) -> None:
    """However often it is asked for: no two heartbeats within the least pause (here the interval, by a clock
    that stands), and none that takes the place of one that could still renew the session."""
    watched.lifecycle._interval_s = 3600.0
    watched.controller.gate.clear()
    await asyncio.sleep(0.03)
    before = len(watched.controller.requests)
    for _ in range(3000):
        watched.lifecycle.heartbeat_soon()
        await asyncio.sleep(0)
    assert len(watched.controller.requests) - before <= 1
    for _ in range(2 * EARLY_IN_FLIGHT_MAX):
        watched.lifecycle.heartbeat_soon()
        await asyncio.sleep(0.01)
        watched.clock.advance(EARLY_S_MIN)
        watched.lifecycle.heartbeat_soon()
        await asyncio.sleep(0.01)
    assert EARLY_IN_FLIGHT_MAX - 1 <= watched.lifecycle.in_flight <= EARLY_IN_FLIGHT_MAX
    watched.controller.gate.set()
    await eventually(lambda: not watched.lifecycle.in_flight)
    before = len(watched.controller.requests)
    watched.lifecycle.heartbeat_soon()
    watched.clock.advance(EARLY_S_MIN)
    watched.lifecycle.heartbeat_soon()
    await watched.beats(1)


async def test_any_other_error_is_survived(watched: Watched) -> None:
    watched.controller.answer = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "odd")
    await watched.beats(3)
    assert watched.notices == []


class TestLeaving:
    """The controlled shutdown."""

    async def test_the_controlled_shutdown_ends_when_the_controller_says_so(self, watched: Watched) -> None:
        leaving = asyncio.create_task(watched.lifecycle.leave(30))
        await watched.beats(2)
        assert watched.controller.requests[-1].wants_shutdown
        assert not leaving.done()
        watched.controller.answer = pb.HeartbeatReply(fenced=True, should_shutdown=True)
        assert await asyncio.wait_for(leaving, 10) is True

    async def test_it_gives_up_after_its_time(self, watched: Watched) -> None:
        watched.clock.advance(0)
        leaving = asyncio.create_task(watched.lifecycle.leave(0.05))
        await asyncio.sleep(0.02)
        watched.clock.advance(0.1)
        assert await asyncio.wait_for(leaving, 10) is False

    async def test_a_controller_that_is_silent_for_a_session_is_not_waited_for(
        self, watched: Watched
    ) -> None:
        watched.controller.answer = KafkaError(ErrorCode.NETWORK_EXCEPTION, "no quorum")
        await watched.beats()
        watched.lifecycle._lease.session_s = 0.05
        leaving = asyncio.create_task(watched.lifecycle.leave(3600))
        await asyncio.sleep(0.02)
        watched.clock.advance(1.0)
        assert await asyncio.wait_for(leaving, 10) is False
