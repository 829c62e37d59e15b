"""The admin service over real gRPC: what the node is, and fault points only where they were enabled."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from tidegate.node.observation.admin_service import AdminService
from tidegate.proto import admin_pb2 as pb
from tidegate.proto import admin_pb2_grpc
from tidegate.runtime import faults
from tidegate.runtime.network import bind_grpc, grpc_channel, grpc_server
from tidegate.tests.grpc_access import open_access


@pytest.fixture
async def admin() -> AsyncIterator[admin_pb2_grpc.AdminAsyncStub]:
    server = grpc_server()
    admin_pb2_grpc.add_AdminServicer_to_server(
        AdminService(lambda: pb.StatusReply(node_id=7, ready=True, leaders=3), open_access()), server
    )
    port = bind_grpc(server, "127.0.0.1", 0)
    await server.start()
    async with grpc_channel(f"127.0.0.1:{port}") as channel:
        yield admin_pb2_grpc.AdminStub(channel)
    await server.stop(None)


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ENABLED", True)
    monkeypatch.setattr(faults, "_armed", {})


async def test_the_status_is_what_the_node_says(admin: admin_pb2_grpc.AdminAsyncStub) -> None:
    reply = await admin.Status(pb.StatusRequest(), timeout=5)
    assert (reply.node_id, reply.ready, reply.leaders) == (7, True, 3)


async def test_fault_points_cannot_be_armed_where_they_are_off(
    admin: admin_pb2_grpc.AdminAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "ENABLED", False)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await admin.ArmFault(pb.ArmFaultRequest(point="x", action="kill"), timeout=5)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "TIDEGATE_FAULT_POINTS=1" in (refused.value.details() or "")


async def test_an_unknown_action_is_an_argument_error(
    admin: admin_pb2_grpc.AdminAsyncStub, enabled: None
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await admin.ArmFault(pb.ArmFaultRequest(point="x", action="explode"), timeout=5)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_armed_point_kills_at_the_pass_that_matches(
    admin: admin_pb2_grpc.AdminAsyncStub, enabled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[int] = []
    monkeypatch.setattr(faults, "_kill", lambda _pid, number: kills.append(number))
    await admin.ArmFault(
        pb.ArmFaultRequest(point="x", action="kill", skip=1, match={"commit": "True"}), timeout=5
    )
    faults.point("x", commit=False)
    faults.point("y", commit=True)
    faults.point("x", commit=True)
    assert kills == []
    faults.point("x", commit=True)
    assert len(kills) == 1
