"""A damaged log without a good replica: what docs/operations.md says, step by step, on a node that is the
only one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.consuming.consumer import Consumer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually

from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("mended-logs"), pytest.mark.timeout(180)]

UNCLEAN = "unclean.leader.election.enable"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", nodes=1, settings={"offsets.topic.num.partitions": 1})
    await cluster.up()
    try:
        yield cluster
    finally:
        await cluster.down()


async def tidegate(node: LocalCluster, *arguments: str, code: int = 0) -> str:
    def call() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tidegate.client.command_line", *arguments],
            capture_output=True, text=True, timeout=60,
            env={**os.environ, "TIDEGATE_BOOTSTRAP": node.bootstrap},
        )  # fmt: skip

    done = await asyncio.to_thread(call)
    assert done.returncode == code, done.stderr or done.stdout
    return done.stdout + done.stderr


async def described(node: LocalCluster, topic: str) -> Any:
    return json.loads(await tidegate(node, "topics", "describe", topic, "--json"))[0]


async def leads(node: LocalCluster, topic: str, leader: int) -> None:
    async def is_led() -> bool:
        async with Admin(node.bootstrap) as admin:
            (found,) = await admin.describe_topics([topic], config=False)
            return found.partitions[0].leader == leader

    await eventually(is_led, f"{topic} to be led by {leader}")


async def damaged(node: LocalCluster, folder: Path, kept: Path) -> None:
    """The end of a file that had been flushed is gone, and the node has noticed."""
    assert await node.node(1).terminate() == 0
    shutil.copytree(folder, kept)
    segment = max(folder.glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-10])
    await node.up()
    await leads(node, folder.name.rpartition("-")[0], -1)
    assert (folder / "damaged").exists()
    assert "A damaged log without a good replica" in (folder / "damaged").read_text()
    await node.node(1).terminate()


async def mended(node: LocalCluster, folder: Path, kept: Path) -> None:
    """Steps 1 to 4."""
    segment = max(folder.glob("*.log"))
    shutil.copy(kept / segment.name, segment)
    found = await tidegate(node, "log", "verify", str(folder), code=1)
    assert "violation: known-damaged" in found
    assert "1 violations" in found
    (folder / "damaged").unlink()
    await tidegate(node, "log", "verify", str(folder))
    await node.up()
    topic = folder.name.rpartition("-")[0]
    await leads(node, topic, -1)
    assert (await described(node, topic))["partitions"][0]["in_sync_replicas"] == []


async def test_a_repaired_only_replica_leads_again_by_the_operators_command(
    node: LocalCluster, tmp_path: Path
) -> None:
    witness = Witness(node.bootstrap)
    await witness.create()
    await witness.write(20, size=100)
    folder = node.node(1).data_path / "witness-0"
    await damaged(node, folder, tmp_path / "kept")
    await mended(node, folder, tmp_path / "kept")
    refusal = await tidegate(node, "partitions", "elect", "witness:0", "--unclean", code=1)
    assert f"set {UNCLEAN}=true on the topic first" in refusal

    assert await tidegate(node, "topics", "set", "witness", f"{UNCLEAN}=true") == f"witness: {UNCLEAN}=true\n"
    await leads(node, "witness", 1)
    assert await witness.read() == witness.acknowledged
    said = await tidegate(node, "topics", "set", "witness", f"{UNCLEAN}=")
    assert said == f"witness: {UNCLEAN} is the default again\n"
    assert (await described(node, "witness"))["config"][UNCLEAN] == "false"
    await witness.still_serves()


async def test_a_partition_whose_folder_was_moved_away_begins_empty(
    node: LocalCluster, tmp_path: Path
) -> None:
    witness = Witness(node.bootstrap)
    await witness.create()
    await witness.write(20, size=100)
    folder = node.node(1).data_path / "witness-0"
    await damaged(node, folder, tmp_path / "kept")
    folder.rename(tmp_path / "moved")
    await node.up()
    await tidegate(node, "topics", "set", "witness", f"{UNCLEAN}=true")
    await leads(node, "witness", 1)
    witness.acknowledged.clear()
    await witness.still_serves()


async def test_the_only_replica_of_a_state_topic_leads_by_the_operators_command(
    node: LocalCluster, tmp_path: Path
) -> None:
    witness = Witness(node.bootstrap)
    await witness.create()
    await witness.write(20, size=100)
    async with Consumer(
        node.bootstrap, group_id="readers", auto_offset_reset="earliest", auto_commit=False
    ) as consumer:
        consumer.subscribe([witness.topic])
        while not await consumer.poll(timeout_s=1.0):
            pass
        await consumer.commit()
    async with Admin(node.bootstrap) as admin:
        before = {key: each.offset for key, each in (await admin.group_offsets("readers")).items()}
    assert before
    topic = "__consumer_offsets"
    folder = node.node(1).data_path / f"{topic}-0"
    await damaged(node, folder, tmp_path / "kept")
    await mended(node, folder, tmp_path / "kept")
    refusal = await tidegate(node, "topics", "set", topic, f"{UNCLEAN}=true", code=1)
    assert UNCLEAN in refusal or topic in refusal

    elected = json.loads(await tidegate(node, "partitions", "elect", f"{topic}:0", "--unclean", "--json"))
    assert elected == [{"topic": topic, "partition": 0, "leader": 1}]
    async with Admin(node.bootstrap) as admin:
        assert {key: each.offset for key, each in (await admin.group_offsets("readers")).items()} == before
