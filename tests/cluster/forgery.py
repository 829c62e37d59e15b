"""Who speaks to a node's listeners for nodes without being that node, and what they send."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from tidegate.controller.raft.messages import Hello, VoteRequest, encode
from tidegate.node.cluster.peers import Peer, PeerFetchTransport
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.proto import controller_pb2 as pb
from tidegate.proto import controller_pb2_grpc
from tidegate.runtime.connections.grpc_tls import channel_credentials
from tidegate.runtime.connections.tls import ClientTls, TlsFiles
from tidegate.runtime.network import grpc_channel
from tidegate.security.certificates import Authority, Lifetime, client_certificate, node_certificate
from tidegate.tests.certificates import lifetime

FRAME_BYTES_MAX = 100 << 20


def tls_of(files: TlsFiles) -> ClientTls:
    """With a certificate that `ClientTls` itself would not show, too."""
    tls = ClientTls(TlsFiles(authorities=files.authorities), check_host_name=False)
    assert files.certificate is not None
    tls.newest.load_cert_chain(files.certificate, files.key)
    return tls


@dataclass(frozen=True)
class Speaker:
    """A client at a node's listeners.  `files` None: in plain text, where clients are served."""

    name: str
    files: TlsFiles | None

    def peer(self, node: LocalNode) -> Peer:
        """At the brokers' listener, or at the clients'."""
        port = node.ports.kafka if self.files is None else node.ports.brokers
        tls: Any = self.files and SimpleNamespace(client=tls_of(self.files))
        return Peer(
            node.id,
            lambda _: (node.host, port),
            client_id=self.name,
            max_frame_bytes=FRAME_BYTES_MAX,
            tls=tls,
        )

    def fetches(self, node: LocalNode) -> PeerFetchTransport:
        return PeerFetchTransport(self.peer(node), 5.0)

    async def register(self, node: LocalNode, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerReply:
        """Asks the controller on `node`.  Raises AioRpcError."""
        port = node.ports.controller_grpc
        target, name = f"{node.host}:{port}", ("grpc.ssl_target_name_override", f"node-{node.id}")
        credentials = None if self.files is None else channel_credentials(self.files)
        async with grpc_channel(target, (name,), credentials) as channel:
            stub: Any = controller_pb2_grpc.ControllerStub(channel)
            reply: pb.RegisterBrokerReply = await stub.RegisterBroker(request, timeout=3)
            return reply

    async def ask_for_votes(self, node: LocalNode, hello: Hello, term: int) -> bytes:
        """Says hello at the quorum's listener and asks for a vote; what came back before the connection was
        closed."""
        tls = None if self.files is None else tls_of(self.files).newest
        votes = VoteRequest(term, term, term, preliminary=False)
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(
                    node.host, node.ports.quorum, ssl=tls, server_hostname=None if tls is None else ""
                )
                for message in (hello, votes):
                    data = encode(message)
                    writer.write(len(data).to_bytes(4, "big") + data)
                answer = await reader.read()
                writer.close()
        except (ssl.SSLError, ConnectionError):
            return b""
        return answer


class Forger:
    """Makes speakers for a secured cluster."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._authority = cluster.certificates.authority
        self._authorities = cluster.certificates.authorities
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def client(self) -> Speaker:
        """An ordinary client: no certificate, on the listener for clients."""
        return Speaker("client", None)

    def user(self) -> Speaker:
        """Has a certificate of the cluster's authority, which names no node."""
        return self._speaker("user", client_certificate(self._authority, "alice", lifetime()).with_key)

    def node(self, node_id: int, held: Lifetime | None = None) -> Speaker:
        """Has a certificate of this node."""
        made = node_certificate(self._authority, node_id, [], held or lifetime())
        return self._speaker(f"node-{node_id}", made.with_key)

    def stranger(self, node_id: int) -> Speaker:
        """Has a certificate of this node that another authority signed."""
        made = node_certificate(Authority.create("other", lifetime()), node_id, [], lifetime())
        return self._speaker("stranger", made.with_key)

    def _speaker(self, name: str, pem: bytes) -> Speaker:
        path = self._folder / f"{name}.pem"
        path.write_bytes(pem)
        return Speaker(name, TlsFiles(path, None, self._authorities))


async def status_of(call: Any) -> grpc.StatusCode | None:
    """The status of a gRPC call; None when it is answered."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None
