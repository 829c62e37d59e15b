"""The values of the cluster metadata: brokers, topics and partitions.

Everything here is a value.  `ClusterState` replaces values and never changes one, so a view taken earlier
stays what it was: it may be handed to another thread, kept across an `await` and compared with a later one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from ...runtime.connections.listeners import Listener
from ...wire.errors import ErrorCode

NO_LEADER = -1
ALL_NODES = -1  # the key of the settings for every node that has none of its own
NO_BROKER_EPOCH = -1
PRODUCER_ID_BLOCK = 1000  # ids handed out by one AllocateProducerIds

TRANSACTION_STATE_TOPIC = "__transaction_state"
CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC})

METADATA_VERSION = "tidegate.metadata.version"
# the same feature up to level 3, under a name that means something else in Kafka
FORMER_METADATA_VERSION = "metadata.version"
FORMER_LEVEL_MAX = 3
GROUP_VERSION = "group.version"  # 1: consumer groups (KIP-848)
# What came with which level of METADATA_VERSION: until every node knows it, no entry of the log may hold it
# (`features.py`).
MOVES_LEVEL = 2  # partitions that move, brokers that are unregistered
NODE_SETTINGS_LEVEL = 3  # settings of nodes that change while they run
RESOURCES_LEVEL = 4  # more settings, of more kinds of resources
SESSIONS_LEVEL = 5  # the session timeout that controllers agree on
LISTENERS_LEVEL = 5  # brokers with several listeners for clients
SECURITY_LEVEL = 5  # ACLs, SCRAM credentials, delegation tokens, client quotas
TWO_PHASE_COMMIT_LEVEL = 5  # transactions that are prepared: of the records of __transaction_state
PINNED_CUTS_LEVEL = 5  # cuts that are kept under a name
# The operations that not every level has: below it none of them is applied.  (Moves are fields of
# `change_partitions`, which `partition_changes` looks at.)
OPERATION_LEVELS: dict[str, int] = {
    "unregister_broker": MOVES_LEVEL, "change_node_config": NODE_SETTINGS_LEVEL,
    "change_resource_config": RESOURCES_LEVEL, "set_session_timeout": SESSIONS_LEVEL,
    "change_acls": SECURITY_LEVEL, "change_scram_credentials": SECURITY_LEVEL,
    "change_delegation_tokens": SECURITY_LEVEL, "change_client_quotas": SECURITY_LEVEL,
    "change_pinned_cuts": PINNED_CUTS_LEVEL,
}  # fmt: skip
# The later fields of messages that the first level had, by `Message.field`: below its level no plan and no
# snapshot has such a field.
FIELD_LEVELS: dict[str, int] = {
    "RegisterBroker.listeners": LISTENERS_LEVEL, "BrokerRecord.listeners": LISTENERS_LEVEL,
    "PartitionChange.replicas": MOVES_LEVEL, "PartitionChange.adding": MOVES_LEVEL,
    "PartitionChange.target": MOVES_LEVEL, "PartitionRecord.adding": MOVES_LEVEL,
    "PartitionRecord.target": MOVES_LEVEL, "ClusterSnapshot.node_configs": NODE_SETTINGS_LEVEL,
    "ClusterSnapshot.metadata_id": 1, "ClusterSnapshot.resource_configs": RESOURCES_LEVEL,
    "ClusterSnapshot.session_timeout_ms": SESSIONS_LEVEL, "ClusterSnapshot.security": SECURITY_LEVEL,
    "ClusterSnapshot.pinned_cuts": PINNED_CUTS_LEVEL,
}  # fmt: skip
# The highest level of METADATA_VERSION that a release has: it is closed.  The next one is open until the
# release that brings it: what is added meanwhile gets that level, under a name of its own above.
RELEASED_LEVEL = 4
# The feature levels that this version of Tidegate knows, with the open one as soon as it has something.
SUPPORTED_FEATURES: dict[str, int] = {
    METADATA_VERSION: 5, FORMER_METADATA_VERSION: FORMER_LEVEL_MAX, "transaction.version": 2,
    GROUP_VERSION: 1,
}  # fmt: skip
# The lowest levels that it still knows; 0: the feature may be off.
FEATURE_LEVEL_MIN: dict[str, int] = {
    METADATA_VERSION: 1, FORMER_METADATA_VERSION: 1, "transaction.version": 0, GROUP_VERSION: 0,
}  # fmt: skip
# A fresh cluster starts with the highest levels.
INITIAL_FEATURES: dict[str, int] = {
    name: level for name, level in SUPPORTED_FEATURES.items() if name != FORMER_METADATA_VERSION
}

TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")

MIN_IN_SYNC_REPLICAS_CONFIG = "min.insync.replicas"
UNCLEAN_ELECTION_CONFIG = "unclean.leader.election.enable"
FLUSH_POLICY_CONFIG = "flush.policy"


def metadata_level(finalised: Mapping[str, int]) -> int:
    """The finalised level of METADATA_VERSION, also where it still stands under its former name; 0: none."""
    return finalised.get(METADATA_VERSION, 0) or finalised.get(FORMER_METADATA_VERSION, 0)


def name_of_metadata_level(level: int) -> str:
    """The feature's name in the log: nodes of the version before the name was changed know the former one
    alone, and must meet a name that they do not know where a level begins that they do not know."""
    return METADATA_VERSION if level > FORMER_LEVEL_MAX else FORMER_METADATA_VERSION


def topic_name_problem(name: str) -> str | None:
    """Why `name` cannot be a topic's name, in words for the user; None when it can."""
    if not name:
        return "a topic's name must not be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"a topic's name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one has {len(name)}"
    if not _TOPIC_NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None


@dataclass(slots=True, frozen=True)
class Endpoint:
    """Where a listener can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(slots=True, frozen=True)
class BrokerState:
    """One registered broker.  `broker_epoch` is the metadata index of its registration: it identifies this
    run of the process."""

    node_id: int
    incarnation: str
    broker_epoch: int
    fenced: bool
    rack: str
    kafka_host: str
    kafka_port: int
    grpc_host: str
    grpc_port: int
    directory_id: str = ""
    shutting_down: bool = False
    supported_features: tuple[tuple[str, int], ...] = ()
    offline_replicas: frozenset[tuple[bytes, int]] = frozenset()
    """(topic id, partition) of the replicas that the broker cannot serve: their disk failed, or their data is
    damaged."""
    listeners: tuple[Listener, ...] = ()
    """Where clients reach the broker, in ascending order of the names.  None when it was registered below
    LISTENERS_LEVEL."""

    @property
    def kafka(self) -> Endpoint:
        """Where the other brokers reach it."""
        return Endpoint(self.kafka_host, self.kafka_port)

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """Where a client of this listener reaches the broker; None when the broker does not advertise the
        listener.  Registered below LISTENERS_LEVEL it has one address, for every client."""
        if not self.listeners:
            return self.kafka
        for listener in self.listeners:
            if listener.name == listener_name:
                return Endpoint(listener.host, listener.port)
        return None

    @property
    def grpc(self) -> Endpoint:
        return Endpoint(self.grpc_host, self.grpc_port)

    @property
    def active(self) -> bool:
        """Whether the broker may lead and join in-sync replica sets."""
        return not self.fenced and not self.shutting_down


@dataclass(slots=True, frozen=True)
class PartitionState:
    """One partition.  `partition_epoch` grows with every change, `leader_epoch` with every change of
    leadership.

    There is a leader exactly when `isr` is not empty, and it is a member of it.  `elr` holds the eligible
    leader replicas (KIP-966): those that left the ISR, or were not in it from the start, while it was below
    min.insync.replicas, and therefore hold every committed record.

    While the partition moves (KIP-455), `target` says what `replicas` are to become, and `adding` which of
    them joined for the sake of the move; `replicas` begin with those from before it, in their old order.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    last_known_leader: int = NO_LEADER
    adding: tuple[int, ...] = ()
    target: tuple[int, ...] = ()

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0]

    @property
    def settled_replicas(self) -> tuple[int, ...]:
        """The replicas from before the move; all replicas without a move."""
        return (
            tuple(node_id for node_id in self.replicas if node_id not in self.adding)
            if self.adding
            else self.replicas
        )

    @property
    def future_replicas(self) -> tuple[int, ...]:
        return self.target or self.replicas

    @property
    def removing(self) -> tuple[int, ...]:
        return (
            tuple(node_id for node_id in self.replicas if node_id not in self.target) if self.target else ()
        )


@dataclass(slots=True, frozen=True)
class TopicState:
    """One topic.  Neither `config` (overrides only) nor `partitions` (dense from 0) is ever changed in
    place."""

    name: str
    topic_id: UUID
    config: dict[str, str] = field(default_factory=dict)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The defaults of the keys on which the controller acts (`topic_defaults.CONTROLLERS_DEFAULTS`).  Not
    part of a snapshot: it follows from the settings of all nodes."""

    def _value(self, key: str, default: str) -> str:
        return (self.config.get(key) or self.defaults.get(key) or default).strip()

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def unclean_election_allowed(self) -> bool:
        """Whether the topic, or the cluster, has switched it on; never for a state topic (docs/semantics.md
        M13, M16)."""
        return not self.internal and self._value(UNCLEAN_ELECTION_CONFIG, "false").lower() == "true"

    @property
    def flushed_before_acknowledged(self) -> bool:
        """Every record below the high watermark was flushed by every in-sync replica; state topics always
        are."""
        return self.internal or self.config.get(FLUSH_POLICY_CONFIG, "always").strip().lower() == "always"

    def min_in_sync_replicas(self, replicas: tuple[int, ...]) -> int:
        """min.insync.replicas, but never more than there are replicas (KIP-966).  To be asked with
        `settled_replicas`: replicas that a move adds must not raise the bar before the move is over, nor
        those that it removes lower it."""
        text = self._value(MIN_IN_SYNC_REPLICAS_CONFIG, "1")
        wanted = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1
        return max(1, min(wanted, len(replicas)))

    def with_settled_eligible_leaders(self) -> tuple[TopicState, list[int]]:
        """After a change of settings, and the partitions that it changes.  A lower min.insync.replicas lets
        the high watermark move with fewer replicas from now on, so those outside the ISR are no longer known
        to hold every committed record: they leave the ELR with this very entry (KIP-966)."""
        changed = {
            number: replace(partition, elr=(), partition_epoch=partition.partition_epoch + 1)
            for number, partition in self.partitions.items()
            if partition.elr and len(partition.isr) >= self.min_in_sync_replicas(partition.settled_replicas)
        }
        return (replace(self, partitions={**self.partitions, **changed}) if changed else self), list(changed)


@dataclass(slots=True, frozen=True)
class DeletedTopic:
    """A deleted topic; a later topic of the same name has another id."""

    name: str
    topic_id: UUID
    partitions: tuple[int, ...]


# What a successful operation hands back: a broker epoch or a first producer id, a topic id, or one error code
# a partition.
Value = int | UUID | tuple[ErrorCode, ...] | None


@dataclass(slots=True, frozen=True)
class ApplyResult:
    """The result of one log entry.  `error` is the first failed operation's; `value` belongs to the last
    operation applied."""

    index: int
    term: int
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    value: Value = None
    duplicate: bool = False
    changed_topics: frozenset[str] = frozenset()
    changed_partitions: frozenset[tuple[str, int]] = frozenset()
    changed_brokers: frozenset[int] = frozenset()
    deleted_topics: tuple[DeletedTopic, ...] = ()
    from_snapshot: bool = False

    @property
    def ok(self) -> bool:
        return self.error == ErrorCode.NONE
