"""The record of a run: outcomes, order, and the way to a file and back."""

from __future__ import annotations

import itertools
import json

import pytest
from tidegate.chaos.checks.history import (
    Assign,
    CommitOffsets,
    History,
    HistoryError,
    Init,
    Op,
    OpOutcome,
    Poll,
    Seek,
    Send,
    Subscribe,
    from_json,
    to_json,
)

A, B = ("a", 0), ("b", 1)


def recorder() -> History:
    ticks = itertools.count()
    return History(now=lambda: float(next(ticks)))


def test_an_operation_keeps_its_steps_in_order_and_acknowledged_offsets() -> None:
    history = recorder()
    with history.begin("p1", transactional_id="t") as transaction:
        transaction.polled({A: [(3, "in")]})
        first = transaction.send(B, "x")
        transaction.send(B, "y")
        transaction.acknowledged(first, 7)
        transaction.offsets("g", {A: 4})
        transaction.ending()
        op = transaction.ok()
    assert op.steps == (Poll({A: ((3, "in"),)}), Send(B, "x", 7), Send(B, "y"), CommitOffsets("g", {A: 4}))
    assert (op.invoked, op.ending, op.completed) == (0.0, 1.0, 2.0)
    assert history.ops() == [op]


def test_an_operation_left_by_an_exception_is_undecided() -> None:
    history = recorder()
    with pytest.raises(ConnectionError), history.begin("p1") as operation:
        operation.send(A, "x")
        raise ConnectionError("cut")
    [op] = history.ops()
    assert op.outcome is OpOutcome.INFO
    assert "cut" in op.error


def test_an_unfinished_operation_at_the_end_is_undecided() -> None:
    history = recorder()
    history.begin("p1").send(A, "x")
    history.begin("p2").ok()
    assert [(op.index, op.outcome) for op in history.ops()] == [(0, OpOutcome.INFO), (1, OpOutcome.OK)]


def test_an_outcome_is_final() -> None:
    operation = recorder().begin("p1")
    operation.fail("aborted")
    with pytest.raises(HistoryError):
        operation.ok()
    with pytest.raises(HistoryError):
        operation.send(A, "late")


def test_only_a_send_can_be_acknowledged() -> None:
    operation = recorder().begin("p1")
    operation.polled({})
    with pytest.raises(HistoryError):
        operation.acknowledged(0, 1)


def test_a_history_survives_the_way_through_json() -> None:
    steps = (
        Init(4, 2),
        Assign(frozenset({A, B})),
        Subscribe(frozenset({"a"})),
        Seek(frozenset({A})),
        Poll({A: ((0, "x"), (2, 5))}),
        Send(B, "y", 9),
        Send(B, 10),
        CommitOffsets("g", {A: 3}),
    )
    op = Op(
        3,
        "p",
        OpOutcome.FAIL,
        steps,
        0.5,
        1.5,
        transactional_id="t",
        ending=1.25,
        rebalanced=frozenset({B}),
        error="fenced",
    )
    assert from_json(json.loads(json.dumps(to_json(op)))) == op
    bare = Op(0, "p", OpOutcome.OK, (), 0.0, 1.0)
    assert from_json(json.loads(json.dumps(to_json(bare)))) == bare


def test_an_unknown_step_is_refused() -> None:
    document = to_json(Op(0, "p", OpOutcome.OK, (), 0.0, 1.0))
    document["steps"] = [["teleport", 1]]
    with pytest.raises(HistoryError):
        from_json(document)
