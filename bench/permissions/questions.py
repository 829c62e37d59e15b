"""What each user asks, in this order: what changes little first, deletions last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid5

from tidegate.security.acls import AclOperation, PermissionType, ResourceType
from tidegate.wire.api import ApiKey
from tidegate.wire.records import NewRecord, encode_batch

from .users import FOREIGN, User

WAIT_MS: Final = 10_000
NOWHERE: Final = UUID(int=0x1234)
ALL_OPERATIONS: Final = {
    "include_authorized_operations": True,
    "include_cluster_authorized_operations": True,
    "include_topic_authorized_operations": True,
}
ANY: Final = 1
"""The wire number of ANY, of resource types, patterns, operations and permissions."""
_TOPIC, _BROKER, _LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32

NOT_RECORDED: Final[frozenset[str]] = frozenset()
"""The labels of questions that no Kafka has answered yet, because the change was made where none could run.
No release has any: `python -m bench.permissions record` asks them."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A user, and what the script has made for it."""

    user: User
    topic_ids: Mapping[str, UUID]
    producer_ids: Mapping[str, int] = field(default_factory=dict)
    """By transactional id; each has epoch 0."""

    def __call__(self, name: str) -> str:
        return self.user.owns(name)

    @property
    def topics(self) -> tuple[str, str, str]:
        """One of the user, one of another user, one that there is not."""
        return self("mine"), f"{FOREIGN}mine", self("missing")

    @property
    def foreign_doomed(self) -> str:
        """A topic that this user alone tries to delete."""
        return f"{FOREIGN}{self('doomed')}"

    @property
    def ids(self) -> tuple[UUID, UUID, UUID]:
        own, foreign, _ = self.topics
        return self.topic_ids[own], self.topic_ids[foreign], NOWHERE

    @property
    def instance(self) -> UUID:
        return uuid5(NOWHERE, self.user.name)

    def producer(self, name: str = "txn") -> dict[str, Any]:
        return {"producer_id": self.producer_ids[self(name)], "producer_epoch": 0}


@dataclass(frozen=True, slots=True)
class Question:
    label: str
    key: ApiKey
    version: int
    fields: Callable[[Asker], Mapping[str, Any]]


_questions: list[Question] = []


def _ask(label: str, key: ApiKey, version: int, fields: Callable[[Asker], Mapping[str, Any]]) -> None:
    _questions.append(Question(label, key, version, fields))


def _each(names: tuple[str, ...], name: str = "name", **more: Any) -> list[dict[str, Any]]:
    return [{name: each, **more} for each in names]


# ---- cluster and topics, read only ----

_ask(
    "cluster",
    ApiKey.DESCRIBE_CLUSTER,
    2,
    lambda a: {"endpoint_type": 1, "include_fenced_brokers": False, **ALL_OPERATIONS},
)


def _metadata(topics: list[dict[str, Any]] | None, *, create: bool = False) -> dict[str, Any]:
    return {"topics": topics, "allow_auto_topic_creation": create, **ALL_OPERATIONS}


for _version in (4, 9, 13):
    _ask(
        f"metadata {_version} of topics",
        ApiKey.METADATA,
        _version,
        lambda a: _metadata(_each(a.topics, topic_id=None)),
    )
_ask(
    "metadata 13 of topic ids",
    ApiKey.METADATA,
    13,
    lambda a: _metadata([{"name": None, "topic_id": each} for each in a.ids]),
)
_ask("metadata 13 of all topics", ApiKey.METADATA, 13, lambda a: _metadata(None))
_ask(
    "topic partitions",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    0,
    lambda a: {"topics": _each(a.topics), "response_partition_limit": 100, "cursor": None},
)
_ask(
    "topic partitions of all",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    0,
    lambda a: {"topics": [], "response_partition_limit": 2000, "cursor": None},
)
_ask(
    "quorum",
    ApiKey.DESCRIBE_QUORUM,
    2,
    lambda a: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
)
_ask(
    "quorum of another topic",
    ApiKey.DESCRIBE_QUORUM,
    2,
    lambda a: {"topics": [{"topic_name": a("mine"), "partitions": [{"partition_index": 0}]}]},
)
_ask(
    "log directories",
    ApiKey.DESCRIBE_LOG_DIRS,
    4,
    lambda a: {"topics": [{"topic": a("mine"), "partitions": [0]}]},
)
_ask(
    "reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    0,
    lambda a: {"timeout": WAIT_MS, "topics": _each(a.topics[:2], partition_indexes=[0])},
)
_ask("producers", ApiKey.DESCRIBE_PRODUCERS, 0, lambda a: {"topics": _each(a.topics, partition_indexes=[0])})
_ask("telemetry subscriptions", ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, lambda a: {"client_instance_id": None})
_ask(
    "telemetry",
    ApiKey.PUSH_TELEMETRY,
    0,
    lambda a: {
        "client_instance_id": a.instance,
        "subscription_id": 1,
        "terminating": False,
        "compression_type": 0,
        "metrics": b"",
    },
)
_ask("config resources 0", ApiKey.LIST_CONFIG_RESOURCES, 0, lambda a: {})
_ask("config resources 1", ApiKey.LIST_CONFIG_RESOURCES, 1, lambda a: {"resource_types": [_TOPIC, _GROUP]})


def _configs_described(kind: int, names: tuple[str, ...]) -> None:
    _ask(
        f"configs of resource type {kind}",
        ApiKey.DESCRIBE_CONFIGS,
        4,
        lambda a: {
            "resources": [
                {"resource_type": kind, "resource_name": each, "configuration_keys": None}
                for each in ((*map(a, names), FOREIGN + names[0]) if kind in (_TOPIC, _GROUP) else names)
            ],
            "include_synonyms": False,
            "include_documentation": False,
        },
    )


for _type, _names in (
    (_TOPIC, ("mine", "missing")),
    (_BROKER, ("1", "")),
    (_LOGGER, ("1",)),
    (_CLIENT_METRICS, ("metrics",)),
    (_GROUP, ("group",)),
):
    _configs_described(_type, _names)

# ---- records ----


def _records(**identity: Any) -> bytes:
    return encode_batch([NewRecord(None, b"v", (), 1_700_000_000_000)], **identity)


def _produce(
    topics: list[dict[str, Any]], transactional_id: str | None = None, records: bytes = _records()
) -> dict[str, Any]:
    parts = [{"index": 0, "records": records}]
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": WAIT_MS,
        "topic_data": [{**each, "partition_data": parts} for each in topics],
    }


_ask("produce 12", ApiKey.PRODUCE, 12, lambda a: _produce(_each(a.topics)))
_ask("produce 13", ApiKey.PRODUCE, 13, lambda a: _produce([{"topic_id": each} for each in a.ids]))


def _fetch(topics: list[dict[str, Any]], replica: int = -1) -> dict[str, Any]:
    part = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
        "replica_directory_id": None,
        "high_watermark": -1,
    }
    return {
        "replica_id": replica,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "rack_id": "",
        "forgotten_topics_data": [],
        "cluster_id": None,
        "replica_state": {"replica_id": replica, "replica_epoch": -1},
        "topics": [{**each, "partitions": [part]} for each in topics],
    }


def _fetches(replica: int) -> None:
    say = "fetch" if replica < 0 else "fetch of a follower,"
    _ask(f"{say} 12", ApiKey.FETCH, 12, lambda a: _fetch(_each(a.topics, "topic"), replica))
    _ask(
        f"{say} 17",
        ApiKey.FETCH,
        17,
        lambda a: _fetch([{"topic_id": each} for each in a.ids], replica),
    )


for _replica in (-1, 1):
    _fetches(_replica)


def _offsets_listed(at: int) -> None:
    _ask(
        f"offsets at {at}",
        ApiKey.LIST_OFFSETS,
        7,
        lambda a: {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": WAIT_MS,
            "topics": _each(
                a.topics, partitions=[{"partition_index": 0, "current_leader_epoch": -1, "timestamp": at}]
            ),
        },
    )


for _timestamp in (-1, -2):
    _offsets_listed(_timestamp)


def _epoch_ends(replica: int) -> None:
    _ask(
        f"epoch ends for {replica}",
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        lambda a: {
            "replica_id": replica,
            "topics": _each(
                a.topics,
                "topic",
                partitions=[{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
            ),
        },
    )


for _replica in (-1, 1):
    _epoch_ends(_replica)
_ask(
    "records deleted",
    ApiKey.DELETE_RECORDS,
    2,
    lambda a: {
        "timeout": WAIT_MS,
        "topics": _each(a.topics, partitions=[{"partition_index": 0, "offset": 0}]),
    },
)

# ---- groups ----


def _offsets(a: Asker) -> list[dict[str, Any]]:
    return _each(
        a.topics,
        partitions=[
            {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
        ],
    )


_MEMBER: Final = {
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "group_instance_id": None,
}
_ask("coordinator 3 of a group", ApiKey.FIND_COORDINATOR, 3, lambda a: {"key": a("group"), "key_type": 0})
_ask(
    "coordinators of groups",
    ApiKey.FIND_COORDINATOR,
    4,
    lambda a: {"key_type": 0, "coordinator_keys": [a("group"), f"{FOREIGN}group"]},
)
_ask(
    "coordinators of transactions",
    ApiKey.FIND_COORDINATOR,
    4,
    lambda a: {"key_type": 1, "coordinator_keys": [a("txn"), f"{FOREIGN}txn"]},
)
_ask(
    "coordinators of share groups",
    ApiKey.FIND_COORDINATOR,
    6,
    lambda a: {"key_type": 2, "coordinator_keys": [f"{a('group')}:{NOWHERE}:0"]},
)
_ask(
    "offsets committed",
    ApiKey.OFFSET_COMMIT,
    9,
    lambda a: {"group_id": a("group"), **_MEMBER, "topics": _offsets(a)},
)
_ask(
    "offsets committed to another group",
    ApiKey.OFFSET_COMMIT,
    9,
    lambda a: {"group_id": f"{FOREIGN}group", **_MEMBER, "topics": _offsets(a)},
)
for _version in (5, 7):
    _ask(
        f"offsets fetched {_version}",
        ApiKey.OFFSET_FETCH,
        _version,
        lambda a: {
            "group_id": a("group"),
            "topics": _each(a.topics, partition_indexes=[0]),
            "require_stable": False,
        },
    )
    _ask(
        f"offsets fetched {_version}, all",
        ApiKey.OFFSET_FETCH,
        _version,
        lambda a: {"group_id": a("group"), "topics": None, "require_stable": False},
    )
_ask(
    "offsets fetched 9",
    ApiKey.OFFSET_FETCH,
    9,
    lambda a: {
        "require_stable": False,
        "groups": [
            {
                "group_id": each,
                "member_id": None,
                "member_epoch": -1,
                "topics": _each(a.topics, partition_indexes=[0]),
            }
            for each in (a("group"), f"{FOREIGN}group")
        ],
    },
)
_ask(
    "offsets fetched 9, all",
    ApiKey.OFFSET_FETCH,
    9,
    lambda a: {
        "require_stable": False,
        "groups": [
            {"group_id": each, "member_id": None, "member_epoch": -1, "topics": None}
            for each in (a("group"), f"{FOREIGN}group")
        ],
    },
)
_STRANGER: Final = {**_MEMBER, "member_id": "stranger", "generation_id": 1}
_ask("heartbeat", ApiKey.HEARTBEAT, 4, lambda a: {"group_id": a("group"), **_STRANGER})
_ask(
    "sync",
    ApiKey.SYNC_GROUP,
    5,
    lambda a: {
        "group_id": a("group"),
        **_STRANGER,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    },
)
for _version in (2, 5):
    _ask(
        f"leave {_version}",
        ApiKey.LEAVE_GROUP,
        _version,
        lambda a: {
            "group_id": a("group"),
            "member_id": "stranger",
            "members": [{"member_id": "stranger", "group_instance_id": None, "reason": None}],
        },
    )
for _version in (5, 6):
    _ask(
        f"groups described {_version}",
        ApiKey.DESCRIBE_GROUPS,
        _version,
        lambda a: {"groups": [a("group"), f"{FOREIGN}group", a("nobodys")], **ALL_OPERATIONS},
    )
_ask("groups listed", ApiKey.LIST_GROUPS, 5, lambda a: {"states_filter": [], "types_filter": []})
_ask(
    "join",
    ApiKey.JOIN_GROUP,
    9,
    lambda a: {
        "group_id": a("joined"),
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        **_MEMBER,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    },
)


def _heartbeat(group: str, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": "AAAAAAAAAAAAAAAAAAAAAQ",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
        **more,
    }


_ask(
    "member of a consumer group",
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    1,
    lambda a: _heartbeat(a("members"), subscribed_topic_names=[a("mine")]),
)
_ask(
    "member of a consumer group, topics of others",
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    1,
    lambda a: _heartbeat(a("others"), subscribed_topic_names=list(a.topics)),
)
_ask(
    "member of a consumer group, by pattern",
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    1,
    lambda a: _heartbeat(a("pattern"), subscribed_topic_names=[], subscribed_topic_regex=".*mine"),
)
_ask(
    "consumer groups described",
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    1,
    lambda a: {"group_ids": [a("members"), f"{FOREIGN}group", a("nobodys")], **ALL_OPERATIONS},
)
_ask(
    "member that leaves a consumer group",
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    1,
    lambda a: _heartbeat(a("members"), member_epoch=-1),
)
_ask(
    "member that leaves a consumer group of a pattern",
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    1,
    lambda a: _heartbeat(a("pattern"), member_epoch=-1),
)

# ---- producers and transactions ----


def _identity(transactional_id: str | None) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


_ask("idempotent producer", ApiKey.INIT_PRODUCER_ID, 4, lambda a: _identity(None))
_ask(
    "partitions added",
    ApiKey.ADD_PARTITIONS_TO_TXN,
    3,
    lambda a: {
        "v3_and_below_transactional_id": a("txn"),
        "v3_and_below_producer_id": a.producer()["producer_id"],
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": _each(a.topics[:1], partitions=[0]),
    },
)
_ask(
    "partitions of others added",
    ApiKey.ADD_PARTITIONS_TO_TXN,
    3,
    lambda a: {
        "v3_and_below_transactional_id": a("txn"),
        "v3_and_below_producer_id": a.producer()["producer_id"],
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": _each(a.topics, partitions=[0]),
    },
)


def _added_by_broker(verify: bool) -> None:
    _ask(
        f"partitions added by a broker, {verify}",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        lambda a: {
            "transactions": [
                {
                    "transactional_id": a("txn"),
                    **a.producer(),
                    "verify_only": verify,
                    "topics": _each(a.topics[:1], partitions=[0]),
                }
            ]
        },
    )


for _verify in (False, True):
    _added_by_broker(_verify)
_ask(
    "produce in a transaction",
    ApiKey.PRODUCE,
    11,
    lambda a: _produce(
        _each(a.topics[:2]), a("txn"), _records(**a.producer(), base_sequence=0, transactional=True)
    ),
)
_ask(
    "produce in a transaction of another user",
    ApiKey.PRODUCE,
    11,
    lambda a: _produce(
        _each(a.topics[:2]), f"{FOREIGN}txn", _records(**a.producer(), base_sequence=0, transactional=True)
    ),
)
_ask(
    "offsets added",
    ApiKey.ADD_OFFSETS_TO_TXN,
    4,
    lambda a: {"transactional_id": a("txn"), **a.producer(), "group_id": a("group")},
)
_ask(
    "offsets of another group added",
    ApiKey.ADD_OFFSETS_TO_TXN,
    4,
    lambda a: {"transactional_id": a("txn"), **a.producer(), "group_id": f"{FOREIGN}group"},
)
_ask(
    "offsets committed in a transaction",
    ApiKey.TXN_OFFSET_COMMIT,
    4,
    lambda a: {
        "transactional_id": a("txn"),
        "group_id": a("group"),
        **a.producer(),
        **_MEMBER,
        "topics": _offsets(a),
    },
)
_ask(
    "offsets committed in a transaction of another user",
    ApiKey.TXN_OFFSET_COMMIT,
    4,
    lambda a: {
        "transactional_id": f"{FOREIGN}txn",
        "group_id": a("group"),
        **a.producer(),
        **_MEMBER,
        "topics": _offsets(a),
    },
)
_ask(
    "transactions described",
    ApiKey.DESCRIBE_TRANSACTIONS,
    0,
    lambda a: {"transactional_ids": [a("txn"), f"{FOREIGN}txn", a("nobodys")]},
)
_ask(
    "transactions listed",
    ApiKey.LIST_TRANSACTIONS,
    1,
    lambda a: {"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
)
_ask(
    "end of a transaction",
    ApiKey.END_TXN,
    4,
    lambda a: {"transactional_id": a("txn"), **a.producer(), "committed": False},
)
_ask(
    "end of a transaction of another user",
    ApiKey.END_TXN,
    4,
    lambda a: {"transactional_id": f"{FOREIGN}txn", **a.producer(), "committed": False},
)
_ask(
    "markers",
    ApiKey.WRITE_TXN_MARKERS,
    1,
    lambda a: {
        "markers": [
            {
                "producer_id": 987_654,
                "producer_epoch": 0,
                "transaction_result": False,
                "coordinator_epoch": 0,
                "topics": _each(a.topics, partition_indexes=[0]),
            }
        ]
    },
)


def _transactional_producer(name: str) -> None:
    _ask(
        f"transactional producer, {name}",
        ApiKey.INIT_PRODUCER_ID,
        4,
        lambda a: _identity(a(name)),
    )


for _name in ("new", "txn"):
    _transactional_producer(_name)
_ask(
    "transactional producer of another user", ApiKey.INIT_PRODUCER_ID, 4, lambda a: _identity(f"{FOREIGN}txn")
)

# ---- security and settings ----

_ANY_ACL: Final = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": "User:ghost",
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}
_ask("ACLs described", ApiKey.DESCRIBE_ACLS, 3, lambda a: _ANY_ACL)
_ask(
    "ACLs created",
    ApiKey.CREATE_ACLS,
    3,
    lambda a: {
        "creations": [
            {**each, "principal": "User:ghost"}
            for each in User(a("x"), ((ResourceType.TOPIC, AclOperation.READ, PermissionType.ALLOW),)).acls()
        ]
    },
)
_ask("ACLs deleted", ApiKey.DELETE_ACLS, 3, lambda a: {"filters": [_ANY_ACL]})
_ask(
    "quotas described",
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    1,
    lambda a: {"components": [{"entity_type": "user", "match_type": 2, "match": None}], "strict": False},
)
_ask(
    "quotas altered",
    ApiKey.ALTER_CLIENT_QUOTAS,
    1,
    lambda a: {
        "validate_only": True,
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": "ghost"}],
                "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}],
            }
        ],
    },
)
_ask(
    "SCRAM credentials described",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    0,
    lambda a: {"users": [{"name": "ghost"}]},
)
_ask(
    "SCRAM credentials altered",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    0,
    lambda a: {"deletions": [{"name": "ghost", "mechanism": 1}], "upsertions": []},
)
_ask(
    "tokens of another user described",
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    3,
    lambda a: {"owners": [{"principal_type": "User", "principal_name": "ghost"}]},
)
_SETTINGS: Final = {
    _TOPIC: ("retention.ms", "1000000"),
    _BROKER: ("log.cleaner.backoff.ms", "15000"),
    _GROUP: ("consumer.session.timeout.ms", "50000"),
    _CLIENT_METRICS: ("interval.ms", "1000"),
}


def _configs_altered(kind: int, names: tuple[str, ...]) -> None:
    for _key, _version in ((ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)):
        _ask(
            f"{_key.name.lower()} of resource type {kind}",
            _key,
            _version,
            lambda a: {
                "validate_only": True,
                "resources": [
                    {
                        "resource_type": kind,
                        "resource_name": each,
                        "configs": [
                            {"name": _SETTINGS[kind][0], "config_operation": 0, "value": _SETTINGS[kind][1]}
                        ],
                    }
                    for each in ((*map(a, names), FOREIGN + names[0]) if kind in (_TOPIC, _GROUP) else names)
                ],
            },
        )


for _type, _names in (
    (_TOPIC, ("mine", "missing")),
    (_BROKER, ("1", "")),
    (_GROUP, ("group",)),
    (_CLIENT_METRICS, ("metrics",)),
):
    _configs_altered(_type, _names)
_ask(
    "features updated",
    ApiKey.UPDATE_FEATURES,
    1,
    lambda a: {
        "timeout": WAIT_MS,
        "validate_only": True,
        "feature_updates": [{"feature": "nothing.version", "max_version_level": 1, "upgrade_type": 1}],
    },
)
_ask("broker unregistered", ApiKey.UNREGISTER_BROKER, 0, lambda a: {"broker_id": 4711})

# ---- topics are changed ----

_ask(
    "log directories altered",
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    2,
    lambda a: {"dirs": [{"path": "/nowhere", "topics": _each(a.topics, partitions=[0])}]},
)
_ask(
    "election",
    ApiKey.ELECT_LEADERS,
    2,
    lambda a: {
        "election_type": 0,
        "timeout": WAIT_MS,
        "topic_partitions": _each(a.topics, "topic", partitions=[0]),
    },
)
_ask(
    "election of all",
    ApiKey.ELECT_LEADERS,
    2,
    lambda a: {"election_type": 0, "timeout": WAIT_MS, "topic_partitions": None},
)
_ask(
    "reassignment",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    0,
    lambda a: {
        "timeout": WAIT_MS,
        "topics": _each(a.topics, partitions=[{"partition_index": 0, "replicas": None}]),
    },
)


def _topics_changed(only: bool) -> None:
    say = "validated" if only else "created"
    _ask(
        f"partitions {say}",
        ApiKey.CREATE_PARTITIONS,
        3,
        lambda a: {
            "timeout": WAIT_MS,
            "validate_only": only,
            "topics": _each(a.topics, count=2, assignments=None),
        },
    )
    _ask(
        f"topics {say}",
        ApiKey.CREATE_TOPICS,
        7,
        lambda a: {
            "timeout": WAIT_MS,
            "validate_only": only,
            "topics": _each(
                (a("created"), f"{FOREIGN}{a('created')}", a("mine")),
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            ),
        },
    )


for _only in (True, False):
    _topics_changed(_only)
_ask(
    "offsets deleted",
    ApiKey.OFFSET_DELETE,
    0,
    lambda a: {"group_id": a("group"), "topics": _each(a.topics, partitions=[{"partition_index": 0}])},
)
_ask(
    "offsets of another group deleted",
    ApiKey.OFFSET_DELETE,
    0,
    lambda a: {"group_id": f"{FOREIGN}group", "topics": _each(a.topics, partitions=[{"partition_index": 0}])},
)
_ask(
    "groups deleted",
    ApiKey.DELETE_GROUPS,
    2,
    lambda a: {"groups_names": [a("group"), f"{FOREIGN}group", a("nobodys")]},
)
_ask(
    "topics deleted 5",
    ApiKey.DELETE_TOPICS,
    5,
    lambda a: {"timeout": WAIT_MS, "topic_names": [a("doomed"), a.foreign_doomed, a("missing")]},
)
_ask(
    "topics deleted by id",
    ApiKey.DELETE_TOPICS,
    6,
    lambda a: {
        "timeout": WAIT_MS,
        "topics": [
            {"name": None, "topic_id": each} for each in (a.ids[0], a.topic_ids[a.foreign_doomed], NOWHERE)
        ],
    },
)
_ask(
    "metadata 13, a topic to be created",
    ApiKey.METADATA,
    13,
    lambda a: _metadata(_each((a("automatic"), f"{FOREIGN}{a('automatic')}"), topic_id=None), create=True),
)

QUESTIONS: Final = tuple(_questions)
