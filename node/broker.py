"""One broker as its listener and its request handlers see it: all parts, made once by `node.py` before the first request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..controller.client import ControllerClient
from ..controller.state import ClusterState
from ..replication.manager import ReplicaManager
from ..runtime.clock import Clock
from ..storage.data_folders import DataFolders
from ..wire.api import ApiKey
from .batch_threads import BatchThreads
from .client_metrics import ClientMetrics
from .cluster_view import ClusterView
from .configuration import Configuration
from .described_topics import DescribedTopics
from .disk_reserve import DiskReserves
from .finding import Finding
from .group_coordination import GroupCoordination
from .membership import Membership
from .metrics import Metrics
from .producer_ids import ProducerIds
from .refused_batches import RefusedBatches
from .replica_moves import ReplicaMoves
from .run_time_settings import RunTimeSettings
from .topic_creation import TopicCreation
from .transaction_coordination import TransactionCoordination
from .transaction_enlistment import TransactionEnlistment

CLIENT_METRICS: Final = frozenset((ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY))


@dataclass(slots=True, frozen=True, kw_only=True)
class Broker:
    """What stands behind the requests.  Everything runs on the node's loop."""

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
    enlistment: TransactionEnlistment
    membership: Membership
    finding: Finding
    producer_ids: ProducerIds
    refused_batches: RefusedBatches
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
    def announced_keys(self) -> frozenset[int]:
        """The requests that clients are told of now: client metrics only while there is a subscription to them, or by setting."""
        always = self.configuration.flag("client.metrics.always.announced")
        if always or self.client_metrics.has_subscriptions(self.state.resource_configs):
            return self.handled_keys
        return self.handled_keys - CLIENT_METRICS
