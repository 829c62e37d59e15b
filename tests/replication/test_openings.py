"""A new replica's log is made in a thread, and the metadata goes on: what counts is the newest when the log
is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from tidegate.replication.broker_view import PartitionListener
from tidegate.replication.fetching.configuration import ReplicationConfig
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.partition.assignment import Assignment
from tidegate.replication.replica.replica import Replica
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.creation import Creation, FolderShare, Results
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from .cluster import TOPIC_ID

AGAIN = UUID(int=8)


class Node:
    """One node whose new logs are made only when `go_on` is set."""

    def __init__(self, path: Path) -> None:
        self.go_on = threading.Event()
        self.threads: set[str] = set()
        self.led: list[tuple[int, int]] = []
        self.offline: list[int] = []
        self.directory = DataFolders(RealDisk(), [path], "c", 1, lambda: "")
        self.directory.open_all(now_ms=0)
        self.commit = GroupCommit(threads=1)
        self.manager = ReplicaManager(
            1, self.directory, self.commit, SystemClock(), self._alter, self._no_transport,  # type: ignore[arg-type]
            listener=PartitionListener(
                on_elected=lambda _topic, partition, epoch, _log: self.led.append((partition, epoch)),
                on_offline=lambda _topic, partition, _reason: self.offline.append(partition),
            ),
            config=ReplicationConfig(make_logs_in_background=True),
        )  # fmt: skip

    @staticmethod
    async def _alter(_changes: object) -> list[object]:
        return []

    @staticmethod
    def _no_transport(_target: int) -> object:
        raise AssertionError("no leader is followed here")

    def assignment(
        self,
        partition: int = 0,
        *,
        epoch: int = 1,
        topic_id: UUID = TOPIC_ID,
        config: dict[str, str] | None = None,
    ) -> Assignment:
        return Assignment("t", topic_id, partition, (1,), (1,), 1, epoch, epoch, config or {})

    def says(self, partition: int = 0) -> ErrorCode:
        try:
            self.manager.leader_log("t", partition)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    async def made(self) -> None:
        self.go_on.set()
        await eventually(lambda: not self.manager._log_opener._tasks, "all logs are made")

    async def close(self) -> None:
        self.go_on.set()
        await self.manager.shutdown(clean=True)
        self.commit.close()
        self.directory.close(clean=not self.directory.is_offline)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    run = FolderShare.run

    def wait(self: FolderShare) -> Results:
        if self._wanted:
            made.threads.add(threading.current_thread().name)
            assert made.go_on.wait(10)
        return run(self)

    monkeypatch.setattr(FolderShare, "run", wait)
    yield made
    await made.close()


async def test_the_loop_runs_on_while_logs_are_made(node: Node) -> None:
    node.manager.apply([node.assignment(partition) for partition in range(5)])
    await asyncio.sleep(0)
    assert node.says() is ErrorCode.NOT_LEADER_OR_FOLLOWER, "which every client tries again"
    assert node.says(7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await node.made()
    assert node.says() is ErrorCode.NONE
    assert sorted(node.led) == [(partition, 1) for partition in range(5)]
    assert "MainThread" not in node.threads


async def test_newer_metadata_counts_when_the_log_is_there(node: Node) -> None:
    node.manager.apply([node.assignment()])
    node.manager.apply([replace(node.assignment(epoch=3), config={"retention.ms": "77"})])
    await node.made()
    assert node.led == [(0, 3)]
    assert node.manager.leader_log("t", 0).config.retention_ms == 77


async def test_a_topic_that_is_deleted_while_its_log_is_made_leaves_nothing(
    node: Node, tmp_path: Path
) -> None:
    node.manager.apply([node.assignment()])
    node.manager.delete("t", 0, AGAIN)  # another topic of the name: not this one
    assert node.says() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.manager.delete("t", 0, TOPIC_ID)
    assert node.says() is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await node.made()
    assert not node.led
    assert not node.directory.logs
    assert not list(tmp_path.glob("t-*"))


async def test_a_topic_that_is_created_again_meanwhile_gets_a_log_of_its_own(node: Node) -> None:
    node.manager.apply([node.assignment()])
    node.manager.delete("t", 0, TOPIC_ID)
    node.manager.apply([node.assignment(topic_id=AGAIN)])
    await node.made()
    await node.made()  # the second log is begun when the first is there
    assert node.led == [(0, 1)]
    assert node.directory.topic_ids["t", 0] == AGAIN


async def test_a_partition_that_moves_away_meanwhile_leaves_nothing(node: Node) -> None:
    node.manager.apply([node.assignment()])
    node.manager.apply([replace(node.assignment(epoch=2), replicas=(2,), isr=(2,), leader=2)])
    await node.made()
    assert not node.directory.logs
    assert not node.led


async def test_a_folder_that_fails_meanwhile_is_reported(node: Node) -> None:
    node.manager.apply([node.assignment()])
    node.directory.folders[0].go_offline(OSError(5, "the disk is gone"))
    await node.made()
    assert node.offline == [0]
    assert node.says() is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_defect_while_logs_are_made_is_logged(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_creation: Creation) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(Creation, "run", fail)
    node.manager.apply([node.assignment()])
    await node.made()
    (failed,) = [record for record in caplog.records if record.msg == "task_failed"]
    assert "a defect" in str(failed.exc_info)


async def test_replicas_that_a_defect_left_unopened_are_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata says that this node leads them, and no other node would learn that it does not."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "_lead", fail)
        node.manager.apply([node.assignment(0), node.assignment(1)])
        await node.made()
    assert sorted(node.offline) == [0, 1]
    assert node.led == []
    node.manager.apply([node.assignment(0, epoch=2), node.assignment(1, epoch=2)])
    await node.made()
    assert sorted(node.led) == [(0, 2), (1, 2)]
    assert node.says() is ErrorCode.NONE


async def test_a_stop_waits_for_the_thread_and_the_next_start_finds_the_logs(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.manager.apply([node.assignment(partition) for partition in range(3)])
    threading.Timer(0.05, node.go_on.set).start()
    await node.close()
    assert not node.led
    again = DataFolders(RealDisk(), [tmp_path], "c", 1, lambda: "")
    assert again.open_all(now_ms=0).opened == 3
    assert again.previous_broker_epoch is not None
    again.close(clean=True)


async def test_an_existing_log_is_opened_at_once(node: Node) -> None:
    node.go_on.set()
    node.manager.apply([node.assignment()])
    await node.made()
    node.go_on.clear()
    node.manager.apply([node.assignment(epoch=2), node.assignment(1)])
    assert node.led == [(0, 1), (0, 2)]
    assert node.says(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_creator_of_a_topic_can_wait_for_its_logs(node: Node) -> None:
    node.manager.apply([node.assignment()])
    with pytest.raises(TimeoutError):
        await node.manager.logs_made(0.01)
    node.go_on.set()
    await node.manager.logs_made(10)
    assert node.says() is ErrorCode.NONE
    await node.manager.logs_made(0)


async def test_a_setting_of_a_later_version_is_lived_with_and_named_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    later = {"retention.parsecs": "12", "cleanup.policy": "compact,shred", "segment.ms": "5"}
    node.go_on.set()
    node.manager.apply([node.assignment(0, config=later)])
    await node.made()
    node.manager.apply(
        [node.assignment(0, epoch=2, config=dict(later)), node.assignment(1, config=dict(later))]
    )
    await node.made()
    assert node.says(0) == node.says(1) == ErrorCode.NONE
    assert not node.offline
    log = node.manager.leader_log("t", 0)
    assert log.config.is_compacted
    assert log.config.segment_ms == 5
    named = [
        record.__dict__["fields"]["setting"]
        for record in caplog.records
        if record.msg == "topic_setting_unknown"
    ]
    assert sorted(named) == ["cleanup.policy", "retention.parsecs"]
