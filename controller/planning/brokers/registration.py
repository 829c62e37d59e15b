"""Registrations of brokers: which broker may join, what its return changes, and when its id is free again.

Pure functions of the state.  Order that must hold: fence, remove from every ISR, and only then a new broker
epoch: one plan, in this order (docs/semantics.md M5).
"""

from __future__ import annotations

from ....proto import controller_pb2 as rpc
from ....proto import metadata_pb2 as pb
from ....runtime.connections.host_names import host_problem
from ....wire.errors import ErrorCode, KafkaError
from ...state.broker_fields import checked_listeners, decode_replicas, encode_listeners, encode_replicas
from ...state.cluster_state import ClusterState
from ...state.features import level_problem, ranges_of, require_level
from ...state.model import (
    LISTENERS_LEVEL,
    MOVES_LEVEL,
    NO_BROKER_EPOCH,
    BrokerState,
    TopicState,
    metadata_level,
)
from ..partitions.elections import Loss, Wanted, change_operations, needed_changes
from ..plan import Plan
from .sessions import BrokerSessions

REPLICAS_SHOWN_MAX = 5


def plan_registration(
    state: ClusterState, sessions: BrokerSessions, request: rpc.RegisterBrokerRequest
) -> Plan:
    """No operation for a retry of this incarnation.  Raises KafkaError for one that must not join."""
    _check(state, request)
    existing = state.brokers.get(request.node_id)
    plan = Plan(reason="register broker")
    if existing is not None and existing.incarnation == request.incarnation:
        return plan
    if existing is not None:
        if not existing.fenced:
            fence = pb.FenceBroker(node_id=existing.node_id, broker_epoch=existing.broker_epoch)
            plan.operations.append(pb.Operation(fence_broker=fence))
        plan.operations += change_operations(_changes_after_restart(state, sessions, existing, request))
    present_epoch = NO_BROKER_EPOCH if existing is None else existing.broker_epoch
    registration = pb.RegisterBroker(
        node_id=request.node_id,
        incarnation=request.incarnation,
        rack=request.rack,
        kafka=pb.Endpoint(host=request.kafka_host, port=request.kafka_port),
        grpc=pb.Endpoint(host=request.grpc_host, port=request.grpc_port),
        directory_id=request.directory_id,
        supported_features=[
            pb.Feature(name=feature.name, level=feature.max_level)
            for feature in sorted(request.supported_features, key=lambda feature: feature.name)
        ],
        expected_broker_epoch=present_epoch,
        offline_replicas=encode_replicas(decode_replicas(request.offline_replicas), pb.PartitionsOfTopic),
    )
    if metadata_level(state.features) >= LISTENERS_LEVEL:
        registration.listeners.extend(encode_listeners(checked_listeners(request.listeners)))
    plan.operations.append(pb.Operation(register_broker=registration))
    return plan


def _check(state: ClusterState, request: rpc.RegisterBrokerRequest) -> None:
    if request.node_id < 0 or not request.incarnation:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "a registration needs a node id of at least 0 and an incarnation"
        )
    for host, port in ((request.kafka_host, request.kafka_port), (request.grpc_host, request.grpc_port)):
        problem = host_problem(host)
        if problem is not None or not 0 <= port <= 65535:
            message = f"broker {request.node_id} cannot be reached: {problem or f'{port} is no port'}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    try:
        checked_listeners(request.listeners)
    except ValueError as error:
        message = f"clients cannot reach broker {request.node_id}: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from error
    if request.cluster_id and request.cluster_id != state.cluster_id:
        message = (
            f"broker {request.node_id} belongs to cluster {request.cluster_id}, this is {state.cluster_id}"
        )
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
    known = ranges_of(request.supported_features)
    problem = level_problem(f"broker {request.node_id}", known, state.features)
    if problem is not None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, problem)


def _changes_after_restart(
    state: ClusterState, sessions: BrokerSessions, existing: BrokerState, request: rpc.RegisterBrokerRequest
) -> list[Wanted]:
    """The broker epoch in the clean mark proves a clean shutdown.  Without that proof, unflushed records
    may be lost; a topic that is flushed before it is acknowledged has lost nothing if the disk is proved
    to be the same."""
    clean = request.clean_shutdown_broker_epoch == existing.broker_epoch
    same_disk = bool(request.directory_id) and request.directory_id == existing.directory_id
    replaced = bool(existing.directory_id) and bool(request.directory_id) and not same_disk

    def of_topic(topic: TopicState) -> bool:
        return replaced or (not clean and not (same_disk and topic.flushed_before_acknowledged))

    present = state.active_node_ids() - {existing.node_id}
    damaged = decode_replicas(request.damaged_replicas)
    loss = Loss(existing.node_id, of_topic, damaged, of_disk=replaced)
    return needed_changes(state, present, sessions.reachability.is_reached, loss)


def plan_unregistration(state: ClusterState, node_id: int) -> Plan:
    """Removes the registration of a broker that will not come back.  Raises KafkaError while it is alive
    or holds replicas."""
    broker = state.brokers.get(node_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered"
        )
    require_level(state.features, MOVES_LEVEL)
    if not broker.fenced:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"broker {node_id} is alive: stop it first")
    held = state.replicas_of(node_id, REPLICAS_SHOWN_MAX + 1)
    if held:
        shown = ", ".join(f"{topic}-{number}" for topic, number in held[:REPLICAS_SHOWN_MAX])
        more = " and more" if len(held) > REPLICAS_SHOWN_MAX else ""
        message = (
            f"broker {node_id} is a replica of {shown}{more}: move them first (`tidegate partitions "
            "reassign`)"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    removal = pb.UnregisterBroker(node_id=node_id, broker_epoch=broker.broker_epoch)
    return Plan([pb.Operation(unregister_broker=removal)], "unregister broker")


def broker_with_epoch(state: ClusterState, node_id: int, broker_epoch: int) -> BrokerState:
    """Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH; NOT_CONTROLLER when this controller does not
    have the registration.

    Such a controller was deposed and does not know it yet: a broker that got STALE_BROKER_EPOCH from it
    would stop itself.
    """
    if broker_epoch > state.index:
        message = (
            f"broker {node_id} registered at entry {broker_epoch}, and this controller has only {state.index}"
        )
        raise KafkaError(ErrorCode.NOT_CONTROLLER, message)
    broker = state.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        message = f"broker {node_id} is registered with epoch {broker.broker_epoch}, not {broker_epoch}"
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, message)
    return broker
