"""Each request's handler asks what the table in `node/handlers/asked_first.py` says, and nothing above it."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import Any

import pytest
from tidegate.node.handlers import HANDLERS
from tidegate.node.handlers.asked_first import ASKED_FIRST, Asked
from tidegate.wire.api import ApiKey

#: What a handler calls or reads of the broker's parts; which of them counts first is the order of `Asked`.
QUESTIONS: dict[Asked, tuple[str, ...]] = {
    Asked.LEASE: ("replicas.append_now", "replicas.delete_records", "MarkerWrites"),
    Asked.COORDINATOR: ("groups.ask", "groups.ask_all", "transactions.ask", "transactions.ask_all"),
    Asked.CONTROLLER: ("controller.", "topics.create"),
    Asked.SESSION: ("lifecycle.holds_session",),
    Asked.LEADER: ("replicas.fetch", "replicas.list_offsets", "replicas.epoch_end"),
    Asked.METADATA: ("state",),
    Asked.NODE: ("moves.", "client_metrics.", "replicas.hosted", "replicas.replica"),
    Asked.CLIENT: ("context.authentication",),
}


def asked_in(code: Any, package: str, seen: set[Any]) -> set[str]:
    """`a.b` for each `broker.a.b`, `context.a` as it stands, and the names that are called: by a handler's
    function, and by what it uses of its own package."""
    if code in seen or getattr(code, "__module__", "").rpartition(".")[0] != package:
        return set()
    seen.add(code)
    found: set[str] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("broker.", "context.")):
            found.add(ast.unparse(node).removeprefix("broker."))
        if isinstance(node, ast.Name):
            used = vars(sys.modules[code.__module__]).get(node.id)
            if inspect.isfunction(used) or inspect.isclass(used):
                found |= asked_in(used, package, seen)
    return found


def test_every_request_has_a_row() -> None:
    assert {ApiKey(key) for key in HANDLERS.keys} == ASKED_FIRST.keys()


@pytest.mark.parametrize("key", sorted(HANDLERS.keys), ids=lambda key: ApiKey(key).name.lower())
def test_a_handler_asks_what_its_row_says(key: int) -> None:
    handler = HANDLERS.decoded.get(key) or HANDLERS.staged[key]
    found = asked_in(handler, handler.__module__.rpartition(".")[0], set())
    first = next(
        asked
        for asked in Asked
        if any(
            name.startswith(each) if each.endswith(".") else name == each
            for each in QUESTIONS[asked]
            for name in found
        )
    )
    assert first is ASKED_FIRST[ApiKey(key)], f"the handler asks {first.name} first: this is its row"
