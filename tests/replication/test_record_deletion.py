"""DeleteRecords: the log start moves on the leader, on every in-sync replica, and for good."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidegate.replication.fetching.offsets import EARLIEST
from tidegate.replication.partition.leader import PartitionLeader
from tidegate.replication.record_deletion import RecordDeletions
from tidegate.replication.replica.replica import Replica
from tidegate.storage.log.log import AppendOrigin, Log
from tidegate.storage.log.log_start import LogStart
from tidegate.storage.log.pins import Pin
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, encode_batch

from .cluster import Cluster, batch_of
from .leading import join_despite


async def cluster_with_records(
    tmp_path: Path, count: int = 10, wait_max_ms: int = 60_000, lag_max_ms: int = 30_000, **config: Any
) -> Cluster:
    # A waiting follower must get the new log start.
    cluster = Cluster(tmp_path, wait_max_ms=wait_max_ms, lag_max_ms=lag_max_ms)
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
async def test_deleted_records_do_not_return_after_all_nodes_crash(tmp_path: Path, survivor: int) -> None:
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
    # after that a follower without room tries again
    cluster = await cluster_with_records(tmp_path, wait_max_ms=100)
    write, full = LogStart.write, {"node-3"}

    def refusing(self: LogStart) -> None:
        if self._path.parts[-3] in full:
            raise OSError(28, "no space left on the device")
        write(self)

    monkeypatch.setattr(LogStart, "write", refusing)
    with pytest.raises(KafkaError) as late:
        await cluster.managers[1].delete_records("t", 0, 4, 300)
    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert starts(cluster) == {1: 4, 2: 4, 3: 4}
    assert not cluster.offline, "a full disk takes no log offline"
    assert cluster.log(3).noted_start_offset == 0, "a full disk takes no log offline"
    full.clear()
    assert await cluster.managers[1].delete_records("t", 0, 4, 10_000) == 4
    assert cluster.log(3).noted_start_offset == 4
    await cluster.stop_all()


async def test_deletion_fails_on_a_full_disk_and_a_failed_disk_goes_offline(
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
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not cluster.offline
    failing.append(OSError(5, "input/output error"))
    with pytest.raises(KafkaError, match="could not be noted"):
        await cluster.managers[1].delete_records("t", 0, 5, 5_000)
    assert (1, "t", 0) in [entry[:3] for entry in cluster.offline]
    await cluster.stop(1, clean=False)
    await cluster.stop_all()


async def test_a_replica_joins_only_after_it_deleted_the_deleted_records(tmp_path: Path) -> None:
    """It could be elected before it hears of the deletion."""
    cluster = await cluster_with_records(tmp_path)
    await cluster.stop(3)
    cluster.elect(1, isr=(1, 2))
    await cluster.managers[1].delete_records("t", 0, 5, 5_000)
    leader = cluster.managers[1].replica("t", 0).leader
    assert leader is not None
    assert leader.deleted_below == 5
    leader.record_fetch(3, broker_epoch=200, fetch_offset=10, leader_log_end=10, now_s=0)
    leader.follower(3).log_start_offset = 4
    assert leader.propose_join(3) is None
    leader.follower(3).log_start_offset = 5
    assert leader.propose_join(3) is not None
    cluster.elect(2, isr=(1, 2))
    await eventually(lambda: cluster.managers[2].replica("t", 0).is_leader, "the new leader")
    later = cluster.managers[2].replica("t", 0).leader
    assert later is not None, "the next leader insists on it, too"
    assert later.deleted_below == 5, "the next leader insists on it, too"
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


@pytest.mark.parametrize(
    ("offset", "code"), [(11, ErrorCode.OFFSET_OUT_OF_RANGE), (-2, ErrorCode.OFFSET_OUT_OF_RANGE)]
)
async def test_an_offset_that_is_not_committed_is_refused(
    tmp_path: Path, offset: int, code: ErrorCode
) -> None:
    cluster = await cluster_with_records(tmp_path)
    with pytest.raises(KafkaError) as refused:
        await cluster.managers[1].delete_records("t", 0, offset, 5_000)
    assert refused.value.code is code
    assert starts(cluster)[1] == 0
    with pytest.raises(KafkaError) as refused:
        await cluster.managers[2].delete_records("t", 0, 1, 5_000)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.stop_all()


async def test_what_a_pinned_cut_keeps_is_refused_by_its_name(tmp_path: Path) -> None:
    cluster = await cluster_with_records(tmp_path)
    leader = cluster.managers[1]
    assignment = replace(cluster.partitions["t", 0], pins=(Pin("nightly", 4, 10, 10),))
    cluster.publish([assignment])
    assert await leader.delete_records("t", 0, 4, 5_000) == 4
    for offset in (5, -1):
        with pytest.raises(KafkaError, match="'nightly' keeps the records of t-0 from 4 on") as raised:
            await leader.delete_records("t", 0, offset, 5_000)
        assert raised.value.code is ErrorCode.POLICY_VIOLATION
    assert starts(cluster) == {1: 4, 2: 4, 3: 4}
    cluster.publish([replace(assignment, pins=())])
    assert await leader.delete_records("t", 0, -1, 5_000) == 10
    await cluster.stop_all()


async def test_a_follower_that_fetches_what_its_leader_may_have_cleaned_notes_that(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for node in (1, 2):
        cluster.start(node)
    cluster.create(isr=(1, 2), cleanup_policy="compact")
    leader = cluster.managers[1]
    for _ in range(5):
        keyed = encode_batch([NewRecord(b"key", b"value", (), 1_700_000_000_000)])
        leader.append_now("t", 0, keyed, origin=AppendOrigin.CLIENT, required_acks=-1)
    assert await leader.wait_committed("t", 0, 1, 5, 5_000) is ErrorCode.NONE
    assert [cluster.log(node).cleaned_at_most for node in (1, 2)] == [0, 0], "in sync from the beginning"
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]], to=[3])
    await eventually(lambda: cluster.log(3).log_end_offset == 5)
    assert cluster.log(3).cleaned_at_most == 5, "an earlier leader may have cleaned what this one has"
    await cluster.stop_all()


@pytest.mark.parametrize("leader_says", [True, False])
async def test_an_open_transaction_bounds_what_a_follower_that_catches_up_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leader_says: bool
) -> None:
    if not leader_says:
        monkeypatch.setattr(Replica, "cleaned_at_most_for", lambda *_: -1)
    cluster = Cluster(tmp_path)
    cluster.start(1)
    cluster.create(isr=(1,), min_isr=1, cleanup_policy="compact")
    leader = cluster.managers[1]
    for at in range(5):
        opens = at == 2
        keyed = encode_batch(
            [NewRecord(b"key", b"value", (), 1_700_000_000_000)],
            producer_id=7 if opens else -1, producer_epoch=0 if opens else -1,
            base_sequence=0 if opens else -1, transactional=opens,
        )  # fmt: skip
        leader.append_now("t", 0, keyed, origin=AppendOrigin.COORDINATOR, required_acks=1)
    await eventually(lambda: cluster.log(1).high_watermark == 5)
    assert cluster.log(1).last_stable_offset == 2
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]], to=[3])
    await eventually(lambda: cluster.log(3).log_end_offset == 5)
    log = cluster.log(3)
    assert log.cleaned_at_most == (2 if leader_says else 5), "a leader of an older version says nothing"
    assert (log.pin_problem(Pin("cut", 0, 5, settled_end=2)) is None) == leader_says
    await cluster.stop_all()


async def test_a_pin_that_has_ended_vouches_for_nothing_that_a_follower_copied_since(tmp_path: Path) -> None:
    """The metadata reach the follower late: its leader has applied the end of the pin, and cleaned since."""
    cluster = Cluster(tmp_path)
    cluster.start(1)
    cluster.create(isr=(1,), min_isr=1, cleanup_policy="compact")
    for _ in range(5):
        keyed = encode_batch([NewRecord(b"key", b"value", (), 1_700_000_000_000)])
        cluster.managers[1].append_now("t", 0, keyed, origin=AppendOrigin.CLIENT, required_acks=1)
    await eventually(lambda: cluster.log(1).high_watermark == 5)
    cluster.start(3)
    assignment = cluster.partitions["t", 0]
    pin = Pin("nightly", 0, 5, settled_end=1, is_confirmed=True)
    cluster.publish([replace(assignment, pins=(pin,))], to=[3])
    await eventually(lambda: cluster.log(3).log_end_offset == 5)
    log = cluster.log(3)
    assert log.pin_problem(pin) is None
    cluster.publish([assignment], to=[3])
    assert log.cleaned_at_most == 5
    assert log.pin_problem(Pin("older", 0, 5, settled_end=2)) is not None
    await cluster.stop_all()


async def test_a_follower_below_what_may_be_committed_may_lack_something(
    tmp_path: Path,
) -> None:
    cluster = await cluster_with_records(tmp_path)
    replica = cluster.managers[1].replica("t", 0)
    leader, end = replica.require_leader(), cluster.log(1).log_end_offset
    assert (leader.high_watermark, leader.epoch_start_offset) == (end, 0)
    assert [replica.cleaned_at_most_for(offset) for offset in (0, end - 1, end)] == [end, end, 0]
    leader.epoch_start_offset = end + 1
    assert replica.cleaned_at_most_for(end) == end, "the high watermark may rise up to the epoch's start"
    await cluster.stop_all()


async def test_a_compacted_topic_refuses(tmp_path: Path) -> None:
    cluster = await cluster_with_records(tmp_path)
    log = cluster.log(1)
    log.update_config(replace(log.config, cleanup_policy=frozenset({CleanupPolicy.COMPACT})))
    with pytest.raises(KafkaError) as refused:
        await cluster.managers[1].delete_records("t", 0, 1, 5_000)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    await cluster.stop_all()


async def test_a_deletion_waits_while_the_isr_is_below_the_minimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that left the ISR may be elected by then (KIP-966), and has the records still.  Ablation: the
    leader answers."""
    cluster = await cluster_with_records(tmp_path, **{"min.insync.replicas": "2"})  # type: ignore[arg-type]
    await cluster.stop(2)
    await cluster.stop(3)
    cluster.elect(1, isr=(1,))
    with pytest.raises(KafkaError) as late:
        await cluster.managers[1].delete_records("t", 0, 4, 300)
    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert "too few replicas" in late.value.message
    monkeypatch.setattr(PartitionLeader, "is_under_min_isr", lambda _self: False)
    assert await cluster.managers[1].delete_records("t", 0, 4, 300) == 4
    await cluster.stop_all()


async def test_a_waiting_deletion_ends_with_the_leadership_or_its_deadline(tmp_path: Path) -> None:
    cluster = await cluster_with_records(tmp_path)
    await cluster.stop(3)  # still in the ISR
    with pytest.raises(KafkaError) as ended:
        await cluster.managers[1].delete_records("t", 0, 3, 50)
    assert ended.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert starts(cluster)[1] == 3
    waiting = asyncio.ensure_future(cluster.managers[1].delete_records("t", 0, 4, 60_000))
    await asyncio.sleep(0)
    cluster.elect(2)
    with pytest.raises(KafkaError) as ended:
        await waiting
    assert ended.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.stop_all()


async def test_no_deletion_is_acknowledged_after_the_session_has_ended(tmp_path: Path) -> None:
    """Before any timer says that it has: the clock is read before the answer."""
    cluster = await cluster_with_records(tmp_path)
    manager, session = cluster.managers[1], [True]
    manager.lease._holds_session = lambda: session[0]
    waiting = asyncio.ensure_future(manager.delete_records("t", 0, 4, 60_000))
    await asyncio.sleep(0)
    session[0] = False
    with pytest.raises(KafkaError) as refused:
        await asyncio.wait_for(waiting, 20)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await cluster.stop_all()


@pytest.mark.parametrize("remover", ["controller", "leader"])
async def test_a_deletion_completes_when_its_last_follower_leaves_the_isr(
    tmp_path: Path, remover: str
) -> None:
    """The follower died; every replica that may lead from then on has deleted the records."""
    cluster = await cluster_with_records(tmp_path, lag_max_ms=60_000 if remover == "controller" else 500)
    await cluster.stop(3)
    if remover == "leader":  # the leader removes a follower that lacks a record
        cluster.managers[1].append_now("t", 0, batch_of("v10"), origin=AppendOrigin.CLIENT, required_acks=-1)
    waiting = asyncio.ensure_future(cluster.managers[1].delete_records("t", 0, 4, 60_000))
    leader = cluster.managers[1].replica("t", 0).leader
    assert leader is not None
    await eventually(lambda: leader.follower(2).log_start_offset == 4, "the other one has moved")

    def waits_for_more() -> bool:
        found = cluster.managers[1]._deletions._waiting.get(cluster.managers[1].replica("t", 0), set())
        return waiting.done() or (bool(found) and not any(deletion.news.is_set() for deletion in found))

    await eventually(waits_for_more, "the deletion waits for more")
    if remover == "controller":
        assert not waiting.done()
        now = cluster.partitions["t", 0]
        now = cluster.partitions["t", 0] = replace(now, isr=(1, 2), partition_epoch=now.partition_epoch + 1)
        cluster.publish([now])
    assert await asyncio.wait_for(waiting, 20) == 4
    await cluster.stop_all()


@pytest.mark.parametrize("insists", [True, False])
async def test_a_follower_that_cannot_note_its_log_start_does_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, insists: bool
) -> None:
    """Ablation: it joins when it has the records, and brings the deleted ones back when it is elected after a
    crash of all."""
    # after that a follower without room tries again
    cluster = await cluster_with_records(tmp_path, wait_max_ms=100)
    await cluster.stop(3)
    cluster.elect(1, isr=(1, 2))
    await cluster.managers[1].delete_records("t", 0, 5, 5_000)
    write = LogStart.write

    def refusing(self: LogStart) -> None:
        if self._path.parts[-3] == "node-3":
            raise OSError(28, "no space left on the device")
        write(self)

    monkeypatch.setattr(LogStart, "write", refusing)
    if not insists:
        join_despite(monkeypatch, "deleted_below")
    cluster.start(3)
    cluster.publish([cluster.partitions["t", 0]])
    leader = cluster.managers[1].replica("t", 0).leader
    assert leader is not None
    await eventually(lambda: leader.follower(3).fetch_offset == 10, "it has every record")
    if insists:
        fetches = cluster.fetches
        await eventually(lambda: cluster.fetches > fetches + 10, "it goes on asking")
        assert 3 not in cluster.partitions["t", 0].isr
    else:
        await eventually(lambda: 3 in cluster.partitions["t", 0].isr, "it is in sync")
        for node in (1, 2, 3):
            await cluster.stop(node, clean=False)
        cluster.start(3)
        cluster.elect(3)
        assert starts(cluster)[3] == 0
    await cluster.stop_all()


@pytest.mark.parametrize("waits", [True, False])
async def test_a_new_leader_shows_nothing_that_was_said_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Ablation: the leader answers without waiting for followers, dies, and one that it had not reached
    leads."""
    if not waits:
        monkeypatch.setattr(
            RecordDeletions,
            "_low_watermark",
            staticmethod(lambda replica, _leader: replica.log.log_start_offset),
        )
    cluster = await cluster_with_records(tmp_path)
    cluster.cut |= {(2, 1), (3, 1)}
    answered = True
    try:
        await cluster.managers[1].delete_records("t", 0, 4, 300)
    except KafkaError as late:
        answered = late.code is not ErrorCode.REQUEST_TIMED_OUT
    await cluster.stop(1, clean=False)
    cluster.elect(2, isr=(2, 3))
    await eventually(lambda: cluster.managers[2].replica("t", 0).is_leader, "the new leader")
    await eventually(lambda: cluster.log(2).high_watermark == 10, "the new leader commits")
    earliest = cluster.managers[2].list_offsets("t", 0, EARLIEST, None).offset
    assert (answered, earliest) == (not waits, 0)
    await cluster.stop_all()


async def replica_added_after_a_deletion_within_a_batch(tmp_path: Path) -> Cluster:
    """Node 3 begins with nothing; the leader's log begins at 4, in the middle of its batch [3, 6)."""
    cluster = Cluster(tmp_path, wait_max_ms=50)
    for node in (1, 2):
        cluster.start(node)
    cluster.create(isr=(1, 2))
    for _ in range(2):
        cluster.managers[1].append_now(
            "t", 0, batch_of("a", "b", "c"), origin=AppendOrigin.CLIENT, required_acks=-1
        )
    assert await cluster.managers[1].wait_committed("t", 0, 1, 6, 5_000) is ErrorCode.NONE
    assert await cluster.managers[1].delete_records("t", 0, 4, 5_000) == 4
    cluster.start(3)
    cluster.publish(cluster.partitions.values(), to=[3])
    return cluster


async def test_a_new_replica_takes_the_batch_that_was_deleted_up_to_its_middle(tmp_path: Path) -> None:
    """Its log begins anew at the leader's log start, and the first batch that it is sent begins before
    that."""
    cluster = await replica_added_after_a_deletion_within_a_batch(tmp_path)
    await eventually(lambda: 3 in cluster.partitions["t", 0].isr, "the new replica is in sync")
    assert starts(cluster) == {1: 4, 2: 4, 3: 4}
    assert cluster.log(3).noted_start_offset == 4
    assert cluster.log(3).log_end_offset == 6
    await cluster.stop(3, clean=False)
    cluster.start(3)
    cluster.elect(3, isr=(1, 2, 3))
    assert cluster.log(3).log_start_offset == 4, "not even a crash shows what was deleted"
    await cluster.stop_all()


async def test_a_diverged_replica_takes_the_batch_with_the_leaders_log_start(tmp_path: Path) -> None:
    """Where the leader's log begins now it says that older epochs end there, and cannot say any more that
    they ended before."""
    cluster = Cluster(tmp_path, wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create(replicas=(1, 3), isr=(1, 3), leader=3, min_isr=1, flush_policy="os")
    cluster.cut |= {(1, 3)}
    cluster.managers[3].append_now("t", 0, batch_of("lost"), origin=AppendOrigin.CLIENT, required_acks=1)
    for lost in ("lost, too", "even so", "and so"):
        cluster.managers[3].append_now("t", 0, batch_of(lost), origin=AppendOrigin.CLIENT, required_acks=1)
    cluster.elect(1, isr=(1,), to=[1])
    cluster.managers[1].append_now(
        "t", 0, batch_of("a", "b", "c"), origin=AppendOrigin.CLIENT, required_acks=1
    )
    await eventually(lambda: cluster.log(1).high_watermark == 3, "the batch is committed")
    assert await cluster.managers[1].delete_records("t", 0, 2, 5_000) == 2
    cluster.publish(cluster.partitions.values(), to=[3])
    await eventually(lambda: 3 in cluster.partitions["t", 0].isr, "it is in sync")
    assert cluster.log(3).log_start_offset == 2
    assert cluster.log(3).log_end_offset == 3
    await cluster.stop_all()


async def test_an_empty_replica_takes_a_batch_that_begins_below_its_log_start(
    tmp_path: Path,
) -> None:
    """A deletion reached the former leader alone, whose log start node 3 took over, and nothing of its
    records."""
    cluster = Cluster(tmp_path, wait_max_ms=50)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create(isr=(1, 2))
    cluster.cut = {(3, 1)}
    cluster.managers[1].append_now(
        "t", 0, batch_of("a", "b", "c", "d", "e", "f"), origin=AppendOrigin.CLIENT, required_acks=-1
    )
    assert await cluster.managers[1].wait_committed("t", 0, 1, 6, 5_000) is ErrorCode.NONE
    cluster.log(3).truncate_fully_and_start_at(4)
    cluster.elect(2)
    await eventually(lambda: 3 in cluster.partitions["t", 0].isr, "node 3 is in sync")
    assert cluster.log(3).log_end_offset == 6
    assert cluster.log(2).log_start_offset == 0
    await cluster.stop_all()


async def test_ablation_a_log_that_begins_at_its_first_offset_never_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replica, "_begin_within", lambda replica, records, leader_log_start: None)
    cluster = await replica_added_after_a_deletion_within_a_batch(tmp_path)
    await eventually(
        lambda: cluster.managers[3]._fetchers.by_leader[1]._followed["t", 0].failures > 5,
        "it is refused again and again",
    )
    assert cluster.log(3).log_end_offset == 4
    assert 3 not in cluster.partitions["t", 0].isr
    await cluster.stop_all()


async def test_the_answer_names_no_log_start_that_a_crash_could_take_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later deletion has moved the leader's log start on, and its note is not on the disk yet."""
    cluster = await cluster_with_records(tmp_path, isr=(1,), min_isr=1)
    leader, log, noted = cluster.managers[1], cluster.log(1), asyncio.Event()
    second_begins, began = asyncio.Event(), asyncio.Event()

    async def note_start(target: Log) -> None:
        if not second_begins.is_set():
            target.local.start_note.write()
            await noted.wait()
        else:
            began.set()
            await asyncio.Event().wait()  # the disk is slow

    monkeypatch.setattr(leader._deletions, "_note_start", note_start)
    first = asyncio.ensure_future(leader.delete_records("t", 0, 4, 5_000))
    await eventually(lambda: log.noted_start_offset == 4, "the first is noted")
    second_begins.set()
    second = asyncio.ensure_future(leader.delete_records("t", 0, 7, 5_000))
    await began.wait()
    noted.set()
    assert await first == 4
    second.cancel()
    await cluster.stop_all()


async def test_a_deletion_that_cannot_be_noted_is_refused_and_nothing_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await cluster_with_records(tmp_path, isr=(1,), min_isr=1)
    leader, log = cluster.managers[1], cluster.log(1)

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log.local.start_note._disk, "write_atomic", full)
        refused = await asyncio.gather(
            *(leader.delete_records("t", 0, to, 5_000) for to in (4, 6)), return_exceptions=True
        )
        assert [each.code for each in refused if isinstance(each, KafkaError)] == 2 * [
            ErrorCode.KAFKA_STORAGE_ERROR
        ]
        assert log.log_start_offset == log.noted_start_offset == 0
        assert not log.local.start_note.is_due
        assert not log.is_offline
    assert await leader.delete_records("t", 0, 4, 5_000) == 4
    assert log.log_start_offset == log.noted_start_offset == 4
    with pytest.raises(KafkaError) as outside:
        await leader.delete_records("t", 0, log.high_watermark + 1, 5_000)
    assert outside.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not log.local.start_note.is_due
    await cluster.stop_all()


async def test_the_answered_log_start_binds_every_joining_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later deletion has noted its log start, and not moved it: a follower may still join with the one
    before."""
    cluster = Cluster(tmp_path)
    cluster.start(1)
    cluster.create(isr=(1,), min_isr=1)
    for number in range(10):
        cluster.managers[1].append_now(
            "t", 0, batch_of(f"v{number}"), origin=AppendOrigin.CLIENT, required_acks=-1
        )
    assert await cluster.managers[1].wait_committed("t", 0, 1, 10, 5_000) is ErrorCode.NONE
    leader, log, go_on, never = cluster.managers[1], cluster.log(1), asyncio.Event(), asyncio.Event()

    async def note_start(target: Log) -> None:
        target.local.start_note.write()
        await (never if target.noted_start_offset == 7 else go_on).wait()

    monkeypatch.setattr(leader._deletions, "_note_start", note_start)
    first = asyncio.ensure_future(leader.delete_records("t", 0, 4, 5_000))
    await eventually(lambda: log.noted_start_offset == 4, "the first is noted")
    second = asyncio.ensure_future(leader.delete_records("t", 0, 7, 5_000))
    await eventually(lambda: log.noted_start_offset == 7, "the second is noted")
    go_on.set()
    assert await first == 4
    second.cancel()
    await cluster.stop_all()


@pytest.mark.parametrize("leads_again", [True, False])
async def test_a_deletion_that_lost_its_leader_after_the_note_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads_again: bool
) -> None:
    """What is noted counts as deleted here, for the next leader too: a replica that has noted it must not
    show it."""
    cluster = await cluster_with_records(tmp_path)
    log, go_on = cluster.log(1), asyncio.Event()

    async def note_start(target: Log) -> None:
        target.local.start_note.write()
        await go_on.wait()

    monkeypatch.setattr(cluster.managers[1]._deletions, "_note_start", note_start)
    lost = asyncio.ensure_future(cluster.managers[1].delete_records("t", 0, 4, 5_000))
    await eventually(lambda: log.noted_start_offset == 4, "it is noted")
    cluster.elect(2)
    go_on.set()
    with pytest.raises(KafkaError) as refused:
        await lost
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.log_start_offset == 0
    if leads_again:
        cluster.elect(1)
        await eventually(lambda: log.log_start_offset == 4, "it begins there")
    else:
        await eventually(lambda: cluster.log(2).high_watermark == 10, "the new leader commits")
        assert await cluster.managers[2].delete_records("t", 0, 4, 5_000) == 4
        await eventually(lambda: starts(cluster) == {1: 4, 2: 4, 3: 4}, "all begin there")
    await cluster.stop_all()
