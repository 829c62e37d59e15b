"""The harness' view of a running workload: which client commits, and for how long no client does."""

from __future__ import annotations

import asyncio

from tidegate.chaos.load.progress import Commit, Progress


def commit(name: str, at: float) -> Commit:
    return Commit("p", name, frozenset(), at, at)


async def test_a_commit_of_the_past_is_found_at_once() -> None:
    progress = Progress()
    progress.committed(commit("a", 1))
    progress.committed(commit("b", 2))
    found = await progress.first(lambda c: c.acknowledged > 1, timeout_s=0)
    assert found is not None
    assert found.transactional_id == "b"


async def test_every_waiter_gets_the_commit_that_it_waits_for() -> None:
    progress = Progress()
    waiters = [asyncio.create_task(progress.first(lambda c, n=n: c.transactional_id == n, 30)) for n in "abc"]  # type: ignore[misc]
    await asyncio.sleep(0)
    for name in "cab":
        progress.committed(commit(name, 1))
        await asyncio.sleep(0)
    found = await asyncio.gather(*waiters)
    assert [c.transactional_id for c in found if c is not None] == ["a", "b", "c"]


async def test_first_gives_none_after_its_timeout() -> None:
    assert await Progress().first(lambda _: True, timeout_s=0) is None


def test_the_longest_pause_counts_the_edges_of_the_time_that_is_looked_at() -> None:
    progress = Progress()
    for at in (0.5, 1, 2, 6, 7):
        progress.committed(commit("a", at))
    assert progress.longest_pause_s(0, 8) == 4
    assert progress.longest_pause_s(6, 20) == 13
    assert progress.longest_pause_s(8, 9) == 1


def test_disturbances_are_bounded_and_all_are_counted() -> None:
    progress = Progress()
    for number in range(1500):
        progress.disturbance(str(number))
    assert (len(progress.disturbances), progress.disturbed) == (1000, 1500)


def test_pauses_of_one_client_are_counted_apart_over_all_its_lives() -> None:
    progress = Progress()
    for at in (1, 2, 3, 4):
        progress.acknowledged("writer-0/1", at - 0.5, at)
    progress.acknowledged("plain-0/1", 0.5, 1)
    progress.acknowledged("plain-0/2", 3, 3.5)
    assert progress.longest_pause_s(0, 5) == 1
    assert progress.longest_client_pause_s(0, 5) == 2.5


def test_what_was_begun_before_or_acknowledged_after_is_not_between() -> None:
    progress = Progress()
    for invoked, acknowledged in ((1.0, 3.0), (2.0, 3.0), (2.5, 4.5)):
        progress.acknowledged("plain-0/1", invoked, acknowledged)
    assert [ack.invoked for ack in progress.between(1.5, 4)] == [2.0]
