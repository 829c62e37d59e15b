"""Clients in Java, JavaScript and Go, unmodified, as users of a secured cluster: SCRAM-SHA-512, certificates,
bearer tokens.

The cases are two of those that these clients have without security; what they must see is the same.  All of
them over each way: `make secured-clients`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Program

from .programs import at_work, cases_of_module, numbered
from .secured_ways import WAYS, SecuredCluster
from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("secured-programs"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module", params=WAYS)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    with kept_up(SecuredCluster(tmp_path_factory.mktemp("secured"), request.param, {})) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["java-3.9", "java-4", "kafkajs", "sarama"])
def program(
    request: pytest.FixtureRequest, secured: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    with at_work(request.param, secured, cases_of_module(request), tmp_path_factory) as program:
        yield program


def test_aborted_records_are_never_read(saw: dict[str, Any]) -> None:
    committed = [value for each in range(3) for value in numbered(f"committed-{each}", 5)]
    aborted = [value for each in range(3) for value in numbered(f"aborted-{each}", 5)]
    assert saw == {"committed": committed, "everything": aborted + committed}


def test_offsets_move_with_the_output(saw: dict[str, Any]) -> None:
    """Consume as a group, transform, produce, with transactions."""
    assert saw["committed"] == numbered("out", 60)
