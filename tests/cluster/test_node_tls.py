"""Mutual TLS between nodes, with real processes: the cluster serves, and a node with wrong files says so when
it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster, LocalClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


async def test_three_nodes_with_certificates_serve_and_survive_the_loss_of_one(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", nodes=3, secured=True)
    certificates = cluster.certificates
    await cluster.up()
    try:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("payments", 1, 3, {"min.insync.replicas": "2"})])
        cluster.node(1).kill()
        async with Producer(cluster.bootstrap) as producer:
            await (await producer.send("payments", b"1"))
        certificates.renew(9, ["localhost"])
        certificates.of_node(9).replace(certificates.of_node(1))
        await cluster.node(1).start()
        with pytest.raises(LocalClusterError, match="names node-9: this node needs the DNS name node-1"):
            await cluster.node(1).wait_ready()
        certificates.renew(1, ["localhost"])
        await cluster.node(1).start()
        await cluster.node(1).wait_ready()
    finally:
        await cluster.down()
