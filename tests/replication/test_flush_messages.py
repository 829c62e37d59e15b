"""flush.messages on top of flush.policy=os: so many unflushed records count only when they are flushed, as in
Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tidegate.node.upkeep.timed_flushes import TimedFlushes
from tidegate.storage.topic_config import FlushPolicy, LogConfig
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode

from .cluster import Cluster
from .test_moved_replicas import committed, write


class FakeLog(SimpleNamespace):
    """What is looked at of a log."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    for node in (1, 2):
        cluster.start(node)
    yield cluster
    await cluster.stop_all()


async def test_with_one_every_committed_record_is_on_all_disks(cluster: Cluster) -> None:
    cluster.create(replicas=(1, 2), flush_policy="os", flush_messages="1")
    for number in range(5):
        end = write(cluster, 1, f"v{number}")
        assert await committed(cluster, 1, end) is ErrorCode.NONE
        assert [cluster.log(node).flushed_end_offset for node in (1, 2)] == [end, end]


async def test_fewer_than_that_are_not_flushed_and_count_at_once(cluster: Cluster) -> None:
    cluster.create(replicas=(1, 2), flush_policy="os", flush_messages="10")
    assert await committed(cluster, 1, write(cluster, 1, "a")) is ErrorCode.NONE
    assert [cluster.log(node).flushed_end_offset for node in (1, 2)] == [0, 0]
    end = write(cluster, 1, *("b" for _ in range(9)))
    assert await committed(cluster, 1, end) is ErrorCode.NONE
    await eventually(
        lambda: [cluster.log(node).flushed_end_offset for node in (1, 2)] == [end, end], "both flushed"
    )


async def test_while_the_leader_cannot_flush_so_many_are_not_committed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(replicas=(1, 2), flush_policy="os", flush_messages="1")
    monkeypatch.setattr(cluster.managers[1]._flushes, "start", lambda _replica: None)
    end = write(cluster, 1, "a")
    await eventually(lambda: cluster.log(2).flushed_end_offset == end, "the follower has it")
    assert await cluster.managers[1].wait_committed("t", 0, 1, end, 200) is not ErrorCode.NONE
    assert cluster.log(1).high_watermark == 0


def test_a_log_is_flushed_when_its_oldest_record_has_waited_flush_ms() -> None:
    timed = TimedFlushes()
    log = FakeLog(
        config=LogConfig(flush_policy=FlushPolicy.OS, flush_ms=5000),
        is_offline=False,
        has_unflushed_records=True,
        flushed_end_offset=0,
    )
    replica = cast(Any, SimpleNamespace(log=log, flushes_always=False))
    assert [timed.is_due(replica, now_s) for now_s in (10.0, 14.0, 15.0)] == [False, False, True]
    log.flushed_end_offset = 7  # flushed, and written to again
    assert [timed.is_due(replica, now_s) for now_s in (16.0, 20.0, 21.0)] == [False, False, True]
    log.has_unflushed_records = False
    assert not timed.is_due(replica, 99.0)
    log.has_unflushed_records, log.config = True, LogConfig(flush_policy=FlushPolicy.OS)
    assert not timed.is_due(replica, 10.0**9)
