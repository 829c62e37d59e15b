from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.processes.local_cluster import LocalCluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Three nodes of one test, which kills them; a silent one is noticed soon."""
    settings = {
        "broker.session.timeout.ms": 3000,
        "controller.quorum.election.timeout.ms": 500,
        "broker.heartbeat.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 500,
        "transaction.state.log.num.partitions": 8,
        "offsets.topic.num.partitions": 8,
    }
    made = LocalCluster(tmp_path / "cluster", nodes=3, settings=settings)
    await made.up()
    try:
        yield made
    finally:
        await made.down()
