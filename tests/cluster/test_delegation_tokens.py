"""Delegation tokens of a node (KIP-48): a program authenticates by one, and gets no other by it; tokens are
renewed and end, and outlive a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.client.connecting.connection import BrokerConnection
from tidegate.client.connecting.errors import ConnectionFailed, FatalError
from tidegate.processes.local_cluster import LocalCluster
from tidegate.security.client_security import ClientSecurity
from tidegate.security.delegation_tokens import token_password
from tidegate.tests.base_ports import free_base_port
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SECRET = "a secret of the nodes"
STEP = 100
USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "SASL_PLAINTEXT")
USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_root="r" user_alice="a" user_bob="b";'
)
NEWEST = {
    ApiKey.CREATE_DELEGATION_TOKEN: 3,
    ApiKey.RENEW_DELEGATION_TOKEN: 2,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 2,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 3,
}


@dataclass(frozen=True)
class Guarded:
    """A node with an authorizer, whose super user is root."""

    cluster: LocalCluster
    base: int

    @asynccontextmanager
    async def client(self, security: ClientSecurity | None) -> AsyncIterator[BrokerConnection]:
        port = self.base + (0 if security is None else STEP * USES.index("SASL_PLAINTEXT"))
        connection = await BrokerConnection.open(
            "127.0.0.1", port, client_id="test", connect_timeout_s=10, request_timeout_s=20, security=security
        )
        yield connection
        connection.close()

    async def ask(self, security: ClientSecurity | None, key: ApiKey, **fields: Any) -> Any:
        async with self.client(security) as connection:
            version = NEWEST[key]
            payload = await connection.send(key, version, [codec.request(key, version, fields)])
            error_code = int.from_bytes(payload[5:7], "big")
            if error_code:  # the times are -1 then, which kio does not read
                return SimpleNamespace(error_code=error_code)
            return connection.decode(key, version, payload)

    async def create(self, security: ClientSecurity | None, **fields: Any) -> Any:
        wanted: dict[str, Any] = {
            "owner_principal_type": None, "owner_principal_name": None, "renewers": [], "max_lifetime": -1,
        }  # fmt: skip
        return await self.ask(security, ApiKey.CREATE_DELEGATION_TOKEN, **(wanted | fields))

    async def described(self, security: ClientSecurity) -> list[str]:
        """The owners of the tokens that a client sees."""
        answer = await self.ask(security, ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
        assert answer.error_code == 0
        return [token.principal_name for token in answer.tokens]


def user(name: str) -> ClientSecurity:
    return ClientSecurity("SASL_PLAINTEXT", mechanism="PLAIN", username=name, password=name[0])


def token(token_id: str, password: str, mechanism: str = "SCRAM-SHA-512") -> ClientSecurity:
    return ClientSecurity(
        "SASL_PLAINTEXT", mechanism=mechanism, username=token_id, password=password, is_token=True
    )


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    base = free_base_port(len(USES))
    settings = {
        "listeners": [f"{use}://127.0.0.1:{base + STEP * number}" for number, use in enumerate(USES)],
        "listener.security.protocol.map": [
            f"{use}:{use if use.startswith('S') else 'PLAINTEXT'}" for use in USES
        ],
        "sasl.enabled.mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "connection.failed.authentication.delay.ms": 1,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root;User:ANONYMOUS",
        "delegation.token.secret.key": SECRET,
    }
    async with LocalCluster(tmp_path / "cluster", 1, settings, base_port=base) as cluster:
        yield Guarded(cluster, base)


async def test_a_program_acts_by_a_token_until_it_ends(guarded: Guarded) -> None:
    alice, bob = user("alice"), user("bob")
    made = await guarded.create(alice, renewers=[{"principal_type": "User", "principal_name": "bob"}])
    assert made.error_code == 0
    password = token_password(SECRET.encode(), made.token_id)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        by_token = token(made.token_id, password, mechanism)
        assert await guarded.described(user("alice")) == ["alice"]
        refused = await guarded.create(by_token)
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        for key in (ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN):
            period = {"renew_period" if key == ApiKey.RENEW_DELEGATION_TOKEN else "expiry_time_period": -1}
            refused = await guarded.ask(by_token, key, hmac=made.hmac, **period)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    await guarded.cluster.down()
    await guarded.cluster.up()
    by_token = token(made.token_id, password)
    async with guarded.client(by_token):
        pass
    renewed = await guarded.ask(bob, ApiKey.RENEW_DELEGATION_TOKEN, hmac=made.hmac, renew_period=-1)
    assert renewed.error_code == 0
    assert made.expiry_timestamp < renewed.expiry_timestamp <= made.max_timestamp
    gone = await guarded.ask(bob, ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=made.hmac, expiry_time_period=-1)
    assert gone.error_code == 0
    with pytest.raises((FatalError, ConnectionFailed)):
        async with guarded.client(by_token):
            pass
    assert await guarded.described(alice) == []


async def test_tokens_are_made_and_seen_as_kafka_allows(guarded: Guarded) -> None:
    alice, bob, root = user("alice"), user("bob"), user("root")
    unproved = await guarded.create(None)
    assert unproved.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    for_alice = {"owner_principal_type": "User", "owner_principal_name": "alice"}
    foreign = await guarded.create(bob, **for_alice)
    assert foreign.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    made = await guarded.create(root, **for_alice)
    assert (made.error_code, made.principal_name) == (0, "alice")
    assert made.token_requester_principal_name == "root"
    no_user = await guarded.create(alice, renewers=[{"principal_type": "Group", "principal_name": "g"}])
    assert no_user.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert await guarded.described(alice) == ["alice"]
    assert await guarded.described(root) == ["alice"]
    assert await guarded.described(bob) == []
    mismatch = await guarded.ask(bob, ApiKey.RENEW_DELEGATION_TOKEN, hmac=made.hmac, renew_period=-1)
    assert mismatch.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    unknown = await guarded.ask(bob, ApiKey.RENEW_DELEGATION_TOKEN, hmac=b"x" * 64, renew_period=-1)
    assert unknown.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    wrong = token(made.token_id, "not its HMAC")
    with pytest.raises((FatalError, ConnectionFailed)):
        async with guarded.client(wrong):
            pass
