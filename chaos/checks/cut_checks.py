"""What a bank must show at a transaction-consistent cut (docs/cuts.md).  Pure.

The bank's writers are `chaos/load/bank.py`: a value ends with `;<amount>`, and the amounts of a transaction
sum to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .history import Op, OpOutcome

VALUE_END: Final = ";"
"""Between the name of a value and its amount."""


@dataclass(frozen=True, slots=True)
class CutRead:
    """The values that a reader at a cut got, in the order in which they came.  `asked`: when the cut was
    asked for, by the clock of the history."""

    asked: float
    values: Sequence[str]


def unbalanced(read: CutRead, _ops: Sequence[Op]) -> list[str]:
    """The sum, if it is not 0."""
    balance = sum(int(value.rpartition(VALUE_END)[2]) for value in read.values)
    return [f"{len(read.values)} records sum to {balance}"] if balance else []


def doubled(read: CutRead, _ops: Sequence[Op]) -> list[str]:
    """Records that came twice."""
    count = len(read.values) - len(set(read.values))
    return [f"{count} records came twice"] if count else []


def unknown(read: CutRead, ops: Sequence[Op]) -> list[str]:
    """Records that no transaction wrote, or one that failed."""
    known = {send.value for op in ops if op.outcome is not OpOutcome.FAIL for send in op.sends}
    return [f"{value} was never committed" for value in read.values if value not in known]


def torn(read: CutRead, ops: Sequence[Op]) -> list[str]:
    """Transactions that are neither inside nor outside."""
    values = set(read.values)
    counts = [(op, [send.value in values for send in op.sends]) for op in ops]
    return [
        f"{sum(inside)} of {len(inside)} records of {op}"
        for op, inside in counts
        if any(inside) and not all(inside)
    ]


def missing(read: CutRead, ops: Sequence[Op]) -> list[str]:
    """Transactions that are outside, although they were acknowledged before the cut was asked for."""
    return [str(op) for op in _outside(read, ops) if op.completed < read.asked]


def overtaken(read: CutRead, ops: Sequence[Op]) -> list[str]:
    """Transactions that are inside, although one that was acknowledged before they began is outside."""
    values = set(read.values)
    first = min(_outside(read, ops), key=lambda op: op.completed, default=None)
    if first is None:
        return []
    return [
        f"{op}, and not {first}"
        for op in ops
        if op.invoked > first.completed and any(send.value in values for send in op.sends)
    ]


def _outside(read: CutRead, ops: Sequence[Op]) -> list[Op]:
    """Those that were acknowledged."""
    values = set(read.values)
    acknowledged = [op for op in ops if op.outcome is OpOutcome.OK and any(True for _ in op.sends)]
    return [op for op in acknowledged if not any(send.value in values for send in op.sends)]


CHECKS: Final[Mapping[str, Callable[[CutRead, Sequence[Op]], list[str]]]] = {
    "every cut balances": unbalanced,
    "a reader at a cut gets each record once": doubled,
    "a cut has what may be committed alone": unknown,
    "a cut has a transaction whole or not at all": torn,
    "a cut has what was acknowledged before it": missing,
    "a cut has with a transaction those that were acknowledged before that began": overtaken,
}


def problems(read: CutRead, ops: Sequence[Op]) -> dict[str, list[str]]:
    """What each check finds."""
    return {name: check(read, ops) for name, check in CHECKS.items()}
