"""Controlled shutdown (docs/semantics.md M17), in this order: the broker gets nothing new, its leaderships
move, all other active brokers apply that entry, and only then the broker may stop.
"""

from __future__ import annotations

from ....proto import metadata_pb2 as pb
from ...state.cluster_state import ClusterState
from ...state.model import BrokerState
from ..partitions.elections import change_operations, needed_changes
from ..plan import Plan
from .sessions import BrokerSessions


def plan_shutdown(
    state: ClusterState, applied: ClusterState, sessions: BrokerSessions, broker: BrokerState
) -> Plan:
    """`applied`: the applied state; `state`: the one that the commands in flight lead to."""
    plan = Plan(reason="controlled shutdown")
    if not broker.shutting_down:
        begin = pb.BeginControlledShutdown(node_id=broker.node_id, broker_epoch=broker.broker_epoch)
        plan.operations.append(pb.Operation(begin_controlled_shutdown=begin))
        present, reached = state.active_node_ids() - {broker.node_id}, sessions.reachability.is_reached
        plan.operations += change_operations(needed_changes(state, present, reached))
    elif not broker.fenced and _may_stop(state, applied, sessions, broker):
        fence = pb.FenceBroker(node_id=broker.node_id, broker_epoch=broker.broker_epoch)
        plan.operations.append(pb.Operation(fence_broker=fence))
    return plan


def shutdown_began(applied: ClusterState, sessions: BrokerSessions, node_id: int) -> None:
    """The plan of a controlled shutdown is applied: a broker that has applied this index knows the new
    leaders."""
    session, broker = sessions.by_id.get(node_id), applied.brokers.get(node_id)
    if session is not None and session.shutdown_index == 0 and broker is not None and broker.shutting_down:
        session.shutdown_index = applied.index


def _may_stop(
    state: ClusterState, applied: ClusterState, sessions: BrokerSessions, broker: BrokerState
) -> bool:
    session, known = sessions.by_id.get(broker.node_id), applied.brokers.get(broker.node_id)
    if session is None or known is None or not known.shutting_down:
        return False
    if session.shutdown_index == 0:  # the shutdown began under an earlier controller
        session.shutdown_index = applied.index
    others = [sessions.by_id[node_id] for node_id in state.active_node_ids() if node_id in sessions.by_id]
    if any(other.applied_index < session.shutdown_index for other in others):
        return False
    return not any(
        broker.node_id in partition.isr
        for topic in state.topics.values()
        for partition in topic.partitions.values()
    )
