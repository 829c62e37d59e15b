"""Makes the parts of one broker and gives each what it needs; starts nothing.

The replicas and the session with the controller call each other, and so do the coordinators and the replicas:
such calls go through functions that find the other part when they run, which is never before all parts are
made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc.aio

from .. import __version__
from ..controller.remote.client import ControllerClient
from ..controller.remote.metadata_follower import MetadataFollower
from ..controller.state.validation import StateValidator
from ..proto import controller_pb2 as pb
from ..replication.broker_view import BrokerView, PartitionListener
from ..replication.fetching.configuration import ReplicationConfig
from ..replication.fetching.fetcher import FetcherLimits, FetchTransport
from ..replication.manager import ReplicaManager
from ..runtime.clock import Clock
from ..runtime.disk import Disk
from ..runtime.kernel_sync import KernelSync
from ..runtime.network import grpc_server
from ..storage.folders.data_folders import DataFolders
from ..storage.log.group_commit import GroupCommit
from ..storage.log.log import Log
from .cluster.cluster_view import ClusterView
from .cluster.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from .cluster.isr_requests import IsrRequests
from .cluster.peers import Peer, PeerFetchTransport, Peers
from .cluster.topic_creation import TopicCreation
from .coordinators.group_coordination import GroupCoordination
from .coordinators.marker_writing import MarkerWrites
from .coordinators.producer_ids import ProducerIds
from .coordinators.transaction_coordination import TransactionCoordination
from .coordinators.transaction_enlistment import TransactionEnlistment
from .data.data_service import DataService
from .lifecycle.broker_lifecycle import BrokerLifecycle, metadata_silence_s
from .lifecycle.log_recovery import RecoveryCollector
from .lifecycle.reachability import Reachability, ReachedBy, ask_over_kafka
from .metadata_application import MetadataApplication
from .observation.client_metrics import ClientMetrics, ClientMetricsCollector
from .observation.metrics import Metrics, NodeView
from .serving.batch_threads import BatchThreads
from .serving.broker import Broker
from .serving.described_topics import DescribedTopics
from .serving.rejected_sequences import RejectedSequences
from .settings.configuration import Configuration
from .settings.run_time_settings import RunTimeSettings
from .upkeep.disk_reserve import DiskReserves, is_out_of_room
from .upkeep.log_upkeep import LogUpkeep
from .upkeep.replica_moves import ReplicaMoves

FETCH_ANSWER_TIMEOUT_S = 10.0


@dataclass(slots=True, frozen=True, kw_only=True)
class Parts:
    """What the node starts and stops besides the broker's own parts."""

    broker: Broker
    metadata: MetadataFollower
    application: MetadataApplication
    group_commit: GroupCommit
    upkeep: LogUpkeep
    moves: ReplicaMoves
    peers: Peers
    grpc: grpc.aio.Server
    data_service: DataService


def assemble(
    configuration: Configuration,
    clock: Clock,
    disk: Disk,
    directory: DataFolders,
    reserves: DiskReserves,
    handled_keys: frozenset[int],
    *,
    node_view: Callable[[], NodeView],
    on_settings: Callable[[RunTimeSettings], None],
    fail_stop: Callable[[BaseException], None],
) -> Parts:
    """`node_view()`: for /metrics; `on_settings(settings)`: they have changed while the node runs;
    `fail_stop(error)` ends it."""
    node_id, integer = configuration.node_id, configuration.integer
    controller = ControllerClient({voter.node_id: str(voter.grpc) for voter in configuration.voters}, clock)
    metadata = _metadata_follower(configuration, controller, clock, fail_stop)
    cluster = ClusterView(node_id, metadata, controller, clock)
    settings, reached_by = RunTimeSettings(configuration), ReachedBy()
    lifecycle = BrokerLifecycle(
        node_id,
        controller,
        clock,
        session_timeout_s=configuration.seconds("broker.session.timeout.ms"),
        heartbeat_interval_s=configuration.seconds("broker.heartbeat.interval.ms"),
        applied_index=lambda: cluster.metadata_index,
        on_session_lost=lambda reason: replicas.suspend_leadership(reason),
        on_session_regained=lambda: replicas.resume_leadership(),
        on_superseded=lambda reason: fail_stop(RuntimeError(reason)),
        offline_replicas=lambda: application.offline_replicas(),
        damaged_replicas=lambda: application.damaged_replicas(),
        reached_by=lambda: reached_by.lives,
    )
    group_commit = GroupCommit(integer("log.flush.threads"), kernel=KernelSync.open())
    # Of an answer from a peer: at least one batch, however large, plus the rest of the fetch.
    frame_bytes_max = integer("socket.request.max.bytes") + integer("replica.fetch.response.max.bytes")
    peers = Peers(
        cluster.kafka_address, client_id=f"tidegate-node-{node_id}", max_frame_bytes=frame_bytes_max
    )

    def coordinator_of(topic: str) -> GroupCoordination | TransactionCoordination | None:
        if topic == CONSUMER_OFFSETS:
            return groups
        return transactions if topic == TRANSACTION_STATE else None

    replicas = ReplicaManager(
        node_id,
        directory,
        group_commit,
        clock,
        IsrRequests(cluster, controller, lambda: lifecycle.broker_epoch).alter_partitions,
        _fetch_transports(node_id, cluster, frame_bytes_max),
        listener=_partition_listener(
            coordinator_of,
            lambda topic, partition, _reason: application.replica_offline(topic, partition),
            fail_stop,
        ),
        broker=_broker_view(configuration, cluster, lifecycle, directory, reserves),
        config=_replication_config(configuration, settings),
    )
    topics = TopicCreation(configuration, cluster, controller, replicas.logs_made)

    producer_ids = _producer_ids(node_id, controller, lifecycle)
    on_invalid = fail_stop if configuration.flag("debug.validate") else None
    groups = GroupCoordination(configuration, cluster, replicas, lifecycle, clock, on_invalid)
    transactions = TransactionCoordination(
        configuration, cluster, replicas, lifecycle, producer_ids, peers,
        lambda: MarkerWrites(replicas, groups, clock), clock, on_invalid,
    )  # fmt: skip
    reachability = Reachability(
        cluster, lifecycle, reached_by, ask_over_kafka(frame_bytes_max), clock, fail_stop
    )
    application = MetadataApplication(
        cluster, settings, lifecycle, replicas, directory, groups, clock,
        on_brokers_changed=reachability.brokers_changed, on_settings=on_settings, on_failure=fail_stop,
    )  # fmt: skip
    moves = ReplicaMoves(directory, clock, settings.log_dirs_rate, reserves.given_up_at)
    broker = Broker(
        configuration=configuration,
        settings=settings,
        clock=clock,
        cluster=cluster,
        controller=controller,
        topics=topics,
        replicas=replicas,
        directory=directory,
        moves=moves,
        reserves=reserves,
        transactions=transactions,
        groups=groups,
        enlistment=TransactionEnlistment(node_id, topics, transactions, peers, clock),
        lifecycle=lifecycle,
        reachability=reachability,
        producer_ids=producer_ids,
        rejected_sequences=RejectedSequences(),
        described_topics=DescribedTopics(),
        client_metrics=ClientMetrics(),
        batch_threads=BatchThreads(),
        metrics=Metrics(node_id, __version__, node_view),
        handled_keys=handled_keys,
    )
    broker.metrics.registry.register(RecoveryCollector(directory))
    broker.metrics.registry.register(ClientMetricsCollector(broker.client_metrics))
    return Parts(
        broker=broker,
        metadata=metadata,
        application=application,
        group_commit=group_commit,
        upkeep=LogUpkeep(
            configuration, disk, clock, lambda: replicas.hosted, group_commit.request, settings.number
        ),
        moves=moves,
        peers=peers,
        grpc=grpc_server(),
        data_service=DataService(replicas, lambda: cluster.state, group_commit.request, broker.batch_threads),
    )


# ---- parts of which the settings and the metadata say everything -------------------------------------------


def _metadata_follower(
    configuration: Configuration,
    controller: ControllerClient,
    clock: Clock,
    fail_stop: Callable[[BaseException], None],
) -> MetadataFollower:
    return MetadataFollower(
        controller,
        configuration.node_id,
        clock,
        on_failure=fail_stop,
        silence_s_max=metadata_silence_s(configuration.seconds("broker.session.timeout.ms")),
        validator=StateValidator() if configuration.flag("debug.validate") else None,
    )


def _broker_view(
    configuration: Configuration,
    cluster: ClusterView,
    lifecycle: BrokerLifecycle,
    directory: DataFolders,
    reserves: DiskReserves,
) -> BrokerView:
    return BrokerView(
        broker_epoch=lambda: lifecycle.broker_epoch,
        holds_session=lambda: lifecycle.holds_session,
        partition_exists=lambda topic, partition: cluster.state.partition(topic, partition) is not None,
        is_out_of_room=lambda topic, partition: is_out_of_room(directory, reserves, topic, partition),
        eligibility_of=cluster.isr_eligibility,
        topic_name_of=cluster.topic_name,
        rack_of=cluster.rack_of if configuration.reads_from_closest_replica else None,
    )


def _replication_config(configuration: Configuration, settings: RunTimeSettings) -> ReplicationConfig:
    integer = configuration.integer
    return ReplicationConfig(
        replica_lag_time_max_ms=integer("replica.lag.time.max.ms"),
        make_logs_in_background=True,
        validate=configuration.flag("debug.validate"),
        client_sessions_max=integer("max.incremental.fetch.session.cache.slots"),
        limits=settings.replication_limits(),
        fetcher=FetcherLimits(
            wait_max_ms=integer("replica.fetch.wait.max.ms"),
            response_max_bytes=integer("replica.fetch.response.max.bytes"),
        ),
    )


def _fetch_transports(
    node_id: int, cluster: ClusterView, frame_bytes_max: int
) -> Callable[[int], FetchTransport]:
    """A follower's connection to a leader, by the leader's node id."""

    def fetch_transport(leader_id: int) -> FetchTransport:
        client_id = f"tidegate-follower-{node_id}"
        peer = Peer(leader_id, cluster.kafka_address, client_id=client_id, max_frame_bytes=frame_bytes_max)
        return PeerFetchTransport(peer, FETCH_ANSWER_TIMEOUT_S)

    return fetch_transport


def _partition_listener(
    coordinator_of: Callable[[str], GroupCoordination | TransactionCoordination | None],
    on_offline: Callable[[str, int, str], None],
    fail_stop: Callable[[BaseException], None],
) -> PartitionListener:
    """The coordinators hear of the partitions of their own topics."""

    def on_elected(topic: str, partition: int, leader_epoch: int, replica_log: Log) -> None:
        if (coordination := coordinator_of(topic)) is not None:
            coordination.on_elected(partition, leader_epoch, replica_log)

    def on_resigned(topic: str, partition: int, leader_epoch: int) -> None:
        if (coordination := coordinator_of(topic)) is not None:
            coordination.on_resigned(partition, leader_epoch)

    def on_high_watermark(topic: str, partition: int, offset: int) -> None:
        if (coordination := coordinator_of(topic)) is not None:
            coordination.on_high_watermark(partition, offset)

    return PartitionListener(on_elected, on_resigned, on_high_watermark, on_offline, on_invalid=fail_stop)


def _producer_ids(node_id: int, controller: ControllerClient, lifecycle: BrokerLifecycle) -> ProducerIds:
    async def allocate() -> tuple[int, int]:
        request = pb.AllocateProducerIdsRequest(node_id=node_id, broker_epoch=lifecycle.broker_epoch)
        reply = await controller.allocate_producer_ids(request, timeout_s=10.0)
        return reply.first_id, reply.count

    return ProducerIds(allocate)
