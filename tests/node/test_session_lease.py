"""The lease on leadership, in whatever order the answers to overlapping heartbeats come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations
from random import Random

import pytest
from tidegate.node.lifecycle.session_lease import AnsweredHeartbeat, Change, SessionLease

SESSION_S = 6.0


def answer(sent_at: float, index: int = 10, *, epoch: int = 1, fenced: bool = False) -> AnsweredHeartbeat:
    return AnsweredHeartbeat(sent_at, epoch, index, fenced)


def lease_with(*answers: AnsweredHeartbeat, at: float = 0.0, applied: int = 100) -> SessionLease:
    lease = SessionLease(SESSION_S, 0.0)
    for each in answers:
        lease.end_when_over(at)
        lease.answered(each, applied, at)
    return lease


@pytest.mark.parametrize("order", list(permutations((1.0, 2.0, 3.0))))
def test_the_latest_heartbeat_that_was_answered_counts_in_any_order(order: Iterable[float]) -> None:
    lease = lease_with(*(answer(sent_at) for sent_at in order), at=4.0)
    assert lease.left_s(4.0) == pytest.approx(3.0 + SESSION_S - 4.0)


def test_a_late_answer_counts_from_the_sending_of_its_heartbeat() -> None:
    lease = lease_with(answer(0.5), at=5.9)
    assert lease.left_s(5.9) == pytest.approx(0.6)
    assert not lease.holds(6.6)


def test_an_answer_that_comes_after_its_session_renews_nothing() -> None:
    lease = SessionLease(SESSION_S, 0.0)
    assert lease.end_when_over(6.5) is Change.LOST
    assert lease.answered(answer(0.4), 100, 6.5) is None
    assert not lease.holds(6.5)
    assert lease.answered(answer(0.6), 100, 6.5) is Change.REGAINED


@pytest.mark.parametrize(
    "order", list(permutations((answer(1.0, 10), answer(2.0, 20, fenced=True), answer(3.0, 15))))
)
def test_whether_it_is_fenced_goes_by_the_newest_metadata(order: Iterable[AnsweredHeartbeat]) -> None:
    assert lease_with(*order).fenced


def test_an_older_answer_does_not_bring_back_a_session_of_a_fenced_broker() -> None:
    lease = lease_with(answer(0.0))
    assert lease.end_when_over(7.0) is Change.LOST
    assert lease.answered(answer(6.9, 30, fenced=True), 100, 7.0) is None
    assert lease.answered(answer(6.8, 20), 100, 7.1) is None
    assert not lease.holds(7.1)
    assert lease.answered(answer(7.0, 31), 100, 7.2) is Change.REGAINED


def test_an_earlier_controller_is_not_listened_to_any_more() -> None:
    lease = lease_with(answer(1.0, 10, epoch=2))
    assert lease.answered(answer(3.0, 90, epoch=1, fenced=True), 100, 4.0) is None
    assert lease.left_s(4.0) == pytest.approx(3.0)
    assert not lease.fenced


def test_a_new_controller_renews_only_with_what_it_had_at_its_first_answer() -> None:
    lease = lease_with(answer(0.0))
    lease.answered(answer(1.0, 120, epoch=2), 119, 1.1)
    lease.answered(answer(2.0, 125, epoch=2), 119, 2.1)
    assert lease.left_s(2.1) == pytest.approx(SESSION_S - 2.1)
    lease.answered(answer(3.0, 130, epoch=2), 120, 3.1)
    assert lease.left_s(3.1) == pytest.approx(3.0 + SESSION_S - 3.1)


def test_after_a_silent_session_the_lease_needs_the_metadata_of_the_answer() -> None:
    """It may have fenced the broker meanwhile, also where another one still granted the lease."""
    lease = lease_with(answer(0.0, 10), applied=10)
    lease.answered(answer(1.0, 10), 10, 1.0)
    lease.end_when_over(7.5)
    assert lease.answered(answer(7.4, 50), 10, 7.5) is None
    assert lease.answered(answer(7.5, 60), 49, 7.6) is None
    assert lease.answered(answer(7.6, 60), 50, 7.7) is Change.REGAINED


def granting(sent_at: float, session_s: float, *, epoch: int = 1, index: int = 10) -> AnsweredHeartbeat:
    return AnsweredHeartbeat(sent_at, epoch, index, False, session_s)


def take(
    lease: SessionLease, answer: AnsweredHeartbeat, now: float, applied: int = 100
) -> tuple[Change | None, Change | None]:
    """As the broker takes every answer."""
    lease.shorten(answer)
    return lease.end_when_over(now), lease.answered(answer, applied, now)


@pytest.mark.parametrize(
    ("sessions", "ends_at"),
    [
        ((6.0, 6.0), 2.0 + 6.0),
        ((6.0, 2.0), 2.0 + 2.0),
        ((6.0, 60.0), 2.0 + 6.0),  # no longer than the registration allowed
        ((2.0, 4.0), 2.0 + 4.0),
        ((2.0, 60.0), 2.0 + 6.0),
        ((0.0, 0.0), 2.0 + 6.0),  # controllers of an older version do not say
        ((2.0, 0.0), 2.0 + 2.0),
        ((6.0, -5.0), 2.0 + 6.0),
    ],
)
def test_the_lease_goes_by_the_session_of_the_controller_that_answers(
    sessions: tuple[float, float], ends_at: float
) -> None:
    lease = SessionLease(SESSION_S, 0.0)
    take(lease, granting(1.0, sessions[0], epoch=1), 1.1)
    take(lease, granting(2.0, sessions[1], epoch=2), 2.1)
    assert lease.left_s(2.1) == pytest.approx(ends_at - 2.1)


def test_a_new_controllers_shorter_session_ends_the_former_ones_grant() -> None:
    """It counts by its own, also where its answer renews nothing yet, because its metadata is not applied
    here."""
    lease = lease_with(answer(1.0), at=1.1)
    assert take(lease, granting(1.5, 2.0, epoch=2, index=120), 1.6, applied=119) == (None, None)
    assert lease.holds(2.9)
    assert not lease.holds(3.1)
    assert take(lease, granting(3.2, 2.0, epoch=2, index=130), 3.3, applied=119) == (Change.LOST, None)
    assert take(lease, granting(3.3, 2.0, epoch=2, index=140), 3.4, applied=120) == (None, Change.REGAINED)
    assert lease.holds(5.2)
    assert not lease.holds(5.4)


def test_after_a_silence_of_the_shorter_session_newer_metadata_is_needed() -> None:
    """The controller may have fenced the broker by then."""
    lease = lease_with(answer(0.5), at=0.6)
    take(lease, granting(1.0, 2.0, epoch=2, index=50), 1.1, applied=49)
    assert take(lease, granting(3.4, 2.0, epoch=2, index=60), 3.5, applied=50) == (Change.LOST, None)
    assert take(lease, granting(3.5, 2.0, epoch=2, index=70), 3.6, applied=60) == (None, Change.REGAINED)


def test_a_longer_session_brings_back_no_expired_lease() -> None:
    lease = SessionLease(SESSION_S, 0.0)
    take(lease, granting(1.0, 2.0), 1.1)
    assert take(lease, granting(3.5, 6.0, epoch=2, index=120), 3.6, applied=119) == (Change.LOST, None)
    assert not lease.holds(3.6)
    assert take(lease, granting(3.6, 6.0, epoch=2, index=120), 3.7, applied=120) == (None, Change.REGAINED)
    assert lease.left_s(3.7) == pytest.approx(3.6 + 6.0 - 3.7)


def test_a_longer_session_counts_from_a_heartbeat_of_its_controller() -> None:
    lease = SessionLease(SESSION_S, 0.0)
    take(lease, granting(2.0, 2.0), 2.1)
    take(lease, granting(1.0, 6.0, epoch=2), 2.2)
    assert lease.left_s(2.2) == pytest.approx(2.0 + 2.0 - 2.2)


def test_the_session_of_a_deposed_controller_is_not_taken() -> None:
    lease = SessionLease(SESSION_S, 0.0)
    take(lease, granting(1.0, 2.0, epoch=2), 1.1)
    take(lease, granting(1.2, 6.0, epoch=1), 1.3)
    assert not lease.holds(3.1)
    take(lease, granting(1.4, 0.1, epoch=1), 1.5)
    assert lease.holds(2.9)


@dataclass
class Rules:
    """A model of the controller: it fences after a session of silence; what it then elects stands in the
    metadata."""

    heard_at: float = 0.0
    index: int = 1
    fenced: bool = False
    fenced_index: int = 0

    def tick(self, now: float) -> None:
        if not self.fenced and now - self.heard_at > SESSION_S:
            self.index += 1
            self.fenced, self.fenced_index = True, self.index

    def hear(self, sent_at: float, now: float) -> AnsweredHeartbeat:
        self.heard_at = now
        if self.fenced:
            self.index += 1
            self.fenced = False
        return answer(sent_at, self.index)


@pytest.mark.parametrize("seed", range(40))
def test_no_broker_holds_the_lease_without_knowing_of_its_fencing(seed: int) -> None:
    """Heartbeats and answers last up to two sessions, and may be lost; the holder of the lease has applied
    every fencing so far."""
    found = history(Random(seed), count_from_arrival=False)
    assert found is None, found


def test_counting_from_the_arrival_of_an_answer_breaks_the_lease() -> None:
    assert any(history(Random(seed), count_from_arrival=True) for seed in range(40))


def history(random: Random, *, count_from_arrival: bool) -> str | None:
    lease, controller = SessionLease(SESSION_S, 0.0), Rules()
    to_controller: list[tuple[float, float]] = []
    to_broker: list[tuple[float, AnsweredHeartbeat]] = []
    applied, quiet_until = 1, 0.0

    def delay() -> float:
        return random.choice((0.01, 0.3, 2.0, 2 * SESSION_S)) * random.random()

    for step in range(2000):
        now = step * 0.1
        if random.random() < 0.01:
            quiet_until = now + 2 * SESSION_S * random.random()
        if step % 10 == 0 and now >= quiet_until and random.random() < 0.9:
            to_controller.append((now + delay(), now))
        for due in sorted(each for each in to_controller if each[0] <= now):
            to_controller.remove(due)
            to_broker.append((now + delay(), controller.hear(due[1], now)))
        controller.tick(now)
        if random.random() < 0.1:
            applied = random.randint(applied, controller.index)
        lease.end_when_over(now)
        for due_at, each in sorted((pair for pair in to_broker if pair[0] <= now), key=lambda pair: pair[0]):
            to_broker.remove((due_at, each))
            seen = (
                AnsweredHeartbeat(now, each.controller_epoch, each.metadata_index, each.fenced)
                if count_from_arrival
                else each
            )
            lease.answered(seen, applied, now)
        if lease.holds(now) and applied < controller.fenced_index:
            return f"{now:.1f} s: it holds the lease, and has not applied its fencing"
    return None
