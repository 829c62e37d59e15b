"""Clients in Java, JavaScript and Go, unmodified, as users of a secured cluster: SCRAM-SHA-512, certificates,
bearer tokens.

Each way has one client here, and two of the cases that it has without security; what it must see is the same.
All clients, with all their cases, over each way: `make secured-clients`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tidegate.tests.foreign_clients import Program

from .programs import at_work, cases_of_module, numbered
from .secured_ways import SecuredCluster
from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("secured-programs"), pytest.mark.timeout(240)]


@pytest.fixture(
    scope="module",
    params=[("SCRAM-SHA-512", "java-4"), ("OAUTHBEARER", "kafkajs"), ("SSL", "sarama")],
    ids="-".join,
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    way, client = request.param
    with (
        kept_up(SecuredCluster(tmp_path_factory.mktemp("secured"), way, {})) as cluster,
        at_work(client, cluster, cases_of_module(request), tmp_path_factory) as program,
    ):
        yield program


def test_aborted_records_are_never_read(saw: dict[str, Any]) -> None:
    committed = [value for each in range(3) for value in numbered(f"committed-{each}", 5)]
    aborted = [value for each in range(3) for value in numbered(f"aborted-{each}", 5)]
    assert saw == {"committed": committed, "everything": aborted + committed}


def test_offsets_move_with_the_output(saw: dict[str, Any]) -> None:
    """Consume as a group, transform, produce, with transactions."""
    assert saw["committed"] == numbered("out", 60)
