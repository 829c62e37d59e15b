"""Replica managers connected in one process: what clients, coordinators and followers are promised."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tidegate.replication.fetching.fetcher import FetcherLimits
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.partition.isr_change import PendingChange
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.replication.replica.replica import OfflineCause, Role
from tidegate.runtime import calm_logs
from tidegate.storage.log.log import AppendInfo, AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchPartition, FetchRequest, FetchResponsePartition
from tidegate.wire.records import (
    ControlType,
    NewRecord,
    decode_batch,
    encode_batch,
    encode_marker,
    iterate_headers,
)

from .cluster import TOPIC_ID, Cluster, batch_of


def append(
    manager: ReplicaManager, *values: str, acks: int = -1, topic: str = "t", partition: int = 0
) -> AppendInfo:
    return manager.append_now(
        topic, partition, batch_of(*values), origin=AppendOrigin.CLIENT, required_acks=acks
    )


async def write(
    manager: ReplicaManager, *values: str, topic: str = "t", partition: int = 0, timeout_ms: int = 5000
) -> ErrorCode:
    info = append(manager, *values, topic=topic, partition=partition)
    epoch = manager.replica(topic, partition).leader_epoch
    return await manager.wait_committed(topic, partition, epoch, info.last_offset + 1, timeout_ms)


def consume(
    offset: int = 0,
    *,
    partitions: tuple[int, ...] = (0,),
    isolation: int = 0,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    epoch: int = -1,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[
            (
                "t",
                [
                    FetchPartition(p, offset, partition_max_bytes, epoch, topic_id=TOPIC_ID)
                    for p in partitions
                ],
            )
        ],
    )


async def fetch_one(manager: ReplicaManager, request: FetchRequest) -> FetchResponsePartition:
    return (await manager.fetch(request)).topics[0][1][0]


def values_of(part: FetchResponsePartition) -> list[str]:
    found: list[str] = []
    for position, header in iterate_headers(part.records):
        if not header.is_control:
            found.extend((record.value or b"").decode() for record in decode_batch(part.records, position))
    return found


# ---- writing -----------------------------------------------------------------------------------------------


async def test_an_acknowledged_write_is_flushed_on_every_in_sync_replica(cluster: Cluster) -> None:
    cluster.create()
    assert await write(cluster.managers[1], "a", "b") is ErrorCode.NONE
    for node in (1, 2, 3):
        assert cluster.log(node).flushed_end_offset == 2
    assert cluster.log(1).high_watermark == 2


async def test_followers_learn_a_moved_high_watermark_without_new_data(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    await eventually(
        lambda: all(cluster.log(node).high_watermark == 1 for node in (2, 3)),
        "high watermark at the followers",
    )


async def test_idle_followers_wait_at_the_leader(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    await eventually(
        lambda: all(cluster.log(node).high_watermark == 1 for node in (2, 3)), "followers are up to date"
    )
    before = cluster.fetches
    await asyncio.sleep(0.2)
    assert cluster.fetches - before <= 4


async def test_many_partitions_are_replicated_by_one_fetcher_a_leader(cluster: Cluster) -> None:
    cluster.create(partitions=40)
    results = await asyncio.gather(*(write(cluster.managers[1], f"v{p}", partition=p) for p in range(40)))
    assert set(results) == {ErrorCode.NONE}
    assert all(cluster.log(3, "t", p).log_end_offset == 1 for p in range(40))


async def test_acks_all_is_refused_under_the_minimum_and_acks_1_is_not(cluster: Cluster) -> None:
    cluster.create(isr=(1,))
    cluster.cut = {(2, 1), (3, 1)}
    with pytest.raises(KafkaError) as refused:
        append(cluster.managers[1], "a")
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    info = append(cluster.managers[1], "a", acks=1)
    assert info.last_offset == 0
    assert cluster.log(1).high_watermark == 0


async def test_a_write_that_is_not_replicated_in_time_says_so(cluster: Cluster) -> None:
    cluster.create()
    cluster.cut = {(2, 1), (3, 1)}
    assert await write(cluster.managers[1], "a", timeout_ms=80) is ErrorCode.REQUEST_TIMED_OUT


async def test_a_write_whose_isr_shrank_below_the_minimum_says_so(cluster: Cluster) -> None:
    cluster.create()
    cluster.cut = {(2, 1), (3, 1)}
    waiting = asyncio.ensure_future(write(cluster.managers[1], "a", timeout_ms=150))
    await asyncio.sleep(0)
    now = cluster.partitions[("t", 0)]
    cluster.partitions[("t", 0)] = replace(now, isr=(1,), partition_epoch=now.partition_epoch + 1)
    cluster.publish(cluster.partitions.values())
    assert await waiting is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_writes_that_wait_end_with_the_leadership(cluster: Cluster) -> None:
    cluster.create()
    cluster.cut = {(2, 1), (3, 1)}
    waiting = asyncio.ensure_future(write(cluster.managers[1], "a"))
    await asyncio.sleep(0)
    cluster.elect(2)
    assert await waiting is ErrorCode.NOT_LEADER_OR_FOLLOWER
    with pytest.raises(KafkaError) as refused:
        append(cluster.managers[1], "b")
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_coordinator_is_fenced_by_its_leader_epoch(cluster: Cluster) -> None:
    cluster.create()
    manager = cluster.managers[1]
    for epoch, code in ((0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(KafkaError) as fenced:
            manager.append_now(
                "t", 0, batch_of("a"), origin=AppendOrigin.COORDINATOR, expected_leader_epoch=epoch
            )
        assert fenced.value.code is code
    assert await manager.wait_committed("t", 0, 0, 0, 100) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_suspended_leadership_appends_nothing(cluster: Cluster) -> None:
    cluster.create()
    manager = cluster.managers[1]
    manager.suspend_leadership("session expired")
    for acks in (-1, 1):
        with pytest.raises(KafkaError) as refused:
            append(manager, "a", acks=acks)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    manager.resume_leadership()
    assert await write(manager, "a") is ErrorCode.NONE


async def test_acks_all_fails_at_once_while_leadership_is_suspended(cluster: Cluster) -> None:
    """Also for what is committed already, and for what was appended just before: no event ends such a wait
    before its deadline."""
    cluster.create()
    manager = cluster.managers[1]
    assert await write(manager, "a") is ErrorCode.NONE
    cluster.cut |= {(2, 1), (3, 1)}
    append(manager, "b")
    manager.suspend_leadership("session expired")
    for next_offset in (1, 2):
        waiting = manager.wait_committed("t", 0, 1, next_offset, 60_000)
        assert await asyncio.wait_for(waiting, 20) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_nothing_is_acknowledged_after_the_session_has_ended(tmp_path: Path) -> None:
    """Not even what is committed meanwhile: clients may be writing to another leader, and the error makes
    them look for it."""
    cluster = Cluster(tmp_path)
    session = [True]
    try:
        for node in (1, 2, 3):
            cluster.start(node)
        cluster.create()
        manager = cluster.managers[1]
        manager.lease._holds_session = lambda: session[0]
        waiting = asyncio.create_task(write(manager, "a"))
        await asyncio.sleep(0)
        session[0] = False  # before any timer says so
        await eventually(lambda: cluster.log(1).high_watermark == 1, "the record is committed")
        assert not waiting.done()
        with pytest.raises(KafkaError) as refused:
            append(manager, "b", acks=1)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        manager.suspend_leadership("session expired")
        assert await asyncio.wait_for(waiting, 20) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        session[0] = True
        manager.resume_leadership()
        assert await write(manager, "b") is ErrorCode.NONE
    finally:
        await cluster.stop_all()


async def test_an_unknown_partition_is_named(cluster: Cluster) -> None:
    with pytest.raises(KafkaError) as unknown:
        append(cluster.managers[1], "a")
    assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "t-0" in unknown.value.message


# ---- callbacks ---------------------------------------------------------------------------------------------


async def test_roles_and_high_watermarks_are_reported(cluster: Cluster) -> None:
    cluster.create()
    assert (1, "t", 0, 1) in cluster.led
    assert (2, "t", 0, 1) in cluster.followed
    await write(cluster.managers[1], "a")
    await eventually(lambda: (1, "t", 0, 1) in cluster.high_watermarks, "the high watermark is reported")
    assert not [reported for reported in cluster.high_watermarks if reported[0] != 1]


async def test_the_same_assignment_again_changes_nothing(cluster: Cluster) -> None:
    cluster.create()
    core, led = cluster.managers[1].replica("t", 0).leader, list(cluster.led)
    cluster.publish(cluster.partitions.values())
    assert cluster.managers[1].replica("t", 0).leader is core
    assert cluster.led == led


# ---- failover ----------------------------------------------------------------------------------------------


async def test_a_new_leader_keeps_acknowledged_records_and_the_old_one_truncates(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "kept")
    cluster.cut = {(2, 1), (3, 1)}
    append(cluster.managers[1], "lost", acks=1)
    await eventually(
        lambda: cluster.log(1).flushed_end_offset == 2, "the old leader has flushed its own record"
    )
    cluster.elect(2)
    assert await write(cluster.managers[2], "new") is ErrorCode.NONE
    for node in (1, 2, 3):
        await eventually(
            lambda node=node: cluster.log(node).high_watermark == 2,  # type: ignore[misc]
            f"node {node} is up to date",
        )
        data = cluster.log(node).read(0, 1 << 20, upper_offset=2).data
        assert values_of(FetchResponsePartition(0, records=data)) == ["kept", "new"]


async def test_latest_is_not_answered_before_the_new_leader_is_confirmed(cluster: Cluster) -> None:
    cluster.create()
    cluster.cut = {(3, 1)}  # one of the in-sync replicas does not fetch: nothing is committed
    append(cluster.managers[1], "a", "b", acks=1)
    await eventually(lambda: cluster.log(2).flushed_end_offset == 2, "the follower has the records")
    assert cluster.log(2).high_watermark == 0
    cluster.cut = {(1, 2), (3, 2)}  # no follower reaches the new leader
    cluster.elect(2)
    manager = cluster.managers[2]
    replica = manager.replica("t", 0)
    assert replica.leader is not None
    assert not replica.leader.is_confirmed()
    with pytest.raises(KafkaError) as early:
        manager.list_offsets("t", 0, -1, 0)
    assert early.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    assert manager.list_offsets("t", 0, -1, None).offset == 2
    cluster.cut.clear()
    await eventually(
        lambda: replica.leader is not None and replica.leader.is_confirmed(), "the new leader is confirmed"
    )
    assert manager.list_offsets("t", 0, -1, 0).offset == 2


async def test_a_restarted_follower_catches_up_and_rejoins(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    await cluster.stop(3)
    now = cluster.partitions[("t", 0)]
    cluster.partitions[("t", 0)] = replace(now, isr=(1, 2), partition_epoch=now.partition_epoch + 1)
    cluster.publish(cluster.partitions.values())
    assert await write(cluster.managers[1], "b") is ErrorCode.NONE
    assert cluster.managers[1].hosted.under_replicated_count == 1
    cluster.start(3)
    cluster.publish(cluster.partitions.values(), to=[3])
    await eventually(lambda: cluster.partitions[("t", 0)].isr == (1, 2, 3), "node 3 is in the ISR again")
    assert cluster.log(3).flushed_end_offset == 2
    assert cluster.changes[-1].isr[-1].broker_epoch == cluster.broker_epochs[3]
    await eventually(lambda: cluster.managers[1].hosted.under_replicated_count == 0, "the leader knows")


async def test_a_follower_far_behind_starts_again_at_the_leaders_log_start(cluster: Cluster) -> None:
    cluster.create(isr=(1, 2))
    cluster.cut = {(3, 1)}
    for value in "abc":
        await write(cluster.managers[1], value)
    cluster.log(1).advance_log_start(2)
    cluster.cut.clear()
    await eventually(lambda: cluster.log(3).log_end_offset == 3, "node 3 has the end")
    assert cluster.log(3).log_start_offset == 2


async def test_an_unflushed_tail_is_flushed_before_the_first_fetch(cluster: Cluster) -> None:
    """A former leader's fetch offset vouches for its own tail, too."""
    cluster.create()
    manager = cluster.managers[1]
    manager._flushes.start = lambda replica: None
    append(manager, "a")
    await eventually(lambda: cluster.log(2).flushed_end_offset == 1, "a follower has it")
    assert cluster.log(1).flushed_end_offset == 0
    cluster.elect(2)
    await eventually(lambda: cluster.log(2).high_watermark == 1, "committed under the new leader")
    assert cluster.log(1).flushed_end_offset == 1


# ---- the ISR -----------------------------------------------------------------------------------------------


async def test_a_silent_follower_leaves_the_isr_and_writes_go_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, lag_max_ms=150, wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create()
    await write(cluster.managers[1], "a")
    cluster.cut = {(3, 1)}
    assert await write(cluster.managers[1], "b") is ErrorCode.NONE
    assert cluster.partitions[("t", 0)].isr == (1, 2)
    await cluster.stop_all()


async def test_a_defect_at_one_partition_does_not_stop_isr_shrinks_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, lag_max_ms=150, wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create(partitions=2)
    first = cluster.managers[1].replica("t", 0).leader
    sound = PartitionLeader.retry_pending

    def retry_pending(leader: PartitionLeader) -> PendingChange | None:
        if leader is first:
            raise RuntimeError("a defect")
        return sound(leader)

    monkeypatch.setattr(PartitionLeader, "retry_pending", retry_pending)
    cluster.cut = {(3, 1)}
    await eventually(lambda: cluster.partitions[("t", 1)].isr == (1, 2), "the silent follower has left")
    await cluster.stop_all()


async def test_an_unanswered_isr_change_is_asked_again(cluster: Cluster) -> None:
    cluster.alter_error = ErrorCode.NOT_CONTROLLER
    cluster.create(isr=(1, 2))
    await eventually(lambda: len(cluster.changes) >= 2, "the change was sent again")
    assert len({change.isr for change in cluster.changes}) == 1
    cluster.alter_error = None
    await eventually(lambda: cluster.partitions[("t", 0)].isr == (1, 2, 3), "node 3 is in the ISR")


# ---- reading -----------------------------------------------------------------------------------------------


async def test_consumers_see_only_what_is_committed(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    cluster.cut = {(2, 1), (3, 1)}
    append(cluster.managers[1], "b")
    part = await fetch_one(cluster.managers[1], consume())
    assert values_of(part) == ["a"]
    assert part.high_watermark == 1
    beyond = await fetch_one(cluster.managers[1], consume(2))
    assert beyond.error is ErrorCode.NONE
    assert not beyond.records


async def test_a_waiting_consumer_is_answered_by_the_commit(cluster: Cluster) -> None:
    cluster.create()
    waiting = asyncio.ensure_future(fetch_one(cluster.managers[1], consume(wait_ms=60_000)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await write(cluster.managers[1], "a")
    assert values_of(await asyncio.wait_for(waiting, 20)) == ["a"]


async def test_a_waiting_fetch_gets_the_present_records_at_its_deadline(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    part = await asyncio.wait_for(fetch_one(cluster.managers[1], consume(wait_ms=50, min_bytes=100_000)), 20)
    assert values_of(part) == ["a"]


async def test_a_waiting_consumer_hears_of_a_new_leader_at_once(cluster: Cluster) -> None:
    cluster.create()
    waiting = asyncio.ensure_future(fetch_one(cluster.managers[1], consume(wait_ms=60_000)))
    await asyncio.sleep(0.01)
    cluster.elect(2)
    part = await asyncio.wait_for(waiting, 20)
    assert part.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part.current_leader == (2, 2)


async def test_delayed_and_immediate_answers_carry_the_aborted_transactions(cluster: Cluster) -> None:
    """KAFKA-5376, and no read above the last stable offset."""
    cluster.create()
    manager = cluster.managers[1]
    waiting = asyncio.ensure_future(fetch_one(manager, consume(isolation=1, wait_ms=60_000)))
    data = encode_batch(
        [NewRecord(None, b"x", (), 1)], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    guard = manager.leader_log("t", 0).producers.start_verification(7, 0, 0)
    info = manager.append_now("t", 0, bytearray(data), origin=AppendOrigin.CLIENT, guard=guard)
    await manager.wait_committed("t", 0, 1, info.last_offset + 1, 5000)
    assert not (await fetch_one(manager, consume(isolation=1))).records
    assert not waiting.done()
    marker = encode_marker(ControlType.ABORT, 7, 0, 1, 2)
    manager.append_now("t", 0, bytearray(marker), origin=AppendOrigin.COORDINATOR)
    for part in (await asyncio.wait_for(waiting, 20), await fetch_one(manager, consume(isolation=1))):
        assert part.aborted is not None
        assert [(entry.producer_id, entry.first_offset) for entry in part.aborted] == [(7, 0)]
        assert part.records
    assert (await fetch_one(manager, consume())).aborted is None


async def test_consumers_are_fenced_by_epoch_and_offset(cluster: Cluster) -> None:
    cluster.create()
    cluster.elect(1)
    manager = cluster.managers[1]
    assert (await fetch_one(manager, consume(epoch=1))).error is ErrorCode.FENCED_LEADER_EPOCH
    assert (await fetch_one(manager, consume(epoch=3))).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    part = await fetch_one(manager, consume(5))
    assert part.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert part.log_start_offset == 0
    assert (await fetch_one(cluster.managers[2], consume())).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetch_one(manager, consume(partitions=(9,)))).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_byte_budget_of_a_fetch_reaches_every_partition_in_turn(cluster: Cluster) -> None:
    cluster.create(partitions=4)
    await asyncio.gather(*(write(cluster.managers[1], "x" * 1000, partition=p) for p in range(4)))
    served: set[int] = set()
    for _ in range(4):
        answer = await cluster.managers[1].fetch(consume(partitions=(0, 1, 2, 3), max_bytes=100))
        filled = [part.partition for part in answer.topics[0][1] if part.records]
        assert len(filled) == 1, "one whole batch, however large, and no more"
        served.update(filled)
    assert served == {0, 1, 2, 3}


async def test_a_follower_without_a_leader_epoch_is_not_believed(cluster: Cluster) -> None:
    cluster.create()
    cluster.cut = {(2, 1), (3, 1)}
    append(cluster.managers[1], "a")
    await eventually(lambda: cluster.log(1).flushed_end_offset == 1, "flushed")
    for epoch in (-1, 0):
        request = FetchRequest(
            replica_id=2,
            topics=[("t", [FetchPartition(0, 1, 1000, epoch, 1, topic_id=TOPIC_ID)])],
            replica_epoch=cluster.broker_epochs[2],
        )
        assert (await fetch_one(cluster.managers[1], request)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert cluster.managers[1].replica("t", 0).require_leader().follower(2).fetch_offset <= 0


async def test_a_newer_fetch_of_a_follower_ends_its_older_one(cluster: Cluster) -> None:
    cluster.create(replicas=(1, 9), isr=(1,), min_isr=1)
    request = FetchRequest(
        replica_id=9,
        max_wait_ms=60_000,
        topics=[("t", [FetchPartition(0, 0, 1000, 1, topic_id=TOPIC_ID)])],
        replica_epoch=1,
    )
    cluster.broker_epochs[9] = 1
    await cluster.managers[1].fetch(replace(request, max_wait_ms=0))
    older = asyncio.ensure_future(cluster.managers[1].fetch(request))
    await asyncio.sleep(0.02)
    newer = asyncio.ensure_future(cluster.managers[1].fetch(request))
    await asyncio.wait_for(older, 20)
    newer.cancel()


async def test_offsets_by_timestamp(cluster: Cluster) -> None:
    cluster.create()
    manager = cluster.managers[1]
    for timestamp_ms in (1000, 2000, 3000):
        info = manager.append_now(
            "t", 0, batch_of("v", timestamp_ms=timestamp_ms), origin=AppendOrigin.CLIENT
        )
        assert await manager.wait_committed("t", 0, 1, info.last_offset + 1, 5000) is ErrorCode.NONE
    assert manager.list_offsets("t", 0, -2, 0).offset == 0
    assert manager.list_offsets("t", 0, -1, 0).offset == 3
    assert manager.list_offsets("t", 0, -1, 1).offset == 3
    found = manager.list_offsets("t", 0, 1500, 0)
    assert (found.offset, found.timestamp_ms) == (1, 2000)
    assert manager.list_offsets("t", 0, -3, 0).offset == 2
    assert manager.list_offsets("t", 0, 9000, 0).offset == -1
    assert manager.epoch_end("t", 0, -1, 1).end_offset == 3
    with pytest.raises(KafkaError):
        manager.list_offsets("t", 0, -99, 0)


# ---- deletion, storage, shutdown ---------------------------------------------------------------------------


async def test_a_deleted_partition_answers_its_waiters(cluster: Cluster) -> None:
    cluster.create()
    cluster.cut = {(2, 1), (3, 1)}
    fetching = asyncio.ensure_future(fetch_one(cluster.managers[1], consume(wait_ms=60_000)))
    writing = asyncio.ensure_future(write(cluster.managers[1], "a"))
    await asyncio.sleep(0)
    cluster.partitions.clear()
    cluster.managers[1].delete("t", 0)
    assert await writing is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await asyncio.wait_for(fetching, 20)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_created_again_under_its_name_begins_empty(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    now = cluster.partitions[("t", 0)]
    again = replace(now, topic_id=type(now.topic_id)(int=99))
    cluster.partitions[("t", 0)] = again
    cluster.publish([again])
    assert cluster.log(1).log_end_offset == 0
    assert await write(cluster.managers[1], "b") is ErrorCode.NONE


async def test_a_failed_disk_takes_the_replica_offline_and_says_so(cluster: Cluster) -> None:
    cluster.create()
    cluster.cut = {(2, 1), (3, 1)}
    manager = cluster.managers[1]
    waiting = asyncio.ensure_future(write(manager, "a"))
    await asyncio.sleep(0)
    manager.take_offline(manager.replica("t", 0), OfflineCause.DISK_FAILED, "the disk is gone")
    assert await waiting is ErrorCode.KAFKA_STORAGE_ERROR
    assert (await fetch_one(manager, consume())).error is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as refused:
        append(manager, "b")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    cluster.elect(1)
    assert manager.replica("t", 0).role is Role.OFFLINE
    assert len(manager.offline_replicas()) == 1
    assert cluster.offline == [(1, "t", 0, "the disk is gone")]


async def test_a_clean_stop_keeps_everything_and_the_high_watermark(cluster: Cluster) -> None:
    cluster.create()
    await write(cluster.managers[1], "a")
    await cluster.stop(1)
    cluster.start(1)
    cluster.publish(
        [replace(cluster.partitions[("t", 0)], leader=2, leader_epoch=2, partition_epoch=9)], to=[1]
    )
    assert cluster.log(1).log_end_offset == 1
    assert cluster.log(1).high_watermark == 1


def test_fetcher_limits_are_bounded() -> None:
    limits = FetcherLimits()
    assert limits.backoff_first_s < limits.backoff_max_s <= 5


async def test_many_role_and_isr_changes_have_few_lines_and_a_count(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when the metadata come in several small batches; ten thousand lines take longer than the changes
    do."""
    monkeypatch.setattr(calm_logs, "LINES_MAX", 2)
    caplog.set_level("INFO")
    cluster.create(partitions=5, isr=(1,))
    for partition in range(5):
        cluster.elect(1, partition=partition)

    def said(event: str) -> list[dict[str, int]]:
        return [record.__dict__["fields"] for record in caplog.records if record.msg == event]

    def in_sync() -> bool:
        return all(len(assignment.isr) == 3 for assignment in cluster.partitions.values())

    await eventually(in_sync, "both followers join the ISR")
    await cluster.stop_all()
    assert len(said("role_changed")) == 3 * 2, "on three nodes"
    assert sum(sum(counts.values()) for counts in said("roles_changed")) == 3 * (10 - 2)
    assert len(said("roles_changed")) == 3
    # one node leads all
    assert len(said("isr_change_answered")) == 2
    assert len(said("isr_changes_answered")) == 1


async def test_a_stricter_flush_policy_flushes_earlier_records_on_every_replica(tmp_path: Path) -> None:
    """From that setting on, the controller counts a replica as complete after an unclean stop
    (docs/semantics.md M14): one that kept an unflushed tail, because nothing more was written, could lead
    without it and cut the others."""
    cluster = Cluster(tmp_path)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create(flush_policy="os")
    try:
        assert await write(cluster.managers[1], "a", "b") is ErrorCode.NONE
        logs = [cluster.log(node) for node in (1, 2, 3)]
        await eventually(
            lambda: all(log.high_watermark == 2 for log in logs), "all replicas have the records"
        )
        assert all(log.has_unflushed_records for log in logs), (
            "with flush.policy=os no replica has flushed them"
        )
        now = cluster.partitions["t", 0]
        cluster.publish([replace(now, config=now.config | {"flush.policy": "always"})])  # type: ignore[operator]
        await eventually(
            lambda: not any(log.has_unflushed_records for log in logs), "all replicas flush what they have"
        )
    finally:
        await cluster.stop_all()


async def test_an_isr_change_rejected_by_a_stale_controller_is_sent_again(tmp_path: Path) -> None:
    """A deposed controller that does not know it may not know the partition's epoch either: no metadata ends
    that change, and while it is pending the high watermark waits for the replica that was to leave
    (docs/semantics.md R1)."""
    cluster = Cluster(tmp_path, lag_max_ms=150, wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create()
    try:
        assert await write(cluster.managers[1], "a") is ErrorCode.NONE
        cluster.alter_error = ErrorCode.INVALID_UPDATE_VERSION  # by its older metadata
        cluster.cut.add((3, 1))
        written = asyncio.create_task(write(cluster.managers[1], "b", timeout_ms=10_000))
        await eventually(lambda: bool(cluster.changes), "the leader asks to remove the silent follower")
        cluster.alter_error = None  # the controller of now has never heard of it
        assert await written is ErrorCode.NONE
        assert set(cluster.partitions["t", 0].isr) == {1, 2}
    finally:
        await cluster.stop_all()
