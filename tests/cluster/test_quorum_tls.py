"""Mutual TLS between controllers, with real processes: the cluster serves, and a node with wrong files says
so when it starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster, LocalClusterError
from tidegate.tests.certificates import Authority

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


async def test_three_nodes_with_certificates_serve_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    for node_id in (1, 2, 3):
        files = authority.issue(f"node-{node_id}")
    settings = {
        "quorum.tls.certificate": re.sub("node-3", "node-{node.id}", str(files.certificate)),
        "quorum.tls.key": re.sub("node-3", "node-{node.id}", str(files.key)),
        "quorum.tls.authority": str(files.authorities),
    }
    cluster = LocalCluster(tmp_path / "cluster", nodes=3, settings=settings)
    await cluster.up()
    try:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("payments", 1, 3, {"min.insync.replicas": "2"})])
        cluster.node(1).kill()
        async with Producer(cluster.bootstrap) as producer:
            await (await producer.send("payments", b"1"))
        other = authority.issue("node-9")
        assert other.certificate is not None
        assert other.key is not None
        other.certificate.replace(authority.folder / "quorum-node-1-1.pem")
        other.key.replace(authority.folder / "quorum-node-1-1.key")
        await cluster.node(1).start()
        with pytest.raises(LocalClusterError, match="names node-9: this node needs the DNS name node-1"):
            await cluster.node(1).wait_ready()
        authority.issue("node-1")
        await cluster.node(1).start()
        await cluster.node(1).wait_ready()
    finally:
        await cluster.down()
