"""The users of the comparison, and the ACLs of each.

For each type of resource there is a user for each operation that an ACL may allow, a user without ACLs, one
with all rights, and some to whom a part of all rights is denied; each of them twice: beside all rights on the
other types of resources, and beside none.  A user's resources are those whose names begin with the user's
name; what begins with `foreign` no user may touch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)

TYPES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
DENIED: Final = (AclOperation.ALL, AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE)
ROOT: Final = "root"
FOREIGN: Final = "foreign."

Rule = tuple[ResourceType, AclOperation, PermissionType]


@dataclass(frozen=True, slots=True)
class User:
    """`rules` hold for what is the user's own, and for the cluster."""

    name: str
    rules: tuple[Rule, ...] = ()

    def owns(self, name: str) -> str:
        return f"{self.name}.{name}"

    def acls(self) -> list[dict[str, object]]:
        """As CreateAcls has them."""
        return [
            {
                "resource_type": int(resource_type),
                "resource_name": CLUSTER_NAME if resource_type is ResourceType.CLUSTER else self.owns(""),
                "resource_pattern_type": int(
                    PatternType.LITERAL if resource_type is ResourceType.CLUSTER else PatternType.PREFIXED
                ),
                "principal": f"User:{self.name}",
                "host": "*",
                "operation": int(operation),
                "permission_type": int(permission),
            }
            for resource_type, operation, permission in self.rules
        ]


def _levels(resource_type: ResourceType) -> Iterator[tuple[str, tuple[Rule, ...]]]:
    everything = (resource_type, AclOperation.ALL, PermissionType.ALLOW)
    operations = OPERATIONS[resource_type] - {AclOperation.TWO_PHASE_COMMIT}
    yield "none", ()
    for operation in sorted(operations):
        yield operation.name.lower(), ((resource_type, operation, PermissionType.ALLOW),)
    yield "all", (everything,)
    for operation in DENIED:
        if operation in {*operations, AclOperation.ALL}:
            yield (
                f"not-{operation.name.lower()}",
                (
                    everything,
                    (resource_type, operation, PermissionType.DENY),
                ),
            )


def _users() -> Iterator[User]:
    yield User("nothing")
    for resource_type in TYPES:
        others = tuple(
            (each, AclOperation.ALL, PermissionType.ALLOW) for each in TYPES if each is not resource_type
        )
        name = resource_type.name.lower().replace("_", "-")
        for level, rules in _levels(resource_type):
            yield User(f"{name}-{level}", (*rules, *others))
            if rules:
                yield User(f"{name}-{level}-alone", rules)


USERS: Final = tuple(_users())
