"""Real controllers in this process, on loopback, with real files: for tests that need the whole thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc
from tidegate.controller.planning.planner import ControllerConfig
from tidegate.controller.raft.contract import RaftTimings
from tidegate.controller.remote.client import ControllerClient
from tidegate.controller.service.controller_node import ControllerNode
from tidegate.controller.service.metadata_log import MetadataLog
from tidegate.controller.state.model import SUPPORTED_FEATURES
from tidegate.controller.state.validation import StateValidator
from tidegate.proto import controller_pb2 as rpc
from tidegate.runtime import network
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.tests.eventually import eventually

from .reserved_ports import reserve_ports

QUICK = RaftTimings(election_s_min=0.3, election_s_max=0.6, heartbeat_s=0.05, leader_fallback_s=1.0)


@dataclass
class ControllerCluster:
    """`count` controllers; a killed one can be started again on its folder."""

    folder: Path
    count: int
    config: ControllerConfig = field(
        default_factory=lambda: ControllerConfig(session_timeout_ms=4000, tick_interval_ms=50)
    )
    """The session is long enough for a process that a busy machine has forgotten for a second or two."""
    timings: RaftTimings = QUICK
    nodes: dict[int, ControllerNode] = field(default_factory=dict)
    servers: dict[int, grpc.aio.Server] = field(default_factory=dict)
    deaths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = list(range(1, self.count + 1))
        ports = reserve_ports(self, self.count)
        self.quorum = {node_id: ("127.0.0.1", each.quorum) for node_id, each in ports.items()}
        self.grpc = {node_id: each.grpc for node_id, each in ports.items()}

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.ids:
            metadata = MetadataLog(
                node_id=node_id,
                voters=self.quorum,
                listen=self.quorum[node_id],
                directory=self.folder / f"node-{node_id}",
                disk=RealDisk(),
                clock=SystemClock(),
                timings=self.timings,
                die=self.deaths.append,
                validate=True,
            )
            node = ControllerNode(
                metadata,
                SystemClock(),
                config=self.config,
                die=self.deaths.append,
                validator=StateValidator(),
            )
            server = network.grpc_server()
            node.add_to_server(server)
            network.bind_grpc(server, "127.0.0.1", self.grpc[node_id])
            await node.start()
            await server.start()
            self.nodes[node_id], self.servers[node_id] = node, server

    async def kill(self, node_id: int) -> None:
        """Takes a controller away without a word to the others."""
        node, server = self.nodes.pop(node_id), self.servers.pop(node_id)
        await node.stop()
        await server.stop(0)

    async def stop(self) -> None:
        for node_id in list(self.nodes):
            await self.kill(node_id)

    async def active(self, timeout_s: float = 20.0) -> ControllerNode:
        await eventually(
            lambda: any(node.is_active for node in self.nodes.values()), "an active controller", timeout_s
        )
        return next(node for node in self.nodes.values() if node.is_active)

    def client(self) -> ControllerClient:
        return ControllerClient({n: f"127.0.0.1:{port}" for n, port in self.grpc.items()}, SystemClock())


def registration(node_id: int, incarnation: str = "first", **fields: object) -> rpc.RegisterBrokerRequest:
    request = rpc.RegisterBrokerRequest(
        node_id=node_id,
        incarnation=incarnation,
        kafka_host="127.0.0.1",
        kafka_port=9000 + node_id,
        grpc_host="127.0.0.1",
        grpc_port=9500 + node_id,
        clean_shutdown_broker_epoch=-1,
        **fields,  # type: ignore[arg-type]
    )
    for name, level in SUPPORTED_FEATURES.items():
        request.supported_features.add(name=name, max_level=level)
    return request
