"""One simulated node: the product's broker, from its metadata follower down to its logs, on a disk that lies.

The parts are put together, started and stopped in the order of `node/node.py`; only loop, network, disk and
quorum are others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast
from uuid import UUID

from ....controller.remote.client import ControllerClient
from ....controller.remote.metadata_follower import MetadataFollower
from ....controller.state.broker_fields import encode_replicas
from ....controller.state.features import SUPPORTED, as_messages
from ....controller.state.model import BrokerState
from ....node.cluster.cluster_view import ClusterView
from ....node.cluster.isr_requests import IsrRequests
from ....node.lifecycle.broker_lifecycle import BrokerLifecycle
from ....node.lifecycle.probing import Probing, Question, ReachedBy
from ....node.metadata_application import MetadataApplication
from ....node.settings.configuration import Configuration, load
from ....node.settings.run_time_settings import RunTimeSettings
from ....proto import controller_pb2 as pb
from ....replication.broker_view import BrokerView, PartitionListener
from ....replication.fetching.configuration import ReplicationConfig
from ....replication.fetching.fetcher import FetcherLimits
from ....replication.manager import ReplicaManager
from ....replication.replica.replica import Replica
from ....storage.directory.log_directory import DirectoryRefused
from ....storage.folders.data_folders import DataFolders
from ....storage.log.group_commit import GroupCommit
from ....storage.log.log import AppendOrigin
from ....wire.errors import ErrorCode, KafkaError
from ....wire.fetch import FetchRequest, FetchResponse
from ..disk import LyingDisk
from .clock import VirtualClock
from .controller_channel import ControllerChannel
from .disks import DelayedFlushes
from .names import Names
from .network import Network
from .quorum import Quorum
from .single_heartbeats import SingleHeartbeats
from .virtual_loop import Process, VirtualLoop

DATA = Path("/data")
CLUSTER_ID = "simulated"
HOUSEKEEPING_S = 0.5
METADATA_TIMEOUT_S = 30.0


@dataclass(slots=True, frozen=True)
class NodeTimings:
    session_timeout_s: float
    heartbeat_s: float
    lag_max_s: float
    fetch_wait_s: float


@dataclass(slots=True)
class Surroundings:
    """What all nodes share."""

    loop: VirtualLoop
    random: Random
    network: Network
    quorum: Quorum
    controllers: tuple[int, ...]
    timings: NodeTimings
    seen: Counter[str]
    names: Names
    checks_reachability: bool = False
    heartbeats_late_s: tuple[float, float] = (0.0, 0.0)
    single_heartbeats: bool = False


@dataclass(slots=True, frozen=True)
class Produced:
    """The answer to a produce request."""

    error: ErrorCode
    topic_id: UUID | None = None
    next_offset: int = -1


@dataclass(slots=True, frozen=True)
class Fetched:
    """The answer to a consumer's fetch, with what only a simulation can see: which topic and epoch it is
    from."""

    topic_id: UUID
    leader_epoch: int
    response: FetchResponse


class _FetchTransport:
    """From a follower to its leader."""

    def __init__(self, node: SimulatedNode, leader_id: int) -> None:
        self._node = node
        self._leader_id = leader_id

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        leader = self._node.peers(self._leader_id)
        self._node.around.names.require(self._node.node_id, self._leader_id)
        found: FetchResponse = await self._node.network.call(
            self._node.node_id,
            self._leader_id,
            lambda _process: leader.replicas.fetch(request) if leader.serving else None,
        )
        return found

    def close(self) -> None:
        """The next fetch goes its own way in any case."""


class _WatchedManager(ReplicaManager):
    """Says at once when a high watermark may have moved: within one step a leader may commit and then learn
    of its successor.  Counts lost sessions."""

    on_progress: Callable[[], None]
    seen: Counter[str]

    def _progress(self, replica: Replica) -> None:
        super()._progress(replica)
        self.on_progress()

    def suspend_leadership(self, reason: str) -> None:
        self.seen["session lost"] += 1
        super().suspend_leadership(reason)


class _NoGroups:
    """Consumer groups are not part of this world."""

    def topics_deleted(self, names: object) -> None: ...

    def topics_changed(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class BrokerParts:
    """The product's own, as `node/assembly.py` puts them together."""

    cluster: ClusterView
    metadata: MetadataFollower
    lifecycle: BrokerLifecycle
    replicas: ReplicaManager
    application: MetadataApplication
    probing: Probing


@dataclass(eq=False)
class SimulatedNode:
    """A node through all its lives; `process` is the present one."""

    node_id: int
    around: Surroundings
    peers: Callable[[int], SimulatedNode]
    on_appended: Callable[[SimulatedNode, Replica], None]
    on_acknowledged: Callable[[SimulatedNode, Replica, int, int], None]
    on_deletion: Callable[[SimulatedNode, Replica, int], None]
    on_deleted: Callable[[SimulatedNode, Replica, int], None]
    on_progress: Callable[[SimulatedNode], None]
    on_leaving: Callable[[SimulatedNode], None]
    disk: LyingDisk = field(default_factory=LyingDisk)
    disk_number: int = 1
    life: int = 0
    process: Process | None = None
    broker: BrokerParts | None = None
    directory: DataFolders | None = None
    slow_s: float = 0.0
    out_of_room: bool = False
    leaving: bool = False
    failed: bool = False  # could not start, or ended itself: the supervisor must start it again
    lease_until_s: float = 0.0  # what the answered heartbeats are good for
    registered_session_s: float = 0.0
    answered_sent_s: float = 0.0  # when the latest of them was sent
    answered_epoch: int = 0  # the newest controller epoch in an answer
    # what heartbeats are good for that a controller has answered after it was deposed
    misled_until_s: float = 0.0

    @property
    def network(self) -> Network:
        return self.around.network

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def serving(self) -> bool:
        return self.alive and self.broker is not None and self.broker.cluster.serving

    @property
    def replicas(self) -> ReplicaManager:
        assert self.broker is not None
        return self.broker.replicas

    # ---- lives ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.alive
        self.life += 1
        self.failed = self.leaving = False
        self.broker = self.directory = None
        self.process = Process(self.around.loop, f"node {self.node_id}, life {self.life}")
        self.network.processes[self.node_id] = self.process
        self.around.names.node_started(self.node_id, self.life)
        self.process.spawn(self._run())

    def end(self) -> None:
        """SIGKILL.  What happens to the disk is for the caller to say."""
        assert self.process is not None
        self.process.kill()
        self.lease_until_s = 0.0
        self.broker = self.directory = None
        self.disk.kill()

    async def _run(self) -> None:
        try:
            await self._begin()
        except (KafkaError, OSError, DirectoryRefused, TimeoutError):
            self.failed = True
        except Exception as error:
            self.around.loop.unhandled.append(error)

    async def _begin(self) -> None:
        loop, random = self.around.loop, self.around.random
        clock = VirtualClock(loop, random)
        fresh_id = f"disk-{self.node_id}-{self.disk_number}"
        only = (DATA, "it is the only one")
        directory = DataFolders(self.disk, [DATA], CLUSTER_ID, self.node_id, lambda: fresh_id, essential=only)
        directory.open_all(now_ms=clock.wall_ms())
        self.directory = directory
        assert self.process is not None
        commit = GroupCommit(executor=DelayedFlushes(loop, random, self.process, lambda: self.slow_s))
        endpoints = {node_id: str(node_id) for node_id in self.around.controllers}
        client = ControllerClient(endpoints, clock, channel_factory=self._channel)
        broker = self._assemble(client, directory, commit, clock)
        self.broker = broker
        registration = await broker.lifecycle.register(
            self._registration(broker, directory, clock), METADATA_TIMEOUT_S
        )
        await broker.metadata.start(broker.application.apply)
        await broker.metadata.wait_for_index(registration.broker_epoch, METADATA_TIMEOUT_S)
        self.answered_sent_s, self.answered_epoch = clock.monotonic(), 0
        self.lease_until_s = self.answered_sent_s + self.registered_session_s
        broker.lifecycle.start(broker.replicas, broker.application)
        if self.around.checks_reachability:
            broker.probing.start()
        while not self.leaving:
            await clock.sleep(HOUSEKEEPING_S * random.random())
            broker.application.open_again()
            if directory.is_offline:
                self.failed = True
        await self._leave(broker, directory, commit)

    def _configuration(self) -> Configuration:
        """A real one, so that it has every attribute that a part reads: all settings are defaults, and no
        port is open. The controllers have nodes of their own (`self.around`): their addresses are not asked
        for."""
        values = {
            "node.id": self.node_id, "cluster.id": CLUSTER_ID, "log.dirs": DATA, "process.roles": "broker",
            "controller.quorum.voters": f"{self.node_id + 1}@127.0.0.1:9094:9093",
        }  # fmt: skip
        return load(None, environment={}, overrides=[f"{key}={value}" for key, value in values.items()])

    def _channel(self, _node_id: int, target: str) -> Any:
        return ControllerChannel(
            self.network,
            self.around.quorum.services,
            self.node_id,
            int(target),
            self._controller_answered,
            self._answer_late,
        )

    def _controller_answered(self, name: str, sent_at_s: float, reply: Any) -> None:
        """A shorter session of a newer controller counts from its first answer (docs/semantics.md M8)."""
        epoch = reply.status.controller_epoch
        if reply.status.error != ErrorCode.NONE or name not in ("RegisterBroker", "Heartbeat"):
            return
        granted_s = min(self.around.timings.session_timeout_s, reply.session_timeout_ms / 1000)
        if name == "RegisterBroker":
            self.registered_session_s = granted_s
            return
        if epoch < self.answered_epoch:
            return
        granted_s = min(granted_s, self.registered_session_s)
        if sent_at_s > self.around.quorum.ended_at_s.get(epoch, sent_at_s):
            self.misled_until_s = max(self.misled_until_s, sent_at_s + granted_s)
        self.answered_epoch, self.answered_sent_s = epoch, max(self.answered_sent_s, sent_at_s)
        self.lease_until_s = min(
            max(self.lease_until_s, sent_at_s + granted_s), self.answered_sent_s + granted_s
        )

    async def _answer_late(self, name: str) -> None:
        least_s, most_s = self.around.heartbeats_late_s
        if name == "Heartbeat" and most_s:
            await asyncio.sleep(least_s + (most_s - least_s) * self.around.random.random())

    def _assemble(
        self, client: ControllerClient, directory: DataFolders, commit: GroupCommit, clock: VirtualClock
    ) -> BrokerParts:
        configuration, asks = self._configuration(), self.around.checks_reachability
        metadata = MetadataFollower(client, self.node_id, clock, on_failure=self._fail_stop)
        cluster, reached_by = ClusterView(self.node_id, metadata, client, clock), ReachedBy()
        lifecycle_class = SingleHeartbeats if self.around.single_heartbeats else BrokerLifecycle
        lifecycle = lifecycle_class(
            self.node_id,
            client,
            clock,
            session_timeout_s=self.around.timings.session_timeout_s,
            heartbeat_interval_s=self.around.timings.heartbeat_s,
            applied_index=lambda: cluster.metadata_index,
            on_superseded=lambda reason: self._fail_stop(RuntimeError(reason)),
            reached_by=(lambda: reached_by.lives) if asks else None,
        )
        requests = IsrRequests(cluster, client, lambda: lifecycle.broker_epoch)
        replicas = self._manager(
            cluster, lifecycle, requests, lambda topic,
            partition: application.replica_offline(topic, partition), directory,
            commit, clock,
        )  # fmt: skip
        probing = Probing(cluster, lifecycle, reached_by, self._ask, clock, self._fail_stop)
        application = MetadataApplication(
            cluster, RunTimeSettings(configuration), lifecycle, replicas, directory, cast(Any, _NoGroups()),
            clock,
            on_brokers_changed=probing.brokers_changed,
        )  # fmt: skip
        return BrokerParts(
            cluster=cluster,
            metadata=metadata,
            lifecycle=lifecycle,
            replicas=replicas,
            application=application,
            probing=probing,
        )

    async def _ask(self, other: BrokerState, question: Question) -> bool:
        """As `ask_over_kafka`."""
        self.around.names.require(self.node_id, other.node_id)
        target = self.peers(other.node_id)

        async def answer(broker: BrokerParts) -> bool:
            found = broker.probing.accept_question(question)
            if found:
                self.around.names.note_found(question.target, question.asker[0])
            return found

        def serve(_process: Process) -> Coroutine[Any, Any, bool] | None:
            return answer(target.broker) if target.serving and target.broker is not None else None

        found: bool = await self.network.call(self.node_id, other.node_id, serve)
        return found

    def _manager(
        self,
        cluster: ClusterView,
        lifecycle: BrokerLifecycle,
        requests: IsrRequests,
        replica_offline: Callable[[str, int], None],
        directory: DataFolders,
        commit: GroupCommit,
        clock: VirtualClock,
    ) -> ReplicaManager:
        timings = self.around.timings
        manager = _WatchedManager(
            self.node_id,
            directory,
            commit,
            clock,
            requests.alter_partitions,
            lambda leader_id: _FetchTransport(self, leader_id),
            listener=PartitionListener(
                on_offline=lambda topic, partition, _reason: replica_offline(topic, partition)
            ),
            broker=BrokerView(
                broker_epoch=lambda: lifecycle.broker_epoch,
                holds_session=lambda: lifecycle.holds_session,
                partition_exists=lambda topic, partition: (
                    cluster.state.partition(topic, partition) is not None
                ),
                is_out_of_room=lambda _topic, _partition: self.out_of_room,
                eligibility_of=cluster.isr_eligibility,
            ),
            config=ReplicationConfig(
                replica_lag_time_max_ms=int(timings.lag_max_s * 1000),
                high_watermark_checkpoint_interval_ms=1500,
                fetcher=FetcherLimits(wait_max_ms=int(timings.fetch_wait_s * 1000), answer_timeout_s=2.0),
            ),
        )
        manager.on_progress = lambda: self.on_progress(self)
        manager.seen = self.around.seen
        return manager

    def _registration(
        self, broker: BrokerParts, directory: DataFolders, clock: VirtualClock
    ) -> pb.RegisterBrokerRequest:
        previous = directory.previous_broker_epoch
        return pb.RegisterBrokerRequest(
            node_id=self.node_id,
            incarnation=str(clock.uuid()),
            cluster_id="",
            kafka_host="simulated",
            kafka_port=9092,
            grpc_host="simulated",
            grpc_port=9093,
            clean_shutdown_broker_epoch=-1 if previous is None else previous,
            directory_id=directory.directory_id,
            offline_replicas=encode_replicas(broker.application.damaged_replicas(), pb.ReplicasOfTopic),
            damaged_replicas=encode_replicas(broker.application.damaged_replicas(), pb.ReplicasOfTopic),
            supported_features=as_messages(SUPPORTED),
        )

    async def _leave(self, broker: BrokerParts, directory: DataFolders, commit: GroupCommit) -> None:
        """SIGTERM."""
        await broker.lifecycle.leave(self.around.timings.session_timeout_s * 3)
        await broker.lifecycle.stop()
        await broker.metadata.stop()
        await broker.replicas.shutdown(clean=True)
        commit.close()
        self.on_leaving(self)
        directory.close(clean=True, broker_epoch=broker.lifecycle.broker_epoch)
        self.failed = True
        self.end()

    def _fail_stop(self, error: BaseException) -> None:
        """The process ends itself; a disk that fails while metadata is applied is the only reason for it in
        this world."""
        if not isinstance(error, KafkaError) or error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            self.around.loop.unhandled.append(error)
        self.failed = True
        assert self.process is not None
        self.process.kill()

    # ---- requests of clients -------------------------------------------------------------------------------

    async def produce(
        self, topic: str, partition: int, batch: bytes, batch_id: int, acks: int, timeout_s: float
    ) -> Produced:
        """As `node/handlers/log/produce.py`."""
        manager = self.replicas
        try:
            info = manager.append_now(
                topic, partition, bytearray(batch), origin=AppendOrigin.CLIENT, required_acks=acks
            )
        except KafkaError as error:
            return Produced(error.code)
        replica = manager.replica(topic, partition)
        epoch = replica.leader_epoch
        self.on_appended(self, replica)
        next_offset = info.last_offset + 1
        if acks == 1:
            return Produced(ErrorCode.NONE, replica.topic_id, next_offset)
        code = await manager.wait_committed(topic, partition, epoch, next_offset, int(timeout_s * 1000))
        if code is ErrorCode.NONE:
            self.on_acknowledged(self, replica, next_offset, batch_id)
        return Produced(code, replica.topic_id, next_offset)

    async def delete_records(self, topic: str, partition: int, before_offset: int, timeout_s: float) -> int:
        """As `node/handlers/log/delete_records.py`.  Raises KafkaError."""
        replica = self.replicas.replica(topic, partition)
        self.on_deletion(self, replica, replica.high_watermark if before_offset < 0 else before_offset)
        low = await self.replicas.delete_records(topic, partition, before_offset, int(timeout_s * 1000))
        self.on_deleted(self, replica, low)
        return low

    async def consume(self, topic: str, partition: int, request: FetchRequest) -> Fetched | None:
        """None: this node does not know the partition."""
        response = await self.replicas.fetch(request)
        try:
            replica = self.replicas.replica(topic, partition)
        except KafkaError:
            return None
        return Fetched(replica.topic_id, replica.leader_epoch, response)

    def present_replicas(self) -> Sequence[Replica]:
        return () if self.broker is None else tuple(self.broker.replicas.hosted)
