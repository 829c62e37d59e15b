"""Replica managers of several nodes in one process: real logs and group commit, fetches over the wire's own
bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from tidegate.controller.state.eligibility import Eligibility
from tidegate.replication.broker_view import BrokerView, PartitionListener
from tidegate.replication.fetching.configuration import ReplicationConfig, ReplicationLimits
from tidegate.replication.fetching.fetcher import FetcherLimits
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.partition.assignment import Assignment, IsrChange, IsrResult
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import Disk, RealDisk
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.log import Log, LogConfig
from tidegate.wire.errors import ErrorCode
from tidegate.wire.fetch import (
    FetchRequest,
    FetchResponse,
    encode_fetch_request,
    encode_fetch_response,
    parse_fetch_request,
    parse_fetch_response,
)
from tidegate.wire.records import NewRecord, encode_batch

VERSION = 12
TOPIC_ID = UUID(int=7)


def batch_of(*values: str, timestamp_ms: int = 1_700_000_000_000) -> bytearray:
    return bytearray(encode_batch([NewRecord(None, value.encode(), (), timestamp_ms) for value in values]))


class WireTransport:
    """Fetches from another manager of the process, through encoded requests and answers; may be cut."""

    def __init__(self, cluster: Cluster, sender: int, target: int) -> None:
        self._cluster = cluster
        self._sender = sender
        self._target = target
        self.closed = 0

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        self._check()
        decoded = parse_fetch_request(VERSION, memoryview(encode_fetch_request(VERSION, request)))
        self._cluster.fetches += 1
        answer = await self._cluster.managers[self._target].fetch(decoded)
        self._check()
        buffers = encode_fetch_response(
            VERSION, answer.topics, error=answer.error, session_id=answer.session_id
        )
        return parse_fetch_response(VERSION, memoryview(bytearray(b"".join(buffers))))

    def _check(self) -> None:
        if (self._sender, self._target) in self._cluster.cut or self._target not in self._cluster.managers:
            raise ConnectionError(f"no way from {self._sender} to {self._target}")

    def close(self) -> None:
        self.closed += 1


class Cluster:
    """Managers by node id, and a controller that accepts what its compare-and-set allows."""

    def __init__(
        self,
        directory: Path,
        *,
        lag_max_ms: int = 30_000,
        wait_max_ms: int = 500,
        listed_max: int = 10_000,
        limits: ReplicationLimits | None = None,
    ) -> None:
        """Every node has a rack of its own: "rack-<node>"."""
        self.directory = directory
        self.managers: dict[int, ReplicaManager] = {}
        self.directories: dict[int, DataFolders] = {}
        self.commits: dict[int, GroupCommit] = {}
        self.out_of_room: set[tuple[int, str, int]] = set()
        self.cut: set[tuple[int, int]] = set()
        self.fetches = 0
        self.partitions: dict[tuple[str, int], Assignment] = {}
        self.changes: list[IsrChange] = []
        self.alter_error: ErrorCode | None = None
        self.invalid: list[BaseException] = []
        self.fenced: set[int] = set()
        self.not_eligible: set[int] = set()  # by the metadata that the leaders have applied
        self.led: list[tuple[int, str, int, int]] = []
        self.followed: list[tuple[int, str, int, int]] = []
        self.high_watermarks: list[tuple[int, str, int, int]] = []
        self.offline: list[tuple[int, str, int, str]] = []
        self.broker_epochs: dict[int, int] = {}
        self.topic_names: dict[UUID, str] = {TOPIC_ID: "t"}
        self._config = ReplicationConfig(
            replica_lag_time_max_ms=lag_max_ms,
            limits=limits or ReplicationLimits(),
            validate=True,
            fetcher=FetcherLimits(
                wait_max_ms=wait_max_ms,
                listed_max=listed_max,
                answer_timeout_s=5.0,
                backoff_first_s=0.005,
                backoff_max_s=0.05,
            ),
        )

    def start(self, node: int, *, disk: Disk | None = None) -> ReplicaManager:
        paths = [self.directory / f"node-{node}"]
        directory = DataFolders(disk or RealDisk(), paths, "c", node, lambda: "")
        directory.open_all(lambda topic: LogConfig.from_topic_config({}), now_ms=0)
        commit = GroupCommit(threads=1)
        self.broker_epochs[node] = self.broker_epochs.get(node, 100) + 1
        epoch = self.broker_epochs[node]
        manager = ReplicaManager(
            node,
            directory,
            commit,
            SystemClock(),
            self.alter_partition,
            lambda target: WireTransport(self, node, target),
            listener=PartitionListener(
                lambda topic, partition, epoch, _log: self.led.append((node, topic, partition, epoch)),
                lambda topic, partition, epoch: self.followed.append((node, topic, partition, epoch)),
                lambda topic, partition, offset: self.high_watermarks.append(
                    (node, topic, partition, offset)
                ),
                lambda topic, partition, reason: self.offline.append((node, topic, partition, reason)),
                self.invalid.append,
            ),
            broker=BrokerView(
                broker_epoch=lambda: epoch,
                partition_exists=lambda topic, partition: (topic, partition) in self.partitions,
                is_out_of_room=lambda topic, partition: (node, topic, partition) in self.out_of_room,
                eligibility_of=lambda _topic_id, _partition, node, _broker_epoch: (
                    Eligibility.NOT_NOW if node in self.not_eligible else Eligibility.YES
                ),
                rack_of=lambda node: "" if node in self.fenced else f"rack-{node}",
                topic_name_of=self.topic_names.get,
            ),
            config=self._config,
        )
        self.managers[node] = manager
        self.directories[node] = directory
        self.commits[node] = commit
        return manager

    async def stop(self, node: int, *, clean: bool = True) -> None:
        manager = self.managers.pop(node)
        await manager.shutdown(clean)
        self.commits.pop(node).close()
        self.directories.pop(node).close(clean=clean)

    async def stop_all(self) -> None:
        for node in tuple(self.managers):
            await self.stop(node)
        assert not self.invalid

    # ---- the controller ------------------------------------------------------------------------------------

    async def alter_partition(self, changes: list[IsrChange]) -> AsyncIterator[list[IsrResult]]:
        await asyncio.sleep(0)
        self.changes.extend(changes)
        yield [self._alter(change) for change in changes]

    def _alter(self, change: IsrChange) -> IsrResult:
        now = self.partitions[(change.topic, change.partition)]
        if self.alter_error is not None:
            return IsrResult(change.topic, change.partition, self.alter_error)
        if change.leader_epoch != now.leader_epoch:
            return IsrResult(change.topic, change.partition, ErrorCode.FENCED_LEADER_EPOCH)
        if change.partition_epoch != now.partition_epoch:
            return IsrResult(change.topic, change.partition, ErrorCode.INVALID_UPDATE_VERSION)
        for member in change.isr:
            joins = member.node_id not in now.isr
            if joins and (
                member.node_id in self.fenced or member.broker_epoch != self.broker_epochs[member.node_id]
            ):
                return IsrResult(change.topic, change.partition, ErrorCode.INELIGIBLE_REPLICA)
        isr = tuple(member.node_id for member in change.isr)
        now = replace(now, isr=isr, partition_epoch=now.partition_epoch + 1)
        self.partitions[(change.topic, change.partition)] = now
        return IsrResult(
            change.topic,
            change.partition,
            ErrorCode.NONE,
            now.leader,
            now.leader_epoch,
            now.partition_epoch,
            isr,
        )

    def create(
        self,
        topic: str = "t",
        partitions: int = 1,
        *,
        replicas: tuple[int, ...] = (1, 2, 3),
        leader: int = 1,
        min_isr: int = 2,
        isr: tuple[int, ...] | None = None,
        **config: str,
    ) -> None:
        settings = {"min.insync.replicas": str(min_isr)} | {
            key.replace("_", "."): value for key, value in config.items()
        }
        created = [
            Assignment(topic, TOPIC_ID, partition, replicas, isr or replicas, leader, 1, 1, settings)
            for partition in range(partitions)
        ]
        for assignment in created:
            self.partitions[(assignment.topic, assignment.partition)] = assignment
        self.publish(created)

    def publish(self, assignments: Iterable[Assignment], *, to: Iterable[int] | None = None) -> None:
        chosen = list(assignments)
        for node in tuple(self.managers) if to is None else to:
            self.managers[node].apply(chosen)

    def elect(
        self,
        leader: int,
        *,
        isr: tuple[int, ...] | None = None,
        topic: str = "t",
        partition: int = 0,
        to: Iterable[int] | None = None,
    ) -> Assignment:
        now = self.partitions[(topic, partition)]
        now = replace(
            now,
            leader=leader,
            leader_epoch=now.leader_epoch + 1,
            partition_epoch=now.partition_epoch + 1,
            isr=isr or now.isr,
        )
        self.partitions[(topic, partition)] = now
        self.publish([now], to=to)
        return now

    def log(self, node: int, topic: str = "t", partition: int = 0) -> Log:
        return self.managers[node].replica(topic, partition).log
