"""Broken and full disks, fenced brokers: what fails says so, what can go on goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidegate.replication.fetching.fetcher import LeaderFetcher
from tidegate.replication.partition.follower import Append, Restart, Truncate
from tidegate.replication.replica.replica import Replica, Role
from tidegate.storage.log.health import Health
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchResponse

from .cluster import Cluster, batch_of
from .memory_disk import MemoryDisk


async def write(cluster: Cluster, value: str = "v", *, partition: int = 0, leader: int = 1) -> ErrorCode:
    manager = cluster.managers[leader]
    info = manager.append_now("t", partition, batch_of(value), origin=AppendOrigin.CLIENT)
    epoch = manager.replica("t", partition).leader_epoch
    return await manager.wait_committed("t", partition, epoch, info.next_offset, 20_000)


def started(tmp_path: Path) -> tuple[Cluster, dict[int, MemoryDisk]]:
    cluster = Cluster(tmp_path)
    disks = {node: MemoryDisk() for node in (1, 2, 3)}
    for node, disk in disks.items():
        cluster.start(node, disk=disk)
    return cluster, disks


async def abandon(cluster: Cluster) -> None:
    for node in tuple(cluster.managers):
        await cluster.stop(node, clean=False)


async def test_a_failed_flush_is_never_acknowledged_and_takes_the_folder_offline(tmp_path: Path) -> None:
    cluster, disks = started(tmp_path)
    cluster.create(partitions=2)
    assert await write(cluster) is ErrorCode.NONE
    disks[1].broken = True
    assert await write(cluster, "lost") is ErrorCode.KAFKA_STORAGE_ERROR
    manager = cluster.managers[1]
    await eventually(lambda: len(manager.offline_replicas()) == 2, "every replica of the folder is offline")
    assert {(node, partition) for node, _, partition, _ in cluster.offline} == {(1, 0), (1, 1)}
    assert (1, "t", 1, 1) in cluster.followed, "coordinators were notified that the leadership has ended"
    disks[1].broken = False
    cluster.publish(cluster.partitions.values())
    assert manager.replica("t", 0).role is Role.OFFLINE, "a disk that failed once is not trusted again"
    await abandon(cluster)


async def test_a_follower_with_a_broken_disk_does_not_vouch_for_anything(tmp_path: Path) -> None:
    cluster, disks = started(tmp_path)
    cluster.create()
    assert await write(cluster) is ErrorCode.NONE
    disks[3].broken = True
    waiting = asyncio.ensure_future(write(cluster))
    await eventually(lambda: len(cluster.managers[3].offline_replicas()) == 1, "the follower is offline")
    assert cluster.log(1).high_watermark == 1
    now = cluster.partitions[("t", 0)]
    cluster.partitions[("t", 0)] = replace(now, isr=(1, 2), partition_epoch=now.partition_epoch + 1)
    cluster.publish(cluster.partitions.values())
    assert await waiting is ErrorCode.NONE
    await abandon(cluster)


async def test_a_defect_at_one_partition_does_not_delay_its_leaders_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their records came with the same answer, and the leader believes that they were taken."""
    cluster, _ = started(tmp_path)
    cluster.create(partitions=5)
    sound = Replica.carry_out

    def carry_out(replica: Replica, action: Append | Truncate | Restart) -> bool:
        if replica.node_id == 2 and replica.partition == 2 and isinstance(action, Append) and action.records:
            raise RuntimeError("a defect")
        return sound(replica, action)

    monkeypatch.setattr(Replica, "carry_out", carry_out)
    assert await write(cluster) is ErrorCode.NONE
    cluster.cut.add((2, 1))
    written = [asyncio.ensure_future(write(cluster, partition=partition)) for partition in range(5)]
    await asyncio.sleep(0)
    cluster.cut.clear()
    assert [await written[partition] for partition in (0, 1, 3, 4)] == [ErrorCode.NONE] * 4
    written[2].cancel()
    await abandon(cluster)


async def test_a_high_watermark_that_was_not_adopted_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else may happen at the partition for long, and consumers read from this follower (KIP-392)."""
    cluster, _ = started(tmp_path)
    cluster.create()
    sound = Replica.carry_out
    failed: list[Any] = []

    def carry_out(replica: Replica, action: Append | Truncate | Restart) -> bool:
        news = isinstance(action, Append) and not action.records and action.high_watermark == 1
        if news and replica.node_id == 2 and not failed:
            failed.append(action)
            raise RuntimeError("a defect")
        return sound(replica, action)

    monkeypatch.setattr(Replica, "carry_out", carry_out)
    assert await write(cluster) is ErrorCode.NONE
    await eventually(
        lambda: bool(failed) and cluster.log(2).high_watermark == 1, "the follower knows of the commit"
    )
    await abandon(cluster)


async def test_an_answer_that_was_not_carried_out_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader would send what is in it only when something else happens at the partition."""
    cluster, _ = started(tmp_path)
    cluster.create()
    sound = LeaderFetcher._carry_out
    failed: list[Any] = []

    async def carry_out(fetcher: LeaderFetcher, positions: Any, response: FetchResponse) -> None:
        if not failed and any(part.records for _, parts in response.topics for part in parts):
            failed.append(response)
            raise RuntimeError("a defect")
        await sound(fetcher, positions, response)

    monkeypatch.setattr(LeaderFetcher, "_carry_out", carry_out)
    assert await write(cluster) is ErrorCode.NONE
    assert failed
    await abandon(cluster)


async def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    cluster, disks = started(tmp_path)
    cluster.create()
    assert await write(cluster) is ErrorCode.NONE
    disks[1].full = True
    with pytest.raises(KafkaError) as refused:
        await write(cluster)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    disks[1].full = False
    assert await write(cluster) is ErrorCode.NONE
    disks[2].full = True
    waiting = asyncio.ensure_future(write(cluster))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    disks[2].full = False
    assert await asyncio.wait_for(waiting, 20) is ErrorCode.NONE
    assert not cluster.managers[1].offline_replicas()
    assert not cluster.managers[2].offline_replicas()
    await abandon(cluster)


async def test_the_pauses_of_a_follower_without_room_grow(tmp_path: Path) -> None:
    """What it cannot write is sent to it each time that it asks: asking without end costs the leader more
    than it can serve."""
    cluster, disks = started(tmp_path)
    cluster.create()
    assert await write(cluster) is ErrorCode.NONE
    disks[2].full = True
    waiting = asyncio.ensure_future(write(cluster))
    (fetcher,) = cluster.managers[2]._fetchers.by_leader.values()
    await eventually(lambda: fetcher._followed[("t", 0)].failures >= 4, "the fourth pause in a row")
    disks[2].full = False
    assert await asyncio.wait_for(waiting, 20) is ErrorCode.NONE
    await eventually(
        lambda: fetcher._followed[("t", 0)].failures == 0, "the next trouble begins with short pauses"
    )
    await abandon(cluster)


async def test_what_a_full_disk_keeps_for_the_node_itself_is_taken_by_no_append(cluster: Cluster) -> None:
    """Neither as a leader, for any client, nor as a follower: the quorum's next write would find nothing left
    and end the node."""
    cluster.create()
    assert await write(cluster) is ErrorCode.NONE
    cluster.out_of_room = {(1, "t", 0)}
    for origin in AppendOrigin:
        if origin is not AppendOrigin.REPLICATION:
            with pytest.raises(KafkaError, match="disk of node 1 is full") as refused:
                cluster.managers[1].append_now("t", 0, batch_of("v"), origin=origin)
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.out_of_room = {(2, "t", 0)}
    waiting = asyncio.ensure_future(write(cluster, "kept out of node 2"))
    await eventually(lambda: cluster.log(3).log_end_offset == 2, "a replica with room has it")
    (fetcher,) = cluster.managers[2]._fetchers.by_leader.values()
    await eventually(lambda: fetcher._followed[("t", 0)].failures >= 2, "it was refused twice")
    assert cluster.log(2).log_end_offset == 1
    assert not waiting.done()
    cluster.out_of_room = set()
    assert await asyncio.wait_for(waiting, 20) is ErrorCode.NONE


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_follower_without_room_to_truncate_tries_again_until_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """With the ablation: a truncation that fails like any other work of the disk takes the whole folder
    offline."""
    if not refuses:
        monkeypatch.setattr(Health, "room_needed", Health.disk_at_work)
    cluster, disks = started(tmp_path)
    cluster.create()
    assert await write(cluster) is ErrorCode.NONE
    elected = cluster.elect(2, isr=(2, 3), to=[2, 3])
    cluster.managers[1].append_now("t", 0, batch_of("never replicated"), origin=AppendOrigin.CLIENT)
    assert await write(cluster, "replicated", leader=2) is ErrorCode.NONE
    disks[1].full = True
    cluster.publish([elected], to=[1])
    key, fetchers = ("t", 0), cluster.managers[1]._fetchers.by_leader
    if not refuses:
        await eventually(
            lambda: cluster.managers[1].replica(*key).role is Role.OFFLINE, "the folder is offline"
        )
        return await abandon(cluster)
    await eventually(
        lambda: any(f._followed[key].failures > 1 for f in fetchers.values() if key in f._followed),
        "refused twice",
    )
    assert cluster.log(1).log_end_offset == 2
    assert not cluster.log(1).is_offline
    assert cluster.managers[2].replica(*key).leader.follower(1).fetch_offset < 0, (  # type: ignore[union-attr]
        "what diverges counts for nothing"
    )
    disks[1].full = False
    await eventually(lambda: cluster.log(1).latest_epoch == elected.leader_epoch, "it was cut and follows")
    reads = [cluster.log(node).read(0, 10_000, upper_offset=9) for node in (1, 2)]
    assert reads[0] == reads[1]
    assert reads[0].next_offset == 2
    await abandon(cluster)
    return None


async def test_a_follower_fenced_and_unfenced_rejoins_an_idle_partition(cluster: Cluster) -> None:
    """In a fetch session it has no reason to list the partition again: the leader must think of it."""
    cluster.create(partitions=3)
    for partition in range(3):
        await write(cluster, partition=partition)
    await eventually(lambda: all(cluster.log(3, "t", p).high_watermark == 1 for p in range(3)), "idle")
    cluster.fenced = {3}
    for key, now in cluster.partitions.items():
        cluster.partitions[key] = replace(now, isr=(1, 2), partition_epoch=now.partition_epoch + 1)
    cluster.publish(cluster.partitions.values())
    await eventually(
        lambda: any(change.isr[-1].node_id == 3 for change in cluster.changes), "it was proposed and refused"
    )
    assert await write(cluster) is ErrorCode.NONE, "writes do not wait for a fenced follower"
    cluster.fenced = set()
    await eventually(
        lambda: all(len(now.isr) == 3 for now in cluster.partitions.values()), "back in every ISR"
    )


async def test_a_silent_follower_is_not_proposed_again_and_again(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster)
    await cluster.stop(3)
    cluster.fenced = {3}
    now = cluster.partitions[("t", 0)]
    cluster.partitions[("t", 0)] = replace(now, isr=(1, 2), partition_epoch=now.partition_epoch + 1)
    cluster.publish(cluster.partitions.values())
    await asyncio.sleep(1.5)
    assert len(cluster.changes) <= 3
