"""The Java client, 3.9 and 4, unmodified, against three nodes.

What it does is in tests/clients/java/src, a case for each test here, of the same name; what it must see is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from foreign_clients import Broken, Missing, Program
from tidegate.client.local_cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("java-clients"), pytest.mark.timeout(180)]

CASE_TIMEOUT_S = 90


@pytest.fixture(scope="module", params=["java-3.9", "java-4"])
def program(
    request: pytest.FixtureRequest, shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """One JVM for each version, at work on the cases of all tests that were chosen."""
    chosen = {case_of(item) for item in request.session.items if item.module is request.module}
    log = tmp_path_factory.mktemp("java") / f"{request.param}.log"
    try:
        program = Program(request.param, shared_cluster.bootstrap, sorted(chosen), log)
    except Missing as reason:
        pytest.skip(str(reason))
    except Broken as error:
        pytest.fail(str(error))
    yield program
    program.close()


@pytest.fixture
def version(program: Program) -> str:
    return program.name


@pytest.fixture
def saw(program: Program, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the client saw in the case of this test's name."""
    return program.saw(case_of(request.node), CASE_TIMEOUT_S)


def case_of(item: Any) -> str:
    """test_aborted_records_are_never_read -> abortedRecordsAreNeverRead"""
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), item.originalname.removeprefix("test_"))


def numbered(what: str, count: int) -> list[str]:
    return [f"{what}-{number:03}" for number in range(count)]


class TestTransactions:
    def test_aborted_records_are_never_read(self, saw: dict[str, Any]) -> None:
        committed = [value for each in range(3) for value in numbered(f"committed-{each}", 5)]
        aborted = [value for each in range(3) for value in numbered(f"aborted-{each}", 5)]
        assert saw == {"committed": committed, "everything": aborted + committed}

    def test_a_second_instance_fences_the_first(self, saw: dict[str, Any]) -> None:
        assert saw == {"commit": "ProducerFencedException", "begin again": "ProducerFencedException", "committed": ["second"]}

    def test_a_zombie_that_only_sends_is_fenced(self, saw: dict[str, Any]) -> None:
        """By the partition: the marker that aborted its transaction carried the new epoch (SEMANTICS 16)."""
        refused = "InvalidProducerEpochException"
        seen = {"committed": ["second"], "everything": ["second", "zombie-1"]}
        assert saw == seen | {"send": refused, "commit": refused}

    def test_a_transaction_past_its_timeout_is_aborted(self, saw: dict[str, Any], version: str) -> None:
        """Under transactions v2 the epoch after the fence might be an end of its own, whose answer was lost: the coordinator
        knows the producer and refuses the commit alone (SEMANTICS 25)."""
        refused = "ProducerFencedException" if version == "java-3.9" else "InvalidTxnStateException"
        assert saw == {"commit": refused, "committed": ["next"]}

    def test_a_producer_that_sends_on_past_its_timeout(self, saw: dict[str, Any], version: str) -> None:
        """It is refused, aborts, and under transactions v2 goes on; an older one ends with an epoch that is gone."""
        refused, after = ("ProducerFencedException", []) if version == "java-3.9" else ("", ["after"])
        expected = {"send": "InvalidProducerEpochException", "abort": refused, "begin again": refused, "committed": after}
        assert saw == expected

    def test_offsets_move_with_the_output(self, saw: dict[str, Any]) -> None:
        """Consume, transform, produce; one of three transactions is aborted and done again."""
        assert saw["committed"] == numbered("out", 60)
        assert saw["offsets"] == {"0": 30, "1": 30} and saw["transactions"] >= 8

    def test_a_member_left_behind_cannot_move_offsets(self, saw: dict[str, Any]) -> None:
        """SEMANTICS 35: an older generation, and a member that left."""
        refused = "CommitFailedException "
        assert saw == {"older generation": refused, "member that left": refused, "offsets": 0, "committed": []}
