"""The comparison over TLS, with users: what the clusters, Tidegate's and Kafka's, have in common.

Clients use SASL_SSL with SCRAM-SHA-512.  Nodes show each other certificates of one authority.  The user of
the workloads has ACLs for their topics, groups and transactional ids, and quotas that no workload reaches:
rights and quotas are looked up for every request, and never refuse one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tidegate.chaos.load.librdkafka import security_settings
from tidegate.chaos.load.user import Right, make_user
from tidegate.client.connecting.cluster import Cluster, require_none, top_level_code
from tidegate.processes.cluster_certificates import ClusterCertificates
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.connections.tls import node_name
from tidegate.security.acls import AclOperation, ResourceType
from tidegate.security.client_security import ClientSecurity
from tidegate.wire.api import ApiKey

from .kafka_peer import HOST

LISTENER: Final = "SASL_SSL"
NODES: Final = "SSL"
USER: Final = "bench"
RIGHTS: Final[tuple[Right, ...]] = (
    *((ResourceType.TOPIC, prefix, AclOperation.ALL) for prefix in ("ready", "bulk-", "latency-", "txn-")),
    (ResourceType.GROUP, "bench", AclOperation.ALL),
    (ResourceType.TRANSACTIONAL_ID, "txn-", AclOperation.ALL),
)
QUOTAS: Final = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
AUTHORIZER_OFF: Final = {"authorizer.class.name": ""}
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


async def log_in(
    bootstrap: str, administrator: ClientSecurity | None, authorities: Path, rights: tuple[Right, ...]
) -> dict[str, str]:
    """Makes the workloads' user, and gives it quotas where it has rights; librdkafka's settings for it."""
    clock = SystemClock()
    password = await make_user(bootstrap, administrator, clock, USER, rights)
    if rights:
        await _set_quotas(bootstrap, administrator)
    return security_settings(
        ClientSecurity(LISTENER, authorities=str(authorities), username=USER, password=password)
    )


async def _set_quotas(bootstrap: str, administrator: ClientSecurity | None) -> None:
    cluster = Cluster(bootstrap, client_id="bench-admin", security=administrator)
    entry = {
        "entity": [{"entity_type": "user", "entity_name": USER}],
        "ops": [{"key": key, "value": value, "remove": False} for key, value in QUOTAS.items()],
    }
    try:
        await cluster.start()
        answer = await cluster.ask_controller(
            ApiKey.ALTER_CLIENT_QUOTAS, {"entries": [entry], "validate_only": False}
        )
        for result in answer.entries:
            require_none(top_level_code(result), f"the quotas of {USER}", result.error_message)
    finally:
        await cluster.close()


def kafka_settings(folder: Path, nodes: int) -> Mapping[str, Any]:
    """Of a KafkaCluster that also has the listeners LISTENER and NODES.  Makes its certificates in `folder`.
    On its plain listener everyone is the administrator."""
    certificates = ClusterCertificates(folder, SystemClock())
    certificates.renew_authority()
    for node in range(1, nodes + 1):
        certificates.renew(node, {HOST, "localhost"})
    users = ["ANONYMOUS", *(f"CN={node_name(node)}" for node in range(1, nodes + 1))]
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "inter.broker.listener.name": NODES,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:SSL,{LISTENER}:{LISTENER},"
        f"{NODES}:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "node-{node}.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authorities,
        **{f"listener.name.{name}.ssl.client.auth": "required" for name in (NODES.lower(), "controller")},
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"listener.name.{LISTENER.lower()}.scram-sha-512.sasl.jaas.config": login,
        "authorizer.class.name": AUTHORIZER,
        "super.users": ";".join(f"User:{user}" for user in users),
    }
