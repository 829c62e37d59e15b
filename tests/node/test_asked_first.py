"""Each request's handler asks what the table in `node/handlers/asked_first.py` says, and nothing above it."""

from __future__ import annotations

import ast
import inspect
import sys
from types import ModuleType

import pytest
from tidegate.node.handlers import HANDLERS
from tidegate.node.handlers.asked_first import ASKED_FIRST, Asked
from tidegate.wire.api import ApiKey

#: What a handler's module, or a module beside it that it uses, calls or reads of the broker's parts.
QUESTIONS: dict[Asked, tuple[str, ...]] = {
    Asked.LEASE: ("replicas.append_now", "replicas.delete_records", "MarkerWrites"),
    Asked.COORDINATOR: ("groups.ask", "groups.ask_all", "transactions.ask", "transactions.ask_all"),
    Asked.CONTROLLER: ("controller.", "topics.create"),
    Asked.SESSION: ("lifecycle.holds_session",),
    Asked.LEADER: ("replicas.fetch", "replicas.list_offsets", "replicas.epoch_end"),
    Asked.NODE: ("moves.", "client_metrics.", "replicas.hosted", "replicas.replica"),
    Asked.METADATA: ("state",),
    Asked.CLIENT: ("context.authentication",),
}


def asked_in(module: ModuleType) -> set[str]:
    """`a.b` for each `broker.a.b`, `context.a` as it stands, and the names that are called."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("broker.", "context.")):
            found.add(ast.unparse(node).removeprefix("broker."))
    for each in vars(module).values():
        beside = sys.modules.get(getattr(each, "__module__", ""))
        if beside not in (None, module) and beside.__name__.rpartition(".")[0] == module.__package__:
            found |= asked_in(beside)
    return found


def test_every_request_has_a_row() -> None:
    assert {ApiKey(key) for key in HANDLERS.keys} == ASKED_FIRST.keys()


@pytest.mark.parametrize("key", sorted(HANDLERS.keys), ids=lambda key: ApiKey(key).name.lower())
def test_a_handler_asks_what_its_row_says(key: int) -> None:
    handler = HANDLERS.decoded.get(key) or HANDLERS.staged[key]
    found = asked_in(sys.modules[handler.__module__])
    first = next(
        asked
        for asked, questions in QUESTIONS.items()
        if any(
            name.startswith(each) if each.endswith(".") else name == each
            for each in questions
            for name in found
        )
    )
    assert first is ASKED_FIRST[ApiKey(key)]
