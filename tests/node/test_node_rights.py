"""What only nodes ask is answered to the node that a certificate names, and to no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tidegate.node.serving.authentication import Authentication, ListenerIdentity
from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.requests import RequestContext
from tidegate.node.settings.security_settings import listener_security
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.connections.listeners import Listener, SecurityProtocol
from tidegate.runtime.connections.tls import MutualTls
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
from tidegate.tests.certificates import Authority
from tidegate.wire.api import ApiKey

from .test_configuration import loaded

NODE_2 = {"subject": ((("commonName", "two"),),), "subjectAltName": (("DNS", "node-2"),)}
ALICE = {"subject": ((("commonName", "alice"),),), "subjectAltName": (("DNS", "alice"), ("URI", "node-2"))}
CERTIFICATES: Mapping[str, Any] = {"node 2": NODE_2, "alice": ALICE, "no": None}


@pytest.fixture(scope="module")
def mutual_tls(tmp_path_factory: pytest.TempPathFactory) -> MutualTls:
    return MutualTls.load(Authority(tmp_path_factory.mktemp("tls")).issue("node-1"), 1)


def context(
    key: ApiKey, certificate: Mapping[str, Any] | None, *, mutual_tls: MutualTls | None
) -> RequestContext:
    """A request on the brokers' listener (`mutual_tls`), or on one for clients."""
    listener = Listener("PLAINTEXT", "127.0.0.1", 1, SecurityProtocol.PLAINTEXT)
    identity = ListenerIdentity(
        listener_security(listener, loaded().values),
        clock=SystemClock(), records=SecurityRecords, certificates=mutual_tls,
    )  # fmt: skip
    return RequestContext(
        key, 12, 1, "client", "127.0.0.1", authentication=Authentication(identity, certificate)
    )


def permissions(*, is_enabled: bool, have_certificates: bool, **options: Any) -> Permissions:
    return Permissions(
        SecurityRecords, is_enabled=is_enabled, nodes_have_certificates=have_certificates, **options
    )


@pytest.mark.parametrize("is_enabled", [False, True])
@pytest.mark.parametrize(
    ("certificate", "on_brokers_listener", "speaks_for"),
    [
        ("node 2", True, {2}),
        ("alice", True, set()),
        ("no", True, set()),
        ("node 2", False, set()),
        ("no", False, set()),
    ],
)
def test_a_follower_is_what_its_certificate_says_with_and_without_an_authorizer(
    mutual_tls: MutualTls, is_enabled: bool, certificate: str, on_brokers_listener: bool, speaks_for: set[int]
) -> None:
    allowed = permissions(is_enabled=is_enabled, have_certificates=True)
    request = context(
        ApiKey.FETCH, CERTIFICATES[certificate], mutual_tls=mutual_tls if on_brokers_listener else None
    )
    for node_id in (1, 2, 3):
        assert allowed.allows_follower(request, node_id) == (node_id in speaks_for)
        assert allowed.speaks_for(request, node_id) == (node_id in speaks_for)


@pytest.mark.parametrize("key", [ApiKey.WRITE_TXN_MARKERS, ApiKey.ADD_PARTITIONS_TO_TXN])
@pytest.mark.parametrize("is_enabled", [False, True])
def test_only_nodes_end_and_verify_transactions(mutual_tls: MutualTls, is_enabled: bool, key: ApiKey) -> None:
    allowed = permissions(is_enabled=is_enabled, have_certificates=True)
    assert allowed.allows_node(context(key, NODE_2, mutual_tls=mutual_tls), "broker")
    assert not allowed.allows_node(context(key, ALICE, mutual_tls=mutual_tls), "broker")
    assert not allowed.allows_node(context(key, None, mutual_tls=None), "broker")
    assert not allowed.allows_node(context(key, NODE_2, mutual_tls=None), "broker")


@pytest.mark.parametrize(("certificate", "is_served"), [("node 2", True), ("alice", False), ("no", False)])
def test_the_brokers_listener_serves_nodes_alone(
    mutual_tls: MutualTls, certificate: str, is_served: bool
) -> None:
    """Also requests that every client may make, and an administrator's."""
    request = context(ApiKey.METADATA, CERTIFICATES[certificate], mutual_tls=mutual_tls)
    assert request.authentication is not None
    assert request.authentication.is_over is is_served
    assert (request.authentication.refuses(ApiKey.METADATA) is None) is is_served


@pytest.mark.parametrize("is_enabled", [False, True])
def test_only_nodes_are_exempt_from_quotas(mutual_tls: MutualTls, is_enabled: bool) -> None:
    allowed = permissions(is_enabled=is_enabled, have_certificates=True)
    key = ApiKey.WRITE_TXN_MARKERS
    assert allowed.may_act_as_node(context(key, NODE_2, mutual_tls=mutual_tls))
    assert not allowed.may_act_as_node(context(key, ALICE, mutual_tls=mutual_tls))
    assert not allowed.may_act_as_node(context(key, NODE_2, mutual_tls=None))
    without = permissions(is_enabled=is_enabled, have_certificates=False)
    assert without.may_act_as_node(context(key, None, mutual_tls=None)) is not is_enabled


def test_a_super_user_acts_like_a_node_but_for_no_follower(mutual_tls: MutualTls) -> None:
    """As in Kafka CLUSTER_ACTION is a right that can be given; but a fetch changes what is acknowledged."""
    boss = frozenset({Principal("User", "CN=alice")})
    allowed = permissions(is_enabled=True, have_certificates=True, super_users=boss)
    assert allowed.allows_node(context(ApiKey.WRITE_TXN_MARKERS, ALICE, mutual_tls=mutual_tls), "broker")
    assert not allowed.allows_follower(context(ApiKey.FETCH, ALICE, mutual_tls=mutual_tls), 2)


def test_without_certificates_the_authorizer_decides(mutual_tls: MutualTls) -> None:
    request = context(ApiKey.FETCH, None, mutual_tls=None)
    assert permissions(is_enabled=False, have_certificates=False).allows_follower(request, 2)
    assert not permissions(is_enabled=True, have_certificates=False).allows_follower(request, 2)
    granted = Acl(
        ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL),
        "User:ANONYMOUS", "*", AclOperation.CLUSTER_ACTION, PermissionType.ALLOW,
    )  # fmt: skip
    records = SecurityRecords(acls=frozenset({granted}))
    assert Permissions(lambda: records, is_enabled=True).allows_follower(request, 2)
