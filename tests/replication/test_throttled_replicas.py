"""Replicas that a topic names are throttled while they catch up (KIP-73): where they are sent from, and where
they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tidegate.replication.fetching.configuration import ReplicationLimits
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.replica.catch_up_throttle import CatchUpThrottle, is_throttled
from tidegate.replication.replica.replica import FOLLOWER_THROTTLED_CONFIG, LEADER_THROTTLED_CONFIG
from tidegate.tests.eventually import eventually

from .cluster import Cluster
from .test_moved_replicas import change, committed, write

RATE = 200_000
SLOW_S = 1.0
"""Three times the rate, of which a second's worth is a burst, takes two seconds; a copy without a limit takes
none of them."""


async def copy_time_s(tmp_path: Path, limits: ReplicationLimits, config: dict[str, str]) -> float:
    """How long a third replica takes to copy three times the rate."""
    cluster = Cluster(tmp_path, limits=limits, wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    try:
        cluster.create(replicas=(1, 2))
        now = cluster.partitions["t", 0]
        cluster.partitions["t", 0] = replace(now, config={**now.config, **config})
        end = 0
        for _ in range(3 * RATE // 10_000):
            end = write(cluster, 1, "x" * 10_000)
        assert int(await committed(cluster, 1, end)) == 0, "members of the ISR are not held back"
        loop = asyncio.get_running_loop()
        began = loop.time()
        change(cluster, replicas=(1, 2, 3), adding=(3,))
        await eventually(lambda: 3 in cluster.partitions["t", 0].isr, "3 joins", timeout_s=30)
        assert cluster.log(3).log_end_offset == end
        return loop.time() - began
    finally:
        await cluster.stop_all()


LEADER = ReplicationLimits(leader_throttled_bytes_per_s=RATE)
FOLLOWER = ReplicationLimits(follower_throttled_bytes_per_s=RATE)


@pytest.mark.parametrize(
    ("limits", "config"),
    [(LEADER, {LEADER_THROTTLED_CONFIG: "0:1"}), (FOLLOWER, {FOLLOWER_THROTTLED_CONFIG: "*"})],
)
async def test_a_named_replica_is_held_to_the_rate(
    tmp_path: Path, limits: ReplicationLimits, config: dict[str, str]
) -> None:
    assert await copy_time_s(tmp_path, limits, config) > SLOW_S


@pytest.mark.parametrize(
    ("limits", "config"),
    [
        (LEADER, {LEADER_THROTTLED_CONFIG: "0:2,1:1", FOLLOWER_THROTTLED_CONFIG: "*"}),
        (FOLLOWER, {FOLLOWER_THROTTLED_CONFIG: "0:1,0:2", LEADER_THROTTLED_CONFIG: "*"}),
        (ReplicationLimits(), {LEADER_THROTTLED_CONFIG: "*", FOLLOWER_THROTTLED_CONFIG: "*"}),
    ],
)
async def test_a_replica_that_is_not_named_or_has_no_rate_is_not_throttled(
    tmp_path: Path, limits: ReplicationLimits, config: dict[str, str]
) -> None:
    assert await copy_time_s(tmp_path, limits, config) < SLOW_S


async def test_ablation_without_resting_a_throttled_follower_copies_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CatchUpThrottle, "delay_s", lambda *_: 0.0)
    assert await copy_time_s(tmp_path, FOLLOWER, {FOLLOWER_THROTTLED_CONFIG: "*"}) < SLOW_S


def test_a_rate_of_nothing_lets_nothing_through_and_no_rate_everything() -> None:
    assert CatchUpThrottle(lambda: 0).delay_s(5.0) > 0
    assert CatchUpThrottle(lambda: 0).allowance(5.0) == 0
    assert CatchUpThrottle(lambda: None).delay_s(5.0) == 0


def test_replicas_are_named_by_partition_and_broker_or_all_of_them() -> None:
    assert is_throttled("*", 7, 9)
    assert is_throttled("0:1,7:9", 7, 9)
    assert is_throttled("07:9,", 7, 9)
    assert not is_throttled("", 0, 1)
    assert not is_throttled("7:90", 7, 9)
    assert not is_throttled("9:7", 7, 9)
    assert not is_throttled("rack:a,7:x,:", 7, 9), "a form of a later version"
    assert is_throttled("rack:a,7:9", 7, 9)


def test_what_was_sent_without_a_rate_is_no_debt_of_a_later_rate() -> None:
    limits = ReplicationLimits()
    throttle = CatchUpThrottle(lambda: limits.catch_up_bytes_per_s)
    throttle.sent(1 << 30)
    limits.catch_up_bytes_per_s = 1 << 20
    assert throttle.delay_s(100.0) == 0
    assert throttle.allowance(100.0) == 1 << 20


def test_another_rate_begins_afresh_and_the_same_rate_goes_on() -> None:
    limits = ReplicationLimits(1 << 20)
    throttle = CatchUpThrottle(lambda: limits.catch_up_bytes_per_s)
    throttle.sent(1 << 30)
    limits.change_to(ReplicationLimits(1 << 20, producer_id_expiration_ms=1))
    assert throttle.delay_s(0.0) > 0, "the settings are sent again with every change of any of them"
    limits.catch_up_bytes_per_s = 1000
    assert throttle.delay_s(0.0) == 0
    limits.catch_up_bytes_per_s = 0
    assert throttle.allowance(9.0) == 0


READ_FROM: dict[str, Callable[[ReplicaManager], int]] = {
    "catch_up_bytes_per_s": lambda manager: manager._follower_fetches.catch_up.allowance(0.0),
    "leader_throttled_bytes_per_s": lambda manager: manager._follower_fetches.throttle.allowance(0.0),
    "follower_throttled_bytes_per_s": lambda manager: manager._fetchers._throttle.allowance(0.0),
    "producer_id_expiration_ms": lambda manager: manager.leader_log("t", 0).config.producer_id_expiration_ms,
}
"""The limits, and what shows that the part which needs it has it."""


@pytest.mark.parametrize("name", [field.name for field in fields(ReplicationLimits)])
async def test_each_limit_that_changes_at_run_time_reaches_its_part(tmp_path: Path, name: str) -> None:
    cluster = Cluster(tmp_path)
    manager = cluster.start(1)
    try:
        cluster.create(replicas=(1,))
        for value in (70_000, 60_000):
            manager.change_limits(replace(ReplicationLimits(), **{name: value}))
            assert READ_FROM[name](manager) == value
    finally:
        await cluster.stop_all()
