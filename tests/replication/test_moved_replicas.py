"""Replicas that come and go with a move (KIP-455), and the limit on what they may take while they catch
up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidegate.replication.fetching import follower_fetches
from tidegate.replication.fetching.configuration import ReplicationLimits
from tidegate.replication.partition.assignment import Assignment
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.replication.replica.catch_up_throttle import CatchUpThrottle
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster, batch_of

RATE = 300_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    for node in (1, 2, 3, 4):
        cluster.start(node)
    yield cluster
    await cluster.stop_all()


def change(cluster: Cluster, *, topic: str = "t", new_epoch: bool = False, **fields: Any) -> Assignment:
    """One metadata entry about the partition, applied everywhere."""
    now = cluster.partitions[topic, 0]
    now = replace(
        now, partition_epoch=now.partition_epoch + 1, leader_epoch=now.leader_epoch + int(new_epoch), **fields
    )
    cluster.partitions[topic, 0] = now
    cluster.publish([now])
    return now


def write(cluster: Cluster, leader: int, *values: str, topic: str = "t", acks: int = -1) -> int:
    info = cluster.managers[leader].append_now(
        topic, 0, batch_of(*values), origin=AppendOrigin.CLIENT, required_acks=acks
    )
    return info.next_offset


async def committed(cluster: Cluster, leader: int, next_offset: int, topic: str = "t") -> ErrorCode:
    epoch = cluster.partitions[topic, 0].leader_epoch
    return await cluster.managers[leader].wait_committed(topic, 0, epoch, next_offset, 3000)


async def test_an_added_replica_joins_the_isr_and_the_removed_one_is_deleted(cluster: Cluster) -> None:
    cluster.create()
    end = write(cluster, 1, *(f"v{number}" for number in range(50)))
    assert await committed(cluster, 1, end) is ErrorCode.NONE
    change(cluster, replicas=(1, 2, 3, 4), adding=(4,))
    await eventually(lambda: 4 in cluster.partitions["t", 0].isr, "4 joins the ISR")
    assert cluster.log(4).log_end_offset == end
    folder = cluster.log(3).directory
    change(cluster, replicas=(1, 2, 4), isr=(1, 2, 4), adding=(), new_epoch=True)
    assert not folder.exists()
    end = write(cluster, 1, "after")
    assert await committed(cluster, 1, end) is ErrorCode.NONE
    await eventually(lambda: cluster.log(4).log_end_offset == end, "4 follows")
    with pytest.raises(KafkaError) as refused:
        cluster.managers[3].replica("t", 0)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER, (
        "clients look where it is now; the topic still exists"
    )


async def test_a_removed_leader_tells_its_writers_to_look_elsewhere(cluster: Cluster) -> None:
    cluster.create(min_isr=1)
    cluster.cut.update({(2, 1), (3, 1)})
    waiting = asyncio.create_task(committed(cluster, 1, write(cluster, 1, "unreplicated")))
    await asyncio.sleep(0)
    change(cluster, replicas=(2, 3), isr=(2, 3), leader=2, new_epoch=True)
    assert await waiting is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError) as refused:
        write(cluster, 1, "more")
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_added_replicas_do_not_raise_the_bar_for_writers(cluster: Cluster) -> None:
    """One replica with min.insync.replicas=2 has a bar of one; two more that are not there yet must not make
    it two."""
    cluster.create(replicas=(1,), min_isr=2)
    cluster.cut.update({(2, 1), (3, 1)})
    change(cluster, replicas=(1, 2, 3), adding=(2, 3))
    assert await committed(cluster, 1, write(cluster, 1, "a")) is ErrorCode.NONE
    assert cluster.managers[1].hosted.under_replicated_count == 0
    assert cluster.managers[1].hosted.under_min_isr_count == 0
    change(cluster, adding=())
    with pytest.raises(KafkaError) as refused:
        write(cluster, 1, "b")
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.managers[1].hosted.under_replicated_count == 1


async def test_a_replica_that_left_and_came_back_begins_anew_at_its_leader(cluster: Cluster) -> None:
    """What it had fetched before it deleted its log proves nothing: the new epoch made the leader forget it
    (KIP-320)."""
    cluster.create(min_isr=1)
    end = write(cluster, 1, *(f"v{number}" for number in range(30)))
    assert await committed(cluster, 1, end) is ErrorCode.NONE
    cluster.cut.add((3, 1))
    change(cluster, replicas=(1, 2), isr=(1, 2), new_epoch=True)
    change(cluster, replicas=(1, 2, 3), adding=(3,))
    leader = cluster.managers[1].replica("t", 0).require_leader()
    assert leader.follower(3).fetch_offset == -1
    assert leader.propose_join(3) is None
    cluster.cut.clear()
    await eventually(lambda: 3 in cluster.partitions["t", 0].isr, "3 joins with a whole copy")
    assert cluster.log(3).log_end_offset == end


# ---- the limit ---------------------------------------------------------------------------------------------


def test_the_bucket_gives_its_rate_and_a_second_of_burst() -> None:
    throttle = CatchUpThrottle(lambda: 1000)
    assert throttle.limits
    assert throttle.allowance(10.0) == 1000
    throttle.sent(3000)  # a batch is never cut
    assert throttle.allowance(11.0) == -1000
    assert throttle.allowance(12.5) == 500
    assert throttle.allowance(100.0) == 1000
    throttle.sent(1000)
    assert throttle.allowance(100.5) == 500
    assert not CatchUpThrottle(lambda: None).limits
    assert CatchUpThrottle(lambda: 0).allowance(1.0) == 0


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path, limits=ReplicationLimits(catch_up_bytes_per_s=RATE), wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    yield cluster
    await cluster.stop_all()


async def catch_up(cluster: Cluster) -> float:
    """Seconds that a new replica takes to copy three times the rate, while another topic is written through
    all replicas."""
    for topic, replicas in (("t", (1, 2)), ("busy", (1, 2, 3))):
        cluster.create(topic, replicas=replicas)
    end = 0
    for _ in range(3 * RATE // 10_000):
        end = write(cluster, 1, "x" * 10_000)
    assert await committed(cluster, 1, end) is ErrorCode.NONE
    loop = asyncio.get_running_loop()
    began = loop.time()
    change(cluster, replicas=(1, 2, 3), adding=(3,))
    slowest = 0.0
    while 3 not in cluster.partitions["t", 0].isr:
        asked = loop.time()
        assert await committed(cluster, 1, write(cluster, 1, "y", topic="busy"), "busy") is ErrorCode.NONE
        slowest = max(slowest, loop.time() - asked)
        await asyncio.sleep(0.01)
        assert loop.time() - began < 20
    assert slowest < 1.0, "members of the ISR are not held back"
    assert cluster.log(3).log_end_offset == end
    return loop.time() - began


async def test_only_replicas_that_catch_up_are_throttled(slow: Cluster) -> None:
    assert await catch_up(slow) > 1.5, "a second of burst, then the rate"


async def test_without_the_limit_the_copy_takes_what_it_can_get(
    slow: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CatchUpThrottle, "limits", property(lambda _self: False))
    assert await catch_up(slow) < 1.5


async def test_a_limit_that_is_lifted_while_the_node_runs_holds_no_longer(slow: Cluster) -> None:
    for manager in slow.managers.values():
        manager.change_limits(ReplicationLimits())
    assert await catch_up(slow) < 1.5


async def test_ablation_a_throttle_on_isr_members_delays_them(
    slow: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionLeader, "is_catching_up", lambda *_: True)
    monkeypatch.setattr(follower_fetches.CatchUpThrottle, "allowance", lambda *_: 0)  # type: ignore[attr-defined]
    slow.create()
    assert (
        await slow.managers[1].wait_committed("t", 0, 1, write(slow, 1, "y"), 300)
        is ErrorCode.REQUEST_TIMED_OUT
    )
