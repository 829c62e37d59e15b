"""The gRPC Admin service of one node: what it is and does, and, where they are enabled, its fault points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from ...proto import admin_pb2 as pb
from ...proto import admin_pb2_grpc
from ...runtime import faults, logs
from ...wire.errors import KafkaError
from ..serving.grpc_callers import GrpcAccess

log = logs.get(__name__)


class AdminService(admin_pb2_grpc.AdminServicer):
    """`status()` is called on the loop."""

    def __init__(self, status: Callable[[], pb.StatusReply], access: GrpcAccess) -> None:
        self._status = status
        self._access = access

    async def Status(
        self, request: pb.StatusRequest, context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply]
    ) -> pb.StatusReply:
        await self._require(context, "Status")
        return self._status()

    async def _require(self, context: grpc.aio.ServicerContext[Any, Any], method: str) -> None:
        try:
            self._access.require(self._access.caller(context), method)
        except KafkaError as refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, refused.message)

    async def ArmFault(
        self,
        request: pb.ArmFaultRequest,
        context: grpc.aio.ServicerContext[pb.ArmFaultRequest, pb.ArmFaultReply],
    ) -> pb.ArmFaultReply:
        await self._require(context, "ArmFault")
        try:
            faults.arm(request.point, request.action, skip=request.skip, match=dict(request.match))
        except PermissionError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        log.warning(
            "fault_armed",
            point=request.point,
            action=request.action,
            skip=request.skip,
            match=dict(request.match),
        )
        return pb.ArmFaultReply()
