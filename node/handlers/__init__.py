"""One module per request of the Kafka protocol; this table says which requests the node serves.

A new request is a `handle` in `decoded`.  `serving/requests.py` says what it returns, and what `staged` is.
"""

from __future__ import annotations

from ...wire.api import ApiKey
from ..serving.listener import Handlers
from .cluster import (
    alter_replica_log_dirs,
    api_versions,
    describe_cluster,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    get_telemetry_subscriptions,
    metadata,
    push_telemetry,
    unregister_broker,
    update_features,
)
from .groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from .log import delete_records, describe_producers, fetch, list_offsets, offset_for_leader_epoch, produce
from .security import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_user_scram_credentials,
    sasl_authenticate,
    sasl_handshake,
)
from .settings import alter_configs, describe_configs, incremental_alter_configs, list_config_resources
from .topics import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
    list_partition_reassignments,
)
from .transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)

HANDLERS = Handlers(
    decoded={
        ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn.handle,
        ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn.handle,
        ApiKey.ALTER_CONFIGS: alter_configs.handle,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments.handle,
        ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs.handle,
        ApiKey.API_VERSIONS: api_versions.handle,
        ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe.handle,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.handle,
        ApiKey.CREATE_PARTITIONS: create_partitions.handle,
        ApiKey.CREATE_TOPICS: create_topics.handle,
        ApiKey.DELETE_GROUPS: delete_groups.handle,
        ApiKey.DELETE_RECORDS: delete_records.handle,
        ApiKey.DELETE_TOPICS: delete_topics.handle,
        ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
        ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
        ApiKey.DESCRIBE_GROUPS: describe_groups.handle,
        ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
        ApiKey.DESCRIBE_PRODUCERS: describe_producers.handle,
        ApiKey.DESCRIBE_QUORUM: describe_quorum.handle,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
        ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions.handle,
        ApiKey.ELECT_LEADERS: elect_leaders.handle,
        ApiKey.END_TXN: end_txn.handle,
        ApiKey.FIND_COORDINATOR: find_coordinator.handle,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: get_telemetry_subscriptions.handle,
        ApiKey.HEARTBEAT: heartbeat.handle,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
        ApiKey.JOIN_GROUP: join_group.handle,
        ApiKey.LEAVE_GROUP: leave_group.handle,
        ApiKey.LIST_CONFIG_RESOURCES: list_config_resources.handle,
        ApiKey.LIST_GROUPS: list_groups.handle,
        ApiKey.LIST_OFFSETS: list_offsets.handle,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments.handle,
        ApiKey.LIST_TRANSACTIONS: list_transactions.handle,
        ApiKey.METADATA: metadata.handle,
        ApiKey.OFFSET_COMMIT: offset_commit.handle,
        ApiKey.OFFSET_DELETE: offset_delete.handle,
        ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas.handle,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials.handle,
        ApiKey.CREATE_ACLS: create_acls.handle,
        ApiKey.DELETE_ACLS: delete_acls.handle,
        ApiKey.DESCRIBE_ACLS: describe_acls.handle,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas.handle,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials.handle,
        ApiKey.SASL_AUTHENTICATE: sasl_authenticate.handle,
        ApiKey.SASL_HANDSHAKE: sasl_handshake.handle,
        ApiKey.OFFSET_FETCH: offset_fetch.handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
        ApiKey.PUSH_TELEMETRY: push_telemetry.handle,
        ApiKey.SYNC_GROUP: sync_group.handle,
        ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit.handle,
        ApiKey.UNREGISTER_BROKER: unregister_broker.handle,
        ApiKey.UPDATE_FEATURES: update_features.handle,
        ApiKey.WRITE_TXN_MARKERS: write_txn_markers.handle,
    },
    staged={ApiKey.FETCH: fetch.begin, ApiKey.PRODUCE: produce.begin},
)
