"""Replicas of a compacted topic: each cleans its own log, and one that begins anew fetches a log full of
gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidegate.runtime.disk import RealDisk
from tidegate.storage.cleaning.cleaner import clean_now
from tidegate.storage.log.log import AppendOrigin, Log
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import (
    ControlType,
    NewRecord,
    Record,
    decode_batch,
    encode_batch,
    encode_marker,
    iterate_headers,
)

from .cluster import Cluster

NOW_MS = 1_700_000_000_000
CONFIG: dict[str, Any] = {"cleanup_policy": "compact", "segment_bytes": "1024", "delete_retention_ms": "0"}


def data(
    number: int, *, pid: int = -1, epoch: int = -1, sequence: int = -1, transactional: bool = False
) -> bytearray:
    records = [
        NewRecord(b"key%d" % (number % 5), None if number % 11 == 0 else b"value-%d" % number * 5, (), NOW_MS)
    ]
    batch = encode_batch(
        records, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    return bytearray(batch)


def write(cluster: Cluster, node: int, numbers: range) -> None:
    """Plain records, an idempotent producer, and a transaction that is aborted."""
    manager, log = cluster.managers[node], cluster.log(node)

    def append(
        batch: bytes | bytearray, origin: AppendOrigin = AppendOrigin.CLIENT, **options: object
    ) -> None:
        manager.append_now("t", 0, bytearray(batch), origin=origin, required_acks=-1, **options)  # type: ignore[arg-type]

    sequence = next((each.last_sequence + 1 for each in log.producers.views() if each.producer_id == 9), 0)
    for number in numbers:
        append(data(number))
        append(data(number, pid=9, epoch=0, sequence=sequence))
        sequence += 1
    epoch = next((each.epoch for each in log.producers.views() if each.producer_id == 7), 0)
    for number in range(3):
        guard = log.producers.start_verification(7, epoch, 0) if not number else None
        append(data(number + 1, pid=7, epoch=epoch, sequence=number, transactional=True), guard=guard)
    append(
        encode_marker(ControlType.ABORT, 7, epoch + 1, 0, NOW_MS),
        AppendOrigin.COORDINATOR,
        transaction_version=2,
    )


def clean(log: Log) -> None:
    horizon_ms = None
    for round in range(3):  # a horizon is set, and passes
        result = clean_now(log, RealDisk(), NOW_MS + round, horizon_ms=horizon_ms)
        horizon_ms = result.next_horizon_ms if result is not None else None


def batches(log: Log, offset: int = 0) -> list[bytes]:
    found, offset = [], max(offset, log.log_start_offset)
    while offset < log.log_end_offset:
        result = log.read(offset, 500, upper_offset=log.log_end_offset)
        found += [
            bytes(result.data[at : at + header.size_bytes]) for at, header in iterate_headers(result.data)
        ]
        offset = result.next_offset
    return found


def records(log: Log) -> list[Record]:
    return [record for batch in batches(log) for record in decode_batch(batch)]


async def settled(cluster: Cluster, *nodes: int) -> None:
    end = cluster.log(nodes[0]).log_end_offset
    await eventually(
        lambda: all(cluster.log(node).high_watermark == end for node in nodes), f"{nodes} at {end}"
    )


async def cluster_with_a_cleaned_leader(tmp_path: Path) -> Cluster:
    """Three leader epochs; node 3 has not been there."""
    cluster = Cluster(tmp_path, wait_max_ms=20)
    for node in (1, 2):
        cluster.start(node)
    cluster.create(replicas=(1, 2, 3), isr=(1, 2), min_isr=1, **CONFIG)
    for leader, numbers in ((1, range(20)), (2, range(20, 40)), (1, range(40, 60))):
        if leader != cluster.partitions["t", 0].leader:
            cluster.elect(leader)
        write(cluster, leader, numbers)
        await settled(cluster, leader, 3 - leader)
    cluster.log(1).roll()
    write(cluster, 1, range(60, 62))
    await settled(cluster, 1, 2)
    cluster.log(1).flush_now()
    before = len(batches(cluster.log(1)))
    clean(cluster.log(1))
    assert cluster.log(1).cleaned_to > 100
    assert len(batches(cluster.log(1))) < before / 3
    return cluster


async def test_a_new_follower_gets_the_cleaned_log_byte_for_byte(tmp_path: Path) -> None:
    cluster = await cluster_with_a_cleaned_leader(tmp_path)
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]], to=[3])
    await settled(cluster, 1, 3)
    leader, follower = cluster.log(1), cluster.log(3)
    assert batches(follower) == batches(leader)
    assert follower.last_stable_offset == leader.last_stable_offset
    known = {each.producer_id: (each.epoch, each.last_sequence) for each in leader.producers.views()}
    assert {
        each.producer_id: (each.epoch, each.last_sequence) for each in follower.producers.views()
    } == known
    await cluster.stop_all()


async def test_a_follower_of_a_cleaned_log_can_lead_and_be_killed(tmp_path: Path) -> None:
    """Recovery meets the gaps again: they are not lost data."""
    cluster = await cluster_with_a_cleaned_leader(tmp_path)
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]], to=[3])
    await settled(cluster, 1, 3)
    stored = batches(cluster.log(3))
    await cluster.stop(3, clean=False)
    for path in tmp_path.glob("node-3/partition-checkpoint"):
        path.unlink()  # everything is scanned
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]], to=[3])
    assert batches(cluster.log(3)) == stored
    await eventually(lambda: 3 in cluster.partitions["t", 0].isr, "node 3 in sync")
    cluster.elect(3)
    write(cluster, 3, range(70, 75))
    await settled(cluster, 3, 1, 2)
    assert batches(cluster.log(1))[-10:] == batches(cluster.log(3))[-10:] == batches(cluster.log(2))[-10:]
    await cluster.stop_all()


async def test_replicas_that_clean_for_themselves_keep_the_same_records(tmp_path: Path) -> None:
    cluster = await cluster_with_a_cleaned_leader(tmp_path)
    other = cluster.log(2)
    other.flush_now()
    clean(other)  # its segments end elsewhere: what is dirty differs, what a reader sees does not

    def newest(log: Log) -> dict[bytes | None, bytes | None]:
        aborted = log.aborted_transactions(0, log.last_stable_offset)
        assert len(aborted) <= 4
        return {record.key: record.value for record in records(log) if record.value is not None}

    assert newest(other) == newest(cluster.log(1))
    cluster.elect(2)
    write(cluster, 2, range(80, 90))
    await settled(cluster, 2, 1)
    assert batches(cluster.log(1))[-20:] == batches(other)[-20:]
    assert await cluster.managers[2].wait_committed("t", 0, 4, other.log_end_offset, 1000) is ErrorCode.NONE
    await cluster.stop_all()


async def test_a_follower_with_a_tail_of_its_own_truncates_to_a_cleaned_leader(tmp_path: Path) -> None:
    """The leader's history has gaps where its epochs meet; the follower still finds where the two part."""
    cluster = await cluster_with_a_cleaned_leader(tmp_path)
    end = cluster.log(2).log_end_offset
    cluster.cut = {(1, 2), (2, 1)}
    cluster.elect(2, isr=(2,), to=[2])
    write(cluster, 2, range(5))  # no other replica will ever have it
    tail = cluster.log(2).log_end_offset
    assert tail > end
    cluster.elect(1, isr=(1,), to=[1])
    write(cluster, 1, range(90, 93))
    cluster.cut = set()
    cluster.publish([cluster.partitions["t", 0]])
    await settled(cluster, 1, 2)
    assert batches(cluster.log(2), end) == batches(cluster.log(1), end)
    await cluster.stop_all()


@pytest.mark.parametrize("announced", [True, False], ids=["the leader announces it", "ablation: it does not"])
async def test_a_replica_made_after_the_topic_was_compacted_once_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, announced: bool
) -> None:
    """The policy is `delete` by now: nothing but the leader's word tells a gap from lost data."""
    caplog.set_level("INFO")
    if not announced:
        monkeypatch.setattr(Log, "allow_offset_gaps", lambda log: None)
    cluster = await cluster_with_a_cleaned_leader(tmp_path)
    now = cluster.partitions["t", 0]
    cluster.partitions["t", 0] = replace(now, config=now.config | {"cleanup.policy": "delete"})  # type: ignore[operator]
    cluster.publish([cluster.partitions["t", 0]])
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]], to=[3])
    if not announced:
        await eventually(lambda: "partition_fetch_rests" in caplog.text, "a gap was taken for lost data")
        assert cluster.log(3).log_end_offset < cluster.log(1).log_end_offset
    else:
        await settled(cluster, 1, 3)
        stored = batches(cluster.log(3))
        assert stored == batches(cluster.log(1))
        await cluster.stop(3, clean=False)
        for path in tmp_path.glob("node-3/partition-checkpoint"):
            path.unlink()  # everything is scanned
        cluster.start(3)
        cluster.publish([cluster.partitions["t", 0]], to=[3])
        assert batches(cluster.log(3)) == stored
    await cluster.stop_all()
