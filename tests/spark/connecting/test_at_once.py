"""Calls at once: their order, their number, and what becomes of those that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from tidegate.spark.connecting.at_once import IN_FLIGHT_MAX, ask_at_once

from .failed_calls import Failure


class Call:
    """It has its answer at once; `under_way` has the calls that are neither read nor cancelled."""

    def __init__(self, number: int, under_way: set[int], failure: Exception | None = None) -> None:
        self._number, self._under_way, self._failure = number, under_way, failure
        under_way.add(number)

    def result(self) -> int:
        self._under_way.remove(self._number)
        if self._failure is not None:
            raise self._failure
        return self._number

    def cancel(self) -> bool:
        self._under_way.discard(self._number)
        return True


@pytest.fixture
def under_way() -> set[int]:
    return set()


@pytest.mark.parametrize("count", [0, 1, IN_FLIGHT_MAX, 3 * IN_FLIGHT_MAX + 1])
def test_answers_come_in_order_and_calls_within_their_bound(count: int, under_way: set[int]) -> None:
    most = 0

    def begin(number: int) -> Call:
        nonlocal most
        call = Call(number, under_way)
        most = max(most, len(under_way))
        return call

    assert list(ask_at_once(range(count), begin)) == [(number, number) for number in range(count)]
    assert (most, under_way) == (min(count, IN_FLIGHT_MAX), set())


def test_a_call_that_fails_or_cannot_begin_is_an_answer(under_way: set[int]) -> None:
    refused, lost = Failure(grpc.StatusCode.UNAUTHENTICATED), Failure(grpc.StatusCode.UNAVAILABLE)

    def begin(number: int) -> Call:
        if number == 0:
            raise refused
        return Call(number, under_way, lost if number == 1 else None)

    assert list(ask_at_once(range(3), begin)) == [(0, refused), (1, lost), (2, 2)]
    assert not under_way


def test_what_nobody_reads_is_cancelled(under_way: set[int]) -> None:
    answers = ask_at_once(range(9), lambda number: Call(number, under_way))
    assert next(answers) == (0, 0)
    assert under_way == set(range(1, 9))
    answers.close()
    assert not under_way


@pytest.mark.parametrize("fails", ["begin", "result"])
def test_an_error_that_is_no_answer_ends_all(fails: str, under_way: set[int]) -> None:
    def begin(number: int) -> Call:
        if number == 5 and fails == "begin":
            raise ValueError("no password")
        return Call(number, under_way, ValueError("no password") if number == 5 else None)

    with pytest.raises(ValueError, match="no password"):
        list(ask_at_once(range(9), begin))
    assert not under_way


def test_what_is_asked_is_settled_when_its_turn_comes(under_way: set[int]) -> None:
    """So that a failure spares those that have not begun."""
    spared = False

    def wanted() -> Iterator[int]:
        for number in range(2 * IN_FLIGHT_MAX):
            if not spared:
                yield number

    seen = 0
    for _ in ask_at_once(wanted(), lambda number: Call(number, under_way)):
        seen, spared = seen + 1, True
    assert seen == IN_FLIGHT_MAX
