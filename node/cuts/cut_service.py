"""The gRPC service of cuts: READ on each topic to take one; pinned ones: `pinned_cut_calls.py`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from ...proto import cuts_pb2 as pb
from ...proto import cuts_pb2_grpc
from ...wire.errors import ErrorCode, KafkaError
from ..serving.grpc_callers import GrpcAccess
from .pinned_cut_calls import PinnedCutCalls
from .taker import CutTaker

Context = grpc.aio.ServicerContext[Any, Any]
Reply = TypeVar("Reply")

ERROR_KEY: Final = "tidegate-error-bin"
MESSAGE_BYTES_MAX: Final = 1_000
"""Of an error, which travels in the metadata of a call, twice: gRPC bounds them at 8 KiB."""
TOPICS_MAX: Final = 1_000
_STATUS: Final = {
    ErrorCode.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.INVALID_TOPIC_EXCEPTION: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.POLICY_VIOLATION: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: grpc.StatusCode.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: grpc.StatusCode.NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorCode.DUPLICATE_RESOURCE: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.OFFSET_OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.UNSUPPORTED_VERSION: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.SASL_AUTHENTICATION_FAILED: grpc.StatusCode.UNAUTHENTICATED,
}
"""Any other code is UNAVAILABLE: the call may be repeated."""


class CutService(cuts_pb2_grpc.CutsServicer):
    """See the module's text."""

    def __init__(self, taker: CutTaker, pinned: PinnedCutCalls, access: GrpcAccess) -> None:
        self._taker = taker
        self._pinned = pinned
        self._access = access

    async def TakeCut(self, request: pb.TakeCutRequest, context: Context) -> pb.Cut:
        async def call() -> pb.Cut:
            if len(request.topics) > TOPICS_MAX:
                message = f"{len(request.topics)} topics: a cut has at most {TOPICS_MAX}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            caller = self._access.caller(context)
            for topic in request.topics:
                self._access.require(caller, "TakeCut", topic)
            return await self._taker.take(request.topics, request.timeout_ms / 1000)

        return await answer(context, call())

    async def PinCut(self, request: pb.PinCutRequest, context: Context) -> pb.PinnedCut:
        async def call() -> pb.PinnedCut:
            return await self._pinned.pin(request, self._access.caller(context))

        return await answer(context, call())

    async def GetCut(self, request: pb.GetCutRequest, context: Context) -> pb.PinnedCut:
        async def call() -> pb.PinnedCut:
            return await self._pinned.get(request, self._access.caller(context))

        return await answer(context, call())

    async def ListCuts(self, request: pb.ListCutsRequest, context: Context) -> pb.ListCutsReply:
        async def call() -> pb.ListCutsReply:
            return await self._pinned.list(request, self._access.caller(context))

        return await answer(context, call())

    async def UnpinCut(self, request: pb.UnpinCutRequest, context: Context) -> pb.UnpinCutReply:
        async def call() -> pb.UnpinCutReply:
            return await self._pinned.unpin(request, self._access.caller(context))

        return await answer(context, call())


async def answer(context: Context, call: Coroutine[Any, Any, Reply]) -> Reply:
    """A call that fails ends with a CutError."""
    try:
        return await call
    except KafkaError as error:
        message = error.message.encode()[:MESSAGE_BYTES_MAX].decode(errors="ignore")
        detail = pb.CutError(error_code=error.code, message=message)
        await context.abort(
            _STATUS.get(error.code, grpc.StatusCode.UNAVAILABLE),
            message,
            ((ERROR_KEY, detail.SerializeToString()),),
        )
