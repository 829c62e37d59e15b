"""Three nodes that are stopped, killed and started again: an orderly stop costs nothing, and no kind of stop
loses anything."""

from __future__ import annotations

import asyncio
import signal
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.producing.producer import Producer
from tidegate.processes.local_cluster import LocalCluster, LocalNode
from tidegate.tests.eventually import eventually

from .witness import Witness, kept_up, log_of, raw_bytes

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("stop-and-restart"), pytest.mark.timeout(180)]

PARTITIONS = 6
# replica.lag.time.max.ms is 10 s: a writer that waits so long waits for a node that has gone.
PAUSE_S_MAX = 8.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with kept_up(LocalCluster(tmp_path_factory.mktemp("stop"), nodes=3)) as cluster:
        yield cluster


@pytest.fixture
async def cluster(running: LocalCluster) -> LocalCluster:
    """The cluster with all nodes ready, whatever the test before did to it."""
    await running.up()
    return running


@pytest.fixture
async def witness(cluster: LocalCluster, request: pytest.FixtureRequest) -> Witness:
    """A topic of this test alone."""
    found = Witness(cluster.bootstrap, f"topic-{abs(hash(request.node.name))}")
    await found.create(3, PARTITIONS)
    return found


@dataclass
class Writing:
    """What a producer that writes all the time lives through."""

    failures: list[BaseException] = field(default_factory=list)
    longest_pause_s: float = 0.0


@asynccontextmanager
async def writing(witness: Witness) -> AsyncIterator[Writing]:
    """Writes to partition 0 all the time, one record after the other, at acks=all."""
    found = Writing()
    stopped = asyncio.Event()

    async def write() -> None:
        async with Producer(witness.bootstrap, delivery_timeout_s=60) as producer:
            while not stopped.is_set():
                value = f"record-{len(witness.acknowledged)}".encode()
                began = time.monotonic()
                try:
                    await producer.send_and_wait(witness.topic, value, partition=0)
                except Exception as error:
                    found.failures.append(error)
                else:
                    witness.acknowledged.append(value)
                found.longest_pause_s = max(found.longest_pause_s, time.monotonic() - began)

    async def wrote(count: int) -> bool:
        return len(witness.acknowledged) >= count or bool(found.failures)

    task = asyncio.create_task(write())
    try:
        await eventually(lambda: wrote(20), "the writer writes")
        yield found
        more = len(witness.acknowledged) + 20
        await eventually(lambda: wrote(more), "the writer goes on")
    finally:
        stopped.set()
        await task


async def leaders(cluster: LocalCluster, topic: str) -> list[int]:
    async with Admin(cluster.bootstrap) as admin:
        (found,) = await admin.describe_topics([topic], config=False)
        return [part.leader for part in found.partitions]


async def leader_node(cluster: LocalCluster, topic: str) -> LocalNode:
    return cluster.node((await leaders(cluster, topic))[0])


async def restart(node: LocalNode) -> int:
    """Starts the node again; how many logs it had to recover."""
    await node.start()
    return (await node.wait_ready(60)).recovered_logs


class TestOrderlyStop:
    """SIGTERM."""

    async def test_a_clean_stop_hands_leaderships_over_and_needs_no_recovery(
        self, cluster: LocalCluster, witness: Witness
    ) -> None:
        async with writing(witness) as seen:
            node = await leader_node(cluster, witness.topic)
            assert await node.terminate() == 0
            assert node.id not in await leaders(cluster, witness.topic)
        assert seen.failures == []
        assert seen.longest_pause_s < PAUSE_S_MAX
        assert "leaderships_not_moved" not in log_of(cluster, node.id)
        assert (node.data_path / "clean-shutdown").exists()
        assert await restart(node) == 0
        assert not (node.data_path / "clean-shutdown").exists(), (
            "a crash from here on must not look like a clean stop"
        )
        assert await witness.read() == witness.acknowledged

    async def test_the_active_controller_leaves_as_cleanly(
        self, cluster: LocalCluster, witness: Witness
    ) -> None:
        controller = await cluster.active_controller()
        async with writing(witness) as seen:
            assert await controller.terminate() == 0
            assert (await cluster.active_controller()).id != controller.id
        assert seen.failures == []
        assert seen.longest_pause_s < PAUSE_S_MAX
        assert await restart(controller) == 0
        assert await witness.read() == witness.acknowledged

    async def test_all_nodes_stop_at_once_and_start_again(
        self, cluster: LocalCluster, witness: Witness
    ) -> None:
        await witness.write(30)
        assert await asyncio.gather(*(node.terminate() for node in cluster.nodes)) == [0, 0, 0]
        await cluster.up()
        assert [(await node.status()).recovered_logs for node in cluster.nodes] == [0, 0, 0]
        await witness.still_serves()

    async def test_sigint_is_an_orderly_stop_and_a_second_signal_changes_nothing(
        self, cluster: LocalCluster
    ) -> None:
        node = cluster.node(3)
        assert node.pid is not None
        node._process.signal(signal.SIGINT)
        assert await node.terminate() == 0
        assert await restart(node) == 0


class TestCrash:
    """SIGKILL."""

    async def test_a_killed_leader_recovers_what_it_held(
        self, cluster: LocalCluster, witness: Witness
    ) -> None:
        async with writing(witness) as seen:
            node = await leader_node(cluster, witness.topic)
            node.kill()
            assert await node.wait_exit() == -signal.SIGKILL
            await eventually(lambda: self._moved(cluster, witness.topic, node.id), "another node leads")
        assert seen.failures == []
        assert await restart(node) > 0
        await witness.still_serves()

    async def _moved(self, cluster: LocalCluster, topic: str, old: int) -> bool:
        found = (await leaders(cluster, topic))[0]
        return found not in (old, -1)

    async def test_nothing_acknowledged_is_lost_when_all_nodes_are_killed_at_once(
        self, cluster: LocalCluster, witness: Witness
    ) -> None:
        async with writing(witness):
            for node in cluster.nodes:
                node.kill()
            for node in cluster.nodes:
                await node.wait_exit()
            await cluster.up()
        # A request in flight may have arrived twice: the idempotent producer repeats, the log does not.
        assert await witness.read() == witness.acknowledged
        await witness.still_serves()


async def test_a_topic_deleted_while_a_node_was_down_is_gone_after_its_restart(cluster: LocalCluster) -> None:
    doomed, kept = Witness(cluster.bootstrap, "doomed"), Witness(cluster.bootstrap, "kept")
    for witness in (doomed, kept):
        await witness.create(3, 2)
        await witness.write(5)
    node = cluster.node(2)
    node.kill()
    await node.wait_exit()
    assert {"doomed-0", "doomed-1", "kept-0"} <= {path.name for path in node.data_path.iterdir()}
    async with Admin(cluster.bootstrap) as admin:
        await admin.delete_topics(["doomed"])
        # The name is free again: what stands in the stopped node's folder is another topic of the same name.
        await admin.create_topics([NewTopic("doomed", 1, 3, {"min.insync.replicas": "2"})])
    await restart(node)
    again = Witness(cluster.bootstrap, "doomed")
    await again.still_serves()
    await kept.still_serves()
    names = {path.name for path in node.data_path.iterdir()}
    assert "doomed-1" not in names
    assert "kept-0" in names
    assert not [name for name in names if name.endswith("-delete")]


async def test_the_quorum_port_takes_garbage_calmly(cluster: LocalCluster, witness: Witness) -> None:
    for node in cluster.nodes:
        address = f"127.0.0.1:{node.ports.quorum}"
        await raw_bytes(address, struct.pack(">i", 2**31 - 1) + b"x" * 64, half_close=True)
        await raw_bytes(address, struct.pack(">i", 64) + b"x" * 64, half_close=True)
        await raw_bytes(address, b"", half_close=True)
    await witness.still_serves()
    assert all([(await node.status()).ready for node in cluster.nodes])
