"""The broker as its listener and its request handlers see it: all its parts, which `assembly.py` makes before
the first request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...controller.remote.client import ControllerClient
from ...controller.state.cluster_state import ClusterState
from ...replication.manager import ReplicaManager
from ...runtime.clock import Clock
from ...storage.folders.data_folders import DataFolders
from ...wire.api import ApiKey, advertised
from ..cluster.cluster_view import ClusterView
from ..cluster.topic_creation import TopicCreation
from ..coordinators.group_coordination import GroupCoordination
from ..coordinators.producer_ids import ProducerIds
from ..coordinators.transaction_coordination import TransactionCoordination
from ..coordinators.transaction_enlistment import TransactionEnlistment
from ..cuts.cut_shards import CutShards
from ..lifecycle.broker_lifecycle import BrokerLifecycle
from ..lifecycle.probing import Probing
from ..observation.client_metrics import ClientMetrics
from ..observation.metrics import Metrics
from ..settings.configuration import Configuration
from ..settings.run_time_settings import RunTimeSettings
from ..upkeep.disk_reserve import DiskReserves
from ..upkeep.replica_moves import ReplicaMoves
from .audit import Audit
from .batch_threads import BatchThreads
from .described_topics import DescribedTopics
from .permissions import Permissions
from .rejected_sequences import RejectedSequences
from .throttling import Throttling

CLIENT_METRICS: Final = frozenset((ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY))


@dataclass(slots=True, frozen=True, kw_only=True)
class Broker:
    """The parts of a broker that request handlers use.  All of them run on the node's loop."""

    configuration: Configuration
    settings: RunTimeSettings
    clock: Clock
    cluster: ClusterView
    controller: ControllerClient
    topics: TopicCreation
    replicas: ReplicaManager
    directory: DataFolders
    moves: ReplicaMoves
    reserves: DiskReserves
    transactions: TransactionCoordination
    groups: GroupCoordination
    cut_shards: CutShards
    enlistment: TransactionEnlistment
    lifecycle: BrokerLifecycle
    probing: Probing
    producer_ids: ProducerIds
    permissions: Permissions
    throttling: Throttling
    audit: Audit
    rejected_sequences: RejectedSequences
    described_topics: DescribedTopics
    client_metrics: ClientMetrics
    batch_threads: BatchThreads
    metrics: Metrics
    handled_keys: frozenset[int]

    @property
    def node_id(self) -> int:
        return self.cluster.node_id

    @property
    def state(self) -> ClusterState:
        return self.cluster.state

    @property
    def announced_versions(self) -> Sequence[tuple[int, int, int]]:
        """Key, lowest and highest version of the requests in ApiVersions: client metrics only while there is
        a subscription to them, or when a setting says so, unstable versions only with two-phase commit."""
        keys, setting = self.handled_keys, self.configuration.flag
        is_subscribed = self.client_metrics.has_subscriptions(self.state.resource_configs)
        if not (setting("client.metrics.always.announced") or is_subscribed):
            keys -= CLIENT_METRICS
        return advertised(keys, unstable=setting("transaction.two.phase.commit.enable"))
