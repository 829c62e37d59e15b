"""Administration by unmodified clients of other makers: what they send, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tidegate.client.blocking import Admin
from tidegate.processes.local_cluster import LocalCluster

from .protocol_cases import fresh

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("conformance"), pytest.mark.timeout(120)]


class TestConfluentKafka:
    """librdkafka through confluent-kafka."""

    @pytest.fixture
    def admin(self, conformance_node: LocalCluster) -> object:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": conformance_node.bootstrap})

    @pytest.fixture
    def topic(self, admin) -> str:  # type: ignore[no-untyped-def]
        from confluent_kafka.admin import NewTopic

        name = fresh("confluent")
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(20)
        return name

    def test_all_topics_and_one_are_listed(self, admin, topic: str) -> None:  # type: ignore[no-untyped-def]
        assert sorted(admin.list_topics(timeout=20).topics[topic].partitions) == [0, 1]
        assert list(admin.list_topics(topic, timeout=20).topics) == [topic]

    def test_settings_are_set_appended_and_replaced(self, admin, topic: str) -> None:  # type: ignore[no-untyped-def]
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        def value(key: str) -> str:
            (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
            return str(future.result(20)[key].value)

        append = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
        bytes_ = ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[append, bytes_])
        (future,) = admin.incremental_alter_configs([resource]).values()
        future.result(20)
        assert (value("cleanup.policy"), value("segment.bytes")) == ("delete,compact", "1048576")
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"cleanup.policy": "compact"})
        (future,) = admin.alter_configs([resource]).values()
        future.result(20)
        assert (value("cleanup.policy"), value("segment.bytes")) == ("compact", str(1 << 30)), (
            "what was not named is gone"
        )

    def test_a_throttle_is_set_and_taken_back(self, admin: Any, conformance_node: LocalCluster) -> None:
        """Of all nodes by our own client: librdkafka knows no resource without a name."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        name = "replica.catch.up.max.bytes.per.second"

        def alter(node: str, key: str, value: str | None) -> None:
            if not node:
                with Admin(conformance_node.bootstrap) as own:
                    own.alter_broker_config(None, {key: value})
                return
            operation = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
            entry = ConfigEntry(key, value, incremental_operation=operation)
            resource = ConfigResource(ConfigResource.Type.BROKER, node, incremental_configs=[entry])
            (future,) = admin.incremental_alter_configs([resource]).values()
            future.result(20)

        def shown() -> tuple[str, int, bool]:
            (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
            entry = future.result(20)[name]
            return str(entry.value), int(entry.source), bool(entry.is_read_only)

        assert shown() == ("0", 5, False)
        alter("", name, "5000")
        assert shown() == ("5000", 3, False)
        alter("1", name, "70")
        assert shown() == ("70", 2, False)
        with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
            alter("1", "log.level", "DEBUG")
        alter("1", name, None)
        assert shown() == ("5000", 3, False)
        alter("", name, None)
        assert shown() == ("0", 5, False)

    def test_preferred_leaders_are_elected(self, admin, topic: str) -> None:  # type: ignore[no-untyped-def]
        from confluent_kafka import ElectionType, KafkaError, TopicPartition

        result = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(20)
        ((_, error),) = result.items()
        assert error.code() == KafkaError.ELECTION_NOT_NEEDED
        assert "leads already" in error.str()

    def test_records_are_deleted(self, admin, topic: str, conformance_node: LocalCluster) -> None:  # type: ignore[no-untyped-def]
        from confluent_kafka import Producer, TopicPartition

        producer = Producer({"bootstrap.servers": conformance_node.bootstrap})
        for number in range(4):
            producer.produce(topic, str(number), partition=0)
        assert producer.flush(20) == 0
        (future,) = admin.delete_records([TopicPartition(topic, 0, 3)]).values()
        assert future.result(20).low_watermark == 3

    def test_a_state_topic_is_refused_with_the_reason(
        self, admin: Any, conformance_node: LocalCluster
    ) -> None:
        from confluent_kafka import KafkaError, KafkaException, Producer
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

        producer = Producer(
            {"bootstrap.servers": conformance_node.bootstrap, "transactional.id": fresh("confluent")}
        )
        producer.init_transactions(30)
        entry = ConfigEntry("flush.policy", "os", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(
            ConfigResource.Type.TOPIC, "__transaction_state", incremental_configs=[entry]
        )
        (future,) = admin.incremental_alter_configs([resource]).values()
        with pytest.raises(KafkaException) as refused:
            future.result(20)
        error = refused.value.args[0]
        assert error.code() == KafkaError.POLICY_VIOLATION
        assert "flush.policy stays 'always'" in error.str()


class TestKafkaPython:
    """kafka-python's admin client."""

    @pytest.fixture
    def admin(self, conformance_node: LocalCluster) -> Iterator[object]:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=conformance_node.bootstrap)
        yield admin
        admin.close()

    def test_the_cluster_its_folders_and_leaders_are_described(
        self, admin: Any, conformance_node: LocalCluster
    ) -> None:
        from kafka.protocol.admin import ElectionType

        described = admin.describe_cluster()
        assert len(described["brokers"]) == 1
        folders = admin.describe_log_dirs()
        assert str(conformance_node.node(1).data_path) in str(folders)
        elected = admin.elect_leaders(ElectionType.PREFERRED, {"nope": [0]}, raise_errors=False)
        assert "No such topic as nope" in str(elected)
