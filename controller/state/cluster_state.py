"""The replicated state machine of the cluster metadata.

Only `ClusterState.apply(index, term, command)` changes the state (and `restore`, which loads a snapshot).  It
is total (whatever the bytes are, errors are values and change nothing; only a defect of this room raises, and
then the node stops, because a state that was half changed must not be used), deterministic (no clock, no
randomness, no I/O: ids and times come inside the command), and idempotent (docs/semantics.md M1, M2): a
command either names its proposer and sequence, and is then applied once, or it is a compare-and-set on an
epoch.

Order inside one command: term fence, duplicate check, then its operations one after the other until the first
that fails.

The brokers and the topics are tables of their own (`BrokerTable`, `TopicTable`); what holds of the whole
after every command says `validation.py`.
"""

from __future__ import annotations

import hashlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from google.protobuf.message import DecodeError

from ...proto import metadata_pb2 as pb
from ...security.records import SecurityRecords
from ...wire.errors import ErrorCode
from . import pinned_cuts, security_commands, snapshot
from .broker_table import BrokerTable
from .changes import Changes, Refused, with_change
from .model import (
    FORMER_METADATA_VERSION,
    METADATA_VERSION,
    OPERATION_LEVELS,
    PRODUCER_ID_BLOCK,
    ApplyResult,
    BrokerState,
    DeletedTopic,
    PartitionState,
    TopicState,
    Value,
    metadata_level,
)
from .proposers import ProposerTable
from .topic_defaults import controllers_defaults
from .topic_table import TopicTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FIRST_INDEX = 1  # the metadata log's first entry is a constant: every state begins after it
PRODUCER_ID_MAX = 2**63 - 1 - 10 * PRODUCER_ID_BLOCK


class ClusterState:
    """All metadata of the cluster as of log entry `index`."""

    __slots__ = (
        "_brokers",
        "_features",
        "_proposers",
        "_topics",
        "cluster_id",
        "controller_epoch",
        "controller_id",
        "index",
        "metadata_id",
        "next_producer_id",
        "node_configs",
        "pinned_cuts",
        "resource_configs",
        "security",
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
        """Settings that change at run time, by node id or ALL_NODES (`broker_settings`); another object
        after each change."""
        # by type and name (`resource_settings`); another object after each change
        self.resource_configs: Mapping[tuple[int, str], Mapping[str, str]] = {}
        self.session_timeout_ms = 0
        """The longest session of a broker that a controller may have granted; 0: not agreed on, below
        SESSIONS_LEVEL."""
        self.security = SecurityRecords()
        """ACLs, credentials, tokens and quotas; another object after each change."""
        self.pinned_cuts: pinned_cuts.PinnedCuts = {}
        """Another object after each change."""
        self._features: dict[str, int] = {}
        self._brokers = BrokerTable()
        self._topics = TopicTable()
        self._proposers = ProposerTable()

    # ---- views ---------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> Mapping[int, BrokerState]:
        """Every registered broker, fenced ones too, by node id."""
        return MappingProxyType(self._brokers.by_id)

    @property
    def topics(self) -> Mapping[str, TopicState]:
        return MappingProxyType(self._topics.by_name)

    @property
    def features(self) -> Mapping[str, int]:
        """The finalised feature levels; `transaction.version` = 2 is TV2 (rule T27)."""
        return MappingProxyType(self._features)

    def registered_brokers(self) -> list[BrokerState]:
        return self._brokers.registered()

    def unfenced_brokers(self) -> list[BrokerState]:
        return self._brokers.unfenced()

    def active_node_ids(self) -> set[int]:
        """The brokers that may lead and join an ISR."""
        return {node_id for node_id, broker in self._brokers.by_id.items() if broker.active}

    def offline_nodes(self, topic_id: UUID, partition: int) -> frozenset[int]:
        return self._brokers.offline_nodes(topic_id, partition)

    def topic_by_id(self, topic_id: UUID) -> TopicState | None:
        return self._topics.by_id(topic_id)

    def topic_by_raw_id(self, raw: bytes) -> TopicState | None:
        return self._topics.by_raw_id(raw)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        return self._topics.partition(topic, partition)

    def replicas_of(self, node_id: int, at_most: int) -> list[tuple[str, int]]:
        return self._topics.replicas_of(node_id, at_most)

    def topic_ids_known(self) -> int:
        """How many topic ids the state knows: as many as it has topics."""
        return self._topics.ids()

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
        """Applies the log entry at `index`; empty bytes are a no-op that only moves the index.  What is wrong
        with the command is the result's error; only a defect of this room raises."""
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
        result = self._apply_operations(parsed, Changes(index, term))
        if parsed.proposer:
            self._proposers.remember(
                parsed.proposer, parsed.sequence, result.error, result.message, result.value
            )
        return result

    def _apply_operations(self, command: pb.Command, changes: Changes) -> ApplyResult:
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
            except Refused as refused:
                return changes.result(refused.error, refused.message, value)
        return changes.result(ErrorCode.NONE, "", value)

    # ---- cluster -------------------------------------------------------------------------------------------

    def _bootstrap(self, op: pb.Bootstrap, changes: Changes) -> Value:
        if self.cluster_id:
            raise Refused(
                ErrorCode.INVALID_UPDATE_VERSION, f"the cluster already has the id {self.cluster_id}"
            )
        if not op.cluster_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "a cluster id must not be empty")
        self.cluster_id, self.metadata_id = op.cluster_id, op.metadata_id
        self._features = {feature.name: feature.level for feature in op.features}
        return None

    def _become_controller(self, op: pb.BecomeController, changes: Changes) -> Value:
        if changes.term <= self.controller_epoch:
            raise Refused(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"controller epoch {self.controller_epoch} is not below this term",
            )
        self.controller_id = op.node_id
        self.controller_epoch = changes.term
        return changes.term

    def _set_feature_level(self, op: pb.SetFeatureLevel, changes: Changes) -> Value:
        if self._features.get(op.name, 0) != op.expected_level:
            raise Refused(
                ErrorCode.INVALID_UPDATE_VERSION, f"{op.name} is at level {self._features.get(op.name, 0)}"
            )
        if not op.name or op.level < 0:
            raise Refused(ErrorCode.INVALID_REQUEST, "a feature level needs a name and a level of at least 0")
        if op.name == FORMER_METADATA_VERSION and METADATA_VERSION in self._features:
            raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"{op.name} has become {METADATA_VERSION}")
        features = {**self._features, op.name: op.level}
        if op.name == METADATA_VERSION:
            features.pop(FORMER_METADATA_VERSION, None)
        self._features = features
        return op.level

    def _set_session_timeout(self, op: pb.SetSessionTimeout, changes: Changes) -> Value:
        if op.session_timeout_ms <= 0:
            raise Refused(ErrorCode.INVALID_REQUEST, f"a session cannot take {op.session_timeout_ms} ms")
        self.session_timeout_ms = op.session_timeout_ms
        return op.session_timeout_ms

    def _allocate_producer_ids(self, op: pb.AllocateProducerIds, changes: Changes) -> Value:
        self._brokers.with_epoch(op.node_id, op.broker_epoch)
        if not 0 < op.count <= 10 * PRODUCER_ID_BLOCK:
            raise Refused(ErrorCode.INVALID_REQUEST, f"a block of {op.count} producer ids cannot be given")
        first = self.next_producer_id
        if first > PRODUCER_ID_MAX:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the producer ids are used up")
        self.next_producer_id = first + op.count
        return first

    def _require_level(self, level: int) -> None:
        present = metadata_level(self._features)
        if present < level:
            raise Refused(
                ErrorCode.UNSUPPORTED_VERSION, f"{METADATA_VERSION} is {present}, this needs {level}"
            )

    def _change_node_config(self, op: pb.ChangeNodeConfig, changes: Changes) -> Value:
        self.node_configs = with_change(self.node_configs, op.node_id, op)
        self._topics.set_defaults(controllers_defaults(self.node_configs), changes)
        return None

    def _change_resource_config(self, op: pb.ChangeResourceConfig, changes: Changes) -> Value:
        self.resource_configs = with_change(self.resource_configs, (op.resource_type, op.name), op)
        return None

    def _change_security(self, op: security_commands.SecurityChange, changes: Changes) -> Value:
        self.security = security_commands.changed(self.security, op)
        return None

    def _change_pinned_cuts(self, op: pb.ChangePinnedCuts, changes: Changes) -> Value:
        before, self.pinned_cuts = self.pinned_cuts, pinned_cuts.changed(self.pinned_cuts, op)
        changes.partitions |= self._named(pinned_cuts.keys_that_differ(before, self.pinned_cuts))
        return None

    def _named(self, keys: Iterable[tuple[UUID, int]]) -> set[tuple[str, int]]:
        """Those of the partitions that exist."""
        found = ((self._topics.by_id(topic_id), partition) for topic_id, partition in keys)
        return {(topic.name, number) for topic, number in found if topic and number in topic.partitions}

    def _unregister_broker(self, op: pb.UnregisterBroker, changes: Changes) -> Value:
        broker_epoch = self._brokers.unregister(op, self._topics, changes)
        self.node_configs = {
            node_id: each for node_id, each in self.node_configs.items() if node_id != op.node_id
        }
        return broker_epoch

    # ---- snapshots -----------------------------------------------------------------------------------------

    def contents(self) -> snapshot.Contents:
        """All that the state is made of.  `copy`, `encode` and `restore` go through it: all of them lose a
        field that it has not (`test_a_copy_and_a_snapshot_hold_every_field`)."""
        return snapshot.Contents(
            index=self.index,
            term=self.term,
            cluster_id=self.cluster_id,
            metadata_id=self.metadata_id,
            features=self._features,
            brokers=dict(self._brokers.by_id),
            topics=dict(self._topics.by_name),
            next_producer_id=self.next_producer_id,
            controller_id=self.controller_id,
            controller_epoch=self.controller_epoch,
            proposers=self._proposers.freeze(),
            node_configs=self.node_configs,
            resource_configs=self.resource_configs,
            session_timeout_ms=self.session_timeout_ms,
            security=self.security,
            pinned_cuts=self.pinned_cuts,
        )

    def _take(self, contents: snapshot.Contents, topics: TopicTable) -> None:
        self.index, self.term = contents.index, contents.term
        self.cluster_id, self.metadata_id = contents.cluster_id, contents.metadata_id
        self.next_producer_id = contents.next_producer_id
        self.controller_id, self.controller_epoch = contents.controller_id, contents.controller_epoch
        self._features = contents.features
        self._brokers = BrokerTable(contents.brokers)
        self._topics = topics
        self._proposers = ProposerTable(contents.proposers)
        self.node_configs, self.resource_configs = contents.node_configs, contents.resource_configs
        self.session_timeout_ms, self.security = contents.session_timeout_ms, contents.security
        self.pinned_cuts = contents.pinned_cuts

    def copy(self) -> ClusterState:
        """Another state with the same contents; cheap, because the values in the tables are immutable."""
        other = ClusterState()
        other._take(self.contents(), self._topics.copy())
        return other

    def freeze(self) -> Callable[[], bytes]:
        """A cheap copy of the state as of now; calling what is returned encodes it, on any thread."""
        frozen = self.contents()
        return lambda: snapshot.encode(frozen)

    def encode(self) -> bytes:
        """The snapshot of this state: equal states give equal bytes."""
        return self.freeze()()

    def restore(self, data: bytes) -> ApplyResult:
        """Replaces everything by a snapshot.  Raises ValueError when it cannot be read; then nothing has
        changed."""
        contents = snapshot.decode(data)
        old_topics, old_brokers = self._topics.by_name, self._brokers.by_id
        old_cuts = self.pinned_cuts
        self._take(contents, TopicTable(contents.topics.values()))
        self._topics.set_defaults(controllers_defaults(self.node_configs), Changes(self.index, self.term))
        pinned = self._named(pinned_cuts.keys_that_differ(old_cuts, self.pinned_cuts))
        return _difference(self, old_topics, old_brokers, pinned)

    def state_hash(self) -> str:
        """Equal on every node that applied the same entries, by replay or by snapshot."""
        return hashlib.sha256(self.encode()).hexdigest()


def _difference(
    state: ClusterState,
    old_topics: dict[str, TopicState],
    old_brokers: dict[int, BrokerState],
    pinned: set[tuple[str, int]],
) -> ApplyResult:
    """The difference between the old state and the snapshot, as one result: new, changed and deleted.
    `pinned`: the partitions whose pins differ."""
    topics, brokers = state.topics, state.brokers
    gone = [old for old in old_topics.values() if state.topic_by_id(old.topic_id) is None]
    changed_topics = {name for name, topic in topics.items() if old_topics.get(name) != topic}
    changed_partitions = pinned
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


_HANDLERS: dict[str, Callable[[ClusterState, Any, Changes], Value]] = {
    "bootstrap": ClusterState._bootstrap,
    "become_controller": ClusterState._become_controller,
    "set_feature_level": ClusterState._set_feature_level,
    "allocate_producer_ids": ClusterState._allocate_producer_ids,
    "change_node_config": ClusterState._change_node_config,
    "change_resource_config": ClusterState._change_resource_config,
    "set_session_timeout": ClusterState._set_session_timeout,
    "change_acls": ClusterState._change_security,
    "change_scram_credentials": ClusterState._change_security,
    "change_delegation_tokens": ClusterState._change_security,
    "change_client_quotas": ClusterState._change_security,
    "change_pinned_cuts": ClusterState._change_pinned_cuts,
    "register_broker": lambda state, op, changes: state._brokers.register(
        op, state._topics, state._features, changes
    ),
    "fence_broker": lambda state, op, changes: state._brokers.fence(op, changes),
    "unfence_broker": lambda state, op, changes: state._brokers.unfence(op, changes),
    "begin_controlled_shutdown": lambda state, op, changes: state._brokers.begin_controlled_shutdown(
        op, changes
    ),
    "set_offline_replicas": lambda state, op, changes: state._brokers.set_offline_replicas(op, changes),
    "unregister_broker": ClusterState._unregister_broker,
    "create_topic": lambda state, op, changes: state._topics.create(
        op, state._brokers.by_id, controllers_defaults(state.node_configs), changes
    ),
    "delete_topic": lambda state, op, changes: state._topics.delete(op, changes),
    "create_partitions": lambda state, op, changes: state._topics.create_partitions(
        op, state._brokers.by_id, changes
    ),
    "change_topic_config": lambda state, op, changes: state._topics.change_config(op, changes),
    "change_partitions": lambda state, op, changes: state._topics.change_partitions(
        op, state._brokers.by_id, state._features, changes
    ),
}
"""What each operation of a command changes; `ClusterState.apply` calls it."""
