"""Plans to move partitions, and to cancel moves (AlterPartitionReassignments).

Pure; the rules of a move are those of `moves.py`.  Each partition has its own answer and its own
compare-and-set.  A request that was applied before moves nothing: its answer says which partitions are not,
or no longer, as it asks.
"""

from __future__ import annotations

from collections import Counter

from ....proto import controller_pb2 as rpc
from ....wire.errors import ErrorCode, KafkaError
from ...state.cluster_state import ClusterState
from ...state.features import require_level
from ...state.model import (
    MIN_IN_SYNC_REPLICAS_CONFIG,
    MOVES_LEVEL,
    PartitionState,
    TopicState,
)
from .elections import Wanted, able
from .moves import reassigned
from .partition_plan import PartitionPlan

LOST = ErrorCode.INVALID_UPDATE_VERSION, "the partition changed while its move was planned: ask again"


def plan_reassignments(
    state: ClusterState, request: rpc.ReassignPartitionsRequest, *, applied_before: bool = False
) -> PartitionPlan:
    """One result a partition.  Raises UNSUPPORTED_VERSION while not every node can know of moves."""
    require_level(state.features, MOVES_LEVEL)
    planned = PartitionPlan("partitions are moved", _has_moved, LOST)
    present = state.active_node_ids()
    asked = Counter((wanted.topic, wanted.partition) for wanted in request.partitions)
    for wanted in request.partitions:
        key = (wanted.topic, wanted.partition)
        result = rpc.PartitionResult(topic=wanted.topic, partition=wanted.partition)
        planned.results.append(result)
        try:
            if asked[key] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "this partition is in the request more than once")
            change = _plan_one(state, request, wanted, present, applied_before)
        except KafkaError as error:
            result.error, result.message = int(error.code), error.message
            continue
        if change is not None:
            planned.wanted[key] = change
    if not applied_before and any(result.error == ErrorCode.NONE for result in planned.results):
        planned.request_id = request.request_id
    return planned


def _has_moved(partition: PartitionState, wanted: Wanted) -> bool:
    return partition.partition_epoch != wanted.present.partition_epoch


def _plan_one(
    state: ClusterState,
    request: rpc.ReassignPartitionsRequest,
    wanted: rpc.Reassignment,
    present: set[int],
    applied_before: bool,
) -> Wanted | None:
    topic = state.topics.get(wanted.topic)
    partition = None if topic is None else topic.partitions.get(wanted.partition)
    if topic is None or partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
    target = partition.settled_replicas if wanted.cancel else tuple(wanted.replicas)
    if wanted.cancel and not partition.target:
        if applied_before:
            return None
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "this partition does not move")
    _check_target(
        state, topic, partition, target, keep_factor=request.keep_replication_factor and not wanted.cancel
    )
    serving = able(state, topic, wanted.partition, present)
    change = reassigned(topic, wanted.partition, partition, target, serving)
    if applied_before and change is not None:
        message = (
            "this request was carried out before, and this partition is not as it asks: refused then, or "
            "changed since"
        )
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    return change


def _check_target(
    state: ClusterState,
    topic: TopicState,
    partition: PartitionState,
    target: tuple[int, ...],
    *,
    keep_factor: bool,
) -> None:
    if not target or len(set(target)) != len(target):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(target)} are empty or not distinct"
        )
    unknown = [node_id for node_id in target if node_id not in state.brokers]
    if unknown:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(target)} name unknown brokers {unknown}"
        )
    before = len(partition.settled_replicas)
    if keep_factor and len(target) != before:
        message = f"The replication factor is changed from {before} to {len(target)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    least = topic.min_in_sync_replicas(partition.settled_replicas)
    if topic.internal and len(target) < least:
        message = (
            f"{topic.name!r} holds the coordinators' state: it needs the {least} replicas of "
            f"{MIN_IN_SYNC_REPLICAS_CONFIG}"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{message}, not {len(target)}")
