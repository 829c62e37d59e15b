"""A leader that is gone, and whose address swallows what is sent there, holds no client that can learn of the
new leader from another node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tidegate.client.connecting import cluster
from tidegate.client.producing.producer import Producer
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
    _port: int = 0

    async def start(self) -> None:
        for node_id in (FIRST, SECOND):
            broker = self.brokers[node_id] = ScriptedBroker()
            broker._metadata = self._metadata
            await broker.start()
        self._port = self._ports()[SECOND]

    def _ports(self) -> dict[int, int]:
        return {node_id: int(broker.bootstrap.rpartition(":")[2]) for node_id, broker in self.brokers.items()}

    def _metadata(self, version: int, body: Any) -> dict[str, Any]:
        brokers = [
            {"node_id": node_id, "host": "127.0.0.1", "port": port, "rack": None}
            for node_id, port in {**self._ports(), SECOND: self._port}.items()
        ]
        topic = self.brokers[FIRST]._topic("t")
        for partition in topic["partitions"]:
            partition["leader_id"] = self.leader if partition["partition_index"] == 0 else FIRST
        return {"brokers": brokers, "cluster_id": "scripted", "controller_id": FIRST, "topics": [topic]}

    async def lose_second(self) -> asyncio.Server:
        """Closes the second node's connections; whatever connects to its port from now on gets no answer."""
        self.leader = FIRST
        await self.brokers[SECOND].stop()
        return await asyncio.start_server(self._swallow, "127.0.0.1", self._port)

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
        silent = await nodes.lose_second()
        try:
            await (await producer.send("t", b"after", partition=0))
            assert nodes.attempts_over == 0, "the record did not wait for the end of an attempt to connect"
            assert nodes.brokers[FIRST].logs["t", 0] == [(None, b"after")]
        finally:
            silent.close()
