"""Each check of a bank at a cut rejects what breaks it, and all accept the nearest neighbour; the bank's
writers balance."""

from __future__ import annotations

import pytest
from tidegate.chaos.checks.cut_checks import CHECKS, CutRead, problems
from tidegate.chaos.checks.history import History, Op
from tidegate.chaos.load.bank import Teller
from tidegate.chaos.load.processes import WorkloadContext
from tidegate.chaos.load.progress import Progress
from tidegate.chaos.scenarios.bank import BANK
from tidegate.runtime.clock import ManualClock


def history() -> list[Op]:
    """From second 0 on, one after the other, each for a second: a transaction that is acknowledged, one that
    fails, one whose outcome is unknown, and one that is acknowledged."""
    clock = ManualClock()
    found = History(clock.monotonic)
    for number, outcome in enumerate(("ok", "fail", "info", "ok")):
        with found.begin(f"p/{number}", transactional_id=f"t{number}") as op:
            op.send(("bank", 0), f"p/{number}.1;-5")
            op.send(("bank", 1), f"p/{number}.2;5")
            clock.advance(1)
            getattr(op, outcome)()
        clock.advance(0.5)
    return found.ops()


def both(*numbers: int) -> list[str]:
    return [f"p/{number}.{count};{amount}" for number in numbers for count, amount in ((1, -5), (2, 5))]


FIRST, FAILED, UNKNOWN, LAST = range(4)


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        (0.5, []),
        (0.5, both(FIRST)),
        (1.2, both(FIRST)),
        (9.0, both(FIRST, LAST)),
        (9.0, both(FIRST, UNKNOWN, LAST)),
    ],
)
def test_what_a_cut_may_have_is_accepted(asked: float, values: list[str]) -> None:
    assert problems(CutRead(asked, values), history()) == {name: [] for name in CHECKS}


@pytest.mark.parametrize(
    ("asked", "values", "broken"),
    [
        (0.5, both(FIRST)[:1], {"every cut balances", "a cut has a transaction whole or not at all"}),
        (0.5, [*both(FIRST), *both(FIRST)], {"a reader at a cut gets each record once"}),
        (1.2, both(FIRST, FAILED), {"a cut has what may be committed alone"}),
        (0.5, ["stranger;0"], {"a cut has what may be committed alone"}),
        (1.2, [], {"a cut has what was acknowledged before it"}),
        (
            0.5,
            both(LAST),
            {"a cut has with a transaction those that were acknowledged before that began"},
        ),
    ],
)
def test_what_breaks_a_cut_is_found_by_its_check(asked: float, values: list[str], broken: set[str]) -> None:
    found = problems(CutRead(asked, values), history())
    assert {name for name, sentences in found.items() if sentences} == broken


def test_every_check_is_proven() -> None:
    marks = test_what_breaks_a_cut_is_found_by_its_check.pytestmark  # type: ignore[attr-defined]
    assert {name for _, _, broken in marks[0].args[1] for name in broken} == set(CHECKS)


async def test_each_transfer_of_a_teller_balances_over_several_partitions() -> None:
    clock = ManualClock()
    context = WorkloadContext("nowhere:1", BANK, History(clock.monotonic), Progress(), clock)
    context.stopping.set()  # nothing stays open
    teller = Teller(context, "t", "seed")
    for _ in range(50):
        records = [record async for record in teller._records("p/1")]
        partitions, values = zip(*records, strict=True)
        assert len(set(partitions)) == len(partitions) > 1
        assert problems(CutRead(0.0, values), [])["every cut balances"] == []
