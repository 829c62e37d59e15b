"""What each request's handler asks before it answers: one table, `ASKED_FIRST`.

A node that was cut off or slept may not lead and coordinate any more, and does not know it yet.  So what it
may answer by itself depends on what the answer promises:

| asks | because the answer | refused without a session |
|---|---|---|
| LEASE | accepts or acknowledges a change of a log (docs/semantics.md A6) | yes |
| COORDINATOR | is a shard's, which decides by what it has written | yes |
| CONTROLLER | is the active controller's; this node waits for the metadata of it | the controller decides |
| SESSION | names a coordinator, and this node would name itself | yes |
| LEADER | has only what is committed, which stays so (F1); another leader may have more | no |
| METADATA | is what this node has applied, which may be older than another node's | no |
| NODE | is about this node's own disks, logs and connections | no |
| CLIENT | is about the connection that asks: who its client is | no |

The parts that are asked refuse: `ReplicaManager.append_now` and `delete_records` ask the lease,
`CoordinatorHost` the session, `Replica` whether it leads.  A handler that awaits between the question and its
answer asks again; `AWAITS` in `tests/node/test_asked_first.py` says of each such await who does, or why not.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from ...wire.api import ApiKey


class Asked(enum.Enum):
    """In the order of the module's table: a handler that asks several stands at the first of them."""

    LEASE = "lease"
    COORDINATOR = "coordinator"
    CONTROLLER = "controller"
    SESSION = "session"
    LEADER = "leader"
    METADATA = "metadata"
    NODE = "node"
    CLIENT = "client"


_REQUESTS: Final[Mapping[Asked, tuple[ApiKey, ...]]] = {
    Asked.LEASE: (ApiKey.PRODUCE, ApiKey.DELETE_RECORDS, ApiKey.WRITE_TXN_MARKERS),
    Asked.COORDINATOR: (
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.DELETE_GROUPS,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.END_TXN,
        ApiKey.HEARTBEAT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.JOIN_GROUP,
        ApiKey.LEAVE_GROUP,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_DELETE,
        ApiKey.OFFSET_FETCH,
        ApiKey.SYNC_GROUP,
        ApiKey.TXN_OFFSET_COMMIT,
    ),
    Asked.CONTROLLER: (
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_ACLS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_ACLS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ELECT_LEADERS,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.UPDATE_FEATURES,
    ),
    Asked.SESSION: (ApiKey.FIND_COORDINATOR,),
    Asked.LEADER: (ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH),
    Asked.METADATA: (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.METADATA,
        ApiKey.PUSH_TELEMETRY,
    ),
    Asked.NODE: (ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_PRODUCERS),
    Asked.CLIENT: (ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE),
}

ASKED_FIRST: Final[Mapping[ApiKey, Asked]] = {key: asked for asked, keys in _REQUESTS.items() for key in keys}
