"""Nodes that serve real logs: ReplicaManager, DataFolders and DataService as in a node, in a thread with its
own loop.

Every node of a partition is filled with the same batches while it leads alone; afterwards `move` sets the
leader.  (Replication is tested in its own room; here the copies only have to be equal.)
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import grpc.aio
from tidegate.controller.state.model import BrokerState, PartitionState, TopicState
from tidegate.node.data.data_service import DataService
from tidegate.node.data.range_connections import RangeConnections
from tidegate.node.serving.batch_threads import BatchThreads
from tidegate.node.serving.grpc_callers import GrpcAccess, GrpcGuard
from tidegate.node.serving.throttling import Throttling
from tidegate.replication.manager import ReplicaManager
from tidegate.replication.partition.assignment import Assignment
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.runtime.network import bind_grpc, grpc_server
from tidegate.security.quotas import QuotaEntity, QuotaKind
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.log import AppendOrigin, LogConfig
from tidegate.tests.grpc_access import open_access
from tidegate.wire.compression import Compression
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import ControlType, NewRecord, encode_batch, encode_marker, parse_header

TOPIC_ID = UUID(int=77)
FIRST_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Step:
    """One append: a client's batch (with the records in it) or a coordinator's marker."""

    data: bytes
    records: list[NewRecord]
    producer_id: int
    ends: ControlType | None = None


def history(seed: int, steps: int, *, leave_open: bool = False) -> list[Step]:
    """Plain batches and interleaved transactions of three producers, half of them aborted, in all codecs."""
    rng = random.Random(seed)
    made: list[Step] = []
    open_transactions: set[int] = set()
    sequences: dict[int, int] = {}
    clock = FIRST_TIMESTAMP_MS
    for number in range(steps):
        producer_id = rng.choice([-1, 1, 2, 3])
        ending = number >= steps - 3 and not leave_open
        if open_transactions and (ending or rng.random() < 0.25):
            producer_id = min(open_transactions)
            open_transactions.remove(producer_id)
            kind = rng.choice([ControlType.COMMIT, ControlType.ABORT])
            made.append(Step(encode_marker(kind, producer_id, 0, 0, clock), [], producer_id, kind))
            continue
        if ending:
            producer_id = -1
        records = []
        for _ in range(rng.randint(1, 30)):
            clock += rng.randint(0, 5)
            headers = (("seed", str(seed).encode()),) if rng.random() < 0.3 else ()
            key = None if rng.random() < 0.1 else rng.randbytes(6)
            records.append(NewRecord(key, rng.randbytes(rng.randint(0, 200)), headers, clock))
        base = sequences.get(producer_id, 0)
        sequences[producer_id] = base + len(records)
        data = encode_batch(
            records,
            compression=rng.choice(list(Compression)),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=base if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
        if producer_id >= 0:
            open_transactions.add(producer_id)
        made.append(Step(data, records, producer_id))
    return made


def committed(steps: list[Step]) -> list[tuple[int, NewRecord]]:
    """The offsets and records that a read_committed reader must see, below the last stable offset."""
    undecided: dict[int, list[tuple[int, NewRecord]]] = {}
    visible: list[tuple[int, NewRecord]] = []
    offset = 0
    for step in steps:
        numbered = list(enumerate(step.records, offset))
        offset += len(numbered) or 1
        if step.ends is not None:
            decided = undecided.pop(step.producer_id, [])
            visible += decided if step.ends is ControlType.COMMIT else []
        elif step.producer_id >= 0:
            undecided.setdefault(step.producer_id, []).extend(numbered)
        else:
            visible += numbered
    stable = min((records[0][0] for records in undecided.values()), default=offset)
    return sorted((pair for pair in visible if pair[0] < stable), key=lambda pair: pair[0])


@dataclass
class Metadata:
    """What the data service asks the applied metadata for."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    brokers: dict[int, BrokerState] = field(default_factory=dict)

    def unfenced_brokers(self) -> list[BrokerState]:
        return [broker for broker in self.brokers.values() if not broker.fenced]


@dataclass
class Node:
    """One node's parts."""

    directory: DataFolders
    commit: GroupCommit
    replicas: ReplicaManager
    service: DataService
    threads: BatchThreads
    server: Any
    port: int
    ranges: RangeConnections


class ServedCluster:
    """Use as a context manager, from a thread without a loop of its own."""

    def __init__(self, directory: Path, nodes: int = 2, **configs: str) -> None:
        self._access = open_access()
        self._credentials: grpc.ServerCredentials | None = None
        self.metadata = Metadata()
        self.nodes: dict[int, Node] = {}
        self.limits: dict[tuple[QuotaEntity, QuotaKind], float] = {}
        """Client quotas."""
        self.add_services: Callable[[grpc.aio.Server], None] = lambda server: None
        """More of them, on each node."""
        self._directory = directory
        self._count = nodes
        self._configs = {
            "segment.bytes": "40000",
            "index.interval.bytes": "1500",
            "min.insync.replicas": "1",
        } | configs
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="served-cluster", daemon=True)

    def secure(self, access: GrpcAccess, credentials: grpc.ServerCredentials) -> None:
        """Before the start."""
        self._access, self._credentials = access, credentials

    def __enter__(self) -> ServedCluster:
        self._thread.start()
        try:
            for number in range(1, self._count + 1):
                self.run(self._start(number))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for number in list(self.nodes):
                self.run(self._stop(number))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @property
    def host(self) -> str:
        """As the nodes' certificates name it."""
        return "127.0.0.1" if self._credentials is None else "localhost"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.host}:{node.port}" for node in self.nodes.values())

    async def _start(self, number: int) -> None:
        paths = [self._directory / f"node-{number}"]
        directory = DataFolders(RealDisk(), paths, "c", number, lambda: "")
        directory.open_all(
            lambda _topic: LogConfig.from_topic_config(self._configs), now_ms=FIRST_TIMESTAMP_MS
        )
        commit = GroupCommit(1)
        replicas = ReplicaManager(number, directory, commit, SystemClock(), _no_changes, _no_transport)  # type: ignore[arg-type]
        threads, throttling = (
            BatchThreads(),
            Throttling(lambda: self.limits, SystemClock(), may_act_as_node=lambda _: False),
        )
        service = DataService(
            replicas,
            lambda: self.metadata,  # type: ignore[arg-type,return-value]
            commit.request,
            threads,
            self._access,
            throttling,
        )
        ranges = RangeConnections(service, self._access, connections_max=1_000, idle_s=60.0)
        if self._credentials is None:
            await ranges.start("127.0.0.1", 0)
        guard = GrpcGuard(self._access)
        server = grpc_server(interceptors=[guard])
        guard.add_to_server(server)
        service.add_to_server(server, ranges.invite)
        self.add_services(server)
        port = bind_grpc(server, "127.0.0.1", 0, self._credentials)
        await server.start()
        self.nodes[number] = Node(directory, commit, replicas, service, threads, server, port, ranges)
        self.metadata.brokers[number] = BrokerState(
            number, "i", 1, False, "", "127.0.0.1", 1, self.host, port
        )

    async def _stop(self, number: int) -> None:
        node = self.nodes.pop(number)
        await node.ranges.close()
        await node.server.stop(0)
        node.service.close()
        await node.threads.close()
        await node.replicas.shutdown(clean=True)
        node.commit.close()
        node.directory.close(clean=True)

    @contextmanager
    def over_grpc(self) -> Iterator[None]:
        """The nodes invite no reader to a range connection."""
        ports = {node.ranges: node.ranges.port for node in self.nodes.values()}
        for ranges in ports:
            ranges.port = 0
        try:
            yield
        finally:
            for ranges, port in ports.items():
                ranges.port = port

    def kill_server(self, number: int) -> None:
        """Cuts all streams of the node and takes it off the list of live brokers."""
        self.run(self.nodes[number].ranges.close())
        self.run(self.nodes[number].server.stop(0))
        self.metadata.brokers.pop(number)

    def fill(
        self, topic: str, partition: int, steps: list[Step], *, leader: int, topic_id: UUID = TOPIC_ID
    ) -> None:
        """Creates the partition on all nodes with these batches, then gives it to `leader`."""
        for number in self.nodes:
            self.run(self._fill(number, topic, topic_id, partition, steps))
        self.move(topic, partition, leader, topic_id=topic_id)

    def append(self, topic: str, partition: int, records: list[NewRecord]) -> None:
        """More records, at the leader only."""
        self.run(self._append(topic, partition, records))

    async def _append(self, topic: str, partition: int, records: list[NewRecord]) -> None:
        state = self.metadata.topics[topic].partitions[partition]
        replicas = self.nodes[state.leader].replicas
        info = replicas.append_now(
            topic, partition, bytearray(encode_batch(records)), origin=AppendOrigin.CLIENT
        )
        done = await replicas.wait_committed(topic, partition, state.leader_epoch, info.next_offset, 10_000)
        assert done is ErrorCode.NONE

    async def _fill(self, number: int, topic: str, topic_id: UUID, partition: int, steps: list[Step]) -> None:
        replicas = self.nodes[number].replicas
        replicas.apply([self._assignment(topic, topic_id, partition, number, leader=number, leader_epoch=1)])
        await self._append_steps(replicas, topic, partition, steps, 1)

    def extend(self, topic: str, partition: int, steps: list[Step]) -> None:
        """More steps, at the leader only."""
        state = self.metadata.topics[topic].partitions[partition]
        replicas = self.nodes[state.leader].replicas
        self.run(self._append_steps(replicas, topic, partition, steps, state.leader_epoch))

    def end(self, topic: str, partition: int) -> int:
        """Of the leader's log."""
        leader = self.metadata.topics[topic].partitions[partition].leader
        return self.nodes[leader].replicas.replica(topic, partition).log.log_end_offset

    async def _append_steps(
        self, replicas: ReplicaManager, topic: str, partition: int, steps: list[Step], leader_epoch: int
    ) -> None:
        replica = replicas.replica(topic, partition)
        for step in steps:
            guard = None
            if (
                step.producer_id >= 0
                and step.ends is None
                and not replica.log.producers.has_open_transaction(step.producer_id)
            ):
                guard = replica.log.producers.start_verification(
                    step.producer_id, 0, parse_header(step.data).base_sequence
                )
            origin = AppendOrigin.CLIENT if step.ends is None else AppendOrigin.COORDINATOR
            replicas.append_now(topic, partition, bytearray(step.data), origin=origin, guard=guard)
        end = replica.log.log_end_offset
        done = await replicas.wait_committed(topic, partition, leader_epoch, end, 10_000)
        assert done is ErrorCode.NONE

    def move(self, topic: str, partition: int, leader: int, *, topic_id: UUID = TOPIC_ID) -> None:
        """Makes `leader` lead in the next epoch, and all others lead no more."""
        known = self.metadata.topics.get(topic)
        partitions = dict(known.partitions) if known else {}
        epoch = partitions[partition].leader_epoch + 1 if partition in partitions else 2
        partitions[partition] = PartitionState((leader,), (leader,), leader=leader, leader_epoch=epoch)
        self.run(self._apply_leader(topic, topic_id, partition, leader, epoch))
        self.metadata.topics[topic] = TopicState(topic, topic_id, {}, partitions)

    async def _apply_leader(
        self, topic: str, topic_id: UUID, partition: int, leader: int, epoch: int
    ) -> None:
        for number, node in self.nodes.items():
            leads = leader if number == leader else -1
            node.replicas.apply(
                [self._assignment(topic, topic_id, partition, number, leader=leads, leader_epoch=epoch)]
            )

    def _assignment(
        self, topic: str, topic_id: UUID, partition: int, node: int, *, leader: int, leader_epoch: int
    ) -> Assignment:
        return Assignment(
            topic, topic_id, partition, (node,), (node,), leader, leader_epoch, leader_epoch, self._configs
        )


async def _no_changes(changes: object) -> list[Any]:
    raise ConnectionError("no controller here")


def _no_transport(leader: int) -> Any:
    raise ConnectionError(f"no way to {leader}")
