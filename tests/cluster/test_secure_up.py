"""`tidegate cluster up --secure`: one command gives a cluster that strangers cannot use, its owner can."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tidegate.client.administration.admin import Admin
from tidegate.client.connecting.errors import ConnectionFailed, FatalError
from tidegate.processes.local_cluster import LocalCluster, LocalClusterError
from tidegate.processes.local_ports import PORT_STEP
from tidegate.runtime.connections.tls import ClientTls, TlsFiles
from tidegate.runtime.http import get
from tidegate.security.client_security import ClientSecurity, read_security
from tidegate.tests.base_ports import free_base_port
from tidegate.tests.eventually import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate.client.command_line", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_one_command_makes_a_secured_cluster_and_says_how_to_connect(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    base_port = free_base_port()
    port = ("--nodes", "1", "--base-port", str(base_port))
    up = tidegate("cluster", "up", "--secure", "--data", str(folder), *port)
    properties = folder / "client.properties"
    try:
        assert up.returncode == 0, up.stderr
        assert str(properties) in up.stdout
        assert properties.stat().st_mode & 0o777 == 0o600
        as_admin = ("--command-config", str(properties))
        assert tidegate("topics", "create", "hello", *as_admin).returncode == 0
        assert "hello" in tidegate("topics", "list", *as_admin).stdout
        stranger = tidegate("topics", "list", "--bootstrap", f"127.0.0.1:{base_port}")
        assert stranger.returncode == 1
        assert "is it secured? then name its properties (`--command-config`" in stranger.stderr
        counted = tidegate("count", "hello", "--bootstrap", f"127.0.0.1:{base_port + PORT_STEP}", *as_admin)
        assert "0 records" in counted.stdout
        (node,) = json.loads(tidegate("cluster", "status", "--data", str(folder), "--json").stdout)["nodes"]
        assert node["ready"]
    finally:
        down = tidegate("cluster", "down", "--data", str(folder))
    assert "stopped: node 1" in down.stdout
    password = read_security(properties)[0].password.encode()
    assert len(password) >= 32
    shown = [up.stdout.encode(), up.stderr.encode()]
    files = [each.read_bytes() for each in folder.rglob("*") if each.is_file() and each != properties]
    assert len(files) > 8
    assert not [text for text in (*files, *shown) if password in text]


@pytest.mark.parametrize("client_auth", ["none", "required"])
async def test_the_pages_of_a_secured_node_come_over_https(tmp_path: Path, client_auth: str) -> None:
    settings = {"listener.name.metrics.ssl.client.auth": client_auth}
    async with LocalCluster(tmp_path, 1, settings, with_users=True) as cluster:
        node, certificates = cluster.node(1), cluster.certificates
        assert node.metrics_url == f"https://{node.metrics_address}"
        assert await node.page("/livez") == "ok\n"
        assert await node.page("/readyz") == "ready\n"
        tls = ClientTls(TlsFiles(authorities=certificates.authorities))
        of_listener = 'tidegate_certificate_expiry_timestamp_seconds{of="METRICS"}'
        if client_auth == "none":  # as curl --cacert, and Prometheus
            said = await get(node.host, node.ports.metrics, "/metrics", 10, tls.newest)
            assert said is not None
            assert of_listener in said
        else:
            assert await get(node.host, node.ports.metrics, "/metrics", 10, tls.newest) is None
            assert of_listener in (await node.page("/metrics") or "")
        seen = node.log_path.read_text().count("certificates_renewed of=METRICS")
        cluster.renew_certificates()
        await eventually(
            lambda: node.log_path.read_text().count("certificates_renewed of=METRICS") == seen + 1
        )
        assert await node.page("/livez") == "ok\n"


def test_a_cluster_that_is_there_is_not_secured_by_an_option(tmp_path: Path) -> None:
    LocalCluster(tmp_path, 1).release()
    with pytest.raises(LocalClusterError, match="not secured: use another directory"):
        LocalCluster(tmp_path, with_users=True)


async def test_a_password_that_was_changed_stays_changed(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1, with_users=True)
    await cluster.up()
    first = cluster.administrator.security()
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "ssl.ca.location": str(cluster.certificates.authorities),
        "log_level": 0,
    }
    try:
        admin = AdminClient({**settings, "sasl.password": first.password})
        changed = UserScramCredentialUpsertion(
            "admin", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), b"another one"
        )
        await asyncio.to_thread(admin.alter_user_scram_credentials([changed])["admin"].result, 20)
        text = cluster.administrator.properties_path.read_text().replace(first.password, "another one")
        cluster.administrator.properties_path.write_text(text)
        await cluster.down()
        cluster = LocalCluster(tmp_path)
        await cluster.up()  # its status is asked for with the new password
        with pytest.raises(FatalError, match="SASL_AUTHENTICATION_FAILED"):
            await Admin(cluster.bootstrap, security=first).start()
        with pytest.raises(KafkaException):
            await asyncio.to_thread(AdminClient({**settings, "sasl.password": "x"}).list_topics, timeout=3)
        async with Admin(cluster.bootstrap, security=cluster.administrator.security()) as ours:
            assert (await ours.describe_cluster()).cluster_id == cluster.cluster_id
        certificate = cluster.certificates.of_node(1)
        without_login = ClientSecurity(
            "SSL", authorities=str(cluster.certificates.authorities), certificate=str(certificate)
        )
        with pytest.raises(ConnectionFailed):
            await Admin(cluster.bootstrap, security=without_login, timeout_s=5).start()
    finally:
        await cluster.down()
