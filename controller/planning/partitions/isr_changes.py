"""The ISR changes that leaders ask for (AlterPartitions): which of them the controller accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ....proto import controller_pb2 as rpc
from ....proto import metadata_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...state.cluster_state import ClusterState
from ...state.eligibility import Eligibility, isr_eligibility
from ...state.model import NO_BROKER_EPOCH, PartitionState, TopicState
from ..brokers.registration import broker_with_epoch
from ..brokers.sessions import BrokerSessions
from ..plan import Plan
from .elections import Wanted, change_operations, eligible_leaders


class IsrPlan(NamedTuple):
    """The plan of the valid ISR changes, and one error a change (NONE: planned, or already so)."""

    plan: Plan
    errors: list[ErrorCode]

    @property
    def reason(self) -> str:
        return self.plan.reason

    def commands(self, controller_epoch: int) -> Iterator[pb.Command]:
        return self.plan.commands(controller_epoch)


def plan_isr_changes(
    state: ClusterState, sessions: BrokerSessions, request: rpc.AlterPartitionsRequest
) -> IsrPlan:
    """Raises REQUEST_TIMED_OUT for an attempt that is older than the last: after INELIGIBLE_REPLICA a leader
    no longer counts that replica, so the controller must not accept an earlier copy of the change later
    (docs/semantics.md M12).
    """
    broker = broker_with_epoch(state, request.node_id, request.broker_epoch)
    if not sessions.is_newest_isr_attempt(broker, request.attempt):
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"attempt {request.attempt} came after a later one")
    wanted, errors = [], []
    for change in request.changes:
        topic = state.topic_by_raw_id(change.topic_id)
        partition = None if topic is None else topic.partitions.get(change.partition)
        if topic is None or partition is None:
            errors.append(
                ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            continue
        error = _change_error(state, request.node_id, change, topic, partition)
        errors.append(ErrorCode.NONE if error is None else error)
        if error is not None or _already_so(change, partition):
            continue
        isr = tuple(change.isr)
        elr = eligible_leaders(topic, partition, isr)
        epochs = tuple(change.isr_broker_epochs)
        wanted.append(
            Wanted(topic, change.partition, partition, partition.leader, isr, elr, partition.leader, epochs)
        )
    return IsrPlan(Plan(list(change_operations(wanted)), "alter partitions"), errors)


def _change_error(
    state: ClusterState, node_id: int, change: rpc.IsrChange, topic: TopicState, partition: PartitionState
) -> ErrorCode | None:
    if change.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if change.leader_epoch > partition.leader_epoch or partition.leader != node_id:
        return ErrorCode.INVALID_REQUEST
    if _already_so(change, partition):
        return None
    if change.partition_epoch != partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = tuple(change.isr)
    if node_id not in isr or len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if change.isr_broker_epochs and len(change.isr_broker_epochs) != len(isr):
        return ErrorCode.INVALID_REQUEST
    epochs = change.isr_broker_epochs or [NO_BROKER_EPOCH] * len(isr)
    replica = (topic.topic_id.bytes, change.partition)
    for member, epoch in zip(isr, epochs, strict=True):
        broker, joins = state.brokers.get(member), member not in partition.isr
        if isr_eligibility(broker, epoch, joins=joins, replica=replica) is not Eligibility.YES:
            return ErrorCode.INELIGIBLE_REPLICA
    return None


def _already_so(change: rpc.IsrChange, partition: PartitionState) -> bool:
    """Whether the partition already is as the change asks: a retry whose first attempt succeeded, or no
    change at all."""
    same = tuple(change.isr) == partition.isr and change.leader_epoch == partition.leader_epoch
    return same and change.partition_epoch in (partition.partition_epoch, partition.partition_epoch - 1)
