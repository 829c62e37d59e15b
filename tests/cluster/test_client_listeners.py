"""A cluster whose nodes have two listeners for clients: each client sees the addresses of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.tests.base_ports import free_base_port
from tidegate.wire.api import ApiKey

from .conformance import Asker
from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

NODES = 3
USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "EXTERNAL")
STEP = 100
"""Between the ports of one node, as LocalCluster counts them."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    base = free_base_port(len(USES), NODES, last_digit=1)  # and of its nodes: one setting serves all
    listeners = {
        use: f"{use}://127.0.0.1:{(base + STEP * number) // 10}{{node.id}}" for number, use in enumerate(USES)
    }
    settings = {
        "listeners": list(listeners.values()),
        "listener.security.protocol.map": [f"{use}:PLAINTEXT" for use in USES],
    }
    found = LocalCluster(tmp_path / "cluster", NODES, settings, base_port=base)
    await found.up()
    yield found
    await found.down()


def external(node: LocalNode) -> str:
    return f"{node.host}:{node.ports.kafka + STEP * USES.index('EXTERNAL')}"


async def addresses(bootstrap: str) -> list[Any]:
    """What the node at this address says of the brokers' addresses, in three kinds of responses."""
    async with Asker(bootstrap) as asker:
        metadata = await asker.ask(ApiKey.METADATA, 9, {"topics": []})
        described = await asker.ask(
            ApiKey.DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": False, "endpoint_type": 1}
        )
        coordinator = await asker.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "group", "key_type": 0})
    return [
        sorted(f"{each.host}:{each.port}" for each in metadata.brokers),
        sorted(f"{each.host}:{each.port}" for each in described.brokers),
        f"{coordinator.host}:{coordinator.port}",
    ]


async def test_clients_of_each_listener_are_served_with_its_addresses(cluster: LocalCluster) -> None:
    outside = ",".join(external(node) for node in cluster.nodes)
    witness = Witness(outside)
    await witness.create()
    await witness.write(3)
    for address_of in (external, lambda node: node.kafka_address):
        expected = sorted(map(address_of, cluster.nodes))
        for node in cluster.nodes:
            brokers, described, coordinator = await addresses(address_of(node))
            assert brokers == described == expected
            assert coordinator in expected
    await witness.still_serves()
