"""kafkajs, unmodified, against three nodes.

What it does is in tests/clients/kafkajs, a case for each test here, of the same name; what it must see is
here.  It speaks the first versions of the transactional requests (transactions v1), and knows neither static
members nor cooperative assignors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Program

from .programs import at_work, cases_of_module, numbered

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("kafkajs-client"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def program(
    request: pytest.FixtureRequest, shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    with at_work("kafkajs", shared_cluster, cases_of_module(request), tmp_path_factory) as program:
        yield program


class TestTransactions:
    def test_aborted_records_are_never_read(self, saw: dict[str, Any]) -> None:
        committed = [value for each in range(3) for value in numbered(f"committed-{each}", 5)]
        aborted = [value for each in range(3) for value in numbered(f"aborted-{each}", 5)]
        assert saw == {"committed": committed, "everything": aborted + committed}

    def test_a_second_instance_fences_the_first(self, saw: dict[str, Any]) -> None:
        """Its versions of the requests know no PRODUCER_FENCED."""
        assert saw == {
            "send": "INVALID_PRODUCER_EPOCH",
            "commit": "INVALID_PRODUCER_EPOCH",
            "committed": ["second"],
        }

    def test_a_transaction_past_its_timeout_is_aborted(self, saw: dict[str, Any]) -> None:
        assert saw == {"meanwhile": [], "commit": "INVALID_PRODUCER_EPOCH", "committed": ["next"]}

    def test_offsets_move_with_the_output(self, saw: dict[str, Any]) -> None:
        """Consume, transform, produce; some transactions are aborted and done again."""
        assert saw["committed"] == numbered("out", 60)
        assert saw["offsets"] == [30, 30]
        assert saw["transactions"] >= 4


class TestGroups:
    def test_members_share_and_hand_over(self, saw: dict[str, Any]) -> None:
        assert saw == {"parts": [4, 2, 2, 4], "crashed": ""}

    def test_nothing_is_lost_while_members_come_and_go(self, saw: dict[str, Any]) -> None:
        assert saw["lost"] == []
        assert saw["crashed"] == ""
        assert saw["sent"] >= 60


class TestOffsets:
    def test_committed_offsets_are_found_by_the_next_reader(self, saw: dict[str, Any]) -> None:
        rest = sorted(numbered("value", 20)[6::2] + numbered("value", 20)[15::2])
        assert saw == {
            "before": [["-1", None], ["-1", None]],
            "after": [["3", "half way"], ["7", None]],
            "rest": rest,
        }

    def test_offsets_are_set_and_reset_from_outside(self, saw: dict[str, Any]) -> None:
        """kafkajs keeps "the earliest" itself as an offset, -2; a group at work is left alone, by its own
        look at it."""
        live = (
            "KafkaJSNonRetriableError: The consumer group must have no running instances, current state: "
            "Stable"
        )
        assert saw == {"set": [["4", None]], "reset": [["-2", None]], "of a live group": live}

    def test_offsets_are_found_by_time(self, saw: dict[str, Any]) -> None:
        """Behind the newest record kafkajs makes the end of it."""
        assert saw == {"0": "0", "1003000": "3", "1003001": "4", "1009001": "10", "low": "0", "high": "10"}


class TestAdministration:
    def test_topics_are_made_described_grown_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "tried": True,
            "only tried": False,
            "made": True,
            "made again": False,
            "bad name": "INVALID_TOPIC_EXCEPTION",
            "nine replicas": "INVALID_REPLICATION_FACTOR",
            "fewer": "INVALID_PARTITIONS",
            "deleted again": "UNKNOWN_TOPIC_OR_PARTITION",
        }

    def test_settings_are_described_and_replaced(self, saw: dict[str, Any]) -> None:
        """AlterConfigs, the old request: what is not named returns to its default."""
        assert saw == {
            "made": {"cleanup.policy": "delete", "retention.ms": "3600000"},
            "replaced": {"cleanup.policy": "compact", "retention.ms": "604800000"},
            "bad value": "INVALID_CONFIG",
            "a broker's": "900000",
        }

    def test_groups_are_listed_described_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "live": {"protocol": "RoundRobinAssigner", "protocolType": "consumer", "members": ["kafkajs"]},
            "listed": ["consumer"],
            "delete a live one": "NON_EMPTY_GROUP",
            "deleted": [0],
            "listed after that": [],
            "deleted again": "GROUP_ID_NOT_FOUND",
        }

    def test_records_are_deleted(self, saw: dict[str, Any]) -> None:
        assert saw.pop("beyond the end").startswith("KafkaJSNonRetriableError")
        assert saw == {"low": "4", "high": "10", "read": numbered("value", 10)[4:]}

    def test_the_cluster_is_described(self, saw: dict[str, Any], shared_cluster: LocalCluster) -> None:
        assert saw == {
            "nodes": [1, 2, 3],
            "clusterId": shared_cluster.cluster_id,
            "the controller is one of them": True,
        }

    def test_replicas_move(self, saw: dict[str, Any]) -> None:
        assert saw == {"values": 20}


def test_gzip_passes(saw: dict[str, Any]) -> None:
    """The one codec that kafkajs has by itself."""
    assert saw == {"read": numbered("value", 50)}
