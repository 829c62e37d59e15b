"""Calls to several nodes at once: the caller waits for the slowest node, not for the sum of all.

Each node has one call at a time: many at once would share the node and yet have the deadline of one each, and
a session that has ended, or a node that hangs, would be met by all of them.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Protocol, TypeVar

import grpc

NODES_AT_ONCE_MAX = 32

Asked = TypeVar("Asked")
Reply = TypeVar("Reply")
Answer = TypeVar("Answer", covariant=True)


class Call(Protocol[Answer]):
    """As much of a `grpc.Future` as is needed here."""

    def result(self) -> Answer: ...

    def cancel(self) -> bool: ...

    def add_done_callback(self, fn: Callable[[object], None]) -> None: ...


def ask_at_once(
    asked: Mapping[str, Iterable[Asked]], begin: Callable[[str, Asked], Call[Reply]]
) -> Generator[tuple[str, Asked, Reply | grpc.RpcError]]:
    """The endpoint, what it was asked, and its answer, in the order of the answers.  `asked` is by endpoint;
    `begin` starts one call, which must have a deadline.

    A node whose call failed, or could not begin, is asked nothing more.  A caller that closes the generator
    cancels the calls whose answers it has not taken.  Errors of `begin` other than grpc.RpcError are raised;
    what it does before the call, as to authenticate, it does for one node after the other."""
    left = {endpoint: deque(requests) for endpoint, requests in asked.items()}
    free = deque(left)
    under_way: dict[str, tuple[Asked, Call[Reply]]] = {}
    done: queue.SimpleQueue[str] = queue.SimpleQueue()

    def note_end_of(endpoint: str) -> Callable[[object], None]:
        return lambda _: done.put(endpoint)

    try:
        while free or under_way:
            while free and len(under_way) < NODES_AT_ONCE_MAX:
                endpoint = free.popleft()
                if not left[endpoint]:
                    continue
                each = left[endpoint].popleft()
                try:
                    call = begin(endpoint, each)
                except grpc.RpcError as failure:
                    yield endpoint, each, failure
                    continue
                under_way[endpoint] = each, call
                call.add_done_callback(note_end_of(endpoint))
            if not under_way:
                return
            endpoint = done.get()
            each, call = under_way.pop(endpoint)
            answer = _answer(call)
            if not isinstance(answer, grpc.RpcError):
                free.append(endpoint)
            yield endpoint, each, answer
    finally:
        for _, call in under_way.values():
            call.cancel()


def _answer(call: Call[Reply]) -> Reply | grpc.RpcError:
    try:
        return call.result()
    except grpc.RpcError as failure:
        return failure
    except grpc.FutureCancelledError:  # the channel was closed meanwhile
        if isinstance(call, grpc.RpcError):  # gRPC's are both
            return call
        raise
