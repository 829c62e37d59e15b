"""The load of a secured cluster: a user with a password and few rights, and every client logs in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tidegate.chaos
from tidegate.chaos.checks.history import History
from tidegate.chaos.load import user
from tidegate.chaos.load.librdkafka import security_settings
from tidegate.chaos.load.processes import Plan
from tidegate.chaos.load.workload import Workload
from tidegate.runtime.clock import ManualClock
from tidegate.security.acls import PatternType, PermissionType, ResourceType
from tidegate.security.client_security import ClientSecurity
from tidegate.security.scram import ScramMechanism
from tidegate.wire import codec
from tidegate.wire.api import ApiKey

CHAOS = Path(tidegate.chaos.__file__).parent
CLIENTS = {"Admin", "Producer", "Consumer", "Cluster"}
"""Tidegate's own."""


def made_clients() -> Iterator[tuple[str, ast.Call]]:
    for folder in ("load", "run", "scenarios"):
        for path in sorted((CHAOS / folder).glob("*.py")):
            if path.name == "librdkafka.py":
                continue
            for each in ast.walk(ast.parse(path.read_text())):
                if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in CLIENTS:
                    yield f"{path.name}:{each.lineno}", each


def test_every_client_of_a_run_logs_in() -> None:
    found = dict(made_clients())
    assert len(found) >= 9
    assert [at for at, call in found.items() if "security" not in {word.arg for word in call.keywords}] == []


def test_the_user_may_read_and_write_what_is_the_loads_and_nothing_else() -> None:
    acls = user.acls(user.NAME, user.RIGHTS)
    assert {each["resource_name"] for each in acls} == {"chaos-", "none-"}
    assert {each["resource_pattern_type"] for each in acls} == {PatternType.PREFIXED}
    assert {each["permission_type"] for each in acls} == {PermissionType.ALLOW}
    assert {each["principal"] for each in acls} == {"User:chaos-load"}
    assert ResourceType.CLUSTER not in {each["resource_type"] for each in acls}
    codec.request(ApiKey.CREATE_ACLS, 3, {"creations": acls})


def test_the_names_of_the_load_are_within_its_rights() -> None:
    plan, clock = Plan(), ManualClock()
    workload = Workload("127.0.0.1:1", History(clock.monotonic), plan, clock, 1)
    ids = [*workload.writer_ids, *workload.librdkafka_ids, *workload.transform_ids]
    assert all(name.startswith(user.OWN) for name in (plan.topic, plan.derived_topic, plan.group, *ids))


def test_the_credential_is_that_of_the_password() -> None:
    (upsertion,) = user.credential("alice", "secret")["upsertions"]
    mechanism = ScramMechanism.SHA_512
    assert upsertion["mechanism"] == mechanism.code
    wanted = mechanism.salted_password("secret", upsertion["salt"], upsertion["iterations"])
    assert upsertion["salted_password"] == wanted
    codec.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, user.credential("alice", "secret"))


def test_librdkafka_logs_in_as_the_same_user() -> None:
    security = ClientSecurity("SASL_PLAINTEXT", username="chaos-load", password="secret")
    assert security_settings(security) == {
        "security.protocol": "SASL_PLAINTEXT",
        "ssl.ca.location": "",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "chaos-load",
        "sasl.password": "secret",
    }
