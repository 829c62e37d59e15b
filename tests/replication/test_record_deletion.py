"""DeleteRecords: the log start moves on the leader, on every in-sync replica, and for good."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tidegate.replication.leader import PartitionLeader
from tidegate.replication.replica import Replica
from tidegate.storage.log import AppendOrigin
from tidegate.storage.log_start import LogStart
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.errors import ErrorCode, KafkaError

from .cluster import Cluster, batch_of, eventually


async def cluster_with_records(tmp_path: Path, count: int = 10, wait_max_ms: int = 60_000, **config: str) -> Cluster:
    cluster = Cluster(tmp_path, wait_max_ms=wait_max_ms)  # a follower that waits for records must be told of the log start
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create(**config)
    leader = cluster.managers[1]
    for number in range(count):
        leader.append_now("t", 0, batch_of(f"v{number}"), origin=AppendOrigin.CLIENT, required_acks=-1)
    assert await leader.wait_committed("t", 0, 1, count, 5_000) is ErrorCode.NONE
    return cluster


def starts(cluster: Cluster) -> dict[int, int]:
    return {node: cluster.log(node).log_start_offset for node in cluster.managers}


async def test_records_are_deleted_on_all_in_sync_replicas_before_the_answer(tmp_path: Path) -> None:
    cluster = await cluster_with_records(tmp_path)
    assert await cluster.managers[1].delete_records("t", 0, 4, 5_000) == 4
    assert starts(cluster) == {1: 4, 2: 4, 3: 4}
    assert await cluster.managers[1].delete_records("t", 0, 2, 5_000) == 4  # a smaller one changes nothing
    assert await cluster.managers[1].delete_records("t", 0, -1, 5_000) == 10
    assert starts(cluster) == {1: 10, 2: 10, 3: 10}
    await cluster.stop_all()


@pytest.mark.parametrize("survivor", [1, 2, 3])
async def test_deleted_records_do_not_return_after_all_nodes_crash_whoever_leads_then(tmp_path: Path, survivor: int) -> None:
    cluster = await cluster_with_records(tmp_path)
    await cluster.managers[1].delete_records("t", 0, 7, 5_000)
    for node in (1, 2, 3):
        await cluster.stop(node, clean=False)
    cluster.start(survivor)
    cluster.elect(survivor, isr=(survivor,))
    assert cluster.log(survivor).log_start_offset == 7
    await cluster.stop_all()


@pytest.mark.parametrize("survivor", [1, 2])
async def test_ablation_without_a_durable_note_a_crash_brings_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivor: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LogStart, "write", lambda self: setattr(self, "noted", self._wanted))
        cluster = await cluster_with_records(tmp_path)
        await cluster.managers[1].delete_records("t", 0, 7, 5_000)
        for node in (1, 2, 3):
            await cluster.stop(node, clean=False)
    cluster.start(survivor)
    cluster.elect(survivor, isr=(survivor,))
    assert cluster.log(survivor).log_start_offset == 0
    await cluster.stop_all()


async def test_the_answer_waits_until_every_follower_has_noted_it_on_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await cluster_with_records(tmp_path, wait_max_ms=100)  # after that a follower without room tries again
    write, full = LogStart.write, {"node-3"}

    def refusing(self: LogStart) -> None:
        if self._path.parts[-3] in full:
            raise OSError(28, "no space left on the device")
        write(self)

    monkeypatch.setattr(LogStart, "write", refusing)
    with pytest.raises(KafkaError) as late:
        await cluster.managers[1].delete_records("t", 0, 4, 300)
    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT and starts(cluster) == {1: 4, 2: 4, 3: 4}
    assert not cluster.offline and cluster.log(3).noted_start_offset == 0, "a full disk takes nobody offline"
    full.clear()
    assert await cluster.managers[1].delete_records("t", 0, 4, 10_000) == 4
    assert cluster.log(3).noted_start_offset == 4
    await cluster.stop_all()


async def test_a_leader_whose_disk_is_full_refuses_and_one_whose_disk_fails_goes_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await cluster_with_records(tmp_path)
    failing = [OSError(28, "no space left on the device")]

    write = LogStart.write

    def fails(self: LogStart) -> None:
        if self._path.parts[-3] == "node-1":
            raise failing[-1]
        write(self)

    monkeypatch.setattr(LogStart, "write", fails)
    with pytest.raises(KafkaError, match="could not be noted") as refused:
        await cluster.managers[1].delete_records("t", 0, 4, 5_000)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR and not cluster.offline
    failing.append(OSError(5, "input/output error"))
    with pytest.raises(KafkaError, match="could not be noted"):
        await cluster.managers[1].delete_records("t", 0, 5, 5_000)
    assert (1, "t", 0) in [entry[:3] for entry in cluster.offline]
    await cluster.stop(1, clean=False)
    await cluster.stop_all()


async def test_a_replica_joins_only_when_it_has_let_go_of_what_was_deleted_without_it(tmp_path: Path) -> None:
    """It could be elected before it hears of the deletion."""
    cluster = await cluster_with_records(tmp_path)
    await cluster.stop(3)
    cluster.elect(1, isr=(1, 2))
    await cluster.managers[1].delete_records("t", 0, 5, 5_000)
    leader = cluster.managers[1].replica("t", 0).leader
    assert leader is not None and leader.deleted_below == 5
    leader.record_fetch(3, broker_epoch=200, fetch_offset=10, leader_log_end=10, now_s=0)
    leader.follower(3).log_start_offset = 4
    assert leader.propose_join(3) is None
    leader.follower(3).log_start_offset = 5
    assert leader.propose_join(3) is not None
    cluster.elect(2, isr=(1, 2))
    await eventually(lambda: cluster.managers[2].replica("t", 0).is_leader, "the new leader")
    later = cluster.managers[2].replica("t", 0).leader
    assert later is not None and later.deleted_below == 5, "whoever leads next insists on it, too"
    await cluster.stop_all()


async def test_a_follower_that_was_away_moves_its_log_start_when_it_is_back(tmp_path: Path) -> None:
    cluster = await cluster_with_records(tmp_path)
    await cluster.stop(3)
    cluster.elect(1, isr=(1, 2))
    await cluster.managers[1].delete_records("t", 0, 5, 5_000)
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]])
    await eventually(lambda: starts(cluster)[3] == 5, "the log start of the follower")
    await cluster.stop_all()


@pytest.mark.parametrize(("offset", "code"), [(11, ErrorCode.OFFSET_OUT_OF_RANGE), (-2, ErrorCode.OFFSET_OUT_OF_RANGE)])
async def test_an_offset_that_is_not_committed_is_refused(tmp_path: Path, offset: int, code: ErrorCode) -> None:
    cluster = await cluster_with_records(tmp_path)
    with pytest.raises(KafkaError) as refused:
        await cluster.managers[1].delete_records("t", 0, offset, 5_000)
    assert refused.value.code is code and starts(cluster)[1] == 0
    with pytest.raises(KafkaError) as refused:
        await cluster.managers[2].delete_records("t", 0, 1, 5_000)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.stop_all()


async def test_a_compacted_topic_refuses(tmp_path: Path) -> None:
    cluster = await cluster_with_records(tmp_path)
    log = cluster.log(1)
    log.update_config(replace(log.config, cleanup_policy=frozenset({CleanupPolicy.COMPACT})))
    with pytest.raises(KafkaError) as refused:
        await cluster.managers[1].delete_records("t", 0, 1, 5_000)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    await cluster.stop_all()


async def test_under_min_insync_replicas_nobody_is_told_that_records_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that left the ISR may be elected by then (KIP-966), and has the records still.  Ablation: the leader answers."""
    cluster = await cluster_with_records(tmp_path, **{"min.insync.replicas": "2"})
    await cluster.stop(2)
    await cluster.stop(3)
    cluster.elect(1, isr=(1,))
    with pytest.raises(KafkaError) as late:
        await cluster.managers[1].delete_records("t", 0, 4, 300)
    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT and "too few replicas" in late.value.message
    monkeypatch.setattr(PartitionLeader, "is_under_min_isr", lambda _self: False)
    assert await cluster.managers[1].delete_records("t", 0, 4, 300) == 4
    await cluster.stop_all()


async def test_a_deletion_that_waits_ends_with_the_leadership_and_with_its_deadline(tmp_path: Path) -> None:
    cluster = await cluster_with_records(tmp_path)
    await cluster.stop(3)  # still in the ISR
    with pytest.raises(KafkaError) as ended:
        await cluster.managers[1].delete_records("t", 0, 3, 50)
    assert ended.value.code is ErrorCode.REQUEST_TIMED_OUT and starts(cluster)[1] == 3
    waiting = asyncio.ensure_future(cluster.managers[1].delete_records("t", 0, 4, 60_000))
    await asyncio.sleep(0)
    cluster.elect(2)
    with pytest.raises(KafkaError) as ended:
        await waiting
    assert ended.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.stop_all()


async def test_ablation_when_the_leader_does_not_wait_a_new_leader_still_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.replication.record_deletion import RecordDeletions

    def at_once(replica: Replica, _leader: object) -> int:
        return replica.log.log_start_offset

    monkeypatch.setattr(RecordDeletions, "_low_watermark", staticmethod(at_once))
    cluster = await cluster_with_records(tmp_path)
    cluster.cut |= {(2, 1), (1, 2)}
    await cluster.managers[1].delete_records("t", 0, 4, 5_000)
    assert starts(cluster)[2] == 0
    await cluster.stop_all()
