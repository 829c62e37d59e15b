"""A failed call as gRPC raises it."""

from __future__ import annotations

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
