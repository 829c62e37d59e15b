"""A batch whose check takes long is checked in a thread, and what is true when the thread returns decides
about the append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.node.handlers.log import produce
from tidegate.node.serving.batch_threads import BatchThreads
from tidegate.runtime.clock import SystemClock
from tidegate.storage.log import admission
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire import record_check
from tidegate.wire.compression import Compression, Scratch
from tidegate.wire.errors import ErrorCode
from tidegate.wire.produce import ProduceResponsePartition
from tidegate.wire.records import NewRecord, encode_batch, parse_header

from .cluster import TOPIC_ID, Cluster


class HeldThreads:
    """The threads, standing still until the test lets them go on; counts what it is given."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.pieces = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        self.pieces += 1
        self.begun.set()
        await self.go_on.wait()
        return work()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    made.start(1)
    made.create(replicas=(1,), min_isr=1)
    yield made
    await made.stop_all()


def log_end(cluster: Cluster) -> int:
    return cluster.log(1).log_end_offset


def part_of(value: bytes, *, compression: Compression = Compression.ZSTD, records: int = 1) -> produce._Part:
    batch = encode_batch([NewRecord(None, value, (), 1_700_000_000_000)] * records, compression=compression)
    view = memoryview(bytearray(batch))
    return produce._Part("t", 0, view, ProduceResponsePartition(0), parse_header(view))


def broker_of(cluster: Cluster, threads: Any) -> Any:
    return SimpleNamespace(replicas=cluster.managers[1], clock=SystemClock(), batch_threads=threads)


LARGE = bytes(1_000_000)


async def test_a_large_batch_is_unfolded_in_a_thread_and_appended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = BatchThreads()
    unfolded: list[tuple[bool, int]] = []
    unfold = record_check.decompress  # type: ignore[attr-defined]

    def noted(codec: Compression, data: memoryview, max_bytes: int, scratch: Scratch) -> memoryview:
        unfolded.append((threading.current_thread() is threading.main_thread(), max_bytes))
        return unfold(codec, data, max_bytes, scratch)

    monkeypatch.setattr(record_check, "decompress", noted)
    part = part_of(LARGE)
    await produce._append(broker_of(cluster, threads), 1, part)
    await threads.close()
    assert part.answer.error is ErrorCode.NONE
    assert part.answer.base_offset == 0
    assert log_end(cluster) == 1
    assert [bound for on_loop, bound in unfolded if on_loop] == [admission.CHEAP_UNFOLDED_BYTES], (
        "only within a bound"
    )
    assert [on_loop for on_loop, _ in unfolded] == [True, False]


@pytest.mark.parametrize(
    "part",
    [
        part_of(b"v" * 100),
        part_of(b"v" * 50_000),
        part_of(LARGE, compression=Compression.NONE),
        part_of(b"", compression=Compression.NONE, records=admission.CHEAP_RECORDS),
    ],
)
async def test_what_is_cheap_is_checked_at_once(cluster: Cluster, part: produce._Part) -> None:
    threads = HeldThreads()
    await produce._append(broker_of(cluster, threads), 1, part)
    assert part.answer.error is ErrorCode.NONE
    assert threads.pieces == 0


@pytest.mark.parametrize(
    "part",
    [
        part_of(LARGE),
        part_of(b"v", records=admission.CHEAP_RECORDS + 1),
        part_of(b"v", records=admission.CHEAP_RECORDS + 1, compression=Compression.NONE),
    ],
)
async def test_what_takes_long_goes_to_a_thread(cluster: Cluster, part: produce._Part) -> None:
    threads = HeldThreads()
    threads.go_on.set()
    await produce._append(broker_of(cluster, threads), 1, part)
    assert part.answer.error is ErrorCode.NONE
    assert threads.pieces == 1


async def _append_while(cluster: Cluster, part: produce._Part, happens: Callable[[], None]) -> HeldThreads:
    threads = HeldThreads()
    appending = asyncio.create_task(produce._append(broker_of(cluster, threads), 1, part))
    await threads.begun.wait()
    happens()
    threads.go_on.set()
    await appending
    return threads


async def test_a_leader_that_was_deposed_meanwhile_appends_nothing(cluster: Cluster) -> None:
    part = part_of(LARGE)
    now = replace(
        cluster.partitions["t", 0], leader=2, leader_epoch=2, partition_epoch=2, replicas=(1, 2), isr=(1, 2)
    )
    await _append_while(cluster, part, lambda: cluster.publish([now]))
    assert part.answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log_end(cluster) == 0


async def test_a_leader_of_a_newer_epoch_appends_in_that_epoch(cluster: Cluster) -> None:
    part = part_of(LARGE)
    await _append_while(cluster, part, lambda: cast(None, cluster.elect(1)))
    assert part.answer.error is ErrorCode.NONE
    assert part.leader_epoch == 2 == cluster.log(1).latest_epoch


async def test_a_session_that_ended_meanwhile_refuses_the_append(cluster: Cluster) -> None:
    part = part_of(LARGE)
    await _append_while(cluster, part, lambda: cluster.managers[1].suspend_leadership("test"))
    assert part.answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log_end(cluster) == 0


async def test_settings_that_changed_meanwhile_are_what_the_batch_is_held_to(cluster: Cluster) -> None:
    log, part = cluster.log(1), part_of(LARGE)
    compacted = replace(log.config, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    threads = await _append_while(cluster, part, lambda: log.update_config(compacted))
    assert part.answer.error is ErrorCode.INVALID_RECORD
    assert "without a key" in str(part.answer.error_message)
    assert threads.pieces == 2
    assert log_end(cluster) == 0


async def test_a_partition_that_was_made_again_meanwhile_is_another_one(cluster: Cluster) -> None:
    part, old = part_of(LARGE), cluster.log(1)

    def made_again() -> None:
        cluster.managers[1].delete("t", 0, TOPIC_ID)
        cluster.publish([replace(cluster.partitions["t", 0], topic_id=UUID(int=8))])

    await _append_while(cluster, part, made_again)
    assert cluster.log(1) is not old
    assert part.answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log_end(cluster) == 0


async def test_what_is_queued_goes_with_its_request() -> None:
    threads, held, ran = BatchThreads(1), threading.Event(), []
    try:
        first = asyncio.create_task(threads.run(held.wait))
        second = asyncio.create_task(threads.run(lambda: ran.append(2)))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            # from here on it is out of the queue; before, a thread that is free may still take it
            await second
        held.set()
        await first
        await threads.run(lambda: ran.append(3))
    finally:
        held.set()
        await threads.close()
    assert ran == [3]
