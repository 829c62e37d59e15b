"""10,000 connections whose clients never say who they are, to Kafka's listeners or to gRPC's: the node stays
small, and serves all others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tidegate.client.connecting.connection import BrokerConnection
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.http import get
from tidegate.runtime.network import UNAUTHENTICATED_MAX
from tidegate.security.client_security import ClientSecurity
from tidegate.tests.base_ports import free_base_port
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually

from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

STEP = 100
USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "SASL_PLAINTEXT", "SSL")
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonder";'
CONNECTIONS = 10_000
AT_ONCE = 200
GRPC_MAX = 50
GRPC_BOUNDS = {"listener.name.grpc.max.connections": GRPC_MAX, "connections.max.idle.ms": 8_000}
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Of HTTP/2: after it a connection is whole, and may stay silent."""
GROWTH_KIB_MAX = 300_000
"""Of the process: 340 KiB for each of 500 connections, and those that are just being closed."""


@dataclass(frozen=True)
class Crowded:
    """A node that may have fewer connections than there are silent clients."""

    cluster: LocalCluster
    authority: Authority
    ports: dict[str, int]

    def security(self, protocol: str) -> ClientSecurity:
        return ClientSecurity(
            protocol, authorities=str(self.authority.path), mechanism="PLAIN", username="alice",
            password="wonder", check_host_name=False,
        )  # fmt: skip

    async def serves(self, protocol: str) -> None:
        """A client authenticates in the time that others have for a connection."""
        connection = await BrokerConnection.open(
            "127.0.0.1", self.ports[protocol], client_id="honest", connect_timeout_s=5, request_timeout_s=5,
            security=self.security(protocol),
        )  # fmt: skip
        connection.close()

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.cluster.node(1).pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1])

    def sockets(self) -> int:
        return len(list(Path(f"/proc/{self.cluster.node(1).pid}/fd").iterdir()))


@pytest.fixture
async def crowded(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Crowded]:
    base, authority = free_base_port(len(USES)), Authority(tmp_path / "tls")
    files = authority.issue("localhost")
    ports = {use: base + STEP * number for number, use in enumerate(USES)}
    settings = {
        "listeners": [f"{use}://127.0.0.1:{port}" for use, port in ports.items()],
        "listener.security.protocol.map": [
            f"{use}:{use if use.startswith('S') else 'PLAINTEXT'}" for use in USES
        ],
        "sasl.enabled.mechanisms": ["PLAIN"],
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "ssl.keystore.location": str(files.certificate),
        "ssl.key.location": str(files.key),
        "max.connections": 4 * UNAUTHENTICATED_MAX,
        **getattr(request, "param", {}),
    }
    async with LocalCluster(tmp_path / "cluster", 1, settings, base_port=base) as cluster:
        yield Crowded(cluster, authority, ports)


@asynccontextmanager
async def silent(port: int, said: bytes = b"") -> AsyncIterator[None]:
    """Clients that connect and say nothing more than `said`."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(CONNECTIONS // AT_ONCE):
            opened = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", port) for _ in range(AT_ONCE)), return_exceptions=True
            )
            came = [each[1] for each in opened if not isinstance(each, BaseException)]
            for writer in came:
                writer.write(said)
            writers += came
        assert len(writers) > CONNECTIONS // 2, "the node turned them away: nothing is shown"
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT"])
async def test_clients_that_never_authenticate_keep_no_client_out(crowded: Crowded, protocol: str) -> None:
    witness = Witness(crowded.cluster.bootstrap)
    await witness.create()
    await witness.write(5)
    before_kib = crowded.memory_kib()
    async with silent(crowded.ports[protocol]):
        for served in ("SSL", "SASL_PLAINTEXT"):
            await crowded.serves(served)
        await witness.still_serves()
        await eventually(lambda: crowded.sockets() <= UNAUTHENTICATED_MAX + 200)
        assert crowded.memory_kib() - before_kib < GROWTH_KIB_MAX
    await witness.still_serves()


@pytest.mark.parametrize("crowded", [GRPC_BOUNDS], indirect=True, ids=["bounds"])
@pytest.mark.parametrize("said", [b"", GREETING], ids=["silent", "greeting"])
async def test_silent_grpc_connections_are_few_and_end(crowded: Crowded, said: bytes) -> None:
    witness = Witness(crowded.cluster.bootstrap)
    await witness.create()
    await witness.write(5)
    before, before_kib = crowded.sockets(), crowded.memory_kib()
    async with silent(crowded.ports["GRPC"], said):
        assert crowded.sockets() <= before + GRPC_MAX + AT_ONCE, "those that are just being closed, too"
        await witness.still_serves()
        assert crowded.memory_kib() - before_kib < GROWTH_KIB_MAX / 3
        assert await get("127.0.0.1", crowded.ports["METRICS"], "/livez", 5.0) == "ok\n"
        await eventually(lambda: crowded.sockets() < before + 10, "the node has ended them", 60)
        assert (await crowded.cluster.node(1).status()).ready
