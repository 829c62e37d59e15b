"""What a client may do follows the cluster's ACLs as of each question."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.requests import RequestContext
from tidegate.security.acls import Acl, AclOperation, PermissionType, ResourcePattern, ResourceType
from tidegate.security.principals import Principal
from tidegate.security.records import SecurityRecords
from tidegate.wire.api import ApiKey

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
