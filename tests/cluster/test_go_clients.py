"""sarama and kafka-go, unmodified, against three nodes.

What they do is in tests/clients/go, a case for each test here, of the same name; what they must see is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.foreign_clients import Program

from .programs import at_work, case_of, numbered

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="class")
def program(
    request: pytest.FixtureRequest, shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """The program at work on the cases of one class, which names the client."""
    cases = sorted({case_of(item) for item in request.session.items if item.cls is request.cls})  # type: ignore[attr-defined]
    with at_work(request.cls.client, shared_cluster, cases, tmp_path_factory) as program:
        yield program


@pytest.mark.xdist_group("sarama-client")
class TestSarama:
    """It speaks the newest versions of the requests that it knows, and transactions v1."""

    client = "sarama"

    def test_aborted_records_are_never_read(self, saw: dict[str, Any]) -> None:
        committed = [value for each in range(3) for value in numbered(f"committed-{each}", 5)]
        aborted = [value for each in range(3) for value in numbered(f"aborted-{each}", 5)]
        assert saw == {"committed": committed, "everything": aborted + committed}

    def test_a_second_instance_fences_the_first(self, saw: dict[str, Any]) -> None:
        """The partition's leader says INVALID_PRODUCER_EPOCH, the coordinator PRODUCER_FENCED, which sarama
        has no words for."""
        assert saw.pop("send") == "kafka server: Producer attempted an operation with an old epoch"
        assert saw.pop("abort").endswith("Error code = 90")
        assert saw == {"committed": ["second"]}

    def test_offsets_move_with_the_output(self, saw: dict[str, Any]) -> None:
        """Consume, transform, produce; some transactions are aborted and done again."""
        assert saw == {"committed": numbered("out", 60), "offsets": [30, 30], "aborted some": True}

    def test_members_share_and_hand_over(self, saw: dict[str, Any]) -> None:
        assert saw == {"parts": [4, 2, 2, 4]}

    def test_a_static_member_keeps_its_partitions(self, saw: dict[str, Any]) -> None:
        assert saw == {"instances": ["static-1"], "removed": True, "state": "Stable"}

    def test_committed_offsets_are_found_by_the_next_reader(self, saw: dict[str, Any]) -> None:
        rest = sorted(numbered("value", 20)[6::2] + numbered("value", 20)[15::2])
        assert saw == {"after": [[3, "half way"], [7, "half way"]], "rest": rest}

    def test_offsets_are_found_by_time(self, saw: dict[str, Any]) -> None:
        """Behind the newest record there is no offset."""
        assert saw == {"0": 0, "1003000": 3, "1003001": 4, "1009001": -1, "oldest": 0, "newest": 10}

    def test_every_codec_passes(self, saw: dict[str, Any]) -> None:
        assert saw == dict.fromkeys(CODECS, 50)

    def test_topics_are_made_described_grown_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "again": True,
            "fewer": True,
            "deleted again": True,
            "nodes": [1, 2, 3],
            "a controller": True,
        }

    def test_settings_are_described_and_changed(self, saw: dict[str, Any]) -> None:
        assert saw == {"made": "2", "bad value": True}

    def test_groups_are_listed_described_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {
            "state": "Stable",
            "protocol": "range",
            "members": 1,
            "listed": "consumer",
            "delete a live one": True,
            "listed after that": False,
        }

    def test_records_are_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {"read": numbered("value", 10)[4:], "beyond the end": True}

    def test_replicas_move_and_leaders_are_elected(self, saw: dict[str, Any]) -> None:
        assert saw == {"values": 20, "elected": True}


@pytest.mark.xdist_group("kafka-go-client")
class TestKafkaGo:
    """It knows old versions of the requests only, and has no transactional producer."""

    client = "kafka-go"

    def test_members_share_and_hand_over(self, saw: dict[str, Any]) -> None:
        assert saw == {"parts": [4, 2, 2, 4]}

    def test_committed_offsets_are_found_by_the_next_reader(self, saw: dict[str, Any]) -> None:
        assert saw == {"read again": 0, "rest": 12}

    def test_offsets_are_found_by_time(self, saw: dict[str, Any]) -> None:
        assert saw == {"first": 0, "last": 10, "by time": [0]}

    def test_every_codec_passes(self, saw: dict[str, Any]) -> None:
        assert saw == dict.fromkeys(CODECS, True)

    def test_topics_are_made_described_grown_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {"made again": True}

    def test_settings_are_described_and_changed(self, saw: dict[str, Any]) -> None:
        assert saw == {"default": "604800000", "bad value": True}

    def test_groups_are_listed_described_and_deleted(self, saw: dict[str, Any]) -> None:
        assert saw == {"delete a live one": True, "a coordinator": True, "listed after that": False}

    def test_a_transaction_is_begun_and_ended(self, saw: dict[str, Any]) -> None:
        assert saw == {"offset": 7, "an older epoch is refused": True}
