"""Calls at once: which are under way together, and what becomes of those whose answers are not taken."""

from __future__ import annotations

import grpc
import pytest
from tidegate.spark.connecting.at_once import NODES_AT_ONCE_MAX, ask_at_once

from .grpc_calls import Call, Failure


class Nodes:
    """The calls that were begun.  `answers` has those that are not the number that was asked; what cannot
    begin raises; calls of `slow` end when a test says so."""

    def __init__(self, *slow: str, refused: Exception | None = None, **answers: object) -> None:
        self._slow, self._refused, self._answers = slow, refused, answers
        self.begun: dict[str, Call] = {}

    def begin(self, endpoint: str, number: int) -> Call:
        name = f"{endpoint}{number}"
        self.begun[name] = call = Call(self._answers.get(name, number), is_slow=endpoint in self._slow)
        if self._refused is not None and name == "b0":
            raise self._refused
        return call


@pytest.mark.parametrize("count", [0, 1, NODES_AT_ONCE_MAX, 2 * NODES_AT_ONCE_MAX + 1])
def test_all_are_asked_all(count: int) -> None:
    asked = {f"n{number}-": range(3) for number in range(count)}
    found = list(ask_at_once(asked | {"idle": range(0)}, Nodes().begin))
    assert sorted(found) == sorted((name, number, number) for name in asked for number in range(3))


def test_so_many_nodes_are_asked_at_once_and_each_once() -> None:
    names = [f"n{number}-" for number in range(NODES_AT_ONCE_MAX + 1)]
    nodes = Nodes(*names[1:])
    answers = ask_at_once({name: range(2) for name in names}, nodes.begin)
    assert next(answers) == (names[0], 0, 0)
    assert list(nodes.begun) == [f"{name}0" for name in names[:-1]]
    answers.close()
    assert [name for name, call in nodes.begun.items() if call.is_cancelled] == list(nodes.begun)[1:]


def test_a_slow_node_holds_up_no_other() -> None:
    nodes = Nodes("a")
    answers = ask_at_once({"a": range(1), "b": range(2)}, nodes.begin)
    assert [next(answers), next(answers)] == [("b", 0, 0), ("b", 1, 1)]
    ended = nodes.begun["a0"].has_ended
    assert ended is not None
    ended()
    assert list(answers) == [("a", 0, 0)]


def test_a_node_whose_call_fails_is_asked_nothing_more() -> None:
    lost = Failure(grpc.StatusCode.UNAVAILABLE)
    nodes = Nodes(b0=lost)
    found = list(ask_at_once({"a": range(2), "b": range(3)}, nodes.begin))
    assert sorted(found[:2]) == [("a", 0, 0), ("b", 0, lost)]
    assert found[2:] == [("a", 1, 1)]
    assert "b1" not in nodes.begun


def test_nor_is_one_whose_call_cannot_begin() -> None:
    refused = Failure(grpc.StatusCode.UNAUTHENTICATED)
    nodes = Nodes(refused=refused)
    found = list(ask_at_once({"a": range(1), "b": range(3)}, nodes.begin))
    assert sorted(found) == [("a", 0, 0), ("b", 0, refused)]
    assert "b1" not in nodes.begun


class Closed(Failure, Call):
    """As a call of gRPC is whose channel is closed meanwhile: it is its own error."""

    def __init__(self) -> None:
        Failure.__init__(self, grpc.StatusCode.CANCELLED)
        Call.__init__(self, grpc.FutureCancelledError(), is_slow=False)


def test_a_channel_that_is_closed_meanwhile_is_a_failure_as_others() -> None:
    call = Closed()
    assert list(ask_at_once({"a": range(2)}, lambda *_: call)) == [("a", 0, call)]


@pytest.mark.parametrize("nodes", [Nodes("a", refused=ValueError("none")), Nodes("a", b0=ValueError("none"))])
def test_an_error_that_is_no_answer_ends_all(nodes: Nodes) -> None:
    with pytest.raises(ValueError, match="none"):
        list(ask_at_once({"a": range(2), "b": range(2)}, nodes.begin))
    assert nodes.begun["a0"].is_cancelled
