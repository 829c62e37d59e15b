"""Only nodes call the controller's gRPC service, and each only for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from tidegate.node import assembly
from tidegate.node.serving.grpc_callers import GrpcGuard
from tidegate.node.serving.grpc_peers import ABOUT_ANOTHER_NODE, NodesOnly, refusal
from tidegate.proto import admin_pb2, admin_pb2_grpc, controller_pb2_grpc
from tidegate.proto import controller_pb2 as pb
from tidegate.runtime.connections.grpc_tls import channel_credentials, node_credentials
from tidegate.runtime.connections.tls import HANDSHAKE_S_MAX, MutualTls, TlsFiles
from tidegate.runtime.network import _GRPC_SERVER_OPTIONS, bind_grpc, grpc_channel, grpc_server
from tidegate.tests.certificates import Authority
from tidegate.tests.grpc_access import open_access

from .test_configuration import loaded

SERVICE = pb.DESCRIPTOR.services_by_name["Controller"]
OF_CALLER = ("RegisterBroker", "Heartbeat", "AlterPartitions", "AllocateProducerIds", "FollowMetadata")
"""The requests that a node makes for itself."""


class Open(controller_pb2_grpc.ControllerServicer):
    """Answers everything."""

    def __init__(self) -> None:
        self.registered: list[int] = []

    async def RegisterBroker(
        self, request: pb.RegisterBrokerRequest, context: object
    ) -> pb.RegisterBrokerReply:
        self.registered.append(request.node_id)
        return pb.RegisterBrokerReply(broker_epoch=7)

    async def FollowMetadata(
        self, request: pb.FollowMetadataRequest, context: object
    ) -> AsyncIterator[pb.MetadataUpdate]:
        yield pb.MetadataUpdate(committed_index=3)


class Status(admin_pb2_grpc.AdminServicer):
    async def Status(self, request: admin_pb2.StatusRequest, context: object) -> admin_pb2.StatusReply:
        return admin_pb2.StatusReply(node_id=1)


@dataclass
class Served:
    """The controller of node 1."""

    authority: Authority
    service: Open
    target: str

    def channel(self, files: TlsFiles | None) -> grpc.aio.Channel:
        own = files or TlsFiles(None, None, self.authority.path)
        name = ("grpc.ssl_target_name_override", "node-1")
        return grpc_channel(self.target, (name,), channel_credentials(own))

    async def register(self, files: TlsFiles | None, node_id: int) -> grpc.StatusCode | None:
        """The status that a forged or honest registration gets; None when it is answered."""
        async with self.channel(files) as channel:
            stub: Any = controller_pb2_grpc.ControllerStub(channel)
            try:
                await stub.RegisterBroker(pb.RegisterBrokerRequest(node_id=node_id), timeout=2)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return None


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    # the other methods are not asked for
    authority, service = Authority(tmp_path), cast(Any, Open)()
    server = grpc_server(interceptors=(NodesOnly(),))
    controller_pb2_grpc.add_ControllerServicer_to_server(service, server)
    admin_pb2_grpc.add_AdminServicer_to_server(cast(Any, Status)(), server)
    tls = MutualTls.load(authority.issue("node-1"), 1)
    port = bind_grpc(server, "127.0.0.1", 0, node_credentials(tls))
    await server.start()
    yield Served(authority, service, f"127.0.0.1:{port}")
    await server.stop(0)


async def test_a_node_registers_itself(served: Served) -> None:
    assert await served.register(served.authority.issue("node-2"), 2) is None
    assert served.service.registered == [2]


async def test_a_registration_for_another_node_is_refused(served: Served) -> None:
    assert await served.register(served.authority.issue("node-2"), 3) is grpc.StatusCode.PERMISSION_DENIED
    assert served.service.registered == []


async def test_a_client_with_a_certificate_is_no_node(served: Served) -> None:
    files = served.authority.issue("10.0.0.1", user="alice")
    assert await served.register(files, 2) is grpc.StatusCode.UNAUTHENTICATED
    assert served.service.registered == []


@pytest.mark.parametrize("which", ["none", "foreign", "expired", "not yet valid"])
async def test_without_a_valid_certificate_there_is_no_connection(
    served: Served, tmp_path: Path, which: str
) -> None:
    stranger = Authority(tmp_path / "other", "other").issue("node-2")
    files = {
        "none": None,
        "foreign": TlsFiles(stranger.certificate, stranger.key, served.authority.path),
        "expired": served.authority.issue("node-2", days=-1),
        "not yet valid": served.authority.issue("node-2", days=3, from_days=2),
    }[which]
    assert await served.register(files, 2) is grpc.StatusCode.UNAVAILABLE
    assert served.service.registered == []


async def test_the_metadata_are_for_the_node_that_the_certificate_names(served: Served) -> None:
    async def follow(node_id: int) -> list[int]:
        async with served.channel(served.authority.issue("node-2")) as channel:
            stub: Any = controller_pb2_grpc.ControllerStub(channel)
            call = stub.FollowMetadata(pb.FollowMetadataRequest(node_id=node_id), timeout=2)
            return [update.committed_index async for update in call]

    assert await follow(2) == [3]
    with pytest.raises(grpc.aio.AioRpcError, match="does not speak for node 3"):
        await follow(3)


async def test_other_services_on_the_same_server_are_not_asked_for_a_node(served: Served) -> None:
    async with served.channel(served.authority.issue(user="alice")) as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)
        assert (await stub.Status(admin_pb2.StatusRequest(), timeout=2)).node_id == 1


async def test_a_client_that_is_silent_in_the_handshake_is_let_go(tmp_path: Path) -> None:
    """gRPC waits two minutes by default."""
    server = grpc_server(options=(("grpc.server_handshake_timeout_ms", 200),))
    tls = MutualTls.load(Authority(tmp_path).issue("node-1"), 1)
    port = bind_grpc(server, "127.0.0.1", 0, node_credentials(tls))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    await server.stop(0)


def test_a_node_gives_a_handshake_as_long_as_on_its_other_listeners() -> None:
    assert dict(_GRPC_SERVER_OPTIONS)["grpc.server_handshake_timeout_ms"] == 1000 * HANDSHAKE_S_MAX


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_every_request_is_for_nodes_and_bound_to_its_caller(method: str) -> None:
    """Also a request that is added later: `node_id` is the caller's unless this test's table says more."""
    request_type = SERVICE.methods_by_name[method].input_type
    request: Any = getattr(pb, request_type.name)()
    names_caller = method not in ABOUT_ANOTHER_NODE
    assert refusal([], request, names_caller=names_caller) is not None
    assert refusal(["alice", "node-x"], request, names_caller=names_caller) is not None
    assert ("node_id" in request_type.fields_by_name and names_caller) == (method in OF_CALLER)
    if method in OF_CALLER:
        request.node_id = 3
        assert refusal(["node-2"], request, names_caller=names_caller) is not None
        assert refusal(["node-2", "node-3"], request, names_caller=names_caller) is None


@pytest.mark.parametrize(
    ("certificates", "guards"), [(None, [GrpcGuard]), ("of the nodes", [GrpcGuard, NodesOnly])]
)
def test_the_services_of_a_node_stand_behind_their_guards(
    monkeypatch: pytest.MonkeyPatch, certificates: object, guards: list[type]
) -> None:
    """The controller's service may be one of them."""
    made: list[object] = []

    def server(_options: object, interceptors: list[object], **_limits: object) -> Any:
        made.extend(interceptors)
        return SimpleNamespace(add_generic_rpc_handlers=lambda _: None)

    monkeypatch.setattr(assembly, "grpc_server", server)
    foundation: Any = SimpleNamespace(
        configuration=loaded(), certificates=SimpleNamespace(controllers=certificates)
    )
    assembly._grpc_server(foundation, open_access())
    assert [type(each) for each in made] == guards
