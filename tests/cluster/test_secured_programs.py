"""The Java clients and kafkajs, unmodified, as users of a secured cluster: SCRAM-SHA-512 over TLS.

The cases are those of test_java_clients.py and test_kafkajs_client.py; what they must see is the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Program

from .programs import at_work, cases_of_module, numbered

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("secured-programs"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("secured"), 3, with_users=True)
    asyncio.run(cluster.up())
    yield cluster
    asyncio.run(cluster.down())


@pytest.fixture(scope="module", params=["java-3.9", "java-4", "kafkajs"])
def program(
    request: pytest.FixtureRequest, secured: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    user = secured.administrator.security()
    sasl = {"mechanism": "scram-sha-512", "username": user.username, "password": user.password}
    environment = {
        "CLIENT_PROPERTIES": str(secured.administrator.properties_path),
        "CLIENT_SECURITY": json.dumps({"ca": str(secured.certificates.authorities), "sasl": sasl}),
    }
    cases = cases_of_module(request)
    with at_work(request.param, secured, cases, tmp_path_factory, environment) as program:
        yield program


def test_aborted_records_are_never_read(saw: dict[str, Any]) -> None:
    committed = [value for each in range(3) for value in numbered(f"committed-{each}", 5)]
    aborted = [value for each in range(3) for value in numbered(f"aborted-{each}", 5)]
    assert saw == {"committed": committed, "everything": aborted + committed}


def test_offsets_move_with_the_output(saw: dict[str, Any]) -> None:
    """Consume as a group, transform, produce, with transactions."""
    assert saw["committed"] == numbered("out", 60)
