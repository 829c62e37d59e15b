"""Makes the parts of one broker, each after those that it needs; starts nothing.

In stages: the cluster and the session with its controller (`_join`), the replicas, the coordinators, what
carries out the metadata, what serves requests.  Two parts call others that are made after them:
`ReplicaEvents` learns of its receivers here, when all are made, and `BrokerLifecycle.start` of the parts that
its heartbeats are about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import grpc.aio

from .. import __version__
from ..controller.remote.client import ControllerClient
from ..controller.remote.metadata_follower import MetadataFollower
from ..controller.state.validation import StateValidator
from ..proto import controller_pb2 as pb
from ..replication.broker_view import BrokerView
from ..replication.fetching.configuration import ReplicationConfig
from ..replication.fetching.fetcher import FetcherLimits, FetchTransport
from ..replication.manager import ReplicaManager
from ..runtime.clock import Clock
from ..runtime.connections.tls import ServerTls
from ..runtime.disk import Disk
from ..runtime.kernel_sync import KernelSync
from ..runtime.network import GRPC_FOR_CLIENTS, grpc_node_channel, grpc_server
from ..storage.folders.data_folders import DataFolders
from ..storage.log.group_commit import GroupCommit
from .cluster.cluster_view import ClusterView
from .cluster.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from .cluster.isr_requests import IsrRequests
from .cluster.node_certificates import NodeCertificates
from .cluster.peers import Peer, PeerFetchTransport, Peers
from .cluster.topic_creation import TopicCreation
from .coordinators.group_coordination import GroupCoordination
from .coordinators.marker_writing import MarkerWrites
from .coordinators.producer_ids import ProducerIds
from .coordinators.transaction_coordination import TransactionCoordination
from .coordinators.transaction_enlistment import TransactionEnlistment
from .cuts.cut_metrics import CutMetrics
from .cuts.cut_service import CutService
from .cuts.cut_shards import CutShards
from .cuts.pinned_cut_calls import PinnedCutCalls
from .cuts.pinning import CutPinning
from .cuts.taker import CutTaker
from .data.coordinator_calls import CoordinatorCalls
from .data.data_service import DataService
from .data.job_service import JobService
from .data.range_connections import RangeConnections
from .data.two_phase_commit import TwoPhaseCommitService
from .lifecycle.broker_lifecycle import BrokerLifecycle, metadata_silence_s
from .lifecycle.log_recovery import RecoveryCollector
from .lifecycle.probing import Probing, ReachedBy, ask_over_kafka
from .metadata_application import MetadataApplication
from .observation.client_metrics import ClientMetrics, ClientMetricsCollector
from .observation.metrics import Metrics, NodeView
from .replica_events import ReplicaEvents
from .serving.audit import Audit
from .serving.authentication import ListenerIdentity
from .serving.batch_threads import BatchThreads
from .serving.broker import Broker
from .serving.codecs import Codecs
from .serving.described_topics import DescribedTopics
from .serving.grpc_callers import GrpcAccess, GrpcGuard
from .serving.grpc_peers import NodesOnly
from .serving.key_set import (
    OF_A_FILE,
    BearerKeys,
    KeySet,
    KeySetCollector,
    KeySetEndpoint,
    KeySetFile,
    ReadTimes,
)
from .serving.permissions import Permissions
from .serving.rejected_sequences import RejectedSequences
from .serving.throttling import ThrottledCollector, Throttling
from .settings.configuration import Configuration
from .settings.run_time_settings import RunTimeSettings
from .settings.security_settings import HttpsUrl, key_set_location, super_users, token_rules
from .upkeep.certificate_renewal import CertificateRenewal, ExpiryCollector, Renewable
from .upkeep.disk_reserve import DiskReserves, is_out_of_room
from .upkeep.housekeeping import Housekeeping
from .upkeep.log_upkeep import LogUpkeep
from .upkeep.replica_moves import ReplicaMoves

FETCH_ANSWER_TIMEOUT_S = 10.0
CONTROLLER_METHODS = "/tidegate.controller."


@dataclass(slots=True, frozen=True, kw_only=True)
class Foundation:
    """What a node has before its parts.  `fail_stop(error)` ends it."""

    configuration: Configuration
    clock: Clock
    disk: Disk
    directory: DataFolders
    reserves: DiskReserves
    certificates: NodeCertificates
    codecs: Codecs
    pages_tls: ServerTls | None
    """Of the metrics' listener; None: it is plain text."""
    fail_stop: Callable[[BaseException], None]

    @property
    def peer_frame_bytes_max(self) -> int:
        """Of an answer from a peer: at least one batch, however large, plus the rest of the fetch."""
        integer = self.configuration.integer
        return integer("socket.request.max.bytes") + integer("replica.fetch.response.max.bytes")


@dataclass(slots=True, frozen=True, kw_only=True)
class Parts:
    """What the node starts and stops besides the broker's own parts."""

    broker: Broker
    metadata: MetadataFollower
    application: MetadataApplication
    group_commit: GroupCommit
    upkeep: LogUpkeep
    housekeeping: Housekeeping
    moves: ReplicaMoves
    peers: Peers
    cut_taker: CutTaker
    cut_pinning: CutPinning
    cut_service: CutService
    grpc: grpc.aio.Server
    access: GrpcAccess
    data_service: DataService
    range_connections: RangeConnections
    two_phase_commit: TwoPhaseCommitService
    job_service: JobService
    identities: Mapping[str, ListenerIdentity]
    """Of the Kafka listeners and gRPC's, by their names."""
    key_set: KeySet
    renewal: CertificateRenewal


def assemble(
    foundation: Foundation,
    handled_keys: frozenset[int],
    *,
    node_view: Callable[[], NodeView],
    on_settings: Callable[[RunTimeSettings], None],
) -> Parts:
    """`node_view()`: for /metrics; `on_settings(settings)`: they have changed while the node runs.  Raises
    TlsError."""
    configuration, clock, directory = foundation.configuration, foundation.clock, foundation.directory
    settings = RunTimeSettings(configuration)
    group_commit = GroupCommit(configuration.integer("log.flush.threads"), kernel=KernelSync.open())

    joined = _join(foundation)
    cluster = joined.cluster
    events = ReplicaEvents()
    replicas = _replicas(foundation, joined, settings, group_commit, events)
    coordinators = _coordinators(foundation, joined, replicas)
    application = MetadataApplication(
        cluster, settings, joined.lifecycle, replicas, directory, coordinators.groups, clock,
        on_brokers_changed=joined.probing.brokers_changed, on_settings=on_settings,
        on_failure=foundation.fail_stop,
    )  # fmt: skip
    events.pass_on_to(
        {CONSUMER_OFFSETS: coordinators.groups, TRANSACTION_STATE: coordinators.transactions},
        application.replica_offline,
    )

    admission = _admission(foundation, joined)
    batch_threads, client_metrics = BatchThreads(), ClientMetrics()
    moves = ReplicaMoves(
        directory, clock, settings.log_dirs_rate, foundation.reserves.given_up_at, foundation.fail_stop
    )
    cut_metrics = CutMetrics()
    broker = Broker(
        configuration=configuration,
        settings=settings,
        clock=clock,
        cluster=cluster,
        controller=joined.controller,
        topics=coordinators.topics,
        replicas=replicas,
        directory=directory,
        moves=moves,
        reserves=foundation.reserves,
        transactions=coordinators.transactions,
        groups=coordinators.groups,
        cut_shards=coordinators.cut_shards,
        enlistment=coordinators.enlistment,
        lifecycle=joined.lifecycle,
        probing=joined.probing,
        producer_ids=coordinators.producer_ids,
        permissions=admission.permissions,
        throttling=admission.throttling,
        audit=admission.audit,
        rejected_sequences=RejectedSequences(),
        described_topics=DescribedTopics(),
        client_metrics=client_metrics,
        batch_threads=batch_threads,
        metrics=metrics_of(
            configuration.node_id,
            directory,
            client_metrics,
            admission.throttling,
            admission.renewables,
            admission.key_set,
            cut_metrics,
            node_view,
        ),
        handled_keys=handled_keys,
    )
    flush = group_commit.request
    cut_taker = CutTaker(
        cluster, joined.controller, _peers(foundation, cluster, "cuts"), coordinators.cut_shards, clock,
        cut_metrics,
    )  # fmt: skip
    cut_pinning = CutPinning(cluster, joined.controller, clock, cut_taker.take)
    data_service = DataService(
        replicas,
        lambda: cluster.state,
        flush,
        batch_threads,
        admission.access,
        admission.throttling,
    )
    return Parts(
        broker=broker,
        metadata=joined.metadata,
        application=application,
        group_commit=group_commit,
        upkeep=LogUpkeep(
            configuration,
            foundation.disk,
            clock,
            lambda: replicas.hosted,
            flush,
            settings.number,
            foundation.fail_stop,
        ),
        housekeeping=Housekeeping(
            configuration,
            clock,
            directory,
            foundation.reserves,
            foundation.codecs,
            application.open_again,
            client_metrics,
            lambda: replicas.hosted,
            foundation.fail_stop,
        ),
        moves=moves,
        peers=coordinators.peers,
        cut_taker=cut_taker,
        cut_pinning=cut_pinning,
        cut_service=CutService(
            cut_taker,
            PinnedCutCalls(cluster, cut_pinning, admission.access, joined.controller.read_barrier),
            admission.access,
        ),
        grpc=_grpc_server(foundation, admission.access),
        access=admission.access,
        data_service=data_service,
        range_connections=RangeConnections(
            data_service,
            admission.access,
            connections_max=configuration.grpc_connections_max(configuration.listeners.grpc),
            idle_s=configuration.seconds("connections.max.idle.ms"),
        ),
        two_phase_commit=TwoPhaseCommitService(
            configuration, broker.transactions, admission.access, CoordinatorCalls(cluster)
        ),
        job_service=JobService(
            broker.topics, broker.transactions, admission.access, CoordinatorCalls(cluster)
        ),
        identities=admission.identities,
        key_set=admission.key_set,
        renewal=CertificateRenewal(admission.renewables, clock, foundation.fail_stop),
    )


# ---- the cluster -------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Joined:
    """The cluster as this broker knows it, and its session there."""

    controller: ControllerClient
    metadata: MetadataFollower
    cluster: ClusterView
    lifecycle: BrokerLifecycle
    probing: Probing


def _join(foundation: Foundation) -> _Joined:
    configuration, clock, fail_stop = foundation.configuration, foundation.clock, foundation.fail_stop
    session_timeout_s = configuration.seconds("broker.session.timeout.ms")
    certificates = foundation.certificates
    controller = ControllerClient(
        {voter.node_id: str(voter.grpc) for voter in configuration.voters},
        clock,
        channel_factory=lambda node_id, target: grpc_node_channel(target, node_id, certificates.controllers),
    )
    metadata = MetadataFollower(
        controller,
        configuration.node_id,
        clock,
        on_failure=fail_stop,
        silence_s_max=metadata_silence_s(session_timeout_s),
        validator=StateValidator() if configuration.flag("debug.validate") else None,
    )
    cluster = ClusterView(configuration.node_id, metadata, controller, clock)
    reached_by = ReachedBy()
    lifecycle = BrokerLifecycle(
        configuration.node_id,
        controller,
        clock,
        session_timeout_s=session_timeout_s,
        heartbeat_interval_s=configuration.seconds("broker.heartbeat.interval.ms"),
        applied_index=lambda: cluster.metadata_index,
        on_superseded=lambda reason: fail_stop(RuntimeError(reason)),
        reached_by=lambda: reached_by.lives,
    )
    ask = ask_over_kafka(foundation.peer_frame_bytes_max, certificates.brokers)
    probing = Probing(cluster, lifecycle, reached_by, ask, clock, fail_stop)
    return _Joined(controller, metadata, cluster, lifecycle, probing)


# ---- the replicas ------------------------------------------------------------------------------------------


def _replicas(
    foundation: Foundation,
    joined: _Joined,
    settings: RunTimeSettings,
    group_commit: GroupCommit,
    events: ReplicaEvents,
) -> ReplicaManager:
    configuration, cluster, lifecycle = foundation.configuration, joined.cluster, joined.lifecycle
    broker = BrokerView(
        broker_epoch=lambda: lifecycle.broker_epoch,
        holds_session=lambda: lifecycle.holds_session,
        partition_exists=lambda topic, partition: cluster.state.partition(topic, partition) is not None,
        is_out_of_room=partial(is_out_of_room, foundation.directory, foundation.reserves),
        eligibility_of=cluster.isr_eligibility,
        topic_name_of=cluster.topic_name,
        rack_of=cluster.rack_of if configuration.reads_from_closest_replica else None,
    )
    return ReplicaManager(
        configuration.node_id,
        foundation.directory,
        group_commit,
        foundation.clock,
        IsrRequests(cluster, joined.controller, lambda: lifecycle.broker_epoch).alter_partitions,
        _fetch_transports(foundation, cluster),
        listener=events.listener(foundation.fail_stop),
        broker=broker,
        config=_replication_config(configuration, settings),
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


def _fetch_transports(foundation: Foundation, cluster: ClusterView) -> Callable[[int], FetchTransport]:
    """A follower's connection to a leader, by the leader's node id."""

    def fetch_transport(leader_id: int) -> FetchTransport:
        peer = Peer(
            leader_id,
            cluster.kafka_address,
            client_id=f"tidegate-follower-{foundation.configuration.node_id}",
            max_frame_bytes=foundation.peer_frame_bytes_max,
            tls=foundation.certificates.brokers,
        )
        return PeerFetchTransport(peer, FETCH_ANSWER_TIMEOUT_S)

    return fetch_transport


# ---- the coordinators --------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Coordinators:
    """Their state is in replicas; `enlistment` and `topics` ask them and the controller for partitions."""

    groups: GroupCoordination
    transactions: TransactionCoordination
    producer_ids: ProducerIds
    enlistment: TransactionEnlistment
    topics: TopicCreation
    peers: Peers
    cut_shards: CutShards


def _peers(foundation: Foundation, cluster: ClusterView, purpose: str) -> Peers:
    return Peers(
        cluster.kafka_address,
        client_id=f"tidegate-{purpose}-{foundation.configuration.node_id}",
        max_frame_bytes=foundation.peer_frame_bytes_max,
        tls=foundation.certificates.brokers,
    )


def _coordinators(foundation: Foundation, joined: _Joined, replicas: ReplicaManager) -> _Coordinators:
    configuration, clock, cluster = foundation.configuration, foundation.clock, joined.cluster
    node_id, lifecycle = configuration.node_id, joined.lifecycle
    on_invalid = foundation.fail_stop if configuration.flag("debug.validate") else None
    peers = _peers(foundation, cluster, "node")
    producer_ids = _producer_ids(node_id, joined.controller, lifecycle)
    groups = GroupCoordination(
        configuration, cluster, replicas, lifecycle, clock, foundation.fail_stop, on_invalid
    )
    transactions = TransactionCoordination(
        configuration, cluster, replicas, lifecycle, producer_ids, peers,
        lambda: MarkerWrites(replicas, groups, clock), clock, foundation.fail_stop, on_invalid,
    )  # fmt: skip
    topics = TopicCreation(configuration, cluster, joined.controller, replicas.logs_made)
    enlistment = TransactionEnlistment(node_id, topics, transactions, peers, clock)
    cut_shards = CutShards(transactions, replicas)
    return _Coordinators(groups, transactions, producer_ids, enlistment, topics, peers, cut_shards)


def _producer_ids(node_id: int, controller: ControllerClient, lifecycle: BrokerLifecycle) -> ProducerIds:
    async def allocate() -> tuple[int, int]:
        request = pb.AllocateProducerIdsRequest(node_id=node_id, broker_epoch=lifecycle.broker_epoch)
        reply = await controller.allocate_producer_ids(request, timeout_s=10.0)
        return reply.first_id, reply.count

    return ProducerIds(allocate)


# ---- metrics -----------------------------------------------------------------------------------------------


def metrics_of(
    node_id: int,
    directory: DataFolders,
    client_metrics: ClientMetrics,
    throttling: Throttling,
    renewables: Mapping[str, Renewable],
    key_set: KeySet,
    cuts: CutMetrics,
    node_view: Callable[[], NodeView],
) -> Metrics:
    """All that a node exports; docs/operations.md has a table made of it."""
    metrics = Metrics(node_id, __version__, node_view)
    metrics.registry.register(RecoveryCollector(directory))
    metrics.registry.register(cuts)
    metrics.registry.register(ClientMetricsCollector(client_metrics))
    metrics.registry.register(ThrottledCollector(throttling))
    metrics.registry.register(ExpiryCollector(renewables))
    metrics.registry.register(KeySetCollector(key_set))
    return metrics


# ---- the admission of clients ------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Admission:
    """How clients prove who they are, what they may do, and how much they get."""

    audit: Audit
    permissions: Permissions
    throttling: Throttling
    identities: Mapping[str, ListenerIdentity]
    access: GrpcAccess
    key_set: KeySet
    renewables: Mapping[str, Renewable]


def _admission(foundation: Foundation, joined: _Joined) -> _Admission:
    """Raises TlsError."""
    configuration, clock, cluster = foundation.configuration, foundation.clock, joined.cluster
    audit = Audit(clock)
    permissions = _permissions(foundation, cluster, audit)
    throttling = Throttling(
        lambda: cluster.state.security.quotas,
        clock,
        configuration.quota_window(),
        may_act_as_node=permissions.may_act_as_node,
    )
    key_set = _key_set(foundation)
    identities = _identities(foundation, cluster, key_set)
    grpc_identity = identities[configuration.listeners.grpc.name]
    access = GrpcAccess(grpc_identity, permissions, on_refused=audit.call_refused)
    renewables = _renewables(foundation, joined, identities)
    return _Admission(audit, permissions, throttling, identities, access, key_set, renewables)


def _grpc_server(foundation: Foundation, access: GrpcAccess) -> grpc.aio.Server:
    """It may have the controller's service, too, which is for nodes alone."""
    configuration, listeners = foundation.configuration, foundation.configuration.listeners
    guard = GrpcGuard(access, unguarded=(CONTROLLER_METHODS,))
    nodes_only = () if foundation.certificates.controllers is None else (NodesOnly(),)
    serves_nodes = configuration.is_controller and not listeners.own_controller_grpc
    server = grpc_server(
        () if serves_nodes else GRPC_FOR_CLIENTS,
        [guard, *nodes_only],
        connections_max=configuration.grpc_connections_max(listeners.grpc),
        idle_s=configuration.seconds("connections.max.idle.ms"),
    )
    guard.add_to_server(server)
    return server


def _identities(foundation: Foundation, cluster: ClusterView, key_set: KeySet) -> dict[str, ListenerIdentity]:
    """How each listener for clients knows them.  Raises TlsError."""
    configuration, certificates = foundation.configuration, foundation.certificates
    rules = token_rules(configuration.values)
    bearer = None if key_set.source is None else BearerKeys(rules, key_set)
    return {
        name: ListenerIdentity(
            security,
            clock=foundation.clock,
            records=lambda: cluster.state.security,
            token_secret=configuration.token_settings().secret,
            certificates=certificates.of(name),
            bearer=bearer,
        )
        for name, security in configuration.listener_security.items()
        if name != configuration.listeners.metrics.name
    }


def _renewables(
    foundation: Foundation, joined: _Joined, identities: Mapping[str, ListenerIdentity]
) -> Mapping[str, Renewable]:
    """The certificates between nodes, and those of listeners for clients."""
    found = {
        f"nodes ({each.files.certificate})": Renewable(each, joined.controller.renew_channels)
        for each in foundation.certificates.loaded
    }
    of_listeners = {name: each.tls for name, each in identities.items() if not each.is_for_nodes}
    of_listeners[foundation.configuration.listeners.metrics.name] = foundation.pages_tls
    return found | {name: Renewable(tls) for name, tls in of_listeners.items() if tls is not None}


def _key_set(foundation: Foundation) -> KeySet:
    configuration, clock, on_failure = foundation.configuration, foundation.clock, foundation.fail_stop
    match key_set_location(configuration.values):
        case HttpsUrl() as url:
            times = ReadTimes(
                refresh_s=configuration.seconds("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
                retry_s=configuration.seconds("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
                retry_s_max=configuration.seconds("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
            )
            return KeySet(KeySetEndpoint(url), times, clock, on_failure)
        case path:
            source = None if path is None else KeySetFile(path, foundation.disk)
            return KeySet(source, OF_A_FILE, clock, on_failure)


def _permissions(foundation: Foundation, cluster: ClusterView, audit: Audit) -> Permissions:
    configuration = foundation.configuration
    return Permissions(
        lambda: cluster.state.security,
        is_enabled=configuration.text("authorizer.class.name") != "",
        nodes_have_certificates=foundation.certificates.brokers is not None,
        super_users=super_users(configuration.text("super.users")),
        allow_if_no_acl=configuration.flag("allow.everyone.if.no.acl.found"),
        on_refused=audit.refused,
    )
