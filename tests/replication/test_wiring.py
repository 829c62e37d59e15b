"""Replication asks its broker, and reports to it: the node and the simulator answer and hear all of it.

A question without an answer has a default that allows everything, and an event without a listener is lost.
"""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest
from tidegate.replication.broker_view import BrokerView, PartitionListener

ROOT = Path(__file__).resolve().parents[2]
#: What the simulator has no use for: clients that name topics by their ids, racks; it has no coordinators.
NOT_SIMULATED = {"topic_name_of", "rack_of", "on_elected", "on_resigned", "on_high_watermark", "on_failure"}


@pytest.mark.parametrize(
    ("path", "of", "without"),
    [
        ("node/assembly.py", BrokerView, set[str]()),
        ("node/replica_events.py", PartitionListener, set[str]()),
        ("chaos/sim/replication/node.py", BrokerView, NOT_SIMULATED),
        ("chaos/sim/replication/node.py", PartitionListener, NOT_SIMULATED),
    ],
)
def test_every_question_is_answered_and_every_event_heard(path: str, of: type, without: set[str]) -> None:
    names = [field.name for field in fields(of)]
    (call,) = (
        node
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == of.__name__
    )
    given = {*names[: len(call.args)], *(keyword.arg for keyword in call.keywords)}
    assert given == set(names) - without
