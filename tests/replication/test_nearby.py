"""KIP-392: consumers read from a replica of their own rack, and see nothing there that the leader would not
stand for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tidegate.replication.fetching.nearby import NONE, nearby_replica
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode
from tidegate.wire.fetch import FetchPartition, FetchRequest, FetchResponsePartition

from .cluster import TOPIC_ID, Cluster
from .leading import leader_of
from .test_manager import append, values_of, write

RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}


def leader(
    *, isr: tuple[int, ...] = (1, 2, 3, 4), ends: dict[int, int], starts: dict[int, int] | None = None
) -> PartitionLeader:
    made = leader_of(
        leader_epoch=1,
        partition_epoch=1,
        start=0,
        high_watermark=0,
        replicas=(1, 2, 3, 4),
        isr=isr,
        minimum=1,
    )
    for node, end in ends.items():
        made.record_fetch(node, broker_epoch=1, fetch_offset=end, leader_log_end=100, now_s=0)
        made.follower(node).log_start_offset = (starts or {}).get(node, 0)
    return made


@pytest.mark.parametrize(
    ("rack", "ends", "chosen"),
    [
        ("b", {2: 50, 3: 60, 4: 90}, 3),
        ("b", {2: 60, 3: 50, 4: 90}, 2),
        ("c", {2: 50, 3: 60, 4: 40}, 4),
        ("c", {2: 50, 3: 60, 4: 39}, NONE),
        ("c", {2: 50, 3: 60}, NONE),
        ("a", {2: 50, 3: 60, 4: 90}, NONE),
        ("", {2: 50, 3: 60, 4: 90}, NONE),
        ("elsewhere", {2: 50, 3: 60, 4: 90}, NONE),
    ],
    ids=[
        "furthest",
        "the other",
        "just holds it",
        "behind",
        "never fetched",
        "the leader's rack",
        "no rack",
        "no such rack",
    ],
)
def test_the_leader_names_the_rack_replica_with_the_highest_offset(
    rack: str, ends: dict[int, int], chosen: int
) -> None:
    assert nearby_replica(leader(ends=ends), rack, 40, lambda node: RACKS[node]) == chosen


def test_only_a_live_in_sync_replica_that_begins_early_enough_is_named() -> None:
    def racks(node: int) -> str:
        return RACKS[node]

    ends = {2: 50, 4: 50}
    assert nearby_replica(leader(ends=ends), "c", 40, racks) == 4
    assert nearby_replica(leader(ends=ends, isr=(1, 2, 3)), "c", 40, racks) == NONE, "out of sync"
    assert nearby_replica(leader(ends=ends, starts={4: 41}), "c", 40, racks) == NONE, "its log begins later"
    assert (
        nearby_replica(leader(ends=ends), "c", 40, lambda node: "" if node == 4 else RACKS[node]) == NONE
    ), "fenced"


def consume(
    rack: str, offset: int = 0, *, wait_ms: int = 0, epoch: int = -1, last_epoch: int = -1
) -> FetchRequest:
    part = FetchPartition(0, offset, 1 << 20, epoch, last_epoch, topic_id=TOPIC_ID)
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, rack_id=rack, topics=[("t", [part])]
    )


async def fetch(cluster: Cluster, node: int, request: FetchRequest) -> FetchResponsePartition:
    return (await cluster.managers[node].fetch(request)).topics[0][1][0]


async def committed_everywhere(cluster: Cluster, count: int) -> None:
    await eventually(
        lambda: all(cluster.log(node).high_watermark == count for node in (1, 2, 3)), "all know the commit"
    )


async def test_a_consumer_is_sent_to_its_rack_and_served_there(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    await committed_everywhere(cluster, 1)
    sent = await asyncio.wait_for(fetch(cluster, 1, consume("rack-2", wait_ms=60_000)), 1)
    assert sent.preferred_read_replica == 2
    assert not sent.records
    served = await fetch(cluster, 2, consume("rack-2", epoch=1))
    assert values_of(served) == ["a"]
    assert served.preferred_read_replica == NONE
    assert served.high_watermark == 1
    own_rack = await fetch(cluster, 1, consume("rack-1"))
    assert values_of(own_rack) == ["a"]
    assert own_rack.preferred_read_replica == NONE
    cluster.fenced.add(2)
    assert values_of(await fetch(cluster, 1, consume("rack-2"))) == ["a"], (
        "its replica is down: the leader serves it"
    )


async def test_a_follower_does_not_serve_a_client_without_a_rack(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    await committed_everywhere(cluster, 1)
    assert (await fetch(cluster, 2, consume(""))).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_every_replica_serves_a_debugging_consumer_what_is_committed(cluster: Cluster) -> None:
    """kafka-replica-verification compares what each replica holds: it asks them all, as replica -2."""
    cluster.create()
    await write(cluster.managers[1], "a")
    await committed_everywhere(cluster, 1)
    cluster.cut = {(3, 1)}
    append(cluster.managers[1], "b")  # node 2 gets it, node 3 of the ISR does not
    await eventually(lambda: cluster.log(2).log_end_offset == 2, "node 2 has it")
    for node in (1, 2, 3):
        part = await fetch(cluster, node, replace(consume(""), replica_id=-2))
        assert (part.error, values_of(part), part.high_watermark) == (ErrorCode.NONE, ["a"], 1), node
    assert (
        await fetch(cluster, 2, replace(consume(""), replica_id=-3))
    ).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_serves_only_what_is_committed(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    await committed_everywhere(cluster, 1)
    cluster.cut = {(3, 1)}
    append(cluster.managers[1], "b")  # node 2 gets it, node 3 of the ISR does not
    await eventually(lambda: cluster.log(2).log_end_offset == 2, "node 2 has it")
    part = await fetch(cluster, 2, consume("rack-2"))
    assert values_of(part) == ["a"]
    assert part.high_watermark == 1


async def test_a_waiting_consumer_is_answered_once_its_follower_knows_the_commit(
    cluster: Cluster,
) -> None:
    cluster.create()
    waiting = asyncio.ensure_future(fetch(cluster, 2, consume("rack-2", wait_ms=60_000)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await write(cluster.managers[1], "a")
    assert values_of(await asyncio.wait_for(waiting, 20)) == ["a"]


async def test_a_waiting_consumer_hears_that_its_replica_leads_now(cluster: Cluster) -> None:
    cluster.create()
    waiting = asyncio.ensure_future(fetch(cluster, 2, consume("rack-2", wait_ms=60_000, epoch=1)))
    await asyncio.sleep(0.01)
    cluster.elect(2)
    assert (await asyncio.wait_for(waiting, 20)).error is ErrorCode.FENCED_LEADER_EPOCH


async def test_a_follower_is_asked_in_its_own_leader_epoch(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    assert (await fetch(cluster, 2, consume("rack-2", epoch=0))).error is ErrorCode.FENCED_LEADER_EPOCH
    assert (await fetch(cluster, 2, consume("rack-2", epoch=2))).error is ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_what_a_follower_does_not_hold_is_for_the_leader_to_say(cluster: Cluster) -> None:
    """A diverging epoch from a follower that is merely behind would make the reader go back."""
    cluster.create()
    await write(cluster.managers[1], "a")
    await committed_everywhere(cluster, 1)
    assert (await fetch(cluster, 2, consume("rack-2", 9))).error is ErrorCode.OFFSET_OUT_OF_RANGE
    cluster.cut = {(2, 1)}
    now = cluster.partitions[("t", 0)]
    cluster.partitions[("t", 0)] = replace(now, leader_epoch=2, partition_epoch=now.partition_epoch + 1)
    cluster.publish([cluster.partitions[("t", 0)]], to=[1, 3])
    append(cluster.managers[1], "b")
    behind = await fetch(cluster, 2, consume("rack-2", 2, last_epoch=2))
    assert behind.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert behind.diverging_epoch is None


async def test_without_the_setting_leaders_alone_serve(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    for manager in cluster.managers.values():
        monkeypatch.setattr(manager._client_fetches, "_rack_of", None)
    assert values_of(await fetch(cluster, 1, consume("rack-2"))) == ["a"]
    assert (await fetch(cluster, 2, consume("rack-2"))).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
