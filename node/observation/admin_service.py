"""The gRPC Admin service of one node: what it is and does, and, where they are enabled, its fault points."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from ...proto import admin_pb2 as pb
from ...proto import admin_pb2_grpc
from ...runtime import faults, logs

log = logs.get(__name__)


class AdminService(admin_pb2_grpc.AdminServicer):
    """`status()` is called on the loop."""

    def __init__(self, status: Callable[[], pb.StatusReply]) -> None:
        self._status = status

    async def Status(
        self, request: pb.StatusRequest, context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply]
    ) -> pb.StatusReply:
        return self._status()

    async def ArmFault(
        self,
        request: pb.ArmFaultRequest,
        context: grpc.aio.ServicerContext[pb.ArmFaultRequest, pb.ArmFaultReply],
    ) -> pb.ArmFaultReply:
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
