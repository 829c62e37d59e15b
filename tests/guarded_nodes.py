"""Nodes with an authorizer, for tests: clients authenticate by PLAIN or SCRAM on one listener, and the node's
own listener, PLAINTEXT, has a super user of its own, ANONYMOUS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.base_ports import free_base_port

SASL = "SASL_PLAINTEXT"
STEP = 100
USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", SASL)


def plain_users(names: Iterable[str]) -> str:
    """For `plain.sasl.jaas.config`; every user's password is the user's name."""
    users = " ".join(f'user_{name}="{name}"' for name in names)
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"


def settings_of(base: int, users: Iterable[str]) -> dict[str, object]:
    return {
        "listeners": [f"{use}://127.0.0.1:{base + STEP * number}" for number, use in enumerate(USES)],
        "listener.security.protocol.map": [f"{use}:{SASL if use == SASL else 'PLAINTEXT'}" for use in USES],
        "sasl.enabled.mechanisms": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        f"listener.name.{SASL.lower()}.plain.sasl.jaas.config": plain_users(users),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root;User:ANONYMOUS",
    }


@asynccontextmanager
async def guarded_node(
    directory: Path, users: Iterable[str], settings: Mapping[str, object] | None = None
) -> AsyncIterator[tuple[str, int]]:
    """The address of the listener for `users` (root is one of them) of a node that is ready."""
    base = free_base_port(len(USES))
    wanted = {**settings_of(base, ("root", *users)), **(settings or {})}
    async with LocalCluster(directory, 1, wanted, base_port=base):
        yield "127.0.0.1", base + STEP * USES.index(SASL)
