"""Whether a principal may do an operation to a resource (KIP-11, KIP-290, KIP-801).  Pure.

The rules, in this order:

1. a super user may do everything;
2. an ACL that denies the operation decides, however many allow it;
3. an ACL that allows the operation, or one that implies it, decides;
4. where no ACL names the resource at all, `allow.everyone.if.no.acl.found` decides;
5. else the operation is refused.

READ, WRITE, DELETE and ALTER imply DESCRIBE, and ALTER_CONFIGS implies DESCRIBE_CONFIGS: only when they
allow.  Decisions are cached until an ACL changes, by name within one `Decisions` for each principal, host and
operation: a request that names a thousand topics looks a thousand times into one dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from .acls import WILDCARD, Acl, AclOperation, PatternType, PermissionType, ResourceType
from .principals import EVERYBODY, Principal

DECISIONS_MAX: Final = 50_000
"""Over all: then the cache begins anew."""
KEPT_NAME_LENGTH_MAX: Final = 256
"""A longer name is decided anew each time: no topic has one, and clients may ask for 32 KiB."""
SOME_NAME: Final = "hardcode"
"""Stands for a resource without ACLs of its own, as in Kafka: a principal that a wildcard, or the default,
allows everything needs no further search."""

IMPLIED_BY: Final = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}


Question = tuple[str, str, AclOperation, ResourceType]
"""(principal, host, operation, type of the resource)"""


class Decisions(dict[str, bool]):
    """By the name of the resource: whether it is allowed, decided when it is first asked."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[str], bool]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, name: str) -> bool:
        return self._decide(name)


class Authorizer:
    """The ACLs of a cluster, found by the names that they hold for."""

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: frozenset[Principal] = frozenset(),
        allow_if_no_acl: bool = False,
    ) -> None:
        self.super_users = frozenset(str(principal) for principal in super_users)
        self.allow_if_no_acl = allow_if_no_acl
        self._literal: dict[tuple[ResourceType, str], set[Acl]] = {}
        self._prefixed: dict[tuple[ResourceType, str], set[Acl]] = {}
        self._prefix_lengths: dict[ResourceType, dict[int, int]] = {}
        self._decisions: dict[Question, Decisions] = {}
        self._decided = 0
        for acl in acls:
            self.add(acl)

    def add(self, acl: Acl) -> None:
        self._forget()
        pattern = acl.pattern
        table = self._prefixed if pattern.pattern_type is PatternType.PREFIXED else self._literal
        found = table.setdefault((pattern.resource_type, pattern.name), set())
        if not found and table is self._prefixed:
            lengths = self._prefix_lengths.setdefault(pattern.resource_type, {})
            lengths[len(pattern.name)] = lengths.get(len(pattern.name), 0) + 1
        found.add(acl)

    def remove(self, acl: Acl) -> None:
        """Raises KeyError for an ACL that is not there."""
        self._forget()
        pattern = acl.pattern
        table = self._prefixed if pattern.pattern_type is PatternType.PREFIXED else self._literal
        found = table[pattern.resource_type, pattern.name]
        found.remove(acl)
        if found:
            return
        del table[pattern.resource_type, pattern.name]
        if table is self._prefixed:
            lengths = self._prefix_lengths[pattern.resource_type]
            lengths[len(pattern.name)] -= 1
            if not lengths[len(pattern.name)]:
                del lengths[len(pattern.name)]

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Whether the principal may do it from this address."""
        return self.decisions(principal, host, operation, resource_type)[name]

    def decisions(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> Decisions:
        """The same by name.  It holds until an ACL changes."""
        question = (principal.text, host, operation, resource_type)
        found = self._decisions.get(question)
        return self._new_decisions(question) if found is None else found

    def _new_decisions(self, question: Question) -> Decisions:
        def decide(name: str) -> bool:
            decision = question[0] in self.super_users or self._decide(question, name)
            if len(name) > KEPT_NAME_LENGTH_MAX:
                return decision
            if self._decided >= DECISIONS_MAX:
                self._forget()
                self._decisions[question] = decisions
            self._decided += 1
            decisions[name] = decision
            return decision

        if self._decided >= DECISIONS_MAX:
            self._forget()
        self._decided += 1
        self._decisions[question] = decisions = Decisions(decide)
        return decisions

    def _forget(self) -> None:
        for each in self._decisions.values():
            each.clear()
        self._decisions.clear()
        self._decided = 0

    def allows_some(
        self, principal: Principal, host: str, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Whether there is a resource of this type to which the principal may do it (KIP-679): an idempotent
        producer needs WRITE to some topic."""
        if self.allows(principal, host, operation, resource_type, SOME_NAME):
            return True
        denied_prefixes: set[str] = set()
        denied_names: set[str] = set()
        mine = [
            acl
            for acl in self._all(resource_type)
            if acl.principal in (str(principal), EVERYBODY)
            and acl.host in (host, WILDCARD)
            and acl.operation in (operation, AclOperation.ALL)
        ]
        for acl in mine:
            if acl.permission is PermissionType.DENY:
                if acl.pattern.pattern_type is PatternType.PREFIXED:
                    denied_prefixes.add(acl.pattern.name)
                elif acl.pattern.name == WILDCARD:
                    return False
                else:
                    denied_names.add(acl.pattern.name)
        for acl in mine:
            if acl.permission is not PermissionType.ALLOW:
                continue
            name = acl.pattern.name
            is_literal = acl.pattern.pattern_type is PatternType.LITERAL
            if is_literal and name == WILDCARD:
                return True
            if any(name.startswith(prefix) for prefix in denied_prefixes):
                continue
            if is_literal and name in denied_names:
                continue
            return True
        return False

    def _decide(self, question: Question, name: str) -> bool:
        principal, host, operation, resource_type = question
        has_acls = allowed = False
        for acl in self._found(resource_type, name):
            has_acls = True
            if acl.principal not in (principal, EVERYBODY) or acl.host not in (host, WILDCARD):
                continue
            if acl.permission is PermissionType.DENY:
                if acl.operation in (operation, AclOperation.ALL):
                    return False
            elif acl.operation in (operation, AclOperation.ALL, *IMPLIED_BY.get(operation, ())):
                allowed = True
        return allowed if has_acls else self.allow_if_no_acl

    def _found(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """The ACLs of every pattern that holds for the name."""
        yield from self._literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, WILDCARD), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield from self._prefixed.get((resource_type, name[:length]), ())

    def _all(self, resource_type: ResourceType) -> Iterator[Acl]:
        for table in (self._literal, self._prefixed):
            for (found, _), acls in table.items():
                if found is resource_type:
                    yield from acls
