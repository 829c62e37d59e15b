"""Every kind of request that waits for a replica ends at every ending (`replication/waiting.py`), and in the
order in which `ReplicaManager` takes its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.replica.replica import OfflineCause
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchPartition, FetchRequest, FetchResponse

from .cluster import TOPIC_ID, Cluster, batch_of

LONG_MS = 600_000
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def produce(manager: ReplicaManager) -> ErrorCode:
    manager.append_now("t", 0, batch_of("waits"), origin=AppendOrigin.CLIENT, required_acks=-1)
    return await manager.wait_committed("t", 0, 1, 4, LONG_MS)


def _error_of(response: FetchResponse) -> ErrorCode:
    """NONE: the answer has nothing, or only what is there."""
    parts = [part for _, parts in response.topics for part in parts]
    return parts[0].error if parts else response.error


async def consume(manager: ReplicaManager) -> ErrorCode:
    part = FetchPartition(0, 3, 1000, topic_id=TOPIC_ID)
    return _error_of(await manager.fetch(FetchRequest(max_wait_ms=LONG_MS, topics=[("t", [part])])))


async def follow(manager: ReplicaManager) -> ErrorCode:
    part = FetchPartition(0, 3, 1000, 1, last_fetched_epoch=1, topic_id=TOPIC_ID)
    of_node_2: dict[str, Any] = {"replica_id": 2, "replica_epoch": 101, "max_wait_ms": LONG_MS}
    begun = await manager.fetch(FetchRequest(session_epoch=0, topics=[("t", [part])], **of_node_2))
    again = FetchRequest(session_id=begun.session_id, session_epoch=1, **of_node_2)  # there is nothing new
    return _error_of(await manager.fetch(again))


async def delete(manager: ReplicaManager) -> ErrorCode:
    try:
        await manager.delete_records("t", 0, 2, LONG_MS)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def role_change(cluster: Cluster) -> None:
    cluster.elect(2)


async def suspended_leadership(cluster: Cluster) -> None:
    cluster.managers[1].suspend_leadership("the session is over")


async def deletion_of_the_replica(cluster: Cluster) -> None:
    cluster.managers[1].delete("t", 0)


async def failed_disk(cluster: Cluster) -> None:
    manager = cluster.managers[1]
    manager.take_offline(manager.replica("t", 0), OfflineCause.DISK_FAILED, "a test")


async def stop(cluster: Cluster) -> None:
    await cluster.managers[1].shutdown()


KINDS: dict[Callable[[ReplicaManager], Awaitable[ErrorCode]], Callable[[ReplicaManager], object]] = {
    produce: lambda manager: manager._delayed_produce._waiting_count == 1,
    consume: lambda manager: manager._client_fetches.waiting == 1,
    follow: lambda manager: manager._follower_fetches.waiting == 1,
    delete: lambda manager: (
        any(not each.news.is_set() for found in manager._deletions._waiting.values() for each in found)
        and manager.replica("t", 0).log.log_start_offset == 2
    ),
}
"""What waits, and whether it does now."""
ENDINGS: dict[Callable[[Cluster], Awaitable[None]], ErrorCode] = {
    role_change: MOVED,
    suspended_leadership: MOVED,
    deletion_of_the_replica: MOVED,
    failed_disk: ErrorCode.KAFKA_STORAGE_ERROR,
    stop: MOVED,
}
FOUND = {
    (fetch, ending): ErrorCode.NONE for fetch in (consume, follow) for ending in (suspended_leadership, stop)
}
"""What a fetch finds when it looks again: what is committed may be read without a lease."""


async def leader_of_three_records(directory: Path) -> Cluster:
    """Its followers are in the ISR and fetch nothing any more."""
    cluster = Cluster(directory, wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create()
    leader = cluster.managers[1]
    leader.append_now("t", 0, batch_of("a", "b", "c"), origin=AppendOrigin.CLIENT, required_acks=-1)
    assert await leader.wait_committed("t", 0, 1, 3, 20_000) is ErrorCode.NONE
    cluster.cut |= {(2, 1), (3, 1)}
    await eventually(lambda: leader._follower_fetches.waiting == 0, "their last fetches are answered")
    return cluster


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_wait_ends(tmp_path: Path, kind: Any, ending: Any) -> None:
    cluster = await leader_of_three_records(tmp_path)
    manager = cluster.managers[1]
    waiting = asyncio.ensure_future(kind(manager))
    await eventually(lambda: KINDS[kind](manager), "it waits")
    assert not waiting.done()
    await ending(cluster)
    assert await asyncio.wait_for(waiting, 20) is FOUND.get((kind, ending), ENDINGS[ending])
    await cluster.stop_all()


def test_every_kind_of_waiting_request_is_tried(tmp_path: Path) -> None:
    manager = Cluster(tmp_path).start(1)
    assert len(manager._waiting) == len(KINDS)


# ---- the order ---------------------------------------------------------------------------------------------


async def re_election(cluster: Cluster) -> None:
    cluster.elect(1)


async def commit(cluster: Cluster) -> None:
    cluster.cut.clear()
    await eventually(lambda: cluster.log(1).high_watermark == 4, "the record is committed")
    await asyncio.sleep(0)


ORDER: dict[Callable[[Cluster], Awaitable[None]], list[tuple[str, str]]] = {
    role_change: [("ended", "follower"), ("on_resigned", "follower")],
    re_election: [("ended", "leader of epoch 2"), ("on_elected", "leader of epoch 2")],
    deletion_of_the_replica: [("ended", "gone"), ("on_resigned", "gone")],
    failed_disk: [("ended", "offline"), ("on_resigned", "offline"), ("on_offline", "offline")],
    commit: [("ended", "leader of epoch 1"), ("on_high_watermark", "leader of epoch 1")],
}
"""What a waiting producer and the coordinators hear, one after the other, and the role that they find then.
The role has changed before the producer's wait ends, or a retry would be served in the old role; and every
wait has ended before a coordinator begins or ends with the partition."""


@pytest.mark.parametrize("event", ORDER, ids=lambda event: event.__name__)
async def test_a_role_has_changed_before_producers_and_coordinators_hear_it(
    tmp_path: Path, event: Any
) -> None:
    cluster = await leader_of_three_records(tmp_path)
    manager, heard = cluster.managers[1], list[tuple[str, str]]()
    replica = manager.replica("t", 0)

    def note(what: str) -> None:
        role = replica.role.value if replica in manager.hosted else "gone"
        heard.append((what, role + (f" of epoch {replica.leader_epoch}" if replica.leader else "")))

    manager.append_now("t", 0, batch_of("waits"), origin=AppendOrigin.CLIENT, required_acks=-1)
    manager.when_committed("t", 0, 1, 4, LONG_MS, lambda _code: note("ended"))
    for name, calls in {
        "on_elected": "led", "on_resigned": "followed", "on_high_watermark": "high_watermarks",
        "on_offline": "offline",
    }.items():  # fmt: skip
        setattr(cluster, calls, Calls(partial(note, name)))
    await event(cluster)
    assert heard == ORDER[event]
    await cluster.stop_all()


class Calls:
    """In the place of a list of a cluster's calls: of those that concern node 1."""

    def __init__(self, on_call: Callable[[], object]) -> None:
        self._on_call = on_call

    def append(self, call: tuple[object, ...]) -> None:
        if call[0] == 1:
            self._on_call()


async def test_a_new_leaders_log_has_its_configuration_before_coordinators_hear(cluster: Cluster) -> None:
    """Both come with one assignment, where a snapshot of the metadata brings them."""
    cluster.create(isr=(1,), min_isr=1)
    now, found = cluster.partitions["t", 0], list[int]()
    cluster.partitions["t", 0] = replace(now, config={**now.config, "segment.bytes": "2000000"})
    cluster.led = cast(Any, Calls(lambda: found.append(cluster.log(1).config.segment_bytes)))
    cluster.elect(1)
    assert found == [2_000_000]
