"""Which right each request of the Kafka protocol needs, for what it names: one table, `RIGHTS`.

A handler asks for the right of one subject of its request (`Permissions.allows(context, "topic", name)`); a
subject whose right is missing is answered with the right's error, or left out where the table says so: what a
client may not describe, it does not see.  `docs/security.md` has this table, made from it; a Kafka 4.1.1 was
asked the same questions (`tests/security/test_permission_matrix.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..wire.api import ApiKey
from ..wire.errors import ErrorCode
from .acls import AclOperation, ResourceType

_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


@dataclass(frozen=True, slots=True)
class Right:
    """An operation on what a subject of a request names."""

    operation: AclOperation
    resource_type: ResourceType
    hidden: bool = False
    """Its lack is no refusal: the subject is left out of the answer, or another right does as well."""

    @property
    def error(self) -> ErrorCode:
        return _ERRORS[self.resource_type]


_T, _G, _C, _X = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
_Op = AclOperation
_CLUSTER_ACTION = Right(_Op.CLUSTER_ACTION, _C)
_CLUSTER_ALTER = Right(_Op.ALTER, _C)
_CLUSTER_DESCRIBE = Right(_Op.DESCRIBE, _C)
_GROUP_READ, _TOPIC_READ = Right(_Op.READ, _G), Right(_Op.READ, _T)
_TOPIC_DESCRIBE, _TOPIC_WRITE = Right(_Op.DESCRIBE, _T), Right(_Op.WRITE, _T)
_TRANSACTION_WRITE = Right(_Op.WRITE, _X)
_TWO_PHASE_COMMIT = Right(_Op.TWO_PHASE_COMMIT, _X)
_CONFIGS: Final = {
    "topic": Right(_Op.ALTER_CONFIGS, _T),
    "group": Right(_Op.ALTER_CONFIGS, _G),
    "cluster": Right(_Op.ALTER_CONFIGS, _C),
}

RIGHTS: Final[Mapping[int, Mapping[str, Right]]] = {
    ApiKey.PRODUCE: {"topic": _TOPIC_WRITE, "transactional id": _TRANSACTION_WRITE},
    ApiKey.FETCH: {"topic": _TOPIC_READ, "follower": _CLUSTER_ACTION},
    ApiKey.LIST_OFFSETS: {"topic": _TOPIC_DESCRIBE},
    ApiKey.METADATA: {
        "cluster": Right(_Op.DESCRIBE, _C, hidden=True),
        "topic": _TOPIC_DESCRIBE,
        "any topic": Right(_Op.DESCRIBE, _T, hidden=True),
        "new topics": Right(_Op.CREATE, _C, hidden=True),
        "new topic": Right(_Op.CREATE, _T),
    },
    ApiKey.OFFSET_COMMIT: {"group": _GROUP_READ, "topic": _TOPIC_READ},
    ApiKey.OFFSET_FETCH: {"group": Right(_Op.DESCRIBE, _G), "topic": _TOPIC_DESCRIBE},
    ApiKey.FIND_COORDINATOR: {
        "group": Right(_Op.DESCRIBE, _G),
        "transactional id": Right(_Op.DESCRIBE, _X),
        "share group": _CLUSTER_ACTION,
    },
    ApiKey.JOIN_GROUP: {"group": _GROUP_READ},
    ApiKey.HEARTBEAT: {"group": _GROUP_READ},
    ApiKey.LEAVE_GROUP: {"group": _GROUP_READ},
    ApiKey.SYNC_GROUP: {"group": _GROUP_READ},
    ApiKey.DESCRIBE_GROUPS: {"group": Right(_Op.DESCRIBE, _G)},
    ApiKey.LIST_GROUPS: {"cluster": _CLUSTER_DESCRIBE, "group": Right(_Op.DESCRIBE, _G, hidden=True)},
    ApiKey.SASL_HANDSHAKE: {},
    ApiKey.API_VERSIONS: {},
    ApiKey.CREATE_TOPICS: {
        "cluster": Right(_Op.CREATE, _C, hidden=True),
        "topic": Right(_Op.CREATE, _T),
        "settings": Right(_Op.DESCRIBE_CONFIGS, _T, hidden=True),
    },
    ApiKey.DELETE_TOPICS: {
        "cluster": Right(_Op.DELETE, _C, hidden=True),
        "topic": Right(_Op.DELETE, _T),
        "name": Right(_Op.DESCRIBE, _T, hidden=True),
    },
    ApiKey.DELETE_RECORDS: {"topic": Right(_Op.DELETE, _T)},
    ApiKey.INIT_PRODUCER_ID: {
        "transactional id": _TRANSACTION_WRITE,
        "two-phase commit": _TWO_PHASE_COMMIT,
        "cluster": Right(_Op.IDEMPOTENT_WRITE, _C),
        "any topic": _TOPIC_WRITE,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "topic": _TOPIC_DESCRIBE, "follower": Right(_Op.CLUSTER_ACTION, _C, hidden=True)
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        "transactional id": _TRANSACTION_WRITE, "topic": _TOPIC_WRITE, "broker": _CLUSTER_ACTION
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {"transactional id": _TRANSACTION_WRITE, "group": _GROUP_READ},
    ApiKey.END_TXN: {"transactional id": _TRANSACTION_WRITE},
    ApiKey.WRITE_TXN_MARKERS: {"cluster": Right(_Op.ALTER, _C, hidden=True), "broker": _CLUSTER_ACTION},
    ApiKey.TXN_OFFSET_COMMIT: {
        "transactional id": _TRANSACTION_WRITE, "group": _GROUP_READ, "topic": _TOPIC_READ
    },
    ApiKey.DESCRIBE_ACLS: {"cluster": _CLUSTER_DESCRIBE},
    ApiKey.CREATE_ACLS: {"cluster": _CLUSTER_ALTER},
    ApiKey.DELETE_ACLS: {"cluster": _CLUSTER_ALTER},
    ApiKey.DESCRIBE_CONFIGS: {
        "topic": Right(_Op.DESCRIBE_CONFIGS, _T),
        "group": Right(_Op.DESCRIBE_CONFIGS, _G),
        "cluster": Right(_Op.DESCRIBE_CONFIGS, _C),
    },
    ApiKey.ALTER_CONFIGS: _CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS: {"cluster": _CLUSTER_ALTER},
    ApiKey.DESCRIBE_LOG_DIRS: {"cluster": _CLUSTER_DESCRIBE},
    ApiKey.SASL_AUTHENTICATE: {},
    ApiKey.CREATE_PARTITIONS: {"topic": Right(_Op.ALTER, _T)},
    ApiKey.CREATE_DELEGATION_TOKEN: {"owner": Right(_Op.CREATE_TOKENS, ResourceType.USER)},
    ApiKey.RENEW_DELEGATION_TOKEN: {},
    ApiKey.EXPIRE_DELEGATION_TOKEN: {},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {
        "token": Right(_Op.DESCRIBE, ResourceType.DELEGATION_TOKEN, hidden=True),
        "owner": Right(_Op.DESCRIBE_TOKENS, ResourceType.USER, hidden=True),
    },
    ApiKey.DELETE_GROUPS: {"group": Right(_Op.DELETE, _G)},
    ApiKey.ELECT_LEADERS: {"cluster": _CLUSTER_ALTER},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {"cluster": _CLUSTER_ALTER},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"cluster": _CLUSTER_DESCRIBE},
    ApiKey.OFFSET_DELETE: {"group": Right(_Op.DELETE, _G), "topic": _TOPIC_READ},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {"cluster": Right(_Op.DESCRIBE_CONFIGS, _C)},
    ApiKey.ALTER_CLIENT_QUOTAS: {"cluster": Right(_Op.ALTER_CONFIGS, _C)},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"cluster": _CLUSTER_DESCRIBE},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {"cluster": _CLUSTER_ALTER},
    ApiKey.DESCRIBE_QUORUM: {"cluster": _CLUSTER_DESCRIBE},
    ApiKey.UPDATE_FEATURES: {"cluster": _CLUSTER_ALTER},
    ApiKey.DESCRIBE_CLUSTER: {"cluster": Right(_Op.DESCRIBE, _C, hidden=True)},
    ApiKey.DESCRIBE_PRODUCERS: {"topic": _TOPIC_READ},
    ApiKey.UNREGISTER_BROKER: {"cluster": _CLUSTER_ALTER},
    ApiKey.DESCRIBE_TRANSACTIONS: {
        "transactional id": Right(_Op.DESCRIBE, _X), "topic": Right(_Op.DESCRIBE, _T, hidden=True)
    },
    ApiKey.LIST_TRANSACTIONS: {"transactional id": Right(_Op.DESCRIBE, _X, hidden=True)},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {"group": _GROUP_READ, "topic": _TOPIC_DESCRIBE},
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"group": Right(_Op.DESCRIBE, _G), "topic": _TOPIC_DESCRIBE},
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: {},
    ApiKey.PUSH_TELEMETRY: {},
    ApiKey.LIST_CONFIG_RESOURCES: {"cluster": Right(_Op.DESCRIBE_CONFIGS, _C)},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "topic": _TOPIC_DESCRIBE, "any topic": Right(_Op.DESCRIBE, _T, hidden=True)
    },
}  # fmt: skip

METHOD_RIGHTS: Final[Mapping[str, Right]] = {
    "DescribeTopics": _TOPIC_DESCRIBE,
    "Offsets": _TOPIC_DESCRIBE,
    "PlanRanges": _TOPIC_DESCRIBE,
    "PlanManyRanges": _TOPIC_DESCRIBE,
    "CountRecords": _TOPIC_DESCRIBE,
    "ReadRange": _TOPIC_READ,
    "GetCut": _TOPIC_READ,
    "ListCuts": _TOPIC_DESCRIBE,
    **dict.fromkeys(("PinCut", "UnpinCut"), Right(_Op.ALTER, _T)),
    "TakeCut": _TOPIC_READ,
    "PrepareTransaction": _TRANSACTION_WRITE,
    "PrepareTransaction/two-phase": _TWO_PHASE_COMMIT,
    **dict.fromkeys(
        ("OpenAttempt", "PrepareAttempt", "RenewJob", "CommitJob", "AbortJob"), _TRANSACTION_WRITE
    ),
    **dict.fromkeys(("ListJobs", "DescribeJob"), Right(_Op.DESCRIBE, _X)),
    "Status": _CLUSTER_DESCRIBE,
    "ArmFault": _CLUSTER_ALTER,
}
"""The same for the methods of the gRPC services: for the topics or transactional ids that they name, or the
cluster."""
