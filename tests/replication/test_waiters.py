"""What waits is answered exactly once: by progress, by the end of the leadership, or by time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.replication.replica.waiters import AckWaiters, FetchWaiter, FetchWatchers
from tidegate.runtime.clock import ManualClock
from tidegate.wire.errors import ErrorCode

from .cluster import Cluster
from .leading import leader_of
from .test_manager import consume, fetch_one, values_of, write


def leader_at(high_watermark: int) -> PartitionLeader:
    return leader_of(
        leader_epoch=1,
        partition_epoch=0,
        start=high_watermark,
        high_watermark=high_watermark,
        replicas=(1, 2),
        isr=(1, 2),
    )


def test_acknowledgements_complete_by_offset_however_they_were_added() -> None:
    waiters = AckWaiters()
    answered: list[Any] = []
    for offset in (5, 9, 7, 5):
        waiters.add(offset, 100.0, lambda code, offset=offset: answered.append((offset, code)))  # type: ignore[misc]
    assert waiters.complete(leader_at(4)) == 0
    assert waiters.complete(leader_at(7)) == 3
    assert answered == [(5, ErrorCode.NONE), (5, ErrorCode.NONE), (7, ErrorCode.NONE)]
    assert len(waiters) == 1


def test_a_shrunken_isr_at_completion_is_said() -> None:
    waiters = AckWaiters()
    answered: list[Any] = []
    waiters.add(5, 100.0, answered.append)
    leader = leader_at(6)
    leader.on_metadata(1, (1,))
    waiters.complete(leader)
    assert answered == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_expiry_takes_only_what_is_due() -> None:
    waiters = AckWaiters()
    answered: list[Any] = []
    waiters.add(5, 1.0, answered.append)
    waiters.add(6, 3.0, answered.append)
    assert waiters.expire(2.0, ErrorCode.REQUEST_TIMED_OUT) == 1
    assert answered == [ErrorCode.REQUEST_TIMED_OUT]
    assert waiters.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER) == 1
    assert len(waiters) == 0


def test_a_fetch_is_woken_once_and_leaves_every_partition_it_watched() -> None:
    clock, woken = ManualClock(), []
    first, second = FetchWatchers(), FetchWatchers()
    waiter = FetchWaiter(lambda: woken.append(1))
    waiter.watch(first)
    waiter.watch(second)
    waiter.start_timer(clock, 0.5)
    first.records_appended()  # clients wait for what is committed
    assert not woken
    first.high_watermark_moved()
    second.high_watermark_moved()
    clock.advance(1.0)
    assert woken == [1]
    assert not first.clients
    assert not second.clients


def test_a_fetch_is_woken_by_time() -> None:
    clock, woken = ManualClock(), []
    waiter = FetchWaiter(lambda: woken.append(1))
    waiter.start_timer(clock, 0.5)
    clock.advance(0.4)
    assert not woken
    clock.advance(0.2)
    assert woken == [1]


def test_a_cancelled_fetch_is_not_woken() -> None:
    clock, woken, watchers = ManualClock(), [], FetchWatchers()
    waiter = FetchWaiter(lambda: woken.append(1))
    waiter.watch(watchers)
    waiter.start_timer(clock, 0.5)
    waiter.close()
    watchers.state_changed()
    clock.advance(1.0)
    assert not woken


def test_a_waiter_asked_to_end_soon_ends_soon_and_is_not_delayed() -> None:
    clock, woken = ManualClock(), list[int]()
    waiter = FetchWaiter(lambda: woken.append(1))
    waiter.start_timer(clock, 0.5)
    waiter.wake_within(0.005)
    clock.advance(0.004)
    waiter.wake_within(0.005)
    assert not woken
    clock.advance(0.001)
    assert woken == [1]
    waiter.wake_within(0.005)
    clock.advance(1.0)
    assert woken == [1]


# ---- fetches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "min_bytes", "max_bytes", "there"), [(1, 0, 1 << 20, []), (0, 10_000, 50, ["a"])]
)
async def test_a_fetch_waits_neither_for_nothing_nor_for_more_than_it_may_get(
    cluster: Cluster, offset: int, min_bytes: int, max_bytes: int, there: list[str]
) -> None:
    """As in Kafka, where min_bytes counts up to max_bytes, and 0 is there at once
    (ReplicaManager.fetchMessages)."""
    cluster.create()
    await write(cluster.managers[1], "a")
    request = consume(offset, wait_ms=600_000, min_bytes=min_bytes, max_bytes=max_bytes)
    part = await asyncio.wait_for(fetch_one(cluster.managers[1], request), 20)
    assert values_of(part) == there
