"""Each request's handler asks `Permissions` for every subject of its row in `RIGHTS`, and for no other."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tidegate.node.handlers import HANDLERS
from tidegate.node.handlers.groups import find_coordinator
from tidegate.node.handlers.settings.describe_configs import subject_of
from tidegate.security.request_rights import RIGHTS
from tidegate.wire.api import ApiKey

HANDLERS_ROOM = "tidegate.node.handlers"
QUESTIONS = {"allows", "allows_node", "allows_some", "allowed", "asker", "refusal", "require"}
WITHOUT_SUBJECT = {"allows_follower": "follower"}
"""The question of `Permissions` that names its subject itself."""
CHOSEN: dict[str, set[str]] = {
    "_SUBJECTS[key_type]": set(find_coordinator._SUBJECTS.values()),
    "subject": {subject_of(resource_type) for resource_type in range(128)},
}
"""A subject that depends on the request, as its handler writes it -> what it may be."""


def used_by(function: Callable[..., Any]) -> list[object]:
    """The handler, and the functions and classes of the handlers' room that it uses, over however many
    others."""
    found, waiting = list[object](), list[object]([function])
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        found.append(each)
        names = {node.id for node in ast.walk(tree_of(each)) if isinstance(node, ast.Name)}
        there = vars(inspect.getmodule(each))
        waiting += [
            there[name]
            for name in sorted(names & there.keys())
            if inspect.isfunction(there[name]) or inspect.isclass(there[name])
            if there[name].__module__.startswith(HANDLERS_ROOM)
        ]
    return found


def tree_of(code: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(code)))


def asked_for(tree: ast.AST) -> Iterator[str]:
    """The subjects in `permissions.QUESTION(context, SUBJECT, ...)`, also as `partial(...)` of that."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        question, *arguments = [call.func, *call.args]
        if ast.unparse(question) == "partial":
            question, *arguments = arguments
        if not isinstance(question, ast.Attribute) or not ast.unparse(question.value).endswith("permissions"):
            continue
        if question.attr in WITHOUT_SUBJECT:
            yield WITHOUT_SUBJECT[question.attr]
        elif question.attr in QUESTIONS:
            subject = arguments[1]
            if isinstance(subject, ast.Constant):
                yield str(subject.value)
            else:
                yield from CHOSEN[ast.unparse(subject)]


def asked_by(handler: Callable[..., Any]) -> set[str]:
    return {subject for each in used_by(handler) for subject in asked_for(tree_of(each))}


def test_every_request_has_a_row_of_rights() -> None:
    assert {ApiKey(key) for key in HANDLERS.keys} == RIGHTS.keys()


@pytest.mark.parametrize("key", sorted(HANDLERS.keys), ids=lambda key: ApiKey(key).name.lower())
def test_a_handler_asks_for_every_subject_of_its_row(key: int) -> None:
    staged: Mapping[int, Any] = HANDLERS.staged
    assert asked_by(HANDLERS.decoded.get(key) or staged[key]) == set(RIGHTS[key])


def test_a_question_is_found_in_each_of_its_forms() -> None:
    source = """
broker.permissions.require(context, "topic", name)
partial(permissions.allows, context, "group")
permissions.allows_follower(context, 1)
permissions.may(context, operation, resource_type, name)
other.require(context, "cluster")
"""
    assert set(asked_for(ast.parse(source))) == {"topic", "group", "follower"}
