"""Three nodes with two data folders each: a dead disk and rotten bytes lose no record."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually

from .witness import Witness

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("data-folders"), pytest.mark.timeout(180)]

PARTITIONS = 4


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    folders = [str(tmp_path / "{node.id}" / name) for name in ("a", "b")]
    cluster = LocalCluster(tmp_path / "cluster", nodes=3, settings={"log.dirs": folders})
    await cluster.up()
    try:
        yield cluster
    finally:
        await cluster.down()


async def made(cluster: LocalCluster, name: str) -> Witness:
    witness = Witness(cluster.bootstrap, name)
    async with Admin(cluster.bootstrap) as admin:
        config = {"min.insync.replicas": "2", "segment.bytes": "4096"}
        await admin.create_topics([NewTopic(name, PARTITIONS, 3, config)])
    await witness.write(40, size=400)
    return witness


async def leaders(cluster: LocalCluster, topic: str) -> list[int]:
    async with Admin(cluster.bootstrap) as admin:
        (described,) = await admin.describe_topics([topic])
        return [partition.leader for partition in described.partitions]


async def in_sync(cluster: LocalCluster, topic: str) -> list[set[int]]:
    async with Admin(cluster.bootstrap) as admin:
        (described,) = await admin.describe_topics([topic])
        return [set(partition.in_sync_replicas) for partition in described.partitions]


async def offline_folders(cluster: LocalCluster) -> list[tuple[int, str]]:
    async with Admin(cluster.bootstrap) as admin:
        folders = await admin.describe_data_folders()
    assert len(folders) == 6
    assert all((folder.total_bytes is None) == folder.offline for folder in folders)
    return [(folder.node_id, folder.path) for folder in folders if folder.offline]


def where(tmp_path: Path, node: int, topic: str, partition: int) -> Path:
    (folder,) = (tmp_path / str(node)).glob(f"*/{topic}-{partition}")
    return folder


async def test_a_failed_folder_affects_only_its_partitions_and_leaders_move(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    witness = await made(cluster, "dying")
    node = (await leaders(cluster, "dying"))[0]
    lost = where(tmp_path, node, "dying", 0).parent
    stays = [p for p in range(PARTITIONS) if where(tmp_path, node, "dying", p).parent != lost]
    assert stays, "logs are spread over both folders"
    shutil.rmtree(lost) if lost.name == "b" else [shutil.rmtree(path) for path in lost.glob("dying-*")]
    await witness.write(30, size=400)  # the next segment of the leader has no folder to be in
    await witness.still_serves()

    async def moved() -> bool:
        sets = await in_sync(cluster, "dying")
        return node not in sets[0] and all(node in sets[partition] for partition in stays)

    await eventually(moved, "the node has left the ISR of what was in the folder, and only that")
    assert (await leaders(cluster, "dying"))[0] != node
    assert cluster.node(node).running


async def test_a_folder_that_fails_at_start_affects_only_its_partitions(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    witness = await made(cluster, "absent")
    node, folder, away = cluster.node(3), tmp_path / "3" / "b", tmp_path / "3" / "away"
    await node.terminate()
    folder.rename(away)
    folder.write_bytes(b"no folder can be made here")
    here = {
        partition
        for partition in range(PARTITIONS)
        if (tmp_path / "3" / "a" / f"absent-{partition}").exists()
    }
    assert here
    assert len(here) < PARTITIONS
    await node.start()

    async def partly() -> bool:
        return {p for p, replicas in enumerate(await in_sync(cluster, "absent")) if 3 in replicas} == here

    await eventually(partly, "the node is in sync with what it can open, and with nothing else")
    assert await offline_folders(cluster) == [(3, str(folder))]
    await witness.write(30, size=400)
    await witness.still_serves()
    assert await partly()
    assert {p for p in range(PARTITIONS) if (tmp_path / "3" / "a" / f"absent-{p}").exists()} == here, (
        "nothing was made anew"
    )

    await node.terminate()
    folder.unlink()
    away.rename(folder)
    await node.start()

    async def whole() -> bool:
        return all(replicas == {1, 2, 3} for replicas in await in_sync(cluster, "absent"))

    await eventually(whole, "it caught up with all")
    assert await offline_folders(cluster) == []
    await witness.still_serves()


async def test_rotten_bytes_of_a_leader_cost_no_record_and_are_fetched_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    witness = await made(cluster, "rotten")
    node = (await leaders(cluster, "rotten"))[0]
    folder = where(tmp_path, node, "rotten", 0)
    path = sorted(folder.glob("*.log"))[1]
    with open(path, "r+b") as file:
        file.seek(16)
        file.write(b"\x77")
    assert await witness.read() == witness.acknowledged

    async def healed() -> bool:
        return (await in_sync(cluster, "rotten"))[0] == {1, 2, 3} and bool(
            list(folder.parent.glob("*-damaged"))
        )

    await eventually(healed, "the replica is fetched again and in sync")
    assert await offline_folders(cluster) == [], "a damaged log is not a failed disk"
    good = next(each for each in (1, 2, 3) if each != node)
    again, other = where(tmp_path, node, "rotten", 0), where(tmp_path, good, "rotten", 0)
    names = sorted(p.name for p in other.glob("*.log"))
    await asyncio.sleep(0)
    assert b"".join(
        (again / name).read_bytes() for name in sorted(p.name for p in again.glob("*.log"))
    ) == b"".join((other / name).read_bytes() for name in names)
    await witness.still_serves()


async def test_only_a_partition_that_lost_its_topic_id_is_fetched_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    witness = await made(cluster, "nameless")
    node = (await leaders(cluster, "nameless"))[0]
    await cluster.node(node).terminate()
    gone, damaged, other = (where(tmp_path, node, "nameless", partition) for partition in range(3))
    (gone / "partition.metadata").unlink()
    (damaged / "partition.metadata").write_bytes(b"1\n1\n")
    before = (other / f"{0:020d}.log").stat().st_ino
    await cluster.node(node).start()

    async def healed() -> bool:
        return all(replicas == {1, 2, 3} for replicas in await in_sync(cluster, "nameless"))

    await eventually(healed, "both are fetched again and in sync")
    assert len(list((tmp_path / str(node)).glob("*/*-damaged"))) == 2
    assert (other / f"{0:020d}.log").stat().st_ino == before
    await witness.still_serves()
