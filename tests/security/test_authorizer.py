"""ACLs: which decide, which imply, which hide; the decisions of a Kafka 4.1.1 of the same questions agree."""

from __future__ import annotations

import pytest
from tidegate.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from tidegate.security.authorizer import DECISIONS_MAX, Authorizer
from tidegate.security.principals import InvalidPrincipal, Principal, SslPrincipalMapper, parse_principals

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
Op = AclOperation
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"


def acl(
    operation: AclOperation,
    name: str = "payments",
    *,
    deny: bool = False,
    prefixed: bool = False,
    principal: str = "User:alice",
    host: str = "*",
    resource_type: ResourceType = TOPIC,
) -> Acl:
    pattern = ResourcePattern(resource_type, name, PatternType.PREFIXED if prefixed else PatternType.LITERAL)
    return Acl(pattern, principal, host, operation, PermissionType.DENY if deny else PermissionType.ALLOW)


@pytest.mark.parametrize(
    ("acls", "operation", "expected"),
    [
        ([], Op.READ, False),
        ([acl(Op.READ)], Op.READ, True),
        ([acl(Op.READ)], Op.WRITE, False),
        ([acl(Op.ALL)], Op.ALTER_CONFIGS, True),
        ([acl(Op.READ)], Op.DESCRIBE, True),
        ([acl(Op.WRITE)], Op.DESCRIBE, True),
        ([acl(Op.DELETE)], Op.DESCRIBE, True),
        ([acl(Op.ALTER)], Op.DESCRIBE, True),
        ([acl(Op.CREATE)], Op.DESCRIBE, False),
        ([acl(Op.ALTER_CONFIGS)], Op.DESCRIBE_CONFIGS, True),
        ([acl(Op.DESCRIBE)], Op.READ, False),
        ([acl(Op.READ), acl(Op.READ, deny=True)], Op.READ, False),
        ([acl(Op.READ), acl(Op.ALL, deny=True)], Op.READ, False),
        ([acl(Op.ALL), acl(Op.READ, deny=True)], Op.DESCRIBE, True),
        ([acl(Op.READ), acl(Op.DESCRIBE, deny=True)], Op.DESCRIBE, False),
        ([acl(Op.READ, "*")], Op.READ, True),
        ([acl(Op.READ, "*"), acl(Op.READ, "pay", prefixed=True, deny=True)], Op.READ, False),
        ([acl(Op.READ, "pay", prefixed=True)], Op.READ, True),
        ([acl(Op.READ, "payments2", prefixed=True)], Op.READ, False),
        ([acl(Op.READ, "pay")], Op.READ, False),
        ([acl(Op.READ, principal="User:*")], Op.READ, True),
        ([acl(Op.READ, principal="User:bob")], Op.READ, False),
        ([acl(Op.READ, principal="Group:alice")], Op.READ, False),
        ([acl(Op.READ, host=HOST)], Op.READ, True),
        ([acl(Op.READ, host="10.0.0.2")], Op.READ, False),
        ([acl(Op.READ), acl(Op.READ, host=HOST, deny=True)], Op.READ, False),
        ([acl(Op.READ, resource_type=GROUP)], Op.READ, False),
    ],
)
def test_the_acls_of_a_resource_decide(acls: list[Acl], operation: AclOperation, expected: bool) -> None:
    for order in (acls, acls[::-1]):
        authorizer = Authorizer(order)
        for _ in range(2):  # the second answer comes from the cache
            assert authorizer.allows(ALICE, HOST, operation, TOPIC, "payments") is expected


def test_super_users_may_do_everything() -> None:
    authorizer = Authorizer([acl(Op.ALL, deny=True)], super_users=parse_principals("User:root; User:alice"))
    assert authorizer.allows(ALICE, HOST, Op.READ, TOPIC, "payments")
    assert not authorizer.allows(BOB, HOST, Op.READ, TOPIC, "payments")


def test_what_no_acl_names_is_open_only_when_that_is_set() -> None:
    for is_open in (False, True):
        authorizer = Authorizer([acl(Op.READ, principal="User:bob")], allow_if_no_acl=is_open)
        assert authorizer.allows(ALICE, HOST, Op.READ, TOPIC, "other") is is_open
        assert not authorizer.allows(ALICE, HOST, Op.READ, TOPIC, "payments")


def test_a_changed_acl_decides_at_once() -> None:
    authorizer = Authorizer()
    grant, denial = acl(Op.READ), acl(Op.READ, "pay", prefixed=True, deny=True)
    for change, expected in (
        (lambda: authorizer.add(grant), True),
        (lambda: authorizer.add(denial), False),
        (lambda: authorizer.remove(denial), True),
        (lambda: authorizer.remove(grant), False),
    ):
        change()
        assert authorizer.allows(ALICE, HOST, Op.READ, TOPIC, "payments") is expected
    with pytest.raises(KeyError):
        authorizer.remove(grant)


def test_decisions_are_bounded() -> None:
    authorizer = Authorizer([acl(Op.READ, "*")])
    for number in range(DECISIONS_MAX + 10):
        assert authorizer.allows(ALICE, HOST, Op.READ, TOPIC, f"t{number}")
        assert sum(1 + len(each) for each in authorizer._decisions.values()) <= DECISIONS_MAX


def test_a_decision_is_for_one_principal_host_operation_and_resource() -> None:
    authorizer = Authorizer([acl(Op.READ, host=HOST)])
    assert authorizer.allows(ALICE, HOST, Op.READ, TOPIC, "payments")
    assert not authorizer.allows(BOB, HOST, Op.READ, TOPIC, "payments")
    assert not authorizer.allows(ALICE, "10.0.0.2", Op.READ, TOPIC, "payments")
    assert not authorizer.allows(ALICE, HOST, Op.WRITE, TOPIC, "payments")
    assert not authorizer.allows(ALICE, HOST, Op.READ, GROUP, "payments")
    assert not authorizer.allows(ALICE, HOST, Op.READ, TOPIC, "payments2")


def test_principals_take_bounded_memory() -> None:
    authorizer = Authorizer()
    for number in range(DECISIONS_MAX + 10):
        authorizer.decisions(Principal("User", f"u{number}"), HOST, Op.READ, TOPIC)
    assert len(authorizer._decisions) <= DECISIONS_MAX


def test_long_names_take_no_memory() -> None:
    authorizer = Authorizer([acl(Op.READ, "x", prefixed=True)])
    for number in range(100):
        assert authorizer.allows(ALICE, HOST, Op.READ, GROUP, f"x{number}" + "x" * 32_000) is False
        assert authorizer.allows(ALICE, HOST, Op.READ, TOPIC, f"x{number}" + "x" * 32_000) is True
    assert sum(len(name) for each in authorizer._decisions.values() for name in each) < 1000


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([acl(Op.WRITE)], True),
        ([acl(Op.READ)], False),
        ([acl(Op.WRITE, "p", prefixed=True)], True),
        ([acl(Op.WRITE), acl(Op.WRITE, deny=True)], False),
        ([acl(Op.WRITE), acl(Op.WRITE, "pay", prefixed=True, deny=True)], False),
        ([acl(Op.WRITE, "*"), acl(Op.WRITE, "pay", prefixed=True, deny=True)], True),
        ([acl(Op.WRITE, "p", prefixed=True), acl(Op.WRITE, "pay", prefixed=True, deny=True)], True),
        ([acl(Op.WRITE), acl(Op.WRITE, "*", deny=True)], False),
        ([acl(Op.WRITE, resource_type=GROUP)], False),
        ([acl(Op.WRITE, principal="User:bob")], False),
        ([acl(Op.WRITE, principal="User:*")], True),
        ([acl(Op.WRITE, host="10.0.0.2")], False),
        ([acl(Op.WRITE, host=HOST)], True),
        ([acl(Op.WRITE, deny=True)], False),
        ([acl(Op.WRITE, "*", prefixed=True), acl(Op.WRITE, "*", prefixed=True, deny=True)], False),
    ],
)
def test_write_access_to_some_topic(acls: list[Acl], expected: bool) -> None:
    assert Authorizer(acls).allows_some(ALICE, HOST, Op.WRITE, TOPIC) is expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (AclFilter(), {0, 1, 2, 3}),
        (AclFilter(resource_type=GROUP), {3}),
        (AclFilter(name="payments"), {0}),
        (AclFilter(name="payments", pattern_type=PatternType.MATCH, resource_type=TOPIC), {0, 1, 2}),
        (AclFilter(name="pay", pattern_type=PatternType.PREFIXED), {1}),
        (AclFilter(pattern_type=PatternType.PREFIXED), {1}),
        (AclFilter(principal="User:bob"), {2}),
        (AclFilter(host="10.0.0.2"), {3}),
        (AclFilter(operation=Op.WRITE), {1}),
        (AclFilter(permission=PermissionType.DENY), {1}),
    ],
)
def test_filters_find_acls(wanted: AclFilter, expected: set[int]) -> None:
    acls = [
        acl(Op.READ),
        acl(Op.WRITE, "pay", prefixed=True, deny=True),
        acl(Op.READ, "*", principal="User:bob"),
        acl(Op.READ, "readers", resource_type=GROUP, host="10.0.0.2"),
    ]
    assert {index for index, each in enumerate(acls) if wanted.matches(each)} == expected


NAME = "CN=alice,OU=Payments,O=Acme"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),.*$/$1/", "alice"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U", "ALICE@PAYMENTS"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$2/L,DEFAULT", "payments"),
        ("RULE:^OU=(.*)$/$1/, RULE:^CN=(a.*?),.*$/$1/, DEFAULT", "alice"),
        ("RULE:^OU=(.*)$/$1/,DEFAULT", NAME),
    ],
)
def test_a_certificate_name_becomes_a_user_by_the_first_rule(rules: str, expected: str) -> None:
    assert SslPrincipalMapper(rules).name(NAME) == expected


@pytest.mark.parametrize("rules", ["RULE:^OU=(.*)$/$1/", "RULE:CN=alice/x/"])
def test_a_name_without_a_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidPrincipal, match=r"no rule of ssl\.principal\.mapping\.rules applies"):
        SslPrincipalMapper(rules).name(NAME)


@pytest.mark.parametrize(
    "rules", ["RULE:(/$1/", "RULE:a/$1/", "RULES:a/b/", "RULE:a/b/X", "DEFAULT DEFAULT", "RULE:a"]
)
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(InvalidPrincipal):
        SslPrincipalMapper(rules)


@pytest.mark.parametrize("text", ["alice", ":alice", ""])
def test_a_principal_has_a_type_and_a_name(text: str) -> None:
    with pytest.raises(InvalidPrincipal):
        Principal.parse(text)
    assert Principal.parse("User:CN=a:b,O=c").name == "CN=a:b,O=c"
