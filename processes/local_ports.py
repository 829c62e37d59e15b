"""Ports of the nodes of local clusters: chosen, reserved, and checked before a node is started.

A reservation is a lock file that lasts as long as the cluster object: clusters that are made side by side do
not take one another's ports, also not while a node is down.  Other programs do not know these locks. So
`require_free` looks right before a node starts: it says which port is taken, by which Tidegate node if it is
one, and what to do.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ..runtime.clock import Clock
from ..runtime.disk import FileLock, RealDisk

if TYPE_CHECKING:
    import grpc.aio

    from ..proto.admin_pb2 import StatusReply
    from ..security.client_security import ClientSecurity
    from ..security.grpc_session import Metadata

HOST: Final = "127.0.0.1"
PORTS_FROM: Final = 12_000
PORTS_TO: Final = 30_000  # below Linux' default range of outgoing ports (32768-60999)
PORTS: Final = 4  # of a node
SECURED_PORTS: Final = 6  # of a node whose nodes have listeners of their own
PORT_STEP: Final = 100  # between the listeners of one node, with ports counted from a base

STATUS_TIMEOUT_S: Final = 1.0
_DISK: Final = RealDisk()


class LocalClusterError(Exception):
    """A node did not start, or the directory is not usable; one sentence that says what to do."""


class Hosts(Protocol):
    """Where the nodes of a cluster run, seen from here."""

    def address(self, node_id: int) -> str:
        """The IP address of the node's host."""

    def name(self, node_id: int) -> str:
        """The address or the name under which other nodes and clients reach it."""

    def command(self, node_id: int) -> Sequence[str]:
        """The prefix of the node's command line that makes it run on that host."""


class Loopback:
    """All nodes on this host, behind 127.0.0.1."""

    def address(self, node_id: int) -> str:
        return HOST

    def name(self, node_id: int) -> str:
        return HOST

    def command(self, node_id: int) -> Sequence[str]:
        return ()


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The listeners of one node."""

    node_id: int
    kafka: int
    grpc: int
    quorum: int
    metrics: int
    brokers: int = 0
    """Where the brokers of a secured cluster reach each other; 0: where clients do."""
    controller_grpc: int = 0
    """... and the controllers' gRPC service; 0: it stands beside the others."""

    @staticmethod
    def from_base(node_id: int, base_port: int, *, is_secured: bool = False) -> NodePorts:
        """The ports that `--base-port` means."""
        first = base_port + node_id - 1
        count = SECURED_PORTS if is_secured else PORTS
        return NodePorts(node_id, *(first + step * PORT_STEP for step in range(count)))

    @property
    def by_use(self) -> Mapping[str, int]:
        """Port numbers by their purpose, in words."""
        uses = {"Kafka": self.kafka, "gRPC": self.grpc, "quorum": self.quorum, "metrics": self.metrics}
        of_nodes = {"brokers": self.brokers, "controllers' gRPC": self.controller_grpc}
        return uses | {use: port for use, port in of_nodes.items() if port}


class Reservations:
    """The port locks of one cluster object."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: list[FileLock] = []

    def take(self, ports: NodePorts) -> None:
        """Reserves chosen ports.  Raises LocalClusterError when another cluster object has one of them."""
        for use, port in ports.by_use.items():
            if not self.hold(port):
                raise LocalClusterError(
                    f"port {port} ({use} of node {ports.node_id}) is reserved by another local "
                    "cluster: choose other ports with "
                    "--base-port (`tidegate dev`: --port)"
                )

    def keep(self, ports: NodePorts) -> None:
        """Reserves the ports of a cluster that exists, as far as they can be: a node that starts looks for
        itself."""
        for port in ports.by_use.values():
            try:
                self.hold(port)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                    raise

    def choose(self, node_id: int, *, is_secured: bool = False) -> NodePorts:
        """Free ports, now reserved."""
        return NodePorts(node_id, *(self._free_port() for _ in range(SECURED_PORTS if is_secured else PORTS)))

    def _free_port(self) -> int:
        from ..runtime.network import port_is_free

        count = PORTS_TO - PORTS_FROM
        start = int(self._clock.random() * count)
        for step in range(count):
            port = PORTS_FROM + (start + step) % count
            if port_is_free(port) and self.hold(port):
                return port
        raise LocalClusterError(
            f"no free port between {PORTS_FROM} and {PORTS_TO}: stop other clusters first"
        )

    def hold(self, port: int) -> bool:
        """Reserves a port among local clusters; False when another one holds it."""
        directory = Path(tempfile.gettempdir()) / f"tidegate-ports-{os.getuid()}"
        _DISK.make_directory(directory)
        try:
            self._locks.append(_DISK.lock(directory / str(port)))
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def release(self) -> None:
        """Gives all reservations back."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()


async def ask_status(address: str, timeout_s: float, security: ClientSecurity | None = None) -> StatusReply:
    """The own status of the node at this gRPC address.  Raises grpc.aio.AioRpcError when none answers."""
    from ..proto import admin_pb2, admin_pb2_grpc

    # A channel a call: a kept one backs off for long after the node was down.
    async with grpc_client(address, security, timeout_s) as (channel, shown):
        reply: StatusReply = await admin_pb2_grpc.AdminStub(channel).Status(
            admin_pb2.StatusRequest(), timeout=timeout_s, metadata=shown
        )
        return reply


@asynccontextmanager
async def grpc_client(
    address: str, security: ClientSecurity | None, timeout_s: float
) -> AsyncIterator[tuple[grpc.aio.Channel, Metadata]]:
    """A channel to a node, and what its calls show.  Raises grpc.aio.AioRpcError when the node does not
    answer, or does not know the user (yet)."""
    from ..runtime.connections.grpc_tls import channel_credentials
    from ..runtime.network import grpc_channel
    from ..security.grpc_session import authenticated

    if security is None or security.tls is None:
        async with grpc_channel(address) as channel:
            yield channel, ()
        return
    async with grpc_channel(address, credentials=channel_credentials(security.tls.files)) as channel:
        yield channel, await authenticated(channel, security, timeout_s)


async def require_free(ports: NodePorts, base_port_option: str) -> None:
    """Raises LocalClusterError when a port of this host that the node is to listen on is taken."""
    from ..runtime.network import port_is_free

    for use, port in ports.by_use.items():
        if not port_is_free(port):
            raise LocalClusterError(
                f"port {port} ({use} of node {ports.node_id}) is in use by {await _occupant(ports)}: stop "
                "it, or choose other ports "
                f"with {base_port_option}"
            )


async def _occupant(ports: NodePorts) -> str:
    import grpc

    try:
        status = await ask_status(f"{HOST}:{ports.grpc}", STATUS_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return (
            f"another program (`ss -ltnp` shows which; perhaps another Tidegate, or a Kafka on {ports.kafka})"
        )
    process = f", process {status.process_id}" if status.process_id else ""
    return (
        f"a node of another Tidegate cluster (node {status.node_id} of cluster {status.cluster_id}{process})"
    )
