"""What a client may do follows the cluster's ACLs as of each question."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.requests import RequestContext
from tidegate.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.security.request_rights import METHOD_RIGHTS
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError

READ = Acl(
    ResourcePattern(ResourceType.TOPIC, "t"), "User:alice", "*", AclOperation.READ, PermissionType.ALLOW
)  # fmt: skip
ALICE: Any = SimpleNamespace(principal=Principal("User", "alice"), nodes=frozenset())
FETCH = RequestContext(ApiKey.FETCH, 12, 1, "c", "10.0.0.7", authentication=ALICE)


def test_an_asker_follows_the_acls_while_its_request_waits() -> None:
    records = [SecurityRecords()]
    refused: list[str] = []
    permissions = Permissions(
        lambda: records[0], is_enabled=True, on_refused=lambda _c, _o, _t, name: refused.append(name)
    )
    may_read = permissions.asker(FETCH, "topic")
    assert not may_read("t")
    records[0] = SecurityRecords(acls=frozenset({READ}))
    assert may_read("t")
    assert not may_read("other")
    records[0] = SecurityRecords()
    assert not may_read("t")
    assert refused == ["t", "other", "t"]


def test_without_an_authorizer_everything_is_allowed() -> None:
    assert Permissions(SecurityRecords, is_enabled=False).asker(FETCH, "topic")("t")


def permissions(*acls: Acl, refused: list[str] | None = None, **options: Any) -> Permissions:
    held = SecurityRecords(acls=frozenset(acls))
    said: list[str] = [] if refused is None else refused
    return Permissions(
        lambda: held,
        is_enabled=True,
        on_refused=lambda _c, operation, _t, name: said.append(operation.name + name),
        **options,
    )


def acl(
    operation: AclOperation,
    resource_type: ResourceType = ResourceType.TOPIC,
    name: str = "t",
    *,
    host: str = "*",
    pattern_type: PatternType = PatternType.LITERAL,
) -> Acl:
    pattern = ResourcePattern(resource_type, name, pattern_type)
    return Acl(pattern, "User:alice", host, operation, PermissionType.ALLOW)


def context(key: ApiKey) -> RequestContext:
    return RequestContext(key, 1, 1, "c", "10.0.0.7", authentication=ALICE)


def test_each_question_is_answered_by_the_acls() -> None:
    """A handler asks in the way that suits it: none of them lets more through."""
    for allowed, found in ((True, permissions(acl(AclOperation.READ))), (False, permissions())):
        assert found.allows(FETCH, "topic", "t") is allowed
        assert found.asker(FETCH, "topic")("t") is allowed
        assert found.allowed(FETCH, "topic", ["t", "u"]) == (["t"] if allowed else [])
        assert found.may(FETCH, AclOperation.READ, ResourceType.TOPIC, "t") is allowed
        assert found.permits(ALICE.principal, "10.0.0.7", METHOD_RIGHTS["ReadRange"], "t") is allowed
        expected = ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert found.refusal(FETCH, "topic", "t") is expected
        if allowed:
            found.require(FETCH, "topic", "t")
        else:
            with pytest.raises(KafkaError) as refused:
                found.require(FETCH, "topic", "t")
            assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_right_to_some_topic_is_looked_for_among_the_acls() -> None:
    asked = context(ApiKey.INIT_PRODUCER_ID)
    assert not permissions().allows_some(asked, "any topic")
    assert not permissions(acl(AclOperation.READ)).allows_some(asked, "any topic")
    assert permissions(acl(AclOperation.WRITE)).allows_some(asked, "any topic")


def test_a_right_is_of_an_address() -> None:
    for host, allowed in (("10.0.0.7", True), ("10.0.0.8", False)):
        found = permissions(acl(AclOperation.READ, host=host))
        assert found.allows(FETCH, "topic", "t") is allowed
        assert found.permits(ALICE.principal, "10.0.0.7", METHOD_RIGHTS["ReadRange"], "t") is allowed


def test_super_users_and_names_without_acls_are_as_the_settings_say() -> None:
    assert permissions(super_users=frozenset({ALICE.principal})).allows(FETCH, "topic", "t")
    assert not permissions(super_users=frozenset({Principal("User", "root")})).allows(FETCH, "topic", "t")
    assert permissions(allow_if_no_acl=True).allows(FETCH, "topic", "t")


def test_without_certificates_of_nodes_a_node_is_a_client_with_that_right() -> None:
    markers, refused = context(ApiKey.WRITE_TXN_MARKERS), list[str]()
    assert not permissions(refused=refused).allows_node(markers, "broker")
    assert refused == [f"CLUSTER_ACTION{CLUSTER_NAME}"]
    right = acl(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    assert permissions(right).allows_node(markers, "broker")


def test_a_client_that_fetches_as_a_follower_is_in_the_audit_log() -> None:
    refused: list[str] = []
    assert not permissions(refused=refused, nodes_have_certificates=True).allows_follower(FETCH, 2)
    assert refused == [f"CLUSTER_ACTION{CLUSTER_NAME}"]
