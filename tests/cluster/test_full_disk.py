"""A full disk: produce fails with a clear error, the node lives and can be read, and works again when there
is space.

The data folder is a small file system of its own (tmpfs), mounted by the test, which only root may do.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tidegate.chaos.machine.small_disks import SmallDisks, empty, fill
from tidegate.chaos.machine.undo import MissingRight
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.administration.operations import DataFolder
from tidegate.client.command_line.disks import condition
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.tests.machine import Need, lacks
from tidegate.wire.errors import ErrorCode, KafkaError

from .witness import Witness, batch, log_of, raw_produce

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("full-disk"), pytest.mark.timeout(120)]

DISK_BYTES = 12 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    path = tmp_path / "small-disk"
    with ExitStack() as stack:
        try:
            stack.enter_context(SmallDisks([path], DISK_BYTES))
        except MissingRight as error:
            lacks(Need.SMALL_DISKS, str(error))
        yield path


@pytest.fixture
async def node(small_disk: Path) -> AsyncIterator[LocalCluster]:
    cluster = LocalCluster(small_disk / "cluster", nodes=1, settings={"metadata.reserve.bytes": 1 << 20})
    await cluster.up()
    try:
        yield cluster
    finally:
        await cluster.down()


async def test_nothing_is_lost_on_a_full_disk_and_the_node_continues_with_space(
    small_disk: Path, node: LocalCluster
) -> None:
    witness, address = Witness(node.bootstrap), node.node(1).kafka_address
    await witness.create()
    await witness.write(20, size=2000)
    pid = node.node(1).pid

    fill(small_disk)
    refused = 0
    for number in range(50):  # the last page of a file may still have room for a few records
        value = f"squeezed-{number}".encode().ljust(2000, b".")
        answer = await raw_produce(address, witness.topic, batch([value]))
        if answer.error is ErrorCode.NONE:
            witness.acknowledged.append(value)
            continue
        refused += 1
        assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert re.search("No space left on device|is the disk full", answer.error_message or ""), (
            answer.error_message
        )
    assert refused > 40
    assert node.node(1).pid == pid
    assert await witness.read() == witness.acknowledged
    assert (await node.node(1).status()).ready

    # A producer that goes on trying gets through as soon as there is space.
    patient = b"patient" * 2000
    async with Producer(node.bootstrap, delivery_timeout_s=60) as producer:
        future = await producer.send(witness.topic, patient, partition=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0.5)
        empty(small_disk)
        await future
        witness.acknowledged.append(patient)
    await witness.still_serves()
    assert node.node(1).pid == pid

    # And what was acknowledged around the full disk is there after a crash, too.
    node.node(1).kill()
    await node.node(1).wait_exit()
    await node.up()
    await witness.still_serves()


async def test_on_a_full_disk_metadata_changes_and_new_topics_work_with_space(
    small_disk: Path, node: LocalCluster
) -> None:
    witness = Witness(node.bootstrap)
    await witness.create()
    await witness.write(5)
    fill(small_disk)
    pid = node.node(1).pid
    made = Witness(node.bootstrap, "made-on-a-full-disk")
    async with Admin(node.bootstrap, timeout_s=20) as admin:
        await admin.create_topics([NewTopic(made.topic, 1, 1, {"min.insync.replicas": "1"})], wait=False)
        for number in range(50):
            await admin.create_topics([NewTopic(f"squeezed-{number}", 1, 1)], wait=False)
        await admin.delete_topics([f"squeezed-{number}" for number in range(50)])
    assert node.node(1).pid == pid, log_of(node)[-2000:]
    assert "metadata lives on its reserve" in log_of(node)
    # What was given up is for the metadata: clients do not get it.
    answer = await raw_produce(node.node(1).kafka_address, witness.topic, batch([b"never"]))
    assert (answer.error, answer.error_message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "the disk of node 1 is full: make room there",
    )
    assert await witness.read() == witness.acknowledged

    empty(small_disk)
    await witness.still_serves()
    await made.still_serves()
    await eventually(lambda: _logged(node, "metadata_reserve_held", 2), "the reserve is held again")
    assert node.node(1).pid == pid


async def _logged(node: LocalCluster, event: str, times: int) -> bool:
    return log_of(node).count(event) >= times


async def test_without_the_reserve_a_full_disk_ends_the_node(small_disk: Path) -> None:
    """Ablation.  Fail-stop is right when the journal cannot be written; and a restart with space finds
    everything."""
    cluster = LocalCluster(small_disk / "bare", nodes=1, settings={"metadata.reserve.bytes": 0})
    witness = Witness(cluster.bootstrap)
    await cluster.up()
    try:
        await witness.create()
        await witness.write(5)
        fill(small_disk)
        async with Admin(cluster.bootstrap, timeout_s=3) as admin:
            with pytest.raises(KafkaError):
                for number in range(200):
                    await admin.create_topics([NewTopic(f"squeezed-{number}", 8, 1)], wait=False)
        assert await cluster.node(1).wait_exit(20) not in (0, None)
        empty(small_disk)
        await cluster.up()
        await witness.still_serves()
    finally:
        await cluster.down()


async def refuses(node: LocalCluster, topic: str) -> None:
    """Nothing is taken any more; the last page of a file may have had room for a few records."""
    for _ in range(10):
        answer = await raw_produce(node.node(1).kafka_address, topic, batch([b"." * 5000]))
        assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR, answer


@asynccontextmanager
async def node_on(folder: Path, disks: list[Path]) -> AsyncIterator[LocalCluster]:
    """A node with its data on small file systems, and what starts it elsewhere."""
    settings = {"metadata.reserve.bytes": 1 << 20, "log.dirs": [str(disk / "data") for disk in disks]}
    node = LocalCluster(folder / "cluster", nodes=1, settings=settings)
    with ExitStack() as stack:
        try:
            stack.enter_context(SmallDisks(disks, DISK_BYTES))
        except MissingRight as error:
            lacks(Need.SMALL_DISKS, str(error))
        try:
            await node.up()
            yield node
        finally:
            await node.down()


async def killed_and_started(node: LocalCluster) -> None:
    node.node(1).kill()
    await node.node(1).wait_exit()
    await node.up()


async def test_a_node_killed_on_a_full_disk_starts_and_continues_with_space(tmp_path: Path) -> None:
    disk, witness_config = tmp_path / "small-disk", {"min.insync.replicas": "1", "segment.bytes": "65536"}
    async with node_on(tmp_path, [disk]) as node:
        witness = Witness(node.bootstrap)
        async with Admin(node.bootstrap) as admin:
            await admin.create_topics([NewTopic(witness.topic, 1, 1, witness_config)])
        await witness.write(120, size=2000)
        fill(disk)
        for _ in range(2):  # the second time, its reserve has been given up
            await killed_and_started(node)
            assert await witness.read() == witness.acknowledged
            await refuses(node, witness.topic)
            assert await witness.read() == witness.acknowledged
        assert _ready(node)[0] == 503
        assert "is full" in _ready(node)[1]
        pid = node.node(1).pid
        empty(disk)
        await eventually(lambda: _is_ready(node), "the node to be ready")
        await witness.still_serves()
        assert node.node(1).pid == pid
        await killed_and_started(node)
        await witness.still_serves()


@pytest.mark.parametrize("full", ["a", "b"])
async def test_at_start_a_full_data_folder_of_several_is_not_a_failed_one(tmp_path: Path, full: str) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    async with node_on(tmp_path, disks) as node:
        witnesses = [Witness(node.bootstrap, f"witness-{number}") for number in range(2)]
        for each in witnesses:
            await each.create()
            await each.write(20, size=2000)
        folders = {
            each.topic: disk
            for each in witnesses
            for disk in disks
            if (disk / f"data/{each.topic}-0").exists()
        }
        assert set(folders.values()) == set(disks)
        fill(tmp_path / full)
        await killed_and_started(node)
        for each in witnesses:
            assert await each.read() == each.acknowledged
            if folders[each.topic] == tmp_path / full:
                await refuses(node, each.topic)
            else:
                await each.still_serves()
        assert "data_folder_failed" not in log_of(node)
        pid = node.node(1).pid
        empty(tmp_path / full)
        await eventually(lambda: _is_ready(node), "the node to be ready")
        for each in witnesses:
            await each.still_serves()
        assert node.node(1).pid == pid


async def test_records_can_be_deleted_on_a_full_disk_to_make_room(
    small_disk: Path, node: LocalCluster
) -> None:
    witness = Witness(node.bootstrap)
    async with Admin(node.bootstrap) as admin:
        config = {"min.insync.replicas": "1", "segment.bytes": "1048576"}
        await admin.create_topics([NewTopic(witness.topic, 1, 1, config)])
        large = os.urandom(900_000)
        for _ in range(4):
            assert (
                await raw_produce(node.node(1).kafka_address, witness.topic, batch([large]))
            ).error is ErrorCode.NONE
        fill(small_disk)
        await refuses(node, witness.topic)
        async with asyncio.timeout(10):
            assert await admin.delete_records({(witness.topic, 0): -1}) == {(witness.topic, 0): 4}
        assert await admin.beginning_offsets([(witness.topic, 0)]) == {(witness.topic, 0): 4}
    await eventually(lambda: _is_ready(node), "the space of the deleted records")
    assert (
        await raw_produce(node.node(1).kafka_address, witness.topic, batch([b"again"]))
    ).error is ErrorCode.NONE


async def test_the_command_says_what_it_waits_for_and_goes_on_waiting(
    small_disk: Path, node: LocalCluster
) -> None:
    witness = Witness(node.bootstrap)
    await witness.create()
    await witness.write(5)
    fill(small_disk)
    await refuses(node, witness.topic)
    command = [sys.executable, "-m", "tidegate.client.command_line", "produce", witness.topic, "x" * 20000]
    process = await asyncio.create_subprocess_exec(
        *command, "--bootstrap", node.bootstrap, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = (await asyncio.wait_for(process.stderr.readline(), 15)).decode()
    assert said.startswith(f"note: still waiting: 1 records for {witness.topic}-0"), said
    assert "KAFKA_STORAGE_ERROR" in said or "disk" in said, said
    empty(small_disk)
    assert b"1 record written" in await asyncio.wait_for(process.stdout.read(), 30)
    assert await process.stderr.read() == b""
    assert await process.wait() == 0


async def test_a_stop_on_a_full_disk_loses_nothing(small_disk: Path, node: LocalCluster) -> None:
    witness = Witness(node.bootstrap)
    await witness.create()
    await witness.write(20, size=2000)
    fill(small_disk)
    assert await node.node(1).terminate() in (0, 1)  # 1: the files of a clean close found no room
    assert "Traceback" not in log_of(node)
    empty(small_disk)
    await node.up()
    await witness.still_serves()


async def test_a_deleted_topic_frees_space_at_once_and_a_full_disk_is_reported(
    small_disk: Path, node: LocalCluster
) -> None:
    witness = Witness(node.bootstrap)
    await witness.create()
    await witness.write(5)
    large = Witness(node.bootstrap, "large")
    await large.create()
    value = os.urandom(900_000)
    address = node.node(1).kafka_address
    for _ in range(4):
        assert (await raw_produce(address, large.topic, batch([value]))).error is ErrorCode.NONE
    checkpoint = node.node(1).data_path / "partition-checkpoint"
    await eventually(lambda: _mentions(checkpoint, large.topic), "the topic to stand in the checkpoint")
    assert _ready(node)[0] == 200
    (roomy,) = await _data_folders(node)
    assert roomy.total_bytes == DISK_BYTES
    assert condition(roomy) == "ok"
    fill(small_disk)
    status, text = _ready(node)
    assert status == 503
    assert "is full" in text
    (full,) = await _data_folders(node)
    assert not full.offline
    assert full.total_bytes == DISK_BYTES
    assert condition(full) == "full"
    assert (await raw_produce(address, witness.topic, batch([value]))).error is ErrorCode.KAFKA_STORAGE_ERROR

    async with Admin(node.bootstrap, timeout_s=20) as admin:
        await admin.create_topics([NewTopic("without-a-replica", 1, 1)], wait=False)
        await eventually(lambda: _logged(node, "replica_not_opened", 1), "the replica not to be opened")
        answer = await raw_produce(address, "without-a-replica", batch([b"first use"]))
        assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "could not be created" in (answer.error_message or "")
        await admin.delete_topics([large.topic])
    await eventually(lambda: _is_ready(node), "the space of the deleted topic")
    assert (await raw_produce(address, witness.topic, batch([value]))).error is ErrorCode.NONE


async def _data_folders(node: LocalCluster) -> list[DataFolder]:
    async with Admin(node.bootstrap, timeout_s=20) as admin:
        return await admin.describe_data_folders()


def _ready(node: LocalCluster) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{node.node(1).ports.metrics}/readyz", timeout=10
        ) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def _is_ready(node: LocalCluster) -> bool:
    return (await asyncio.to_thread(_ready, node))[0] == 200


async def _mentions(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()
