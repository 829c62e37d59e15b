"""A replica moves between the data folders of a running node, while records are written and the node is
killed (KIP-113)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

from .conformance import Asker
from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("data-folders"), pytest.mark.timeout(180)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(
        tmp_path / "cluster", nodes=1, settings={"log.dirs": [str(tmp_path / "a"), str(tmp_path / "b")]}
    )
    await cluster.up()
    try:
        yield cluster
    finally:
        await cluster.down()


async def ordered(cluster: LocalCluster, path: Path, topic: str) -> ErrorCode:
    async with Asker(cluster.bootstrap) as asker:
        dirs = [{"path": str(path), "topics": [{"name": topic, "partitions": [0]}]}]
        answer = await asker.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": dirs})
    return ErrorCode(answer.results[0].partitions[0].error_code)


async def told(cluster: LocalCluster, topic: str) -> dict[str, tuple[bool, int]]:
    """Folder -> whether the replica there is a future one, and its lag."""
    async with Asker(cluster.bootstrap) as asker:
        answer: Any = await asker.ask(
            ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": topic, "partitions": [0]}]}
        )
    return {
        Path(each.log_dir).name: (
            each.topics[0].partitions[0].is_future_key,
            each.topics[0].partitions[0].offset_lag,
        )
        for each in answer.results
        if each.topics
    }


async def test_a_replica_moves_under_load_throttled_through_a_kill_and_back(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    witness = Witness(cluster.bootstrap, "moving")
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("moving", 1, 1, {"segment.bytes": "16384"})])
        await witness.write(400, size=1000)
        ((here, _),) = (await told(cluster, "moving")).items()
        there = "b" if here == "a" else "a"
        throttle = "replica.alter.log.dirs.io.max.bytes.per.second"
        await admin.alter_broker_config(1, {throttle: "20000"})
        assert await ordered(cluster, tmp_path / there, "moving") is ErrorCode.NONE
        found = await told(cluster, "moving")
        assert found[here] == (False, 0)
        assert found[there][0]
        assert found[there][1] > 0
        assert await ordered(cluster, tmp_path / "nowhere", "moving") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await ordered(cluster, tmp_path / there, "missing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await witness.write(20, size=1000)
    cluster.node(1).kill()
    await cluster.node(1).wait_exit()
    await cluster.node(1).start()
    await cluster.node(1).wait_ready()
    assert (await told(cluster, "moving"))[there][0], "the move goes on after a restart"
    async with Admin(cluster.bootstrap) as admin:
        await admin.alter_broker_config(1, {throttle: None})

        async def moved() -> bool:
            await witness.write(5, size=1000)
            return await told(cluster, "moving") == {there: (False, 0)}

        await eventually(moved, "the replica is in the other folder", 60)
    assert (tmp_path / there / "moving-0").is_dir()
    assert not (tmp_path / here / "moving-0").exists()
    await witness.still_serves()
    assert await ordered(cluster, tmp_path / here, "moving") is ErrorCode.NONE
    assert await ordered(cluster, tmp_path / there, "moving") is ErrorCode.NONE, "and back, or called back"
    await witness.still_serves()
