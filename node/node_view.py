"""What a node tells of itself, to Prometheus and to the admin service."""

from __future__ import annotations

from ..replication.replica.replica import Replica
from .observation.metrics import NodeView, PartitionMetrics
from .serving.broker import Broker
from .upkeep.log_upkeep import UpkeepView


def node_view(
    broker: Broker,
    *,
    controller_active: bool,
    ready: bool,
    connections: int,
    offline_replicas: int,
    upkeep: UpkeepView,
) -> NodeView:
    """Read on the loop, at the moment of the question."""
    shards = list(broker.transactions.shards)
    return NodeView(
        partitions=[_partition_view(replica) for replica in broker.replicas.hosted],
        active_transactional_ids=sum(len(shard.transactions) for shard in shards),
        open_transactions=sum(
            len(shard.ongoing) + len(shard.prepared) + len(shard.decided) for shard in shards
        ),
        groups=sum(
            len(shard.groups.classic) + len(shard.groups.consumers.groups) for shard in broker.groups.shards
        ),
        markers_abandoned=broker.transactions.markers_abandoned,
        jobs=broker.transactions.jobs(),
        pinned_cuts=len(broker.cluster.state.pinned_cuts),
        pinned_bytes=sum(replica.log.pinned_bytes for replica in broker.replicas.hosted),
        controller_active=controller_active,
        metadata_index=broker.cluster.metadata_index,
        ready=ready,
        connections=connections,
        upkeep=upkeep,
        under_min_isr=broker.replicas.hosted.under_min_isr_count,
        offline_replicas=offline_replicas,
        offline_data_folders=len(broker.directory.offline_folders),
        moving_replicas=broker.moves.count,
        move_copied_bytes=broker.moves.copied_bytes,
        shards=[*broker.transactions.views(), *broker.groups.views()],
    )


def _partition_view(replica: Replica) -> PartitionMetrics:
    log = replica.log
    return PartitionMetrics(
        topic=replica.topic,
        partition=replica.partition,
        is_leader=replica.is_leader,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        log_start_offset=log.log_start_offset,
        size_bytes=log.size_bytes,
        producer_ids=len(log.producers),
        under_replicated=replica.leader is not None and replica.leader.is_under_replicated(),
    )
