"""Every check rejects a history that must be rejected, accepts its neighbour, and is the only one that sees
what it is for.

A case is written the way the workload is spoken of: `ok("p1", sends(A, "x"), txn="t")`.  Operations follow
one another in time unless they carry their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from tidegate.chaos.checks.anomaly import AnomalyKind
from tidegate.chaos.checks.checker import CHECKS, Report, check
from tidegate.chaos.checks.history import (
    Assign,
    CommitOffsets,
    HistoryError,
    Init,
    Op,
    OpOutcome,
    Partition,
    Poll,
    Seek,
    Send,
    Step,
    Subscribe,
    Value,
)

A: Partition = ("a", 0)
B: Partition = ("b", 0)
IN: Partition = ("in", 0)
Log = Sequence[tuple[int, Value]]


def op(
    outcome: OpOutcome,
    process: str,
    *steps: Step,
    txn: str | None = None,
    at: tuple[float, float] | None = None,
    ending: float | None = None,
    rebalanced: frozenset[Partition] = frozenset(),
) -> Op:
    invoked, completed = at or (-1.0, -1.0)
    return Op(-1, process, outcome, steps, invoked, completed, txn, ending, rebalanced)


def ok(process: str, *steps: Step, txn: str | None = None, **more: object) -> Op:
    return op(OpOutcome.OK, process, *steps, txn=txn, **more)  # type: ignore[arg-type]


def fail(process: str, *steps: Step, txn: str | None = None, **more: object) -> Op:
    return op(OpOutcome.FAIL, process, *steps, txn=txn, **more)  # type: ignore[arg-type]


def info(process: str, *steps: Step, txn: str | None = None, **more: object) -> Op:
    return op(OpOutcome.INFO, process, *steps, txn=txn, **more)  # type: ignore[arg-type]


def poll(partition: Partition, *records: tuple[int, Value]) -> Poll:
    return Poll({partition: records})


@dataclass(frozen=True)
class Case:
    history: Sequence[Op]
    logs: Mapping[Partition, Log]
    offsets: Mapping[str, Mapping[Partition, int]] | None = None

    def ops(self) -> list[Op]:
        numbered = [replace(op, index=index) for index, op in enumerate(self.history)]
        return [
            replace(op, invoked=op.index * 10.0, completed=op.index * 10.0 + 5) if op.invoked < 0 else op
            for op in numbered
        ]

    def check(self, *without: str) -> Report:
        checks = {name: run for name, run in CHECKS.items() if name not in without}
        return check(self.ops(), self.logs, self.offsets, checks=checks)


@dataclass(frozen=True)
class Rule:
    """What must be rejected with `kind` by exactly the check named, and the nearest history that must be
    accepted."""

    check: str
    kind: AnomalyKind
    bad: Case
    good: Case


def kinds(report: Report) -> set[AnomalyKind]:
    return {anomaly.kind for anomaly in report.anomalies}


XY = ((0, "x"), (1, "y"))

RULES: dict[str, Rule] = {
    "an acknowledged record is not in the final read": Rule(
        "lost",
        AnomalyKind.LOST_WRITE,
        Case([ok("p", Send(A, "x", 0)), ok("p", Send(A, "y", 1))], {A: [(1, "y")]}),
        Case([ok("p", Send(A, "x", 0)), ok("p", Send(A, "y", 1))], {A: XY}),
    ),
    "an acknowledged record is at the end of the log and lost without its offset": Rule(
        "lost",
        AnomalyKind.LOST_WRITE,
        Case([ok("p", Send(A, "x", 0)), ok("p", Send(A, "y"))], {A: [(0, "x")]}),
        Case([ok("p", Send(A, "x", 0)), info("p", Send(A, "y"))], {A: [(0, "x")]}),
    ),
    "without a final read, a record below what was read is lost": Rule(
        "lost",
        AnomalyKind.LOST_WRITE,
        Case(
            [
                info("p", Send(A, "x", 0), Send(B, "b"), txn="t"),
                ok("p", Send(A, "y", 1)),
                ok("q", poll(A, (1, "y")), poll(B, (0, "b"))),
            ],
            {},
        ),
        Case([info("p", Send(A, "x", 0), txn="t"), ok("p", Send(A, "y", 1)), ok("q", poll(A, (1, "y")))], {}),
    ),
    "a record above everything that was read is unseen, not lost": Rule(
        "unseen",
        AnomalyKind.UNSEEN,
        Case([ok("p", Send(A, "x", 0)), ok("p", Send(A, "y", 1)), ok("q", poll(A, (0, "x")))], {}),
        Case([ok("p", Send(A, "x", 0)), ok("p", Send(A, "y", 1)), ok("q", poll(A, *XY))], {}),
    ),
    "a record stands twice": Rule(
        "duplicate",
        AnomalyKind.DUPLICATE,
        Case([ok("p", Send(A, "x", 0))], {A: [(0, "x"), (2, "x")]}),
        Case([ok("p", Send(A, "x", 0))], {A: [(0, "x")]}),
    ),
    "an offset was acknowledged and the record stands elsewhere": Rule(
        "duplicate",
        AnomalyKind.DUPLICATE,
        Case([ok("p", Send(A, "x", 4))], {A: [(5, "x")]}),
        Case([ok("p", Send(A, "x", 5))], {A: [(5, "x")]}),
    ),
    "an offset held another record before": Rule(
        "inconsistent offsets",
        AnomalyKind.INCONSISTENT_OFFSETS,
        Case(
            [info("p", Send(A, "x")), ok("q", poll(A, (0, "x"))), ok("p2", Send(A, "y"))],
            {A: [(0, "y"), (1, "x")]},
        ),
        Case([info("p", Send(A, "x")), ok("q", poll(A, (0, "x"))), ok("p2", Send(A, "y"))], {A: XY}),
    ),
    "a record was written by no client": Rule(
        "unwritten",
        AnomalyKind.UNWRITTEN_VALUE,
        Case([ok("p", Send(A, "x", 0))], {A: [(0, "x"), (1, "ghost")]}),
        Case([ok("p", Send(A, "x", 0))], {A: [(0, "x")]}),
    ),
    "a record is in another partition than it was sent to": Rule(
        "unwritten",
        AnomalyKind.UNWRITTEN_VALUE,
        Case([ok("p", Send(A, "x", 0))], {A: [(0, "x")], B: [(0, "x")]}),
        Case([ok("p", Send(A, "x", 0))], {A: [(0, "x")], B: []}),
    ),
    "an aborted transaction is visible in the final read": Rule(
        "aborted visible",
        AnomalyKind.ABORTED_READ,
        Case([fail("p", Send(A, "x"), Send(B, "y"), txn="t")], {A: [(0, "x")], B: [(0, "y")]}),
        Case([fail("p", Send(A, "x"), Send(B, "y"), txn="t")], {A: [], B: []}),
    ),
    "an aborted record was read once and is gone again": Rule(
        "aborted visible",
        AnomalyKind.ABORTED_READ,
        Case([fail("p", Send(A, "x"), txn="t"), ok("q", poll(A, (0, "x")))], {A: []}),
        Case([info("p", Send(A, "x"), txn="t"), ok("q", poll(A))], {A: []}),
    ),
    "an aborted record was read by a transaction that failed": Rule(
        "aborted visible",
        AnomalyKind.ABORTED_READ,
        Case([fail("p", Send(A, "x"), txn="t"), fail("q", poll(A, (0, "x")), txn="u")], {A: []}),
        Case([ok("p", Send(A, "x"), txn="t"), fail("q", poll(A, (0, "x")), txn="u")], {A: [(0, "x")]}),
    ),
    "a transaction reads its own record before the commit": Rule(
        "precommitted read",
        AnomalyKind.PRECOMMITTED_READ,
        Case([ok("p", Send(A, "x", 0), poll(A, (0, "x")), txn="t")], {A: [(0, "x")]}),
        Case([ok("p", Send(A, "x", 0), poll(A, (0, "x")))], {A: [(0, "x")]}),
    ),
    "an undecided transaction is there in part, in a partition of its own": Rule(
        "torn",
        AnomalyKind.TORN_TRANSACTION,
        Case([fail("p", Send(A, "x"), Send(B, "y"), txn="t")], {A: [(0, "x")], B: []}),
        Case([info("p", Send(A, "x"), Send(B, "y"), txn="t")], {A: [(0, "x")], B: [(0, "y")]}),
    ),
    "one poll jumps over a record": Rule(
        "polls within operations",
        AnomalyKind.INTERNAL_POLL_SKIP,
        Case(
            [
                ok("p", Send(A, "x", 0), Send(A, "y", 1), Send(A, "z", 4)),
                ok("q", poll(A, (0, "x"), (4, "z"))),
            ],
            {A: [*XY, (4, "z")]},
        ),
        Case(
            [ok("p", Send(A, "x", 0), Send(A, "y", 1), Send(A, "z", 4)), ok("q", poll(A, *XY, (4, "z")))],
            {A: [*XY, (4, "z")]},
        ),
    ),
    "one operation reads a partition backwards": Rule(
        "polls within operations",
        AnomalyKind.INTERNAL_NONMONOTONIC_POLL,
        Case(
            [ok("p", Send(A, "x", 0), Send(A, "y", 1)), ok("q", poll(A, (1, "y")), poll(A, (0, "x")))],
            {A: XY},
        ),
        Case(
            [
                ok("p", Send(A, "x", 0), Send(A, "y", 1)),
                ok("q", poll(A, (1, "y")), Seek(frozenset({A})), poll(A, (0, "x"))),
            ],
            {A: XY},
        ),
    ),
    "the final read itself goes backwards": Rule(
        "polls within operations",
        AnomalyKind.INTERNAL_NONMONOTONIC_POLL,
        Case([ok("p", Send(A, "x", 0), Send(A, "y", 1))], {A: [(1, "y"), (0, "x")]}),
        Case([ok("p", Send(A, "x", 0), Send(A, "y", 1))], {A: XY}),
    ),
    "a reader loses a record between two polls": Rule(
        "polls between operations",
        AnomalyKind.POLL_SKIP,
        Case(
            [
                ok("p", Send(A, "x", 0), Send(A, "y", 1), Send(A, "z", 2)),
                ok("q", poll(A, (0, "x"))),
                ok("q", poll(A, (2, "z"))),
            ],
            {A: [*XY, (2, "z")]},
        ),
        Case(
            [
                ok("p", Send(A, "x", 0), Send(A, "y", 1), Send(A, "z", 2)),
                ok("q", poll(A, (0, "x"))),
                ok("q", poll(A, (1, "y"))),
            ],
            {A: [*XY, (2, "z")]},
        ),
    ),
    "a reader is sent back between two polls": Rule(
        "polls between operations",
        AnomalyKind.NONMONOTONIC_POLL,
        Case(
            [ok("p", Send(A, "x", 0), Send(A, "y", 1)), ok("q", poll(A, *XY)), ok("q", poll(A, (1, "y")))],
            {A: XY},
        ),
        Case(
            [ok("p", Send(A, "x", 0), Send(A, "y", 1)), fail("q", poll(A, *XY)), ok("q", poll(A, (0, "x")))],
            {A: XY},
        ),
    ),
    "an assignment that keeps the partition keeps its position": Rule(
        "polls between operations",
        AnomalyKind.NONMONOTONIC_POLL,
        Case(
            [
                ok("p", Send(A, "x", 0)),
                ok("q", poll(A, (0, "x"))),
                ok("q", Assign(frozenset({A, B}))),
                ok("q", poll(A, (0, "x"))),
            ],
            {A: XY[:1]},
        ),
        Case(
            [
                ok("p", Send(A, "x", 0)),
                ok("q", poll(A, (0, "x"))),
                ok("q", Assign(frozenset({B}))),
                ok("q", poll(A, (0, "x"))),
            ],
            {A: XY[:1]},
        ),
    ),
    "a transaction's records stand in another order than they were sent": Rule(
        "sends in order",
        AnomalyKind.INTERNAL_NONMONOTONIC_SEND,
        Case([ok("p", Send(A, "x"), Send(A, "y"), txn="t")], {A: [(0, "y"), (1, "x")]}),
        Case([ok("p", Send(A, "y"), Send(A, "x"), txn="t")], {A: [(0, "y"), (1, "x")]}),
    ),
    "a producer's operations stand in another order than they were sent": Rule(
        "sends in order",
        AnomalyKind.NONMONOTONIC_SEND,
        Case([ok("p", Send(A, "x")), ok("p", Send(A, "y"))], {A: [(0, "y"), (1, "x")]}),
        Case([ok("p", Send(A, "x")), ok("q", Send(A, "y"))], {A: [(0, "y"), (1, "x")]}),
    ),
    "a committed transaction's offsets are not": Rule(
        "offsets torn",
        AnomalyKind.TORN_OFFSET_COMMIT,
        Case([ok("j", Send(A, "x"), CommitOffsets("g", {IN: 5}), txn="t")], {A: XY[:1]}, {"g": {}}),
        Case([ok("j", Send(A, "x"), CommitOffsets("g", {IN: 5}), txn="t")], {A: XY[:1]}, {"g": {IN: 5}}),
    ),
    "an undecided transaction's records are there and its offsets are not": Rule(
        "offsets torn",
        AnomalyKind.TORN_OFFSET_COMMIT,
        Case([info("j", Send(A, "x"), CommitOffsets("g", {IN: 5}), txn="t")], {A: XY[:1]}, {"g": {}}),
        Case([info("j", Send(A, "x"), CommitOffsets("g", {IN: 5}), txn="t")], {A: []}, {"g": {}}),
    ),
    "an undecided transaction's offsets are there and its records are not": Rule(
        "offsets torn",
        AnomalyKind.TORN_OFFSET_COMMIT,
        Case([info("j", Send(A, "x"), CommitOffsets("g", {IN: 5}), txn="t")], {A: []}, {"g": {IN: 5}}),
        Case([info("j", Send(A, "x"), CommitOffsets("g", {IN: 5}), txn="t")], {A: XY[:1]}, {"g": {IN: 5}}),
    ),
    "an aborted transaction moved the group": Rule(
        "offsets torn",
        AnomalyKind.TORN_OFFSET_COMMIT,
        Case([fail("j", CommitOffsets("g", {IN: 5}), txn="t")], {}, {"g": {IN: 5}}),
        Case(
            [fail("j", CommitOffsets("g", {IN: 5}), txn="t"), ok("j", CommitOffsets("g", {IN: 5}), txn="t")],
            {},
            {"g": {IN: 5}},
        ),
    ),
    "an input was consumed by two transactions that committed": Rule(
        "consumed twice",
        AnomalyKind.CONSUMED_TWICE,
        Case(
            [
                ok("s", Send(IN, "i", 0)),
                ok("j1", poll(IN, (0, "i")), Send(A, "x"), CommitOffsets("g", {IN: 1}), txn="t"),
                ok("j2", poll(IN, (0, "i")), Send(A, "y"), CommitOffsets("g", {IN: 1}), txn="u"),
            ],
            {A: XY},
            {"g": {IN: 1}},
        ),
        Case(
            [
                ok("s", Send(IN, "i", 0)),
                fail("j1", poll(IN, (0, "i")), Send(A, "x"), CommitOffsets("g", {IN: 1}), txn="t"),
                ok("j2", poll(IN, (0, "i")), Send(A, "y"), CommitOffsets("g", {IN: 1}), txn="u"),
            ],
            {A: [(1, "y")]},
            {"g": {IN: 1}},
        ),
    ),
    "an input below the group's position was not consumed": Rule(
        "consumed never",
        AnomalyKind.CONSUMED_NEVER,
        Case(
            [
                ok("s", Send(IN, "i", 0), Send(IN, "k", 1)),
                fail("j1", poll(IN, (0, "i")), CommitOffsets("g", {IN: 1}), txn="t"),
                ok("j2", poll(IN, (1, "k")), CommitOffsets("g", {IN: 2}), txn="u"),
            ],
            {IN: [(0, "i"), (1, "k")]},
            {"g": {IN: 2}},
        ),
        Case(
            [
                ok("s", Send(IN, "i", 0), Send(IN, "k", 1)),
                info("j1", poll(IN, (0, "i")), CommitOffsets("g", {IN: 1}), txn="t"),
                ok("j2", poll(IN, (1, "k")), CommitOffsets("g", {IN: 2}), txn="u"),
            ],
            {IN: [(0, "i"), (1, "k")]},
            {"g": {IN: 2}},
        ),
    ),
    "a transaction of a replaced producer is acknowledged": Rule(
        "zombies",
        AnomalyKind.ZOMBIE_ACKNOWLEDGED,
        Case(
            [ok("p1", Init(9, 0), txn="t"), ok("p2", Init(9, 1), txn="t"), ok("p1", Send(A, "x"), txn="t")],
            {A: XY[:1]},
        ),
        Case(
            [ok("p1", Init(9, 0), txn="t"), ok("p2", Init(9, 1), txn="t"), ok("p2", Send(A, "x"), txn="t")],
            {A: XY[:1]},
        ),
    ),
    "a commit that left after the replacement is acknowledged": Rule(
        "zombies",
        AnomalyKind.ZOMBIE_ACKNOWLEDGED,
        Case(
            [
                ok("p1", Init(9, 0), txn="t", at=(0, 1)),
                ok("p1", Send(A, "x"), txn="t", at=(2, 9), ending=6),
                ok("p2", Init(9, 1), txn="t", at=(4, 5)),
            ],
            {A: XY[:1]},
        ),
        Case(
            [
                ok("p1", Init(9, 0), txn="t", at=(0, 1)),
                ok("p1", Send(A, "x"), txn="t", at=(2, 9), ending=3),
                ok("p2", Init(9, 1), txn="t", at=(4, 5)),
            ],
            {A: XY[:1]},
        ),
    ),
    "two producers hold one identity": Rule(
        "identities",
        AnomalyKind.ZOMBIE_ACKNOWLEDGED,
        Case([ok("p1", Init(9, 1), txn="t"), ok("p2", Init(9, 1), txn="t")], {}),
        Case([ok("p1", Init(9, 1), txn="t"), ok("p2", Init(9, 2), txn="t")], {}),
    ),
    "two transactions read each other": Rule(
        "read cycles",
        AnomalyKind.G1C,
        Case(
            [
                ok("p", Send(A, "x"), poll(B, (0, "y")), txn="t", at=(0, 9)),
                ok("q", Send(B, "y"), poll(A, (0, "x")), txn="u", at=(0, 9)),
            ],
            {A: [(0, "x")], B: [(0, "y")]},
        ),
        Case(
            [
                ok("p", Send(A, "x"), txn="t", at=(0, 9)),
                ok("q", Send(B, "y"), poll(A, (0, "x")), txn="u", at=(0, 9)),
            ],
            {A: [(0, "x")], B: [(0, "y")]},
        ),
    ),
    "a process reads what it will write later": Rule(
        "read cycles",
        AnomalyKind.G1C_PROCESS,
        Case([ok("p", poll(A, (0, "x")), at=(0, 5)), ok("p", Send(A, "x"), at=(5, 9))], {A: [(0, "x")]}),
        Case([ok("q", poll(A, (0, "x")), at=(0, 5)), ok("p", Send(A, "x"), at=(5, 9))], {A: [(0, "x")]}),
    ),
    "a record is read before its writer began": Rule(
        "read cycles",
        AnomalyKind.G1C_REALTIME,
        Case([ok("q", poll(A, (0, "x")), at=(0, 4)), ok("p", Send(A, "x"), at=(5, 9))], {A: [(0, "x")]}),
        Case([ok("q", poll(A, (0, "x")), at=(0, 6)), ok("p", Send(A, "x"), at=(5, 9))], {A: [(0, "x")]}),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_history_that_breaks_the_promise_is_rejected(name: str) -> None:
    rule = RULES[name]
    report = rule.bad.check()
    assert rule.kind in kinds(report), report.describe()
    assert not report.valid
    assert rule.kind in report.describe()


@pytest.mark.parametrize("name", RULES)
def test_its_nearest_neighbour_is_accepted(name: str) -> None:
    report = RULES[name].good.check()
    assert report.valid, report.describe()


@pytest.mark.parametrize("name", RULES)
def test_no_other_check_finds_that_kind(name: str) -> None:
    """The ablation: with the check taken out, nothing reports this kind of anomaly for this history any
    more."""
    rule = RULES[name]
    assert rule.kind not in kinds(rule.bad.check(rule.check))


def test_every_check_is_proven_and_every_kind_but_the_tolerated_is_covered() -> None:
    assert {rule.check for rule in RULES.values()} == set(CHECKS)
    assert {rule.kind for rule in RULES.values()} == set(AnomalyKind) - {
        AnomalyKind.G0,
        AnomalyKind.G0_PROCESS,
        AnomalyKind.G0_REALTIME,
    }


def test_one_read_record_of_an_undecided_transaction_requires_the_others() -> None:
    transaction = info("p", Send(A, "x"), Send(B, "y"), txn="t")
    report = Case([transaction, fail("q", poll(A, (0, "x")), txn="u")], {A: [(0, "x")], B: []}).check()
    assert kinds(report) == {AnomalyKind.LOST_WRITE, AnomalyKind.TORN_TRANSACTION}


def test_sends_outside_a_transaction_stand_each_for_itself() -> None:
    assert Case([info("p", Send(A, "x"), Send(B, "y"))], {A: [(0, "x")], B: []}).check().valid


def test_holes_left_by_markers_and_aborted_records_are_no_gaps() -> None:
    history = [
        ok("p", Send(A, "x", 0), txn="t"),
        fail("p", Send(A, "gone", 2), txn="t"),
        ok("p", Send(A, "y", 4), txn="t"),
        ok("q", poll(A, (0, "x"))),
        ok("q", poll(A, (4, "y"))),
    ]
    report = Case(history, {A: [(0, "x"), (4, "y")]}).check()
    assert report.valid, report.describe()


def test_the_offset_of_an_aborted_record_may_be_used_again() -> None:
    history = [fail("p", Send(A, "gone", 0), txn="t"), ok("p", Send(A, "x", 0), txn="t")]
    assert Case(history, {A: [(0, "x")]}).check().valid


def test_an_undecided_poll_leaves_the_position_unknown() -> None:
    history = [
        ok("p", Send(A, "x", 0), Send(A, "y", 1)),
        info("q", poll(A, (0, "x"))),
        ok("q", poll(A, (1, "y"))),
    ]
    assert Case(history, {A: XY}).check().valid
    again = [*history[:2], ok("q", poll(A, *XY))]
    assert Case(again, {A: XY}).check().valid


def test_a_group_may_rebalance_between_operations_but_not_inside_one() -> None:
    writes = ok("p", Send(A, "x", 0), Send(A, "y", 1))
    moved = [writes, ok("q", Subscribe(frozenset({"a"})), poll(A, *XY)), ok("q", poll(A, (0, "x")))]
    assert Case(moved, {A: XY}).check().valid
    inside = [writes, ok("q", Subscribe(frozenset({"a"}))), ok("q", poll(A, *XY), poll(A, (0, "x")))]
    assert kinds(Case(inside, {A: XY}).check()) == {AnomalyKind.INTERNAL_NONMONOTONIC_POLL}
    handed_over = [writes, ok("q", poll(A, *XY), poll(A, (0, "x")), rebalanced=frozenset({A}))]
    assert Case(handed_over, {A: XY}).check().valid


def test_interleaved_transactions_are_tolerated_and_shown_on_request() -> None:
    history = Case(
        [
            ok("p", Send(A, "x"), Send(B, "x"), txn="t", at=(0, 9)),
            ok("q", Send(A, "y"), Send(B, "y"), txn="u", at=(0, 9)),
        ],
        {A: [(0, "x"), (1, "y")], B: [(0, "y"), (1, "x")]},
    )
    report = check(history.ops(), history.logs, tolerated_cycles=True)
    assert report.valid
    assert [anomaly.kind for anomaly in report.tolerated] == [AnomalyKind.G0]


def test_a_value_that_is_sent_twice_makes_the_history_worthless() -> None:
    with pytest.raises(HistoryError, match="unique"):
        Case([ok("p", Send(A, "x")), ok("q", Send(A, "x"))], {A: XY[:1]}).check()


def test_counts_say_how_much_was_checked() -> None:
    counts = (
        Case(
            [
                ok("p", Send(A, "x"), txn="t"),
                fail("p", Send(A, "f"), txn="t"),
                info("p", Send(A, "i"), txn="t"),
                ok("q", poll(A, (0, "x"))),
            ],
            {A: [(0, "x")]},
        )
        .check()
        .counts
    )
    assert (
        counts.operations,
        counts.transactions_ok,
        counts.transactions_failed,
        counts.transactions_undecided,
    ) == (4, 1, 1, 1)
    assert (counts.records_sent, counts.records_committed, counts.records_polled, counts.records_final) == (
        3,
        1,
        1,
        1,
    )
