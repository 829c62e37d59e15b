"""The user of a load's clients in a secured cluster, with the rights that they need and no others.

The administrator makes the user (SCRAM-SHA-512), then its ACLs.  Each node replays them in this order: a node
that has the ACLs has the user, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...client.connecting.cluster import Cluster, require_none, top_level_code
from ...client.connecting.errors import error_for
from ...runtime.clock import Clock
from ...security.acls import WILDCARD, AclOperation, PatternType, PermissionType, ResourceType
from ...security.client_security import ClientSecurity
from ...security.scram import ITERATIONS_MIN, SALT_BYTES, ScramMechanism
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode

NAME: Final = "chaos-load"
OWN: Final = "chaos-"
"""The topics, groups and transactional ids of the load begin with it."""
READERS: Final = "none-"
"""The groups of librdkafka's readers begin with it: they join none, but librdkafka wants a name."""
Right = tuple[ResourceType, str, AclOperation]
"""What may be done with the resources whose names begin so."""
RIGHTS: Final[Sequence[Right]] = (
    (ResourceType.TOPIC, OWN, AclOperation.READ),
    (ResourceType.TOPIC, OWN, AclOperation.WRITE),
    (ResourceType.GROUP, OWN, AclOperation.READ),
    (ResourceType.GROUP, READERS, AclOperation.READ),
    (ResourceType.TRANSACTIONAL_ID, OWN, AclOperation.WRITE),
)
PASSWORD_BYTES: Final = 24
SETTLED_TIMEOUT_S: Final = 30.0
RECHECK_INTERVAL_S: Final = 0.1


async def make_user(
    bootstrap: str,
    administrator: ClientSecurity | None,
    clock: Clock,
    name: str = NAME,
    rights: Sequence[Right] = RIGHTS,
) -> str:
    """Makes the user, waits until every node knows its rights, and returns its password.  Raises
    KafkaError."""
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    cluster = Cluster(bootstrap, client_id="chaos-admin", clock=clock, security=administrator)
    try:
        await cluster.start()
        answer = await cluster.ask_controller(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, credential(name, password))
        _require_made(answer, f"making the user {name}")
        if rights:  # a cluster without an authorizer refuses ACLs
            answer = await cluster.ask_controller(ApiKey.CREATE_ACLS, {"creations": acls(name, rights)})
            _require_made(answer, f"giving {name} its rights")
            await _wait_known(cluster, name, len(rights), clock)
    finally:
        await cluster.close()
    return password


def credential(name: str, password: str) -> dict[str, Any]:
    """What AlterUserScramCredentials asks for the user."""
    mechanism, salt = ScramMechanism.SHA_512, secrets.token_bytes(SALT_BYTES)
    upsertion = {
        "name": name,
        "mechanism": mechanism.code,
        "iterations": ITERATIONS_MIN,
        "salt": salt,
        "salted_password": mechanism.salted_password(password, salt, ITERATIONS_MIN),
    }
    return {"deletions": [], "upsertions": [upsertion]}


def acls(name: str, rights: Sequence[Right]) -> list[Mapping[str, Any]]:
    """The rights, as CreateAcls asks for them."""
    return [
        {
            "resource_type": int(resource_type),
            "resource_name": prefix,
            "resource_pattern_type": int(PatternType.PREFIXED),
            "principal": f"User:{name}",
            "host": WILDCARD,
            "operation": int(operation),
            "permission_type": int(PermissionType.ALLOW),
        }
        for resource_type, prefix, operation in rights
    ]


async def _wait_known(cluster: Cluster, name: str, acls_count: int, clock: Clock) -> None:
    await cluster.refresh(())
    deadline = clock.monotonic() + SETTLED_TIMEOUT_S
    for node_id in sorted(cluster.view.brokers):
        while await _count_acls(cluster, node_id, name) < acls_count:
            if clock.monotonic() >= deadline:
                raise error_for(ErrorCode.REQUEST_TIMED_OUT, f"the rights of {name} at node {node_id}")
            await clock.sleep(RECHECK_INTERVAL_S)


def _require_made(answer: Any, what: str) -> None:
    for result in answer.results:
        require_none(top_level_code(result), what, result.error_message)


async def _count_acls(cluster: Cluster, node_id: int, name: str) -> int:
    anything = {
        "resource_type_filter": int(ResourceType.ANY),
        "resource_name_filter": None,
        "pattern_type_filter": int(PatternType.ANY),
        "principal_filter": f"User:{name}",
        "host_filter": None,
        "operation": int(AclOperation.ANY),
        "permission_type": int(PermissionType.ANY),
    }
    answer = await cluster.ask(node_id, ApiKey.DESCRIBE_ACLS, anything)
    require_none(top_level_code(answer), f"the rights of {name} at node {node_id}", answer.error_message)
    return sum(len(resource.acls) for resource in answer.resources)
