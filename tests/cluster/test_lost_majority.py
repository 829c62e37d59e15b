"""The quorum without a majority, as docs/operations.md has it: what stands still, what brings it back, what
can be saved."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode

from .witness import Witness, batch, raw_fetch, raw_produce

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("lost-majority"), pytest.mark.timeout(180)]

LOOK_S_MAX = 25.0  # the longest of them waits for 10 s; the machine may be busy
RETURNED = "quorum_voter_returned"
QUICK = {"broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 300}


def tidegate(*arguments: str, text: str = "") -> str:
    """Runs the command line; what it printed."""
    command = [sys.executable, "-m", "tidegate.client.command_line", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def refuses(node: LocalNode, topic: str) -> bool:
    """Whether a node takes no record, in either of the partitions that nothing else is written to."""
    answers = [
        await raw_produce(node.kafka_address, topic, batch([b"alone"]), partition=partition)
        for partition in (1, 2)
    ]
    return all(answer.error is not ErrorCode.NONE for answer in answers)


async def test_a_returned_majority_has_all_and_without_it_the_records_stay(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster", nodes=3, settings=QUICK)
    await cluster.up()
    witness = Witness(cluster.bootstrap)
    try:
        await witness.create(replicas=3, partitions=3)
        await witness.write(20)
        async with Admin(cluster.bootstrap) as admin:
            (described,) = await admin.describe_topics([witness.topic])
        survivor = cluster.node(next(view.leader for view in described.partitions if view.partition == 0))
        away, lost = (node for node in cluster.nodes if node is not survivor)
        for node in (away, lost):
            node.kill()
            await node.wait_exit()
        await eventually(lambda: refuses(survivor, witness.topic), "a node alone takes no record")
        fetched = await raw_fetch(survivor.kafka_address, witness.topic, 0)
        assert fetched.error is ErrorCode.NONE, "what is committed can be read"
        assert b"record-19" in bytes(fetched.records), "what is committed can be read"

        await looked_at_without_a_majority(survivor, witness.topic)

        # No majority is made of one survivor and an empty folder.
        lost.data_path.rename(tmp_path / "lost disk")
        await lost.start()
        await eventually(
            lambda: _says(lost, "its folder is new in a quorum that exists"), "it says what it waits for", 60
        )
        status = await asyncio.to_thread(tidegate, "cluster", "status", "--data", str(cluster.directory))
        assert f"node {lost.id} has no vote" in status
        assert await refuses(survivor, witness.topic)

        # A disk as it was at the end makes two of three.
        await away.start()
        await asyncio.gather(*(node.wait_ready() for node in cluster.nodes))
        await witness.still_serves()
        await eventually(
            lambda: _says(survivor, RETURNED, away), "the node with the new disk has its vote again"
        )
    finally:
        await cluster.down()
    await saved(survivor.data_path, witness, tmp_path)


async def looked_at_without_a_majority(survivor: LocalNode, topic: str) -> None:
    """Commands that only look show the node's own metadata, or fail soon."""

    async def look(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "tidegate.client.command_line",
            *arguments,
            "--bootstrap",
            survivor.kafka_address,
        ]
        return await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=LOOK_S_MAX, check=False
        )

    described, listed, group, groups = await asyncio.gather(
        look("topics", "describe", topic, "--json"),
        look("topics", "list"),
        look("groups", "describe", "g"),
        look("groups", "list"),
    )
    assert described.returncode == listed.returncode == 0, described.stderr + listed.stderr
    (shown,) = json.loads(described.stdout)
    ends = {part["partition"]: part["high_watermark"] for part in shown["partitions"]}
    assert ends == {0: 20, 1: None, 2: None}
    assert shown["config"]
    assert topic in listed.stdout
    assert f"the leaders of {topic}-1, {topic}-2 did not answer" in described.stderr
    assert "tidegate status" in described.stderr
    assert groups.returncode == 1
    assert "a part of the list is known to node" in groups.stderr
    assert group.returncode == 1
    assert "coordinator of group 'g'" in group.stderr


async def saved(folder: Path, witness: Witness, tmp_path: Path) -> None:
    """What a node that survived holds is read from its folder, and written into a new cluster."""
    await asyncio.to_thread(tidegate, "log", "verify", str(folder), "--quiet")
    dumped = await asyncio.to_thread(
        tidegate, "log", "dump", str(folder / f"{witness.topic}-0"), "--records", "--json"
    )
    lines = [json.loads(line) for line in dumped.splitlines()]
    values = [line["value"] for line in lines if line["type"] == "record"]
    assert [value.encode() for value in values] == witness.acknowledged
    async with LocalCluster(tmp_path / "new", nodes=1) as fresh:
        again = Witness(fresh.bootstrap, witness.topic, witness.acknowledged)
        await again.create()
        text = "".join(f"{value}\n" for value in values)
        await asyncio.to_thread(
            tidegate, "produce", witness.topic, "-p", "0", "--bootstrap", fresh.bootstrap, text=text
        )
        assert await again.read() == witness.acknowledged


async def _says(node: LocalNode, text: str, *others: LocalNode) -> bool:
    return any(text in each.log_path.read_text(errors="replace") for each in (node, *others))
