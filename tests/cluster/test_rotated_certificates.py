"""Every certificate between the nodes is exchanged, and their authority, while a producer writes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.runtime.connections.tls import ClientTls, TlsFiles
from tidegate.tests.eventually import eventually

from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@asynccontextmanager
async def writing(witness: Witness) -> AsyncIterator[None]:
    """A producer writes one record after the other; one that is not acknowledged fails the test."""
    over = asyncio.Event()

    async def write() -> None:
        while not over.is_set():
            await witness.write(20)

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        over.set()
        await task


async def presented(node: LocalNode, port: int, own: TlsFiles) -> int:
    """The serial number of the certificate that a node shows to a new connection."""
    tls = ClientTls(own, check_host_name=False).newest
    _, writer = await asyncio.open_connection(node.host, port, ssl=tls, server_hostname="")
    shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
    encoded = shown.getpeercert(binary_form=True)
    writer.close()
    assert encoded is not None
    return x509.load_der_x509_certificate(encoded).serial_number


def renewals(cluster: LocalCluster) -> int:
    """How often each node has begun to use new files."""
    return min(node.log_path.read_text().count("certificates_renewed") for node in cluster.nodes)


async def test_all_certificates_are_exchanged_without_a_failed_produce(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", 3, {"debug.validate": True}, secured=True)
    certificates, witness = cluster.certificates, Witness(cluster.bootstrap)
    await cluster.up()
    try:
        await witness.create(3)
        async with writing(witness):
            certificates.renew_authority()
            await eventually(lambda: renewals(cluster) == 1, timeout_s=20)
            cluster.renew_certificates()
            await eventually(lambda: renewals(cluster) == 2, timeout_s=20)
            certificates.forget_former_authorities()
            await eventually(lambda: renewals(cluster) == 3, timeout_s=20)
            for node in cluster.nodes:
                own = TlsFiles(certificates.of_node(node.id), None, certificates.authorities)
                assert own.certificate is not None
                newest = x509.load_pem_x509_certificate(own.certificate.read_bytes()).serial_number
                for port in (node.ports.brokers, node.ports.quorum, node.ports.controller_grpc):
                    assert await presented(node, port, own) == newest
            # all its connections are made anew, of both ends' newest certificates
            await cluster.node(2).terminate()
            await cluster.node(2).start()
            await cluster.node(2).wait_ready()
        assert await witness.read() == witness.acknowledged
    finally:
        await cluster.down()
