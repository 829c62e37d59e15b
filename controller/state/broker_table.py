"""The registered brokers: a part of `ClusterState.apply`, and as total and deterministic as that.

A broker gets a new epoch only after its old one was fenced and removed from every ISR (docs/semantics.md M5).
Only a fenced broker without replicas can be unregistered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode
from .broker_fields import decode_listeners, decode_replicas
from .changes import Changes, Refused
from .model import LISTENERS_LEVEL, NO_BROKER_EPOCH, BrokerState, Value, metadata_level
from .topic_table import TopicTable

if TYPE_CHECKING:
    from collections.abc import Mapping


class BrokerTable:
    """The brokers by node id, fenced ones too."""

    __slots__ = ("by_id",)

    def __init__(self, by_id: Mapping[int, BrokerState] | None = None) -> None:
        self.by_id = dict(by_id or {})

    # ---- views ---------------------------------------------------------------------------------------------

    def registered(self) -> list[BrokerState]:
        """All registered brokers, fenced ones too, by node id."""
        return [self.by_id[node_id] for node_id in sorted(self.by_id)]

    def unfenced(self) -> list[BrokerState]:
        """By node id; those in a controlled shutdown, which are not active, are still among them."""
        return [self.by_id[node_id] for node_id in sorted(self.by_id) if not self.by_id[node_id].fenced]

    def offline_nodes(self, topic_id: UUID, partition: int) -> frozenset[int]:
        """Brokers whose replica of this partition is offline, although they may be alive."""
        key = (topic_id.bytes, partition)
        return frozenset(broker.node_id for broker in self.by_id.values() if key in broker.offline_replicas)

    # ---- operations ----------------------------------------------------------------------------------------

    def with_epoch(self, node_id: int, broker_epoch: int) -> BrokerState:
        broker = self.by_id.get(node_id)
        if broker is None:
            raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
        if broker.broker_epoch != broker_epoch:
            message = f"broker {node_id} has epoch {broker.broker_epoch}, not {broker_epoch}"
            raise Refused(ErrorCode.STALE_BROKER_EPOCH, message)
        return broker

    def register(
        self, op: pb.RegisterBroker, topics: TopicTable, features: Mapping[str, int], changes: Changes
    ) -> Value:
        existing = self.by_id.get(op.node_id)
        if existing is not None and existing.incarnation == op.incarnation:
            return existing.broker_epoch
        present_epoch = NO_BROKER_EPOCH if existing is None else existing.broker_epoch
        if op.expected_broker_epoch != present_epoch:
            raise Refused(
                ErrorCode.STALE_BROKER_EPOCH, f"broker {op.node_id} has epoch {present_epoch} by now"
            )
        if op.node_id < 0 or not op.incarnation:
            raise Refused(
                ErrorCode.INVALID_REQUEST, "a registration needs a node id of at least 0 and an incarnation"
            )
        if existing is not None and not existing.fenced:
            message = f"broker {op.node_id} is registered and alive as {existing.incarnation}: fence it first"
            raise Refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
        first = topics.first_in_isr(op.node_id)
        if first is not None:  # rule M5: out of every ISR before a new epoch
            raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"still in the ISR of {first[0]}-{first[1]}")
        try:
            has_listeners = metadata_level(features) >= LISTENERS_LEVEL
            listeners = decode_listeners(op.listeners) if has_listeners else ()
        except ValueError as error:
            raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from error
        self.by_id[op.node_id] = BrokerState(
            node_id=op.node_id,
            incarnation=op.incarnation,
            broker_epoch=changes.index,
            fenced=True,
            rack=op.rack,
            kafka_host=op.kafka.host,
            kafka_port=op.kafka.port,
            grpc_host=op.grpc.host,
            grpc_port=op.grpc.port,
            directory_id=op.directory_id,
            supported_features=tuple(
                sorted((feature.name, feature.level) for feature in op.supported_features)
            ),
            offline_replicas=decode_replicas(op.offline_replicas),
            listeners=listeners,
        )
        changes.brokers.add(op.node_id)
        return changes.index

    def fence(self, op: pb.FenceBroker, changes: Changes) -> Value:
        broker = self.with_epoch(op.node_id, op.broker_epoch)
        return self._replace(replace(broker, fenced=True), changes)

    def unfence(self, op: pb.UnfenceBroker, changes: Changes) -> Value:
        broker = self.with_epoch(op.node_id, op.broker_epoch)
        if broker.shutting_down:
            raise Refused(ErrorCode.INELIGIBLE_REPLICA, f"broker {op.node_id} is shutting down")
        return self._replace(replace(broker, fenced=False), changes)

    def begin_controlled_shutdown(self, op: pb.BeginControlledShutdown, changes: Changes) -> Value:
        broker = self.with_epoch(op.node_id, op.broker_epoch)
        return self._replace(replace(broker, shutting_down=True), changes)

    def set_offline_replicas(self, op: pb.SetOfflineReplicas, changes: Changes) -> Value:
        broker = self.with_epoch(op.node_id, op.broker_epoch)
        return self._replace(replace(broker, offline_replicas=decode_replicas(op.replicas)), changes)

    def _replace(self, broker: BrokerState, changes: Changes) -> Value:
        if broker != self.by_id[broker.node_id]:
            self.by_id[broker.node_id] = broker
            changes.brokers.add(broker.node_id)
        return broker.broker_epoch

    def unregister(self, op: pb.UnregisterBroker, topics: TopicTable, changes: Changes) -> Value:
        broker = self.with_epoch(op.node_id, op.broker_epoch)
        if not broker.fenced:
            raise Refused(ErrorCode.POLICY_VIOLATION, f"broker {op.node_id} is alive")
        if topics.replicas_of(op.node_id, 1):
            raise Refused(ErrorCode.POLICY_VIOLATION, f"broker {op.node_id} holds replicas")
        del self.by_id[op.node_id]
        changes.brokers.add(op.node_id)
        return broker.broker_epoch
