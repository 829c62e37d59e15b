"""The Java client, 3.9 and 4, unmodified, against three nodes.

What it does is in tests/clients/java/src, a case for each test here, of the same name; what it must see is
here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.blocking import Admin
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Program

from .programs import CASE_TIMEOUT_S, at_work, cases_of_module, numbered
from .secured_ways import security_of

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("java-clients"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=["java-3.9", "java-4"])
def program(
    request: pytest.FixtureRequest, shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    with at_work(request.param, shared_cluster, cases_of_module(request), tmp_path_factory) as program:
        yield program


@pytest.fixture
def version(program: Program) -> str:
    return program.name


class TestTransactions:
    def test_aborted_records_are_never_read(self, saw: dict[str, Any]) -> None:
        committed = [value for each in range(3) for value in numbered(f"committed-{each}", 5)]
        aborted = [value for each in range(3) for value in numbered(f"aborted-{each}", 5)]
        assert saw == {"committed": committed, "everything": aborted + committed}

    def test_a_second_instance_fences_the_first(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "commit": "ProducerFencedException",
            "begin again": "ProducerFencedException",
            "committed": ["second"],
        }

    def test_a_zombie_that_only_sends_is_fenced(self, saw: dict[str, Any]) -> None:
        """By the partition: the marker that aborted its transaction carried the new epoch (docs/semantics.md
        L2)."""
        refused = "InvalidProducerEpochException"
        seen = {"committed": ["second"], "everything": ["second", "zombie-1"]}
        assert saw == seen | {"send": refused, "commit": refused}

    def test_a_transaction_past_its_timeout_is_aborted(self, saw: dict[str, Any], version: str) -> None:
        """Under transactions v2 the epoch after the fence might be an end of its own, whose answer was lost:
        the coordinator knows the producer and refuses the commit alone (docs/semantics.md T3)."""
        refused = "ProducerFencedException" if version == "java-3.9" else "InvalidTxnStateException"
        assert saw == {"commit": refused, "committed": ["next"]}

    def test_a_producer_that_sends_on_past_its_timeout(self, saw: dict[str, Any], version: str) -> None:
        """It is refused, aborts, and under transactions v2 goes on; an older one ends with an epoch that is
        gone."""
        refused, after = ("ProducerFencedException", []) if version == "java-3.9" else ("", ["after"])
        expected = {
            "send": "InvalidProducerEpochException",
            "abort": refused,
            "begin again": refused,
            "committed": after,
        }
        assert saw == expected

    def test_offsets_move_with_the_output(self, saw: dict[str, Any]) -> None:
        """Consume, transform, produce; one of three transactions is aborted and done again."""
        assert saw["committed"] == numbered("out", 60)
        assert saw["offsets"] == {"0": 30, "1": 30}
        assert saw["transactions"] >= 8

    def test_a_member_left_behind_cannot_move_offsets(self, saw: dict[str, Any]) -> None:
        """docs/semantics.md O5: an older generation, and a member that left."""
        refused = "CommitFailedException "
        assert saw == {
            "older generation": refused,
            "member that left": refused,
            "offsets": 0,
            "committed": [],
        }


class TestGroups:
    def test_an_eager_group_gives_up_everything_to_share(self, saw: dict[str, Any]) -> None:
        assert saw == {"assignor": "range", "events": ["+0,1,2,3", "-0,1,2,3", "+0,1", "-0,1", "+0,1,2,3"]}

    def test_a_cooperative_group_gives_up_only_what_moves(self, saw: dict[str, Any]) -> None:
        """KIP-429: in two rebalances, and what stays is read on meanwhile."""
        assert saw == {"assignor": "cooperative-sticky", "events": ["+0,1,2,3", "-2,3", "+2,3"]}

    def test_a_group_of_the_new_protocol_gives_up_only_what_moves(self, saw: dict[str, Any]) -> None:
        """KIP-848, which 3.9 has as a preview and 4 as released; the admin client describes such a group by
        itself."""
        assert saw == {"assignor": "uniform", "events": ["+0,1,2,3", "-2,3", "+2,3"]}

    def test_a_group_moves_to_the_cooperative_assignor_while_it_runs(self, saw: dict[str, Any]) -> None:
        """The coordinator chooses what all members know."""
        assert saw == {"assignors": ["sticky", "sticky", "cooperative-sticky"]}

    def test_a_static_member_comes_back_without_a_rebalance(self, saw: dict[str, Any]) -> None:
        """KIP-345; and the older of two with one name is fenced."""
        quiet = {"same partitions": True, "same generation": True, "the other noticed nothing": True}
        assert saw == quiet | {"replaced": "FencedInstanceIdException"}

    def test_nothing_is_lost_while_members_come_and_go(self, saw: dict[str, Any]) -> None:
        assert saw["lost"] == []
        assert saw["sent"] > 200

    def test_a_group_moves_between_the_protocols_member_by_member(self, saw: dict[str, Any]) -> None:
        """KIP-848's online migration there and back, under load: a partition never has two owners, no record
        is passed over."""
        for strategy, assignor in (("eager", "range"), ("cooperative", "cooperative-sticky")):
            assert saw[strategy]["wrong"] == []
            assert saw[strategy]["sent"] > 200
            assert saw[strategy]["assignors"] == [assignor, "uniform", assignor]

    def test_nothing_is_doubled_while_members_come_and_go(self, saw: dict[str, Any]) -> None:
        """Transactions with offsets; one member stood still inside one until the group had gone on without
        it."""
        assert saw["lost"] == []
        assert saw["read"] == saw["sent"] > 200
        assert saw["aborted"] > 0

    def test_nothing_is_doubled_in_a_group_of_the_new_protocol(self, saw: dict[str, Any]) -> None:
        """KIP-848: what fences the member that stood still is its epoch (docs/semantics.md O5)."""
        assert saw["lost"] == []
        assert saw["read"] == saw["sent"] > 200
        assert saw["aborted"] > 0


class TestOffsets:
    def test_committed_offsets_are_found_by_the_next_reader(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "before": [None, None],
            "asynchronous": "null",
            "offsets": [3, 7],
            "metadata": "half way",
            "positions": [3, 7],
            "rest": 10,
        }

    def test_a_reader_without_an_offset_is_reset(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "earliest": 0,
            "latest": 10,
            "none": "NoOffsetForPartitionException",
            "earliest out of range": 4,
            "latest out of range": 10,
            "none out of range": "OffsetOutOfRangeException",
        }

    def test_offsets_are_found_by_time(self, saw: dict[str, Any]) -> None:
        """The first record that is not older; the sixth of ten is the newest."""
        assert saw == {
            "0": "0@1000000",
            "1003000": "3@1003000",
            "1003001": "4@1004000",
            "1009000": "5@9000000",
            "9000001": "none",
            "newest": "5@9000000",
        }

    def test_the_end_depends_on_the_isolation(self, saw: dict[str, Any]) -> None:
        """docs/semantics.md F4: for a reader of committed records it is the last stable offset.  Committed,
        all, earliest."""
        committed = ["before-000", "before-001", "before-002", "behind-000", "open-000", "open-001"]
        assert saw == {"open": [3, 6, 0], "committed": committed, "decided": [7, 7, 0]}


class TestAdministration:
    def test_topics_are_made_described_grown_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "only tried": "UnknownTopicOrPartitionException",
            "made": [2, 3],
            "made again": "TopicExistsException",
            "bad name": "InvalidTopicException",
            "nine replicas": "InvalidReplicationFactorException",
            "no partitions": "InvalidPartitionsException",
            "bad setting": "InvalidConfigurationException",
            "fewer": "InvalidPartitionsException",
            "name by its id": True,
            "deleted again": "UnknownTopicOrPartitionException",
        }

    def test_settings_are_set_appended_subtracted_and_taken_back(self, saw: dict[str, Any]) -> None:
        changed, untouched = "DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG"

        def sources(policy: str, retention: str, size: str) -> dict[str, str]:
            return {"cleanup.policy": policy, "retention.ms": retention, "segment.bytes": size}

        assert saw == {
            "made": sources(untouched, changed, untouched),
            "set and appended": sources(changed, changed, changed),
            "subtracted, taken back, only tried": sources(changed, untouched, changed),
            "bad value": "InvalidConfigurationException",
            "no such setting": "InvalidConfigurationException",
            "no such topic": "UnknownTopicOrPartitionException",
            "a broker's": "900000",
        }

    def test_groups_are_listed_described_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "live": ["Stable", "range", ["reader i 2"], True],
            "listed": ["Stable", "Stable"],
            "offsets of a live one": "UnknownMemberIdException",
            "delete a live one": "GroupNotEmptyException",
            "delete offsets in use": "GroupSubscribedToTopicException",
            "empty": ["Empty", "", [], True],
            "offsets": {"0": 5, "1": 6},
            "one deleted": {"1": 6},
            "deleted": [],
            "deleted again": "GroupIdNotFoundException",
        }

    def test_records_are_deleted(self, saw: dict[str, Any]) -> None:
        left = numbered("value", 10)[4:]
        assert saw == {
            "low watermark": 4,
            "read": left,
            "beyond the end": "OffsetOutOfRangeException",
            "all of them": 10,
        }

    def test_the_cluster_is_described(self, saw: dict[str, Any], shared_cluster: LocalCluster) -> None:
        assert saw == {
            "nodes": [1, 2, 3],
            "the controller is one of them": True,
            "cluster id": shared_cluster.cluster_id,
            "transaction.version": 2,
            "folders": True,
            "voters": [1, 2, 3],
            "the quorum's leader is one of them": True,
        }

    def test_transactions_and_producers_are_described(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "new": "Empty",
            "open": ["Ongoing", 45000, 2],
            "started": True,
            "producers": [[True, True, 1, 0]],
            "listed open": ["Ongoing"],
            "listed of this producer": ["Ongoing"],
            "listed older than an hour": [],
            "listed": ["CompleteCommit"],
            "no such id": "TransactionalIdNotFoundException",
        }

    def test_producers_are_fenced_by_the_operator(self, saw: dict[str, Any]) -> None:
        assert saw == {"commit": "ProducerFencedException", "committed": ["plain"]}

    def test_a_transaction_is_aborted_by_the_operator(self, saw: dict[str, Any]) -> None:
        """KIP-664: readers go on behind a transaction that hangs."""
        assert saw == {"aborted": "", "committed": ["plain"]}

    def test_replicas_move_and_leaders_are_elected(self, saw: dict[str, Any]) -> None:
        """Leaderships also return by themselves, perhaps before the election that was asked for."""
        assert saw.pop("elected") in ("", "ElectionNotNeededException")
        assert saw == {
            "unknown node": "InvalidReplicaAssignmentException",
            "nothing to cancel": "NoReassignmentInProgressException",
            "elected again": "ElectionNotNeededException",
            "values": 20,
        }


class TestClientTelemetry:
    def test_what_a_producer_pushes_is_on_the_page_for_prometheus(
        self, program: Program, version: str, shared_cluster: LocalCluster
    ) -> None:
        """KIP-714: Java clients push what a subscription asks for, without a setting of their own."""
        client_id, instance = pushed(shared_cluster, version.removeprefix("java-"))
        with Admin(shared_cluster.bootstrap, security=security_of(shared_cluster)) as admin:
            admin.create_topics([NewTopic(client_id, 1)])  # the sign that the producer may end
        saw = program.saw("whatAProducerPushesIsOnThePageForPrometheus", CASE_TIMEOUT_S)
        assert instance in saw["instances"]


def pushed(cluster: LocalCluster, version: str) -> tuple[str, str]:
    """Id and instance of the producer of this version, as soon as a node shows that it sent its ten
    records."""
    shown = re.compile(
        rf'^tidegate_client_org_apache_kafka_producer_record_send_total{{client_id="(pushes-{re.escape(version)}[.\d]*)",'
        r'client_instance_id="([^"]+)".*} 10\.0$',
        re.MULTILINE,
    )
    deadline = time.monotonic() + CASE_TIMEOUT_S
    pages: list[str] = []
    while time.monotonic() < deadline:
        pages = [
            urlopen(f"http://{node.metrics_address}/metrics", timeout=10).read().decode()
            for node in cluster.nodes
        ]
        for page in pages:
            if (found := shown.search(page)) is not None:
                return found[1], found[2]
        time.sleep(0.1)
    raise AssertionError([line for page in pages for line in page.splitlines() if "pushes-" in line][:20])
