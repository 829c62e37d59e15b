"""Real managers, sessions and group commit under elections, cut links and restarts: acknowledged = on every
replica, once."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import decode_batch, iterate_headers

from .cluster import Cluster, batch_of
from .memory_disk import MemoryDisk

PARTITIONS = 4
NODES = (1, 2, 3)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Disturbance:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.disks = {node: MemoryDisk() for node in NODES}
        self.acknowledged: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        self.done = False

    async def publish(self) -> None:
        """The newest metadata reaches the nodes one after the other."""
        for node in self.rng.sample(NODES, len(NODES)):
            if node in self.cluster.managers:
                self.cluster.publish(self.cluster.partitions.values(), to=[node])
            await asyncio.sleep(self.rng.random() * 0.01)

    def change(self, partition: int, *, isr: tuple[int, ...], leader: int, force: bool = False) -> None:
        now = self.cluster.partitions[("t", partition)]
        epoch = now.leader_epoch + (1 if force or leader != now.leader else 0)
        self.cluster.partitions[("t", partition)] = replace(
            now, isr=isr, leader=leader, leader_epoch=epoch, partition_epoch=now.partition_epoch + 1
        )

    def fence(self, node: int) -> None:
        for partition in range(PARTITIONS):
            now = self.cluster.partitions[("t", partition)]
            isr = tuple(member for member in now.isr if member != node) or now.isr
            alive = [member for member in isr if member in self.cluster.managers]
            leader = now.leader if now.leader in alive else (alive[0] if alive else -1)
            self.change(partition, isr=isr, leader=leader)

    async def restart(self, node: int) -> None:
        await self.cluster.stop(node, clean=False)
        self.fence(node)
        await self.publish()
        await asyncio.sleep(self.rng.random() * 0.1)
        self.cluster.start(node, disk=self.disks[node])
        for partition in range(PARTITIONS):
            now = self.cluster.partitions[("t", partition)]
            if now.leader == -1:
                self.change(partition, isr=now.isr, leader=node)
        await self.publish()

    async def disturb(self) -> None:
        while not self.done:
            await asyncio.sleep(self.rng.random() * 0.08)
            kind = self.rng.random()
            if kind < 0.35:
                self.cluster.cut = {link for link in self.links() if self.rng.random() < 0.3}
            elif kind < 0.6:
                self.cluster.cut = set()
            elif kind < 0.9:
                partition = self.rng.randrange(PARTITIONS)
                now = self.cluster.partitions[("t", partition)]
                self.change(partition, isr=now.isr, leader=self.rng.choice(now.isr), force=True)
                await self.publish()
            else:
                await self.restart(self.rng.choice(NODES))

    def links(self) -> list[tuple[int, int]]:
        return [(sender, target) for sender in NODES for target in NODES if sender != target]

    async def write(self, writer: int) -> None:
        count = 0
        while not self.done:
            partition = self.rng.randrange(PARTITIONS)
            manager = self.cluster.managers.get(self.cluster.partitions[("t", partition)].leader)
            count += 1
            value = f"{writer}-{count}"
            try:
                if manager is None:
                    raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
                info = manager.append_now("t", partition, batch_of(value), origin=AppendOrigin.CLIENT)
                epoch = manager.replica("t", partition).leader_epoch
                code = await manager.wait_committed("t", partition, epoch, info.next_offset, 2000)
            except KafkaError as error:
                code = error.code
            if code is ErrorCode.NONE:
                self.acknowledged[partition].append(value)
            else:
                await asyncio.sleep(0.005)

    def values(self, node: int, partition: int) -> list[str]:
        log = self.cluster.log(node, "t", partition)
        data = log.read(0, 1 << 28, upper_offset=log.log_end_offset).data
        return [
            (r.value or b"").decode()
            for position, _ in iterate_headers(data)
            for r in decode_batch(data, position)
        ]

    def is_settled(self) -> bool:
        for partition in range(PARTITIONS):
            now = self.cluster.partitions[("t", partition)]
            ends = {self.cluster.log(node, "t", partition).log_end_offset for node in NODES}
            marks = {self.cluster.log(node, "t", partition).high_watermark for node in NODES}
            if set(now.isr) != set(NODES) or len(ends) != 1 or marks != ends:
                return False
        return True


@pytest.mark.parametrize("seed", range(3))
async def test_acknowledged_records_survive_disturbance(seed: int, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, lag_max_ms=300, wait_max_ms=200)
    disturbance = Disturbance(cluster, seed)
    for node in NODES:
        cluster.start(node, disk=disturbance.disks[node])
    cluster.create(partitions=PARTITIONS)
    tasks = [asyncio.ensure_future(disturbance.write(writer)) for writer in range(4)]
    tasks.append(asyncio.ensure_future(disturbance.disturb()))
    await asyncio.sleep(2.0)
    disturbance.done = True
    await asyncio.gather(*tasks)
    cluster.cut = set()  # now that no link is cut any more
    await disturbance.publish()
    await eventually(disturbance.is_settled, f"seed {seed}: all replicas agree and are in sync", timeout_s=15)
    total = 0
    for partition in range(PARTITIONS):
        first = disturbance.values(1, partition)
        assert first == disturbance.values(2, partition) == disturbance.values(3, partition)
        assert len(set(first)) == len(first)
        missing = [value for value in disturbance.acknowledged[partition] if value not in set(first)]
        assert not missing, f"seed {seed}, partition {partition}: acknowledged and lost: {missing[:5]}"
        total += len(disturbance.acknowledged[partition])
    assert total > 50, f"only {total} writes were acknowledged"
    await cluster.stop_all()
