"""The replicated state machine of the cluster metadata.

Only `ClusterState.apply(index, term, command)` changes the state (and `restore`, which loads a snapshot).  It
is total (it never raises, whatever the bytes are: errors are values and change nothing), deterministic (no
clock, no randomness, no I/O: ids and times come inside the command), and idempotent (docs/semantics.md M1,
M2): a command either names its proposer and sequence, and is then applied once, or it is a compare-and-set on
an epoch.

Order inside one command: term fence, duplicate check, then its operations one after the other until the first
that fails.

Invariants of the state, which `violations()` looks for, in the simulators after every command:
* a partition has a leader exactly when its ISR is not empty, and the leader is a member of it;
* ISR and ELR are disjoint sets of replicas; with an ISR of at least min.insync.replicas the ELR is empty
  (KIP-966).

Rules of its changes, which the handlers of the operations keep and their tests hold:
* no broker joins an ISR or becomes leader while it is fenced or shutting down, or under another broker epoch
  than the change names (rule M4);
* a broker gets a new epoch only after its old one was fenced and removed from every ISR (rule M5).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from google.protobuf.message import DecodeError
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode

from . import snapshot
from .config_tables import with_change
from .model import (
    ALL_NODES,
    FORMER_METADATA_VERSION,
    INTERNAL_TOPICS,
    METADATA_VERSION,
    NO_BROKER_EPOCH,
    NO_LEADER,
    OPERATION_LEVELS,
    PRODUCER_ID_BLOCK,
    ApplyResult,
    BrokerState,
    DeletedTopic,
    Endpoint,
    PartitionState,
    TopicState,
    Value,
    metadata_level,
    topic_name_problem,
)
from .offline_replicas import decode_replicas
from .partition_changes import changed_partition, topic_violations
from .proposers import ProposerTable
from .topic_defaults import controllers_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from .partition_changes import Members

__all__ = [
    "ALL_NODES",
    "INTERNAL_TOPICS",
    "NO_BROKER_EPOCH",
    "NO_LEADER",
    "PRODUCER_ID_BLOCK",
    "ApplyResult",
    "BrokerState",
    "ClusterState",
    "DeletedTopic",
    "Endpoint",
    "PartitionState",
    "TopicState",
]

FIRST_INDEX = 1  # the metadata log's first entry is a constant: every state begins after it
PRODUCER_ID_MAX = 2**63 - 1 - 10 * PRODUCER_ID_BLOCK
PARTITIONS_MAX = 200_000  # of one topic


class _Refused(Exception):
    """An operation that changes nothing; becomes the command's error."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class _Changes:
    """The topics, partitions and brokers that one command has changed so far."""

    __slots__ = ("brokers", "deleted", "index", "partitions", "term", "topics")

    def __init__(self, index: int, term: int) -> None:
        self.index = index
        self.term = term
        self.topics: set[str] = set()
        self.partitions: set[tuple[str, int]] = set()
        self.brokers: set[int] = set()
        self.deleted: list[DeletedTopic] = []

    def result(self, error: ErrorCode, message: str, value: Value) -> ApplyResult:
        return ApplyResult(
            self.index,
            self.term,
            error,
            message,
            value,
            changed_topics=frozenset(self.topics),
            changed_partitions=frozenset(self.partitions),
            changed_brokers=frozenset(self.brokers),
            deleted_topics=tuple(self.deleted),
        )


class ClusterState:
    """All metadata of the cluster as of log entry `index`."""

    __slots__ = (
        "_brokers",
        "_features",
        "_names",
        "_proposers",
        "_topics",
        "cluster_id",
        "controller_epoch",
        "controller_id",
        "index",
        "metadata_id",
        "next_producer_id",
        "node_configs",
        "resource_configs",
        "session_timeout_ms",
        "term",
    )

    def __init__(self) -> None:
        self.index = FIRST_INDEX
        self.term = 0
        self.cluster_id = ""
        self.metadata_id = ""
        self.controller_id = -1
        self.controller_epoch = 0
        self.next_producer_id = 0
        self.node_configs: Mapping[int, Mapping[str, str]] = {}
        """Settings that change at run time, by node id or ALL_NODES (`node_settings`); another object after
        each change."""
        # by type and name (`resource_configs`)
        self.resource_configs: Mapping[tuple[int, str], Mapping[str, str]] = {}
        self.session_timeout_ms = 0
        """The longest session of a broker that a controller may have granted; 0: not agreed on, below
        SESSIONS_LEVEL."""
        self._features: dict[str, int] = {}
        self._brokers: dict[int, BrokerState] = {}
        self._topics: dict[str, TopicState] = {}
        self._names: dict[UUID, str] = {}
        self._proposers = ProposerTable()

    # ---- views ---------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> Mapping[int, BrokerState]:
        """Every registered broker, fenced ones too, by node id."""
        return MappingProxyType(self._brokers)

    @property
    def topics(self) -> Mapping[str, TopicState]:
        return MappingProxyType(self._topics)

    @property
    def features(self) -> Mapping[str, int]:
        """The finalised feature levels; `transaction.version` = 2 is TV2 (rule T27)."""
        return MappingProxyType(self._features)

    def registered_brokers(self) -> list[BrokerState]:
        """All registered brokers, fenced ones too, by node id."""
        return [self._brokers[node_id] for node_id in sorted(self._brokers)]

    def active_brokers(self) -> list[BrokerState]:
        """The brokers that are not fenced, by node id (those in a controlled shutdown are still among
        them)."""
        return [
            self._brokers[node_id] for node_id in sorted(self._brokers) if not self._brokers[node_id].fenced
        ]

    def topic_by_id(self, topic_id: UUID) -> TopicState | None:
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def topic_by_raw_id(self, raw: bytes) -> TopicState | None:
        """By the 16 bytes of the id; None when there is no such topic, or when `raw` is no id."""
        return self.topic_by_id(UUID(bytes=raw)) if len(raw) == 16 else None

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        found = self._topics.get(topic)
        return None if found is None else found.partitions.get(partition)

    def was_applied(self, proposer: str, sequence: int) -> ApplyResult | None:
        """The stored outcome of an earlier command with this name; None when it was not seen (or long
        ago)."""
        seen = self._proposers.find(proposer, sequence)
        return (
            None
            if seen is None
            else ApplyResult(self.index, self.term, seen.error, seen.message, seen.value, True)
        )

    # ---- applying entries ----------------------------------------------------------------------------------

    def apply(self, index: int, term: int, command: bytes) -> ApplyResult:
        """Applies the log entry at `index`.  Never raises; empty bytes are a no-op that only moves the
        index."""
        self.index = index
        self.term = term
        if not command:
            return ApplyResult(index, term)
        try:
            parsed = pb.Command.FromString(command)
        except DecodeError:
            return ApplyResult(index, term, ErrorCode.INVALID_REQUEST, "the command cannot be parsed")
        if parsed.controller_epoch not in (0, term):
            message = (
                f"planned in controller epoch {parsed.controller_epoch}, but this entry is of term {term}"
            )
            return ApplyResult(index, term, ErrorCode.NOT_CONTROLLER, message)
        if parsed.proposer:
            seen = self._proposers.find(parsed.proposer, parsed.sequence)
            if seen is not None:
                return ApplyResult(index, term, seen.error, seen.message, seen.value, duplicate=True)
        result = self._apply_operations(parsed, _Changes(index, term))
        if parsed.proposer:
            self._proposers.remember(
                parsed.proposer, parsed.sequence, result.error, result.message, result.value
            )
        return result

    def _apply_operations(self, command: pb.Command, changes: _Changes) -> ApplyResult:
        value: Value = None
        for operation in command.operations:
            kind = operation.WhichOneof("kind")
            handler = None if kind is None else _HANDLERS.get(kind)
            if kind is None or handler is None:
                return changes.result(
                    ErrorCode.UNSUPPORTED_VERSION, "an operation that this version does not know", value
                )
            try:
                self._require_level(OPERATION_LEVELS.get(kind, 0))
                value = handler(self, getattr(operation, kind), changes)
            except _Refused as refused:
                return changes.result(refused.error, refused.message, value)
        return changes.result(ErrorCode.NONE, "", value)

    # ---- cluster -------------------------------------------------------------------------------------------

    def _bootstrap(self, op: pb.Bootstrap, changes: _Changes) -> Value:
        if self.cluster_id:
            raise _Refused(
                ErrorCode.INVALID_UPDATE_VERSION, f"the cluster already has the id {self.cluster_id}"
            )
        if not op.cluster_id:
            raise _Refused(ErrorCode.INVALID_REQUEST, "a cluster id must not be empty")
        self.cluster_id, self.metadata_id = op.cluster_id, op.metadata_id
        self._features = {feature.name: feature.level for feature in op.features}
        return None

    def _become_controller(self, op: pb.BecomeController, changes: _Changes) -> Value:
        if changes.term <= self.controller_epoch:
            raise _Refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"controller epoch {self.controller_epoch} is not below this term",
            )
        self.controller_id = op.node_id
        self.controller_epoch = changes.term
        return changes.term

    def _set_feature_level(self, op: pb.SetFeatureLevel, changes: _Changes) -> Value:
        if self._features.get(op.name, 0) != op.expected_level:
            raise _Refused(
                ErrorCode.INVALID_UPDATE_VERSION, f"{op.name} is at level {self._features.get(op.name, 0)}"
            )
        if not op.name or op.level < 0:
            raise _Refused(
                ErrorCode.INVALID_REQUEST, "a feature level needs a name and a level of at least 0"
            )
        if op.name == FORMER_METADATA_VERSION and METADATA_VERSION in self._features:
            raise _Refused(ErrorCode.INVALID_UPDATE_VERSION, f"{op.name} has become {METADATA_VERSION}")
        features = {**self._features, op.name: op.level}
        if op.name == METADATA_VERSION:
            features.pop(FORMER_METADATA_VERSION, None)
        self._features = features
        return op.level

    def _set_session_timeout(self, op: pb.SetSessionTimeout, changes: _Changes) -> Value:
        if op.session_timeout_ms <= 0:
            raise _Refused(ErrorCode.INVALID_REQUEST, f"a session cannot take {op.session_timeout_ms} ms")
        self.session_timeout_ms = op.session_timeout_ms
        return op.session_timeout_ms

    def _allocate_producer_ids(self, op: pb.AllocateProducerIds, changes: _Changes) -> Value:
        self._broker_with_epoch(op.node_id, op.broker_epoch)
        if not 0 < op.count <= 10 * PRODUCER_ID_BLOCK:
            raise _Refused(ErrorCode.INVALID_REQUEST, f"a block of {op.count} producer ids cannot be given")
        first = self.next_producer_id
        if first > PRODUCER_ID_MAX:
            raise _Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the producer ids are used up")
        self.next_producer_id = first + op.count
        return first

    # ---- brokers -------------------------------------------------------------------------------------------

    def _broker_with_epoch(self, node_id: int, broker_epoch: int) -> BrokerState:
        broker = self._brokers.get(node_id)
        if broker is None:
            raise _Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
        if broker.broker_epoch != broker_epoch:
            message = f"broker {node_id} has epoch {broker.broker_epoch}, not {broker_epoch}"
            raise _Refused(ErrorCode.STALE_BROKER_EPOCH, message)
        return broker

    def _register_broker(self, op: pb.RegisterBroker, changes: _Changes) -> Value:
        existing = self._brokers.get(op.node_id)
        if existing is not None and existing.incarnation == op.incarnation:
            return existing.broker_epoch
        present_epoch = NO_BROKER_EPOCH if existing is None else existing.broker_epoch
        if op.expected_broker_epoch != present_epoch:
            raise _Refused(
                ErrorCode.STALE_BROKER_EPOCH, f"broker {op.node_id} has epoch {present_epoch} by now"
            )
        if op.node_id < 0 or not op.incarnation:
            raise _Refused(
                ErrorCode.INVALID_REQUEST, "a registration needs a node id of at least 0 and an incarnation"
            )
        if existing is not None and not existing.fenced:
            message = f"broker {op.node_id} is registered and alive as {existing.incarnation}: fence it first"
            raise _Refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
        held = (
            (topic.name, number)
            for topic in self._topics.values()
            for number, partition in topic.partitions.items()
            if op.node_id in partition.isr
        )
        # not the first in the table: a snapshot changes the order of the table
        first = min(held, default=None)
        if first is not None:  # rule M5: out of every ISR before a new epoch
            raise _Refused(ErrorCode.INVALID_UPDATE_VERSION, f"still in the ISR of {first[0]}-{first[1]}")
        self._brokers[op.node_id] = BrokerState(
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
        )
        changes.brokers.add(op.node_id)
        return changes.index

    def _fence_broker(self, op: pb.FenceBroker, changes: _Changes) -> Value:
        broker = self._broker_with_epoch(op.node_id, op.broker_epoch)
        if not broker.fenced:
            self._brokers[op.node_id] = replace(broker, fenced=True)
            changes.brokers.add(op.node_id)
        return broker.broker_epoch

    def _unfence_broker(self, op: pb.UnfenceBroker, changes: _Changes) -> Value:
        broker = self._broker_with_epoch(op.node_id, op.broker_epoch)
        if broker.shutting_down:
            raise _Refused(ErrorCode.INELIGIBLE_REPLICA, f"broker {op.node_id} is shutting down")
        if broker.fenced:
            self._brokers[op.node_id] = replace(broker, fenced=False)
            changes.brokers.add(op.node_id)
        return broker.broker_epoch

    def _begin_controlled_shutdown(self, op: pb.BeginControlledShutdown, changes: _Changes) -> Value:
        broker = self._broker_with_epoch(op.node_id, op.broker_epoch)
        if not broker.shutting_down:
            self._brokers[op.node_id] = replace(broker, shutting_down=True)
            changes.brokers.add(op.node_id)
        return broker.broker_epoch

    def _set_offline_replicas(self, op: pb.SetOfflineReplicas, changes: _Changes) -> Value:
        broker = self._broker_with_epoch(op.node_id, op.broker_epoch)
        offline = decode_replicas(op.replicas)
        if offline != broker.offline_replicas:
            self._brokers[op.node_id] = replace(broker, offline_replicas=offline)
            changes.brokers.add(op.node_id)
        return broker.broker_epoch

    def _unregister_broker(self, op: pb.UnregisterBroker, changes: _Changes) -> Value:
        broker = self._broker_with_epoch(op.node_id, op.broker_epoch)
        if not broker.fenced:
            raise _Refused(ErrorCode.POLICY_VIOLATION, f"broker {op.node_id} is alive")
        if self.replicas_of(op.node_id, 1):
            raise _Refused(ErrorCode.POLICY_VIOLATION, f"broker {op.node_id} holds replicas")
        del self._brokers[op.node_id]
        self.node_configs = {
            node_id: each for node_id, each in self.node_configs.items() if node_id != op.node_id
        }
        changes.brokers.add(op.node_id)
        return broker.broker_epoch

    def _require_level(self, level: int) -> None:
        present = metadata_level(self._features)
        if present < level:
            raise _Refused(
                ErrorCode.UNSUPPORTED_VERSION, f"{METADATA_VERSION} is {present}, this needs {level}"
            )

    def replicas_of(self, node_id: int, at_most: int) -> list[tuple[str, int]]:
        """Partitions of which this broker is a replica, also by a move that is not finished; at most
        `at_most`."""
        held = (
            (topic.name, number)
            for topic in self._topics.values()
            for number, partition in topic.partitions.items()
            if node_id in partition.replicas
        )
        return list(islice(held, at_most))

    def offline_nodes(self, topic_id: UUID, partition: int) -> frozenset[int]:
        """Brokers whose replica of this partition is offline, although they may be alive."""
        key = (topic_id.bytes, partition)
        return frozenset(
            broker.node_id for broker in self._brokers.values() if key in broker.offline_replicas
        )

    # ---- topics --------------------------------------------------------------------------------------------

    def _topic_with_id(self, raw: bytes) -> TopicState:
        topic = self.topic_by_raw_id(raw)
        if topic is None:
            raise _Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {raw.hex()}")
        return topic

    def _new_partition(self, wanted: pb.NewPartition) -> PartitionState:
        replicas, isr = tuple(wanted.replicas), tuple(wanted.isr)
        if not replicas or len(set(replicas)) != len(replicas):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(replicas)} are empty or not distinct"
            )
        if any(node_id not in self._brokers for node_id in replicas):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(replicas)} name an unknown broker"
            )
        if not isr or len(set(isr)) != len(isr) or not set(isr) <= set(replicas):
            raise _Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the ISR {list(isr)} does not fit the replicas"
            )
        if any(not self._brokers[node_id].active for node_id in isr):
            raise _Refused(
                ErrorCode.INELIGIBLE_REPLICA, f"a member of the ISR {list(isr)} was fenced meanwhile"
            )
        return PartitionState(replicas, isr, leader=isr[0])

    def _create_topic(self, op: pb.CreateTopic, changes: _Changes) -> Value:
        problem = topic_name_problem(op.name)
        if problem is not None:
            raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if op.name in self._topics:
            raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {op.name!r} already exists")
        if len(op.topic_id) != 16 or UUID(bytes=op.topic_id) in self._names:
            raise _Refused(ErrorCode.INVALID_REQUEST, "a topic id has 16 bytes and is used once")
        if not 0 < len(op.partitions) <= PARTITIONS_MAX:
            raise _Refused(ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to {PARTITIONS_MAX} partitions")
        partitions = {number: self._new_partition(wanted) for number, wanted in enumerate(op.partitions)}
        topic_id = UUID(bytes=op.topic_id)
        config = {entry.key: entry.value for entry in op.config}
        defaults = {} if op.name in INTERNAL_TOPICS else controllers_defaults(self.node_configs)
        self._topics[op.name] = TopicState(op.name, topic_id, config, partitions, defaults)
        self._names[topic_id] = op.name
        changes.topics.add(op.name)
        changes.partitions.update((op.name, number) for number in partitions)
        return topic_id

    def _delete_topic(self, op: pb.DeleteTopic, changes: _Changes) -> Value:
        topic = self._topic_with_id(op.topic_id)
        del self._topics[topic.name]
        del self._names[topic.topic_id]
        changes.deleted.append(DeletedTopic(topic.name, topic.topic_id, tuple(sorted(topic.partitions))))
        return topic.topic_id

    def _create_partitions(self, op: pb.CreatePartitions, changes: _Changes) -> Value:
        topic = self._topic_with_id(op.topic_id)
        present = len(topic.partitions)
        if present != op.expected_partitions:
            message = f"topic {topic.name!r} has {present} partitions by now, not {op.expected_partitions}"
            raise _Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
        if not op.partitions or present + len(op.partitions) > PARTITIONS_MAX:
            raise _Refused(ErrorCode.INVALID_PARTITIONS, f"a topic has at most {PARTITIONS_MAX} partitions")
        added = {present + number: self._new_partition(wanted) for number, wanted in enumerate(op.partitions)}
        self._topics[topic.name] = replace(topic, partitions={**topic.partitions, **added})
        changes.topics.add(topic.name)
        changes.partitions.update((topic.name, number) for number in added)
        return topic.topic_id

    def _change_topic_config(self, op: pb.ChangeTopicConfig, changes: _Changes) -> Value:
        topic = self._topic_with_id(op.topic_id)
        config = {key: value for key, value in topic.config.items() if key not in op.remove}
        config.update((entry.key, entry.value) for entry in op.set)
        self._put_topic(replace(topic, config=config), changes)
        return topic.topic_id

    def _put_topic(self, topic: TopicState, changes: _Changes) -> None:
        """After a change of its settings."""
        self._topics[topic.name], numbers = topic.with_settled_eligible_leaders()
        changes.partitions.update((topic.name, number) for number in numbers)
        changes.topics.add(topic.name)

    def _change_node_config(self, op: pb.ChangeNodeConfig, changes: _Changes) -> Value:
        self.node_configs = with_change(self.node_configs, op.node_id, op)
        defaults = controllers_defaults(self.node_configs)
        for topic in list(self._topics.values()):
            if not topic.internal and topic.defaults != defaults:
                self._put_topic(replace(topic, defaults=defaults), changes)
        return None

    def _change_resource_config(self, op: pb.ChangeResourceConfig, changes: _Changes) -> Value:
        self.resource_configs = with_change(self.resource_configs, (op.resource_type, op.name), op)
        return None

    # ---- partitions ----------------------------------------------------------------------------------------

    def _change_partitions(self, op: pb.ChangePartitions, changes: _Changes) -> Value:
        errors: list[ErrorCode] = []
        for group in op.topics:
            topic = self.topic_by_raw_id(group.topic_id)
            if topic is None:
                errors.extend(ErrorCode.UNKNOWN_TOPIC_ID for _ in group.partitions)
                continue
            partitions = dict(topic.partitions)
            known: dict[Hashable, Members | ErrorCode] = {}
            for change in group.partitions:
                number = change.partition
                found = changed_partition(
                    self._brokers, self._features, topic, partitions.get(number), change, known
                )
                if isinstance(found, ErrorCode):
                    errors.append(found)
                    continue
                errors.append(ErrorCode.NONE)
                partitions[number] = found
                changes.partitions.add((topic.name, number))
            self._topics[topic.name] = replace(topic, partitions=partitions)
        return tuple(errors) or None  # as a snapshot remembers it

    # ---- snapshots -----------------------------------------------------------------------------------------

    def copy(self) -> ClusterState:
        """Another state with the same contents; cheap, because the values in the tables are immutable."""
        other = ClusterState()
        other.index, other.term = self.index, self.term
        other.cluster_id, other.metadata_id = self.cluster_id, self.metadata_id
        other.controller_id, other.controller_epoch = self.controller_id, self.controller_epoch
        other.next_producer_id, other._features = self.next_producer_id, self._features
        other.session_timeout_ms = self.session_timeout_ms
        other.node_configs, other.resource_configs = self.node_configs, self.resource_configs
        other._brokers, other._topics, other._names = (
            dict(self._brokers),
            dict(self._topics),
            dict(self._names),
        )
        other._proposers = ProposerTable(self._proposers.freeze())
        return other

    def freeze(self) -> Callable[[], bytes]:
        """A cheap copy of the state as of now; calling what is returned encodes it, on any thread."""
        frozen = snapshot.Contents(
            index=self.index,
            term=self.term,
            cluster_id=self.cluster_id,
            metadata_id=self.metadata_id,
            features=self._features,
            brokers=dict(self._brokers),
            topics=dict(self._topics),
            next_producer_id=self.next_producer_id,
            controller_id=self.controller_id,
            controller_epoch=self.controller_epoch,
            proposers=self._proposers.freeze(),
            node_configs=self.node_configs,
            resource_configs=self.resource_configs,
            session_timeout_ms=self.session_timeout_ms,
        )
        return lambda: snapshot.encode(frozen)

    def encode(self) -> bytes:
        """The snapshot of this state: equal states give equal bytes."""
        return self.freeze()()

    def restore(self, data: bytes) -> ApplyResult:
        """Replaces everything by a snapshot.  Raises ValueError when it cannot be read; then nothing has
        changed."""
        contents = snapshot.decode(data)
        old_topics, old_brokers = self._topics, self._brokers
        self.index, self.term = contents.index, contents.term
        self.cluster_id, self.metadata_id = contents.cluster_id, contents.metadata_id
        self.next_producer_id = contents.next_producer_id
        self.controller_id, self.controller_epoch = contents.controller_id, contents.controller_epoch
        self._features = dict(contents.features)
        self._brokers = contents.brokers
        defaults = controllers_defaults(contents.node_configs)
        self._topics = {
            t.name: t if t.internal else replace(t, defaults=defaults) for t in contents.topics.values()
        }
        self._names = {topic.topic_id: topic.name for topic in contents.topics.values()}
        self._proposers = ProposerTable(contents.proposers)
        self.node_configs, self.resource_configs = contents.node_configs, contents.resource_configs
        self.session_timeout_ms = contents.session_timeout_ms
        return _difference(self, old_topics, old_brokers)

    def state_hash(self) -> str:
        """Equal on every node that applied the same entries, by replay or by snapshot."""
        return hashlib.sha256(self.encode()).hexdigest()

    def violations(self) -> list[str]:
        """The invariants that do not hold; always empty, unless an election is spread over several commands
        of which some are not applied yet."""
        return [violation for topic in self._topics.values() for violation in topic_violations(topic)]


def _difference(
    state: ClusterState, old_topics: dict[str, TopicState], old_brokers: dict[int, BrokerState]
) -> ApplyResult:
    """The difference between the old state and the snapshot, as one result: new, changed and deleted."""
    topics, brokers = state.topics, state.brokers
    gone = [old for old in old_topics.values() if state.topic_by_id(old.topic_id) is None]
    changed_topics = {name for name, topic in topics.items() if old_topics.get(name) != topic}
    changed_partitions = set()
    for name in changed_topics:
        old = old_topics.get(name)
        same_topic = old is not None and old.topic_id == topics[name].topic_id
        known = old.partitions if old is not None and same_topic else {}
        for number, partition in topics[name].partitions.items():
            if known.get(number) != partition:
                changed_partitions.add((name, number))
    return ApplyResult(
        state.index,
        state.term,
        changed_topics=frozenset(changed_topics),
        changed_partitions=frozenset(changed_partitions),
        changed_brokers=frozenset(
            n for n in brokers.keys() | old_brokers.keys() if brokers.get(n) != old_brokers.get(n)
        ),
        deleted_topics=tuple(
            DeletedTopic(old.name, old.topic_id, tuple(sorted(old.partitions))) for old in gone
        ),
        from_snapshot=True,
    )


_HANDLERS: dict[str, Callable[..., Value]] = {
    "bootstrap": ClusterState._bootstrap,
    "become_controller": ClusterState._become_controller,
    "register_broker": ClusterState._register_broker,
    "fence_broker": ClusterState._fence_broker,
    "unfence_broker": ClusterState._unfence_broker,
    "begin_controlled_shutdown": ClusterState._begin_controlled_shutdown,
    "set_offline_replicas": ClusterState._set_offline_replicas,
    "unregister_broker": ClusterState._unregister_broker,
    "create_topic": ClusterState._create_topic,
    "delete_topic": ClusterState._delete_topic,
    "create_partitions": ClusterState._create_partitions,
    "change_topic_config": ClusterState._change_topic_config,
    "change_node_config": ClusterState._change_node_config,
    "change_resource_config": ClusterState._change_resource_config,
    "change_partitions": ClusterState._change_partitions,
    "allocate_producer_ids": ClusterState._allocate_producer_ids,
    "set_feature_level": ClusterState._set_feature_level,
    "set_session_timeout": ClusterState._set_session_timeout,
}
