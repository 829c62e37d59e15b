"""@platformatic/kafka, unmodified, against three nodes.

What it does is in tests/clients/platformatic, a case for each test here, of the same name; what it must see
is here.  It knows only the newer versions of the requests: topics go by their ids when it fetches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tidegate.client.administration.admin import Admin
from tidegate.client.consuming.consumer import Consumer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Program

from .programs import at_work, cases_of_module, numbered
from .secured_ways import security_of

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("platformatic-client"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def program(
    request: pytest.FixtureRequest, shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    with at_work("platformatic", shared_cluster, cases_of_module(request), tmp_path_factory) as program:
        yield program


def test_what_is_written_is_read(saw: dict[str, Any]) -> None:
    assert saw == {"read": numbered("value", 60)}


def test_every_codec_passes(saw: dict[str, Any]) -> None:
    assert saw == dict.fromkeys(("none", "gzip", "snappy", "lz4"), 50)


Committed = Callable[[str], list[str]]


@pytest.fixture
def committed(shared_cluster: LocalCluster) -> Committed:
    """What a read_committed reader finds in a topic, sorted; this client hands out aborted records, also from
    Kafka."""

    async def read(topic: str) -> list[str]:
        security = security_of(shared_cluster)
        async with Admin(shared_cluster.bootstrap, security=security) as admin:
            (description,) = await admin.describe_topics([topic], config=False)
            partitions = [(topic, each.partition) for each in description.partitions]
            ends = await admin.end_offsets(partitions)
        values: list[str] = []
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "security": security}
        async with Consumer(shared_cluster.bootstrap, **settings) as consumer:
            consumer.assign(partitions)
            while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
                values += [(record.value or b"").decode() for record in await consumer.poll()]
        return sorted(values)

    return lambda topic: asyncio.run(read(topic))


class TestTransactions:
    def test_a_transaction_is_committed_or_aborted_whole(
        self, saw: dict[str, Any], committed: Committed
    ) -> None:
        assert committed(saw["topic"]) == [
            value for each in range(3) for value in numbered(f"committed-{each}", 5)
        ]

    def test_offsets_move_with_the_output(self, saw: dict[str, Any], committed: Committed) -> None:
        """Consume, transform, produce; some transactions are aborted and done again."""
        assert saw["offset"] == 20
        assert committed(saw["topic"]) == numbered("out", 20)


class TestGroups:
    def test_members_share_and_hand_over(self, saw: dict[str, Any]) -> None:
        assert saw == {"parts": [4, 2, 2, 4], "read": 20}

    def test_members_of_the_new_protocol_share_and_hand_over(self, saw: dict[str, Any]) -> None:
        """KIP-848."""
        assert saw == {"parts": [4, 2, 2, 4], "read": 20}

    def test_committed_offsets_are_found_by_the_next_reader(self, saw: dict[str, Any]) -> None:
        assert saw == {"rest": sorted(numbered("value", 20)[6::2] + numbered("value", 20)[15::2])}


def test_the_ends_of_a_partition_are_found(saw: dict[str, Any]) -> None:
    assert saw == {"-1": 10, "-2": 0}


class TestAdministration:
    def test_topics_are_made_grown_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {"again": "TOPIC_ALREADY_EXISTS", "deleted again": "UNKNOWN_TOPIC_OR_PARTITION"}

    def test_groups_are_listed_described_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "state": "STABLE",
            "members": 1,
            "listed": True,
            "delete a live one": "NON_EMPTY_GROUP",
            "listed after that": False,
        }

    def test_settings_are_described_and_changed(self, saw: dict[str, Any]) -> None:
        assert saw == {"made": "604800000", "bad value": "INVALID_CONFIG"}
