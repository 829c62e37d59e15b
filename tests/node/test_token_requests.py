"""Requests about delegation tokens: which clients may ask, for whom, and which tokens they see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.node.handlers.security import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from tidegate.node.serving.permissions import Permissions
from tidegate.node.serving.requests import RequestContext
from tidegate.proto import controller_pb2 as pb
from tidegate.proto import metadata_pb2
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.connections.listeners import SecurityProtocol
from tidegate.security.acls import Acl, AclOperation, PermissionType, ResourcePattern, ResourceType
from tidegate.security.delegation_tokens import DelegationToken, TokenSettings, token_hmac
from tidegate.security.principals import ANONYMOUS, Principal
from tidegate.security.records import SecurityRecords
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

ALICE, BOB, CAROL, DAVE = (Principal("User", name) for name in ("alice", "bob", "carol", "dave"))
BY_TOKEN = Principal("User", "alice", token_authenticated=True)
TOKEN = DelegationToken("id", ALICE, BOB, (CAROL,), 1, 2, 3)
SECRET = b"secret"
REFUSED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
PROTOCOLS = [
    (SecurityProtocol.SASL_SSL, ALICE, ErrorCode.NONE),
    (SecurityProtocol.SASL_PLAINTEXT, ALICE, ErrorCode.NONE),
    (SecurityProtocol.SSL, ALICE, ErrorCode.NONE),
    (SecurityProtocol.SSL, ANONYMOUS, REFUSED),
    (SecurityProtocol.PLAINTEXT, ANONYMOUS, REFUSED),
    (SecurityProtocol.SASL_SSL, BY_TOKEN, REFUSED),
]
"""Else a token that was stolen would make others, and never end."""


class Controller:
    """Does what it is asked for, and notes it."""

    def __init__(self) -> None:
        self.asked: list[pb.ChangeDelegationTokenRequest] = []

    async def change_delegation_token(
        self, request: pb.ChangeDelegationTokenRequest
    ) -> pb.ChangeDelegationTokenReply:
        self.asked.append(request)
        return pb.ChangeDelegationTokenReply(token=metadata_pb2.TokenRecord(token_id="id", expires_at_ms=2))


async def known(index: int) -> None:
    """The node has the metadata at once."""


class Asked:
    """A node, and one client of it."""

    def __init__(
        self,
        principal: Principal = ALICE,
        protocol: SecurityProtocol = SecurityProtocol.SASL_SSL,
        acls: frozenset[Acl] = frozenset(),
        secret: bytes = SECRET,
    ) -> None:
        records = SecurityRecords(acls=acls, tokens={"id": TOKEN})
        self.controller = Controller()
        listener = SimpleNamespace(security=SimpleNamespace(protocol=protocol))
        self._authentication: Any = SimpleNamespace(
            listener=listener, principal=principal, nodes=frozenset[int]()
        )
        self._broker: Any = SimpleNamespace(
            clock=SystemClock(),
            configuration=SimpleNamespace(token_settings=lambda: TokenSettings(secret)),
            controller=self.controller,
            permissions=Permissions(lambda: records, is_enabled=True),
            state=SimpleNamespace(security=records),
            topics=SimpleNamespace(wait_for_metadata=known),
        )

    def _context(self, key: ApiKey) -> RequestContext:
        return RequestContext(key, 3, 1, "c", "10.0.0.7", authentication=self._authentication)

    async def create(self, owner: Principal | None = None) -> Mapping[str, Any]:
        request: Any = SimpleNamespace(
            owner_principal_type=None if owner is None else owner.principal_type,
            owner_principal_name=None if owner is None else owner.name,
            renewers=(), max_lifetime=timedelta(hours=1),
        )  # fmt: skip
        context = self._context(ApiKey.CREATE_DELEGATION_TOKEN)
        return await create_delegation_token.handle(self._broker, context, request)

    async def renew(self) -> Mapping[str, Any]:
        request: Any = SimpleNamespace(hmac=b"h", renew_period=timedelta(hours=1))
        context = self._context(ApiKey.RENEW_DELEGATION_TOKEN)
        return await renew_delegation_token.handle(self._broker, context, request)

    async def expire(self) -> Mapping[str, Any]:
        request: Any = SimpleNamespace(hmac=b"h", expiry_time_period=timedelta(milliseconds=-1))
        context = self._context(ApiKey.EXPIRE_DELEGATION_TOKEN)
        return await expire_delegation_token.handle(self._broker, context, request)

    async def describe(self, *owners: Principal) -> Mapping[str, Any]:
        named = [
            SimpleNamespace(principal_type=each.principal_type, principal_name=each.name) for each in owners
        ]
        request: Any = SimpleNamespace(owners=named or None)
        context = self._context(ApiKey.DESCRIBE_DELEGATION_TOKEN)
        return await describe_delegation_token.handle(self._broker, context, request)


@pytest.mark.parametrize(("protocol", "principal", "expected"), PROTOCOLS)
async def test_only_a_client_with_a_proof_of_its_own_asks_for_tokens(
    protocol: SecurityProtocol, principal: Principal, expected: ErrorCode
) -> None:
    asked = Asked(principal, protocol)
    answers = [await asked.create(), await asked.renew(), await asked.expire(), await asked.describe()]
    assert [answer["error_code"] for answer in answers] == [expected] * 4
    assert bool(answers[0]["hmac"]) is (expected is ErrorCode.NONE)
    assert bool(answers[3]["tokens"]) is (expected is ErrorCode.NONE)
    assert len(asked.controller.asked) == (3 if expected is ErrorCode.NONE else 0)


async def test_the_controller_learns_which_client_asks() -> None:
    asked = Asked(BOB)
    for answer in (await asked.create(), await asked.renew(), await asked.expire()):
        assert answer["error_code"] is ErrorCode.NONE
    assert {request.requester for request in asked.controller.asked} == {"User:bob"}


async def test_a_token_of_another_user_needs_a_right() -> None:
    refused = Asked(BOB)
    answer = await refused.create(ALICE)
    assert answer["error_code"] is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert not answer["hmac"]
    assert refused.controller.asked == []
    right = Acl(
        ResourcePattern(ResourceType.USER, "User:alice"), "User:bob", "*", AclOperation.CREATE_TOKENS,
        PermissionType.ALLOW,
    )  # fmt: skip
    allowed = Asked(BOB, acls=frozenset({right}))
    assert (await allowed.create(ALICE))["hmac"] == token_hmac(SECRET, "id")
    assert allowed.controller.asked[0].create.owner == "User:alice"
    assert (await allowed.create(CAROL))["error_code"] is ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def describes(resource_type: ResourceType, name: str, operation: AclOperation) -> frozenset[Acl]:
    pattern = ResourcePattern(resource_type, name)
    return frozenset({Acl(pattern, "User:dave", "*", operation, PermissionType.ALLOW)})


@pytest.mark.parametrize(
    ("principal", "acls", "sees"),
    [
        (ALICE, frozenset(), True),
        (BOB, frozenset(), True),
        (CAROL, frozenset(), True),
        (DAVE, frozenset(), False),
        (DAVE, describes(ResourceType.DELEGATION_TOKEN, "id", AclOperation.DESCRIBE), True),
        (DAVE, describes(ResourceType.DELEGATION_TOKEN, "other", AclOperation.DESCRIBE), False),
        (DAVE, describes(ResourceType.USER, "User:alice", AclOperation.DESCRIBE_TOKENS), True),
        (DAVE, describes(ResourceType.USER, "User:bob", AclOperation.DESCRIBE_TOKENS), False),
    ],
)
async def test_a_token_is_shown_to_those_that_have_to_do_with_it(
    principal: Principal, acls: frozenset[Acl], sees: bool
) -> None:
    """What is shown is the secret itself."""
    tokens = (await Asked(principal, acls=acls).describe())["tokens"]
    assert [each["hmac"] for each in tokens] == ([token_hmac(SECRET, "id")] if sees else [])


async def test_tokens_are_shown_of_the_owners_that_are_asked_for() -> None:
    asked = Asked(ALICE)
    assert len((await asked.describe(DAVE, CAROL))["tokens"]) == 1
    assert (await asked.describe(DAVE))["tokens"] == []


async def test_without_a_secret_of_the_cluster_no_token_is_shown() -> None:
    answer = await Asked(ALICE, secret=b"").describe()
    assert (answer["error_code"], answer["tokens"]) == (ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, [])
