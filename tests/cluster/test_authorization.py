"""A cluster with an authorizer: users come with SCRAM, and do what ACLs let them do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from tidegate.processes.local_cluster import LocalCluster
from tidegate.processes.local_ports import PORT_STEP
from tidegate.tests.base_ports import free_base_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "SASL_PLAINTEXT")
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_root="r";'


@dataclass(frozen=True)
class Guarded:
    """A node with an authorizer, whose super user is root."""

    bootstrap: str

    def client(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def admin(self) -> AdminClient:
        return AdminClient(self.client("root", "r", "PLAIN"))


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    base = free_base_port()
    settings = {
        "listeners": [f"{use}://127.0.0.1:{base + PORT_STEP * number}" for number, use in enumerate(USES)],
        "listener.security.protocol.map": [
            f"{use}:{use if use.startswith('S') else 'PLAINTEXT'}" for use in USES
        ],
        "sasl.enabled.mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root;User:ANONYMOUS",
    }
    cluster = LocalCluster(tmp_path / "cluster", 1, settings, base_port=base)
    await cluster.up()
    yield Guarded(f"127.0.0.1:{base + PORT_STEP * USES.index('SASL_PLAINTEXT')}")
    await cluster.down()


def _add_user(admin: AdminClient, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, password.encode())
    ]
    for future in admin.alter_user_scram_credentials(wanted).values():
        future.result(20)


def _produce(settings: dict[str, Any], topic: str) -> str | None:
    """The error of one record; None when it is acknowledged."""
    errors: list[str | None] = []
    producer = Producer({**settings, "message.timeout.ms": 8000})
    producer.produce(
        topic, b"record", on_delivery=lambda error, _: errors.append(None if error is None else error.name())
    )
    producer.flush(10)
    return errors[0]


def _acl(name: str, operation: AclOperation, user: str = "alice") -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip


def _administer(guarded: Guarded) -> None:
    admin = guarded.admin()
    admin.create_topics([NewTopic("payments", 1, 1)])["payments"].result(20)
    _add_user(admin, "alice", "wonder")
    alice = guarded.client("alice", "wonder")
    users: Any = admin.describe_user_scram_credentials(["alice"])
    described = users["alice"].result(20)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    assert _produce(alice, "payments") == "TOPIC_AUTHORIZATION_FAILED"
    for future in admin.create_acls([_acl("pay", AclOperation.WRITE)]).values():
        future.result(20)
    assert _produce(alice, "payments") is None
    anything: Any = None
    of_alice = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, "User:alice", anything, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    found = admin.describe_acls(of_alice).result(20)
    assert found == [_acl("pay", AclOperation.WRITE)]
    with pytest.raises(KafkaException):
        AdminClient(guarded.client("alice", "wrong")).list_topics(timeout=3)


async def test_a_user_may_do_what_acls_say(guarded: Guarded) -> None:
    await asyncio.to_thread(_administer, guarded)
