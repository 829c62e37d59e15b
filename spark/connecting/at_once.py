"""Calls to several nodes at once: the caller waits for the slowest answer, not for the sum of all."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import grpc

IN_FLIGHT_MAX = 32

Asked = TypeVar("Asked")
Reply = TypeVar("Reply")
Answer = TypeVar("Answer", covariant=True)


class Call(Protocol[Answer]):
    """As much of a `grpc.Future` as is needed here."""

    def result(self) -> Answer: ...

    def cancel(self) -> bool: ...


def ask_at_once(
    asked: Iterable[Asked], begin: Callable[[Asked], Call[Reply]]
) -> Generator[tuple[Asked, Reply | grpc.RpcError]]:
    """What each was answered, in the order of `asked`; `begin` starts its call, which must have a deadline.

    At most IN_FLIGHT_MAX calls are under way.  Those that nobody waits for any more are cancelled when the
    generator is closed.  Errors of `begin` other than grpc.RpcError are raised."""
    left = iter(asked)
    begun: deque[_Begun[Asked, Reply]] = deque()
    try:
        while True:
            for each in itertools.islice(left, IN_FLIGHT_MAX - len(begun)):
                begun.append(_begin(each, begin))
            if not begun:
                return
            first = begun[0]
            answer = first.answer()
            begun.popleft()
            yield first.asked, answer
    finally:
        for unread in begun:
            unread.cancel()


@dataclass(frozen=True, slots=True)
class _Begun(Generic[Asked, Reply]):
    """One call; `refused` when it could not begin."""

    asked: Asked
    call: Call[Reply] | None  # it is an RpcError itself, whatever its answer
    refused: grpc.RpcError | None = None

    def answer(self) -> Reply | grpc.RpcError:
        if self.call is None:
            assert self.refused is not None
            return self.refused
        try:
            return self.call.result()
        except grpc.RpcError as failure:
            return failure

    def cancel(self) -> None:
        if self.call is not None:
            self.call.cancel()


def _begin(asked: Asked, begin: Callable[[Asked], Call[Reply]]) -> _Begun[Asked, Reply]:
    try:
        return _Begun(asked, begin(asked))
    except grpc.RpcError as failure:
        return _Begun(asked, None, failure)
