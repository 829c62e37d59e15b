"""A topic deleted and created again under its name, while some node's metadata lags: the two never mix
(docs/semantics.md R11).

Epochs do not tell them apart, because every topic begins at leader epoch 0; the topic id does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

import pytest
from tidegate.replication.fetching.follower_fetches import FollowerFetches
from tidegate.replication.replica.replica import Replica
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import decode_batch, iterate_headers

from .cluster import Cluster
from .test_manager import write

AGAIN = UUID(int=8)


def create_again(cluster: Cluster, nodes: Iterable[int]) -> None:
    """Only `nodes` hear of it."""
    new = replace(cluster.partitions[("t", 0)], topic_id=AGAIN)
    cluster.partitions[("t", 0)] = new
    tell(cluster, nodes)


def tell(cluster: Cluster, nodes: Iterable[int]) -> None:
    for node in nodes:
        cluster.managers[node].delete("t", 0)
        cluster.managers[node].apply([cluster.partitions[("t", 0)]])


def values(cluster: Cluster, node: int) -> list[str]:
    log = cluster.log(node)
    data = log.read(0, 1 << 20, upper_offset=log.log_end_offset).data
    return [
        (r.value or b"").decode()
        for position, _ in iterate_headers(data)
        for r in decode_batch(data, position)
    ]


async def settled(cluster: Cluster, end: int) -> None:
    await eventually(
        lambda: all(cluster.log(node).high_watermark == end for node in cluster.managers), f"all are at {end}"
    )


async def test_a_replica_of_the_old_topic_does_not_vouch_for_the_new_one(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], *(f"old-{n}" for n in range(5)))
    await settled(cluster, 5)
    create_again(cluster, [1])
    assert await write(cluster.managers[1], "new", timeout_ms=500) is ErrorCode.REQUEST_TIMED_OUT
    assert cluster.log(1).high_watermark == 0
    tell(cluster, [2, 3])
    assert await write(cluster.managers[1], "newer") is ErrorCode.NONE
    await settled(cluster, 2)
    assert all(values(cluster, node) == ["new", "newer"] for node in (1, 2, 3))


async def test_a_leader_of_the_old_topic_does_not_feed_the_new_one(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "old-a", "old-b")
    await settled(cluster, 2)
    asked = cluster.fetches
    create_again(cluster, [2])
    await eventually(lambda: cluster.fetches > asked + 5, "the new follower asked the old leader")
    assert cluster.log(2).log_end_offset == 0
    tell(cluster, [1, 3])
    assert await write(cluster.managers[1], "new-a", "new-b", "new-c") is ErrorCode.NONE
    await settled(cluster, 3)
    assert values(cluster, 1) == values(cluster, 2) == values(cluster, 3) == ["new-a", "new-b", "new-c"]


async def test_without_topic_ids_an_acknowledged_record_would_be_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablation: the leader believes every follower that names the topic."""
    answer = FollowerFetches._answer

    def believing(self, request, session, key, spec, *rest):  # type: ignore[no-untyped-def]
        replica: Replica = self._lookup(*key)
        return answer(self, request, session, key, replace(spec, topic_id=replica.topic_id), *rest)

    monkeypatch.setattr(FollowerFetches, "_answer", believing)
    cluster.create()
    await write(cluster.managers[1], "old")
    await settled(cluster, 1)
    create_again(cluster, [1])
    assert await write(cluster.managers[1], "new", timeout_ms=2000) is ErrorCode.NONE
    assert values(cluster, 2) == ["old"], "which may lead next"
