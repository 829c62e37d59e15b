"""Transaction-consistent cuts under faults: seeded histories on the real cores, and the safeguards left out
one by one (docs/semantics.md, chapter K)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidegate.chaos.sim.transactions.faults import CUTS, CUTS_TV1, Faults
from tidegate.chaos.sim.transactions.world import World
from tidegate.coordinator.running_shard import RunningShard
from tidegate.coordinator.transaction.cut_events import HeldReply, ReleasedReply
from tidegate.coordinator.transaction.decision_holds import DecisionHolds
from tidegate.coordinator.transaction.job_decisions import JobDecisions
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.node.cuts import bounds
from tidegate.node.cuts.attempt import CutAttempt

STEPS = 400
Patch = Callable[[pytest.MonkeyPatch], None]


def nothing(*_: Any) -> None:
    """In the place of a check."""


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("faults", [CUTS, CUTS_TV1], ids=["TV2", "TV1"])
def test_every_cut_has_each_transaction_wholly_inside_or_outside(faults: Faults, seed: int) -> None:
    assert World(seed, faults).run(STEPS) == []


def test_the_runs_are_worth_something() -> None:
    counts: Counter[str] = Counter()
    for seed in range(8):
        world = World(seed, CUTS)
        world.run(STEPS)
        counts += world.counts()
    assert counts["cuts taken"] > 30
    assert counts["transactions committed"] > 60
    assert counts["jobs committed"] > 10
    assert counts["given up: metadata"] > 3
    assert counts["transactions inside"] > 300


# --- ablations ----------------------------------------------------------------------------------------------


def as_if_not_held(call: Callable[..., Any]) -> Callable[..., Any]:
    def unheld(owner: Any, *arguments: Any) -> Any:
        holds = owner.holds if isinstance(owner, TransactionShard) else owner._holds
        held, holds._until_ms = holds._until_ms, {}
        try:
            return call(owner, *arguments)
        finally:
            holds._until_ms = held

    return unheld


def completes_while_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionShard, "_complete", as_if_not_held(TransactionShard._complete))


def decides_while_held(patch: pytest.MonkeyPatch) -> None:
    completes_while_held(patch)
    patch.setattr(TransactionShard, "_end", as_if_not_held(TransactionShard._end))
    patch.setattr(JobDecisions, "_commit", as_if_not_held(JobDecisions._commit))


def answers_at_once(patch: pytest.MonkeyPatch) -> None:
    """Both answers: that of the release, too, leaves when what was written before it is committed."""
    act_on = RunningShard._act_on

    def hasty(running: Any, outcome: Any, event: Any, caller: Any, token: int) -> None:
        reply = getattr(outcome, "reply", None)
        if isinstance(reply, HeldReply | ReleasedReply):
            caller(reply)
            act_on(running, outcome, event, None, token)
        else:
            act_on(running, outcome, event, caller, token)

    patch.setattr(RunningShard, "_act_on", hasty)


def leave_out(owner: type, name: str) -> Patch:
    return lambda patch: patch.setattr(owner, name, nothing)


def forgets_the_winners(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecisionHolds, "_winners", lambda *_: set())


def takes_bounds_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounds, "require_settled", nothing)


def overlooks_aborts_that_may_be_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounds, "_aborted_above", lambda *_: [])


QUIET = replace(CUTS, usurp=0.1, learn=0.2, clients=2, jobs=False, fetch=0.95, kill=0)
"""A deposed coordinator answers only while nothing that it wrote waits to be committed."""
UNAWARE = replace(CUTS, unaware=1.0, move=0.01)
ABLATIONS: dict[str, tuple[Faults, Patch, str]] = {
    "commits are decided while a cut is taken": (CUTS, decides_while_held, "torn|known before"),
    "commits are completed while a cut is taken": (CUTS_TV1, completes_while_held, "torn|not committed"),
    "a hold is answered before its decisions are committed": (
        replace(CUTS, strike=0.5, fetch=0.2), answers_at_once,
        "not committed|torn|more or less",
    ),
    "coordinators are not looked at again": (
        QUIET,
        leave_out(CutAttempt, "_require_same_coordinators"), "torn|known before|more or less|not committed"),
    "leaders are not looked at again": (
        UNAWARE, leave_out(CutAttempt, "_require_same_leaders"), "torn|known before"),
    "partitions are not counted again": (
        replace(CUTS, grow=0.02), leave_out(CutAttempt, "_require_same_partitions"), "torn|known before"),
    "bounds below the start of the leader's epoch": (
        replace(CUTS, move=0.01), takes_bounds_at_once, "torn|known before"),
    "winners of a decided job are left out": (CUTS, forgets_the_winners, "torn|known before"),
    "a hold that ended early counts": (CUTS, leave_out(CutAttempt, "_require_held"), "torn|known before"),
    "an abort counts whose marker may be lost": (
        replace(CUTS, move=0.01), overlooks_aborts_that_may_be_lost, "more or less|not committed"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ABLATIONS))
def test_a_missing_safeguard_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, patch, expected = ABLATIONS[name]
    patch(monkeypatch)
    for seed in range(200):
        found = World(seed, replace(faults, validates=False)).run(STEPS)
        if any(word in what for what in found for word in expected.split("|")):
            return
    pytest.fail(f"{name}: no seed found it")
