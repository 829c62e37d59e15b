"""A lost node whose address swallows what is sent there holds no client that can ask another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tidegate.client.connecting import cluster
from tidegate.client.connecting.cluster import METADATA_VERSION_MAX, Cluster
from tidegate.client.connecting.connection import BrokerConnection
from tidegate.client.connecting.errors import ConnectionFailed, RequestError
from tidegate.client.producing.producer import Producer
from tidegate.tests.eventually import eventually
from tidegate.wire.api import ApiKey

from .conftest import ScriptedBroker

FIRST, SECOND = 1, 2


@dataclass
class Nodes:
    """Two scripted brokers of one cluster: the first leads partition 1, `leader` leads partition 0."""

    brokers: dict[int, ScriptedBroker] = field(default_factory=dict)
    leader: int = SECOND
    attempts: int = 0
    attempts_over: int = 0
    waiting: asyncio.Task[BrokerConnection] | None = None
    _ports: dict[int, int] = field(default_factory=dict)

    async def start(self) -> None:
        for node_id in (FIRST, SECOND):
            broker = self.brokers[node_id] = ScriptedBroker()
            broker._metadata = self._metadata
            await broker.start()
            self._ports[node_id] = int(broker.bootstrap.rpartition(":")[2])

    def _metadata(self, version: int, body: Any) -> dict[str, Any]:
        brokers = [
            {"node_id": node_id, "host": "127.0.0.1", "port": port, "rack": None}
            for node_id, port in self._ports.items()
        ]
        topic = self.brokers[FIRST]._topic("t")
        for partition in topic["partitions"]:
            partition["leader_id"] = self.leader if partition["partition_index"] == 0 else FIRST
        return {"brokers": brokers, "cluster_id": "scripted", "controller_id": FIRST, "topics": [topic]}

    async def swallow(self, node_id: int) -> asyncio.Server:
        """After `stop`: whatever connects to the node's port from now on gets no answer."""
        return await asyncio.start_server(self._swallow, "127.0.0.1", self._ports[node_id])

    async def _swallow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        while await reader.read(1024):
            pass
        self.attempts_over += 1
        writer.close()


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    await made.start()
    yield made
    await made.brokers[FIRST].stop()
    await made.brokers[SECOND].stop()


@pytest.mark.parametrize("was_connected", [True, False])
async def test_a_producer_follows_the_new_leader_while_the_old_one_is_silent(
    nodes: Nodes, was_connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REFRESH_WHILE_CONNECTING_S", 0.01)
    async with Producer(nodes.brokers[FIRST].bootstrap, linger_ms=0) as producer:
        for partition in (0, 1) if was_connected else (1,):
            await (await producer.send("t", b"before", partition=partition))
        assert len(nodes.brokers[SECOND].sent(ApiKey.PRODUCE)) == was_connected
        nodes.leader = FIRST
        await nodes.brokers[SECOND].stop()
        silent = await nodes.swallow(SECOND)
        try:
            await (await producer.send("t", b"after", partition=0))
            assert nodes.attempts_over == 0, "the record did not wait for the end of an attempt to connect"
            assert nodes.brokers[FIRST].logs["t", 0] == [(None, b"after")]
        finally:
            silent.close()


async def lost(client: Cluster, nodes: Nodes, node_id: int) -> asyncio.Server:
    """The client's connection to the node ended."""
    await client.connection(node_id)
    await nodes.brokers[node_id].stop()
    await eventually(lambda: client.ready_connection(node_id) is None, "the connection is lost")
    return await nodes.swallow(node_id)


async def refused(client: Cluster, nodes: Nodes, node_id: int) -> asyncio.Server:
    """The client's last attempt to connect to the node failed."""
    await nodes.brokers[node_id].stop()
    with pytest.raises(ConnectionFailed):
        await client.connection(node_id)
    return await nodes.swallow(node_id)


async def connecting(client: Cluster, nodes: Nodes, node_id: int) -> asyncio.Server:
    """The client connects to the node for another purpose, and gets no answer."""
    await nodes.brokers[node_id].stop()
    silent = await nodes.swallow(node_id)
    nodes.waiting = asyncio.create_task(client.connection(node_id, "coordinator"))
    await eventually(lambda: nodes.attempts == 1, "the attempt is under way")
    return silent


Doubtful = Callable[[Cluster, Nodes, int], Awaitable[asyncio.Server]]


@pytest.mark.parametrize("silent_node", [FIRST, SECOND])  # the turn may begin with either
@pytest.mark.parametrize("doubtful", [lost, refused, connecting])
async def test_a_look_up_asks_a_doubtful_node_last(
    nodes: Nodes, doubtful: Doubtful, silent_node: int
) -> None:
    client = Cluster(nodes.brokers[FIRST].bootstrap)
    await client.start()  # over a connection of its own: none is open now
    silent = await doubtful(client, nodes, silent_node)
    try:
        attempts = nodes.attempts
        await client.ask_any(ApiKey.METADATA, {"topics": []}, highest=METADATA_VERSION_MAX)
        assert nodes.attempts == attempts, "the doubtful node was not asked"
    finally:
        await client.close()
        silent.close()
        if nodes.waiting is not None:
            with pytest.raises(RequestError):
                await nodes.waiting
