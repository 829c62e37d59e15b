"""A replica whose flushed data is damaged: out of use, never counted on, and fetched again from the
leader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.partition.assignment import Assignment
from tidegate.replication.replica.replica import Role
from tidegate.storage.directory.creation import PARTITION_METADATA
from tidegate.storage.directory.log_directory import DAMAGED
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from .cluster import TOPIC_ID, Cluster, batch_of


async def three_replicas(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    for node in (1, 2, 3):
        cluster.start(node)
    cluster.create(segment_bytes="2000", min_isr=1)
    for number in range(40):
        cluster.managers[1].append_now(
            "t", 0, batch_of("x" * 200 + str(number)), origin=AppendOrigin.CLIENT, required_acks=-1
        )
    assert await cluster.managers[1].wait_committed("t", 0, 1, 40, 5_000) is ErrorCode.NONE
    return cluster


def content_at(cluster: Cluster, node: int) -> bytes:
    log = cluster.log(node)
    return b"".join(segment.file.read_at(0, segment.size_bytes) for segment in log.segments)


def spoil(tmp_path: Path, node: int, *, cut: bool = False) -> Path:
    """Bytes in the middle of what had been flushed are not what they were, or not there; the indexes do not
    remember."""
    folder = tmp_path / f"node-{node}" / "t-0"
    path = sorted(folder.glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[16] ^= 0xFF
    path.write_bytes(data[:100] if cut else data)
    return path


@pytest.mark.parametrize("cut", [False, True], ids=["changed", "cut"])
async def test_damage_found_by_a_read_takes_the_replica_offline(tmp_path: Path, cut: bool) -> None:
    cluster = await three_replicas(tmp_path)
    before = content_at(cluster, 1)
    path = spoil(tmp_path, 3, cut=cut)
    log = cluster.log(3)
    with pytest.raises(KafkaError, match=path.name):
        for segment in log.segments:
            log.read(segment.base_offset, 1, upper_offset=log.log_end_offset)
    manager = cluster.managers[3]
    assert manager.replica("t", 0).role is Role.OFFLINE
    assert manager.offline_replicas() == {(TOPIC_ID, 0)}
    assert not cluster.directories[3].is_offline
    cluster.publish([replace(cluster.partitions["t", 0])], to=[3])
    # it still counts as in sync: nothing may take its place
    assert manager.replica("t", 0).role is Role.OFFLINE
    now = replace(cluster.partitions["t", 0], isr=(1, 2), partition_epoch=9)
    cluster.partitions["t", 0] = now
    cluster.publish([now])
    await eventually(lambda: cluster.log(3).log_end_offset == 40, "the records are fetched again")
    assert content_at(cluster, 3) == before
    assert not manager.offline_replicas()
    assert (tmp_path / "node-3" / "0-damaged" / path.name).exists()
    await cluster.stop_all()


@pytest.mark.parametrize(
    "counted_on",
    [
        {"isr": (1, 2, 3)},
        {"isr": (1,), "elr": (2, 3)},
        {"leader": -1, "isr": (), "elr": ()},
        {"leader": 3, "isr": (3,)},
    ],
    ids=["in sync", "eligible", "no leader", "leader"],
)
async def test_a_damaged_log_is_not_set_aside_while_it_may_be_needed(
    tmp_path: Path, counted_on: dict[str, object]
) -> None:
    cluster = await three_replicas(tmp_path)
    await cluster.stop(3, clean=False)
    (tmp_path / "node-3" / "t-0" / DAMAGED).write_bytes(b"it was found to be")
    manager = cluster.start(3)
    now: Assignment = replace(cluster.partitions["t", 0], **counted_on)  # type: ignore[arg-type]
    manager.apply([now])
    with pytest.raises(KafkaError):
        manager.replica("t", 0)
    assert manager.offline_replicas() == {(TOPIC_ID, 0)}
    assert (3, "t", 0) in [entry[:3] for entry in cluster.offline]
    await cluster.stop_all()


async def test_a_log_damaged_at_the_start_is_fetched_again_when_dispensable(tmp_path: Path) -> None:
    cluster = await three_replicas(tmp_path)
    before = content_at(cluster, 1)
    await cluster.stop(3, clean=False)
    (tmp_path / "node-3" / "t-0" / DAMAGED).write_bytes(b"it was found to be")
    manager = cluster.start(3)
    cluster.elect(1, isr=(1, 2))
    await eventually(
        lambda: manager.replica("t", 0).log.log_end_offset == 40, "the records are fetched again"
    )
    assert content_at(cluster, 3) == before
    await cluster.stop_all()


@pytest.mark.parametrize("content", [None, b"junk"], ids=["gone", "damaged"])
async def test_a_log_without_a_topic_id_is_fetched_again_when_it_is_dispensable(
    tmp_path: Path, content: bytes | None
) -> None:
    cluster = await three_replicas(tmp_path)
    before = content_at(cluster, 1)
    await cluster.stop(3, clean=False)
    identity = tmp_path / "node-3" / "t-0" / PARTITION_METADATA
    identity.unlink()
    if content is not None:
        identity.write_bytes(content)
    manager = cluster.start(3)
    manager.apply([cluster.partitions["t", 0]])
    with pytest.raises(KafkaError, match="copy the file from another partition") as refused:
        manager.replica("t", 0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (3, "t", 0) in [entry[:3] for entry in cluster.offline]
    cluster.elect(1, isr=(1, 2))
    await eventually(lambda: _end(manager) == 40, "the records are fetched again")
    assert content_at(cluster, 3) == before
    assert (tmp_path / "node-3" / "0-damaged").exists()
    await cluster.stop_all()


def _end(manager: ReplicaManager) -> int:
    try:
        return manager.replica("t", 0).log.log_end_offset
    except KafkaError:
        return -1
