"""The loop's time is shared: a turn is bounded for any number of waiting accounts, and an account that has
used little goes first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.runtime.turns import Account, FairQueue, LoopTurns


class Served:
    """A fair queue whose accounts always want more, until `work` of them is used up; by name."""

    def __init__(self, **work: list[float]) -> None:
        self.queue = FairQueue()
        self.accounts = {name: self.queue.account() for name in work}
        self.work = work
        self.now = 0.0
        self.order: list[str] = []
        self.done_at: dict[str, list[float]] = {name: [] for name in work}
        for name in work:
            self.want(name)

    def want(self, name: str) -> None:
        if self.work[name]:
            self.queue.push(self.queue.tag(self.accounts[name]), lambda: self.serve(name))

    def serve(self, name: str) -> None:
        cost = self.work[name].pop(0)
        self.order.append(name)
        self.now += cost
        self.queue.charge(self.accounts[name], cost)
        self.done_at[name].append(self.now)
        self.want(name)

    def run(self, steps: int = 10**6) -> None:
        while self.queue and steps:
            self.queue.pop()()
            steps -= 1


def test_equal_work_is_done_in_rotation() -> None:
    served = Served(a=[1.0] * 3, b=[1.0] * 3, c=[1.0] * 3)
    served.run()
    assert "".join(served.order) == "abcabcabc"


def test_small_work_does_not_wait_behind_anothers_large_work() -> None:
    served = Served(large=[10.0] * 5, small=[1.0] * 10)
    served.run(12)
    assert served.order == ["large", *["small"] * 10, "large"]


def test_an_idle_account_goes_first_until_its_credit_is_used_up() -> None:
    served = Served(a=[0.01] * 100, b=[0.01] * 100, idle=[])
    served.run(50)
    served.work["idle"] = [0.01] * 100
    served.want("idle")
    served.run(30)
    after = served.order[50:]
    assert after[:2] == ["idle", "idle"]
    assert 11 <= after.count("idle") <= 13, (
        "a third of the turns, and two for the credit, whatever it did not use before"
    )


def test_a_new_account_takes_its_place_in_the_rotation() -> None:
    served = Served(a=[0.01] * 100, b=[0.01] * 100)
    served.run(50)
    served.accounts["new"], served.done_at["new"] = served.queue.account(), []
    served.work["new"] = [0.01] * 100
    served.want("new")
    served.run(30)
    assert 9 <= served.order[50:].count("new") <= 11


def test_time_used_while_no_account_waited_costs_nothing() -> None:
    queue = FairQueue()
    busy = queue.account()
    for _ in range(1000):
        queue.charge(busy, 1.0)
    assert queue.tag(busy) < queue.tag(queue.account()), "only the order of arrival counts"


@given(costs=st.lists(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30), min_size=2, max_size=6))
@settings(max_examples=100, deadline=None)
def test_two_busy_accounts_get_the_same_up_to_one_piece_each(costs: list[list[float]]) -> None:
    """Goyal, Vin, Cheng, theorem 1: the difference of what two got is bounded by the largest pieces of
    both."""
    served = Served(**{f"n{at}": [*own] for at, own in enumerate(costs)})
    largest = {f"n{at}": max(own) for at, own in enumerate(costs)}
    used = dict.fromkeys(largest, 0.0)
    left = {f"n{at}": [*own] for at, own in enumerate(costs)}
    while all(left.values()) and served.queue:
        before = len(served.order)
        served.queue.pop()()
        name = served.order[before]
        used[name] += left[name].pop(0)
        for a in used:
            for b in used:
                assert abs(used[a] - used[b]) <= largest[a] + largest[b] + 1e-6


# ---- on a loop ---------------------------------------------------------------------------------------------


class Clock:
    """Seconds that only work uses up."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Crowd:
    """Tasks that each do pieces of work of a millisecond; what each round of the loop took."""

    def __init__(self, turns: LoopTurns, clock: Clock) -> None:
        self.turns = turns
        self.clock = clock
        self.rounds: list[float] = [0.0]
        self.done: list[str] = []
        self.running = True
        self._wanted: tuple[int, asyncio.Event] | None = None
        asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self.rounds.append(0.0)
        if self.running:
            asyncio.get_running_loop().call_soon(self._round)

    async def member(
        self, name: str, pieces: int, cost: float = 0.001, account: Account | None = None
    ) -> None:
        account = account or self.turns.account()
        for _ in range(pieces):
            if not self.turns.admits():
                await self.turns.wait(account)
            begun = self.turns.begin()
            self.clock.now += cost
            self.rounds[-1] += cost
            self.done.append(name)
            if self._wanted is not None and len(self.done) >= self._wanted[0]:
                self._wanted[1].set()
            self.turns.end(account, begun)

    async def has_done(self, pieces: int) -> None:
        self._wanted = (pieces, asyncio.Event())
        if len(self.done) < pieces:
            await self._wanted[1].wait()


@pytest.mark.parametrize("members", [1, 7, 300])
async def test_a_turn_is_bounded_over_all_accounts(members: int) -> None:
    clock = Clock()
    turns = LoopTurns(clock, 0.004, cpu=clock)
    crowd = Crowd(turns, clock)
    await asyncio.gather(*(crowd.member(f"m{number}", 20) for number in range(members)))
    crowd.running = False
    assert max(crowd.rounds) <= 0.004 + 0.001 + 1e-9
    assert len(crowd.done) == 20 * members
    assert turns.waiting_count == 0


@pytest.mark.parametrize(("is_new", "within"), [(False, 16), (True, 300 + 16)])
async def test_an_occasional_writer_does_not_wait_for_the_busy_ones(is_new: bool, within: int) -> None:
    """Sixteen: four turns of four.  A new account waits for one piece of each."""
    clock = Clock()
    turns = LoopTurns(clock, 0.004, cpu=clock)
    account = turns.account()
    crowd = Crowd(turns, clock)
    tasks = [asyncio.create_task(crowd.member(f"m{number}", 50)) for number in range(300)]
    await crowd.has_done(2000)
    for _ in range(10):
        before = len(crowd.done)
        await crowd.member("one", 1, account=turns.account() if is_new else account)
        assert crowd.done[before:].index("one") <= within
        await crowd.has_done(before + 1000)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    crowd.running = False


@pytest.mark.parametrize("waiters", [1, 3])
@pytest.mark.parametrize("others_s", [0.002, 0.006, 0.05])
async def test_a_waiting_account_proceeds_on_a_busy_loop(others_s: float, waiters: int) -> None:
    """Replication, timers and flushes take no turns, and a starved process stands still in the middle of a
    round."""
    clock = Clock()
    turns = LoopTurns(clock, 0.004, cpu=clock)
    loop = asyncio.get_running_loop()
    rounds, tasks = 0, list[asyncio.Task[None]]()

    def everything_else() -> None:
        nonlocal rounds
        rounds += 1
        clock.now += others_s
        if rounds < 50 and not all(task.done() for task in tasks):
            loop.call_soon(everything_else)

    loop.call_soon(everything_else)
    tasks += [asyncio.create_task(turns.wait(turns.account())) for _ in range(waiters)]
    await asyncio.wait(tasks, timeout=5)
    assert all(task.done() for task in tasks)
    assert rounds <= 3 + 2 * waiters


async def test_ablation_without_turns_the_loop_does_not_come_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopTurns, "admits", lambda self: True)
    clock = Clock()
    crowd = Crowd(LoopTurns(clock, 0.004, cpu=clock), clock)
    await asyncio.gather(*(crowd.member(f"m{number}", 20) for number in range(300)))
    crowd.running = False
    assert max(crowd.rounds) > 1.0


async def test_an_account_that_leaves_while_waiting_delays_no_other() -> None:
    clock = Clock()
    turns = LoopTurns(clock, 0.004, cpu=clock)
    crowd = Crowd(turns, clock)
    tasks = [asyncio.create_task(crowd.member(f"m{number}", 20)) for number in range(100)]
    await crowd.has_done(50)
    gone = random.Random(1).sample(tasks, 50)
    for task in gone:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    crowd.running = False
    for number, task in enumerate(tasks):
        assert task.cancelled() or crowd.done.count(f"m{number}") == 20
    assert turns.waiting_count == 0


async def test_work_that_waits_pays_for_its_steps_and_not_for_the_time() -> None:
    clock = Clock()
    turns = LoopTurns(clock, 0.004, cpu=clock)
    account = turns.account()
    for _ in range(2):  # while an account waits, used time counts
        turns.when_admitted(turns.account(), lambda: None)
    waited_for = asyncio.get_running_loop().create_future()

    async def work() -> str:
        clock.now += 0.03
        await waited_for
        clock.now += 0.05
        await asyncio.sleep(0)
        clock.now += 0.01
        return "done"

    async def metered() -> str:
        return await turns.metered(account, work())

    task = asyncio.create_task(metered())
    await asyncio.sleep(0)
    clock.now += 60.0
    waited_for.set_result(None)
    assert await task == "done"
    assert account.paid_until == pytest.approx(0.09)


async def test_metered_work_is_cancelled_raises_and_ends_like_any_other() -> None:
    clock = Clock()
    turns = LoopTurns(clock, 0.004, cpu=clock)
    account, seen = turns.account(), list[str]()

    async def cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            clock.now += 0.5
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("of the work")

    async def metered(work: Coroutine[Any, Any, None]) -> None:
        await turns.metered(account, work)

    task = asyncio.create_task(metered(cancelled()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cleaned up"]
    assert account.paid_until == pytest.approx(0.5)
    with pytest.raises(ValueError, match="of the work"):
        await metered(failing())
    left = metered(cancelled())
    left.send(None)
    left.close()


async def test_callbacks_are_called_in_later_turns_and_not_again_in_the_same() -> None:
    clock = Clock()
    turns = LoopTurns(clock, 0.004, cpu=clock)
    seen: list[int] = []
    account = turns.account()
    done = asyncio.get_running_loop().create_future()

    def again() -> None:
        seen.append(turns.number)
        if len(seen) == 5:
            done.set_result(None)
        else:
            turns.when_admitted(account, again)

    turns.when_admitted(account, again)
    await done
    assert seen == sorted(set(seen))
    assert len(seen) == 5
