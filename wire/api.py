"""Which requests of the Kafka protocol Tidegate serves, in which versions, and how their headers look.

One table, `TABLE`. A node advertises the part of this table for which it has handlers.  Two entries are wider
than the versions that are served:

* Produce is advertised from version 0 because librdkafka 2.0 otherwise does not compress its batches, and
  says nothing about it; versions 0 to 2 carry record formats of the time before 0.11 and are answered by
  `produce.refuse_old_produce`;
* AddPartitionsToTxn 4 and 5 are requests between brokers (KIP-890); clients stop at 3 by themselves.
  Kafka guards them by the right CLUSTER_ACTION.  Without authentication neither Kafka nor Tidegate can
  distinguish a broker from a client; such a request can act only for the producer id and epoch that it
  carries.

InitProducerId 6 (KIP-939) is unstable in Kafka 4.1: like a Kafka with `unstable.api.versions.enable`, a node
advertises it only with `transaction.two.phase.commit.enable`.

Our own client, and followers among themselves, stay at the last versions of Produce and Fetch in which topics
go by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class ApiKey(IntEnum):
    """The requests that Tidegate knows by name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class NodeRequest(IntEnum):
    """Tidegate's own requests between brokers, in no table of Kafka's: version 0, and a protobuf message
    (`proto/cuts.proto`) as the body.  No client sends them, and ApiVersions does not name them."""

    HOLD_DECISIONS = 32_001
    RELEASE_DECISIONS = 32_002
    CUT_BOUNDS = 32_003


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """One request: versions served, the first flexible one (KIP-482), the lowest advertised, the highest
    advertised where unstable ones are not."""

    low: int
    high: int
    flexible_from: int
    advertised_low: int
    stable_high: int
    schema: str


_NEVER = 1 << 15  # a message that never became flexible


def _api(
    low: int,
    high: int,
    flexible: int,
    schema: str,
    *,
    advertised: int | None = None,
    stable: int | None = None,
) -> ApiSpec:
    advertised_low, stable_high = (
        low if advertised is None else advertised,
        high if stable is None else stable,
    )
    return ApiSpec(low, high, flexible, advertised_low, stable_high, schema)


TABLE: Mapping[ApiKey, ApiSpec] = {
    ApiKey.PRODUCE: _api(3, 13, 9, "produce", advertised=0),
    ApiKey.FETCH: _api(4, 18, 12, "fetch"),
    ApiKey.LIST_OFFSETS: _api(1, 10, 6, "list_offsets"),
    ApiKey.METADATA: _api(0, 13, 9, "metadata"),
    ApiKey.OFFSET_COMMIT: _api(2, 9, 8, "offset_commit"),
    ApiKey.OFFSET_FETCH: _api(1, 9, 6, "offset_fetch"),
    ApiKey.FIND_COORDINATOR: _api(0, 6, 3, "find_coordinator"),
    ApiKey.JOIN_GROUP: _api(0, 9, 6, "join_group"),
    ApiKey.HEARTBEAT: _api(0, 4, 4, "heartbeat"),
    ApiKey.LEAVE_GROUP: _api(0, 5, 4, "leave_group"),
    ApiKey.SYNC_GROUP: _api(0, 5, 4, "sync_group"),
    ApiKey.DESCRIBE_GROUPS: _api(0, 6, 5, "describe_groups"),
    ApiKey.LIST_GROUPS: _api(0, 5, 3, "list_groups"),
    ApiKey.SASL_HANDSHAKE: _api(0, 1, _NEVER, "sasl_handshake"),
    ApiKey.API_VERSIONS: _api(0, 4, 3, "api_versions"),
    ApiKey.CREATE_TOPICS: _api(2, 7, 5, "create_topics"),
    ApiKey.DELETE_TOPICS: _api(1, 6, 4, "delete_topics"),
    ApiKey.DELETE_RECORDS: _api(0, 2, 2, "delete_records"),
    ApiKey.INIT_PRODUCER_ID: _api(0, 6, 2, "init_producer_id", stable=5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _api(2, 4, 4, "offset_for_leader_epoch"),
    ApiKey.ADD_PARTITIONS_TO_TXN: _api(0, 5, 3, "add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: _api(0, 4, 3, "add_offsets_to_txn"),
    ApiKey.END_TXN: _api(0, 5, 3, "end_txn"),
    ApiKey.WRITE_TXN_MARKERS: _api(1, 2, 1, "write_txn_markers"),
    ApiKey.TXN_OFFSET_COMMIT: _api(0, 5, 3, "txn_offset_commit"),
    ApiKey.DESCRIBE_ACLS: _api(1, 3, 2, "describe_acls"),
    ApiKey.CREATE_ACLS: _api(1, 3, 2, "create_acls"),
    ApiKey.DELETE_ACLS: _api(1, 3, 2, "delete_acls"),
    ApiKey.DESCRIBE_CONFIGS: _api(1, 4, 4, "describe_configs"),
    ApiKey.ALTER_CONFIGS: _api(0, 2, 2, "alter_configs"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _api(1, 2, 2, "alter_replica_log_dirs"),
    ApiKey.DESCRIBE_LOG_DIRS: _api(1, 4, 2, "describe_log_dirs"),
    ApiKey.SASL_AUTHENTICATE: _api(0, 2, 2, "sasl_authenticate"),
    ApiKey.CREATE_PARTITIONS: _api(0, 3, 2, "create_partitions"),
    ApiKey.CREATE_DELEGATION_TOKEN: _api(1, 3, 2, "create_delegation_token"),
    ApiKey.RENEW_DELEGATION_TOKEN: _api(1, 2, 2, "renew_delegation_token"),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _api(1, 2, 2, "expire_delegation_token"),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _api(1, 3, 2, "describe_delegation_token"),
    ApiKey.DELETE_GROUPS: _api(0, 2, 2, "delete_groups"),
    ApiKey.ELECT_LEADERS: _api(0, 2, 2, "elect_leaders"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _api(0, 1, 1, "incremental_alter_configs"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _api(0, 1, 0, "alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _api(0, 0, 0, "list_partition_reassignments"),
    ApiKey.DESCRIBE_QUORUM: _api(0, 2, 0, "describe_quorum"),
    ApiKey.UPDATE_FEATURES: _api(0, 2, 0, "update_features"),
    ApiKey.UNREGISTER_BROKER: _api(0, 0, 0, "unregister_broker"),
    ApiKey.OFFSET_DELETE: _api(0, 0, _NEVER, "offset_delete"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _api(0, 1, 1, "describe_client_quotas"),
    ApiKey.ALTER_CLIENT_QUOTAS: _api(0, 1, 1, "alter_client_quotas"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _api(0, 0, 0, "describe_user_scram_credentials"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _api(0, 0, 0, "alter_user_scram_credentials"),
    ApiKey.DESCRIBE_CLUSTER: _api(0, 2, 0, "describe_cluster"),
    ApiKey.DESCRIBE_PRODUCERS: _api(0, 0, 0, "describe_producers"),
    ApiKey.DESCRIBE_TRANSACTIONS: _api(0, 0, 0, "describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: _api(0, 2, 0, "list_transactions"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _api(0, 1, 0, "consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _api(0, 1, 0, "consumer_group_describe"),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _api(0, 0, 0, "get_telemetry_subscriptions"),
    ApiKey.PUSH_TELEMETRY: _api(0, 0, 0, "push_telemetry"),
    ApiKey.LIST_CONFIG_RESOURCES: _api(0, 1, 0, "list_config_resources"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _api(0, 0, 0, "describe_topic_partitions"),
}

SUPPORTED: Mapping[ApiKey, tuple[int, int]] = {key: (spec.low, spec.high) for key, spec in TABLE.items()}
"""ApiKey -> (lowest, highest) version that is really spoken, by the broker and by our own client."""

_BY_NUMBER: dict[int, ApiSpec] = {int(key): spec for key, spec in TABLE.items()}


def is_supported(api_key: int, version: int) -> bool:
    """Whether a request of this kind and version can be decoded; Produce 0 to 2 cannot, although
    advertised."""
    spec = _BY_NUMBER.get(api_key)
    return spec is not None and spec.low <= version <= spec.high


def is_flexible(api_key: int, version: int) -> bool:
    """Whether the message uses compact lengths and tagged fields (KIP-482)."""
    spec = _BY_NUMBER.get(api_key)
    return spec is not None and version >= spec.flexible_from


def advertised(handled_keys: Iterable[int], *, unstable: bool = False) -> list[tuple[int, int, int]]:
    """(key, lowest, highest) for an ApiVersions answer, of the requests that the node has handlers for, by
    key."""
    wanted = set(handled_keys)
    return [
        (int(key), spec.advertised_low, spec.high if unstable else spec.stable_high)
        for key, spec in sorted(TABLE.items())
        if key in wanted
    ]


def request_header_version(api_key: int, version: int) -> int:
    """2 for flexible requests (tagged fields after the client id), otherwise 1."""
    return 2 if is_flexible(api_key, version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """1 for flexible responses, otherwise 0; ApiVersions always 0, as the client that reads it does not know
    the broker's version yet (KIP-511)."""
    return 1 if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version) else 0
