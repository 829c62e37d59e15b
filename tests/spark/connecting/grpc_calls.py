"""Calls as gRPC has them: one that failed, and one with an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from tidegate.proto import data_pb2 as pb


@grpc.Call.register  # only these three of its methods are asked
class Failure(grpc.RpcError):
    """A call that failed."""

    def __init__(self, code: grpc.StatusCode, detail: pb.ErrorDetail | None = None) -> None:
        self._code, self._detail = code, detail

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "so it is"

    def trailing_metadata(self) -> Any:
        return [] if self._detail is None else [("tidegate-error-bin", self._detail.SerializeToString())]


class Call:
    """A call that was begun: it has its answer, or raises it, at once, or `has_ended` later."""

    def __init__(self, answer: object, *, is_slow: bool = False) -> None:
        self._answer, self._is_slow = answer, is_slow
        self.has_ended: Callable[[], object] | None = None
        self.is_cancelled = False

    def add_done_callback(self, fn: Callable[[object], None]) -> None:
        self.has_ended = lambda: fn(self)
        if not self._is_slow:
            fn(self)

    def result(self) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def cancel(self) -> bool:
        self.is_cancelled = True
        return True
