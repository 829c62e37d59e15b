"""Administration by the Kafka clients of Python, unmodified, where it takes three nodes: coordinators,
leaders and replicas are elsewhere than the node that was asked first.  What one node can show is in
test_real_admin_clients.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually

from .python_clients import Aiokafka, ConfluentKafka, KafkaPython, Member, leaving, until, until_they_share

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("python-clients"), pytest.mark.timeout(120)]

MakeTopic = Callable[..., str]


def fill(cluster: LocalCluster, topic: str, count: int = 10) -> None:
    """Plain records to partition 0."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


@contextmanager
def open_transaction(cluster: LocalCluster, topic: str) -> Iterator[None]:
    """Behind the plain records, one record of a transaction that is not decided; its transactional id is the
    topic's name."""
    producer = ConfluentKafka(cluster.bootstrap).producer(topic)
    producer.begin()
    producer.send(topic, 0, [b"open"])
    yield
    producer.close()


class TestKafkaPython:
    @pytest.fixture
    def admin(self, shared_cluster: LocalCluster) -> Iterator[Any]:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=shared_cluster.bootstrap)
        yield admin
        admin.close()

    def test_topics_are_made_grown_and_deleted(self, admin: Any, make_topic: MakeTopic) -> None:
        from kafka.errors import InvalidPartitionsError, TopicAlreadyExistsError

        name = f"{make_topic()}-more"
        admin.create_topics({name: {"num_partitions": 2, "replication_factor": 3}})
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics({name: {"num_partitions": 2, "replication_factor": 3}})
        admin.create_partitions({name: 4})
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({name: 3})
        until("the partitions are known", lambda: len(admin.describe_topics([name])[0]["partitions"]) == 4)
        admin.delete_topics([name])
        until("the topic is gone", lambda: name not in admin.list_topics())

    def test_settings_are_set_appended_subtracted_and_taken_back(
        self, admin: Any, make_topic: MakeTopic
    ) -> None:
        from kafka.admin import ConfigResource

        topic = make_topic(partitions=1)

        def alter(changes: dict[str, Any]) -> None:
            admin.alter_configs([ConfigResource("TOPIC", topic, configs=changes)])

        def shown(name: str) -> Any:
            described = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
            return described["topic"][topic][name]["value"]

        alter({"segment.bytes": "1048576", "cleanup.policy": ("APPEND", "compact")})
        until(
            "both changed",
            lambda: (shown("segment.bytes"), shown("cleanup.policy")) == ("1048576", "delete,compact"),
        )
        alter({"segment.bytes": ("DELETE", None), "cleanup.policy": ("SUBTRACT", "delete")})
        until(
            "both changed again",
            lambda: (shown("segment.bytes"), shown("cleanup.policy")) == (str(1 << 30), "compact"),
        )

    def test_groups_are_listed_described_and_deleted(
        self, admin: Any, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        from kafka import TopicPartition
        from kafka.admin import MemberToRemove
        from kafka.errors import GroupSubscribedToTopicError, NoError, UnknownMemberIdError
        from kafka.structs import OffsetAndMetadata

        topic = make_topic(partitions=2)
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        offsets = {zero: OffsetAndMetadata(5, "", -1), one: OffsetAndMetadata(6, "", -1)}

        def described() -> Any:
            return admin.describe_groups([topic])[topic]

        with leaving() as announce:
            client = KafkaPython(shared_cluster.bootstrap)
            member = announce(Member(lambda: client.reader(topic, topic, instance="static")))
            until_they_share(2, member)
            assert described()["group_state"] == "Stable"
            assert [each["group_instance_id"] for each in described()["members"]] == ["static"]
            assert topic in [each["group_id"] for each in admin.list_groups(states_filter=["Stable"])]
            assert topic not in [each["group_id"] for each in admin.list_groups(states_filter=["Empty"])]
            assert "NonEmptyGroup" in str(admin.delete_groups([topic]))
            assert set(admin.alter_group_offsets(topic, offsets).values()) == {UnknownMemberIdError}
            assert admin.delete_group_offsets(topic, [zero]) == {zero: GroupSubscribedToTopicError}
        removed = admin.remove_group_members(topic, [MemberToRemove(group_instance_id="static")])
        assert set(removed.values()) == {NoError}
        until("the group is empty", lambda: described()["group_state"] == "Empty")
        assert set(admin.alter_group_offsets(topic, offsets).values()) == {NoError}
        assert {
            place.partition: found.offset for place, found in admin.list_group_offsets(topic)[topic].items()
        } == {0: 5, 1: 6}
        assert admin.delete_group_offsets(topic, [zero]) == {zero: NoError}
        assert {
            place.partition: found.offset for place, found in admin.list_group_offsets(topic)[topic].items()
        } == {1: 6}
        assert admin.delete_groups([topic]) == {topic: "OK"}
        assert topic not in [each["group_id"] for each in admin.list_groups()]

    def test_transactions_and_producers_are_described(
        self, admin: Any, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        from kafka import TopicPartition
        from kafka.admin import AbortTransactionSpec
        from kafka.errors import TransactionalIdNotFoundError

        topic = make_topic(partitions=1)
        partition = TopicPartition(topic, 0)
        with open_transaction(shared_cluster, topic):
            described = admin.describe_transactions([topic])[topic]
            assert (described.state, described.topic_partitions) == ("Ongoing", {partition})
            listed = [
                each for part in admin.list_transactions(state_filters=["Ongoing"]).values() for each in part
            ]
            assert described.producer_id in [
                each.producer_id for each in listed if each.transactional_id == topic
            ]
            assert not any(admin.list_transactions(duration_filter_ms=3_600_000).values())
            assert topic not in [each["transactional_id"] for each in admin.find_hanging_transactions()]
            (producer,) = admin.describe_producers([partition])[partition].active_producers
            assert (producer.producer_id, producer.current_transaction_start_offset) == (
                described.producer_id,
                0,
            )
            admin.abort_transaction(
                AbortTransactionSpec(partition, producer.producer_id, producer.producer_epoch)
            )
            (producer,) = admin.describe_producers([partition])[partition].active_producers
            assert producer.current_transaction_start_offset == -1
        with pytest.raises(TransactionalIdNotFoundError):
            admin.describe_transactions(["nobody-has-this-id"])

    def test_offsets_are_listed_and_records_deleted(
        self, admin: Any, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        from kafka import IsolationLevel, TopicPartition
        from kafka.admin import OffsetSpec

        topic = make_topic(partitions=1)
        partition = TopicPartition(topic, 0)
        fill(shared_cluster, topic)
        with open_transaction(shared_cluster, topic):

            def ends(level: Any) -> int:
                return int(
                    admin.list_partition_offsets({partition: OffsetSpec.LATEST}, isolation_level=level)[
                        partition
                    ].offset
                )

            assert (ends(IsolationLevel.READ_COMMITTED), ends(IsolationLevel.READ_UNCOMMITTED)) == (10, 11)
        assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
        assert admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset == 4

    def test_replicas_move(self, admin: Any, make_topic: MakeTopic) -> None:
        from kafka import TopicPartition

        topic = make_topic(partitions=1)
        partition = TopicPartition(topic, 0)
        replicas = admin.describe_topics([topic])[0]["partitions"][0]["replica_nodes"]
        wanted = [replicas[2], replicas[0]]
        assert admin.alter_partition_reassignments({partition: wanted}) == {partition: None}

        def moved() -> bool:
            (described,) = admin.describe_topics([topic])[0]["partitions"]
            now, in_sync = described["replica_nodes"], described["isr_nodes"]
            return (
                now == wanted
                and sorted(in_sync) == sorted(wanted)
                and not admin.list_partition_reassignments()
            )

        until("the replicas moved", moved)

    def test_the_cluster_is_described(self, admin: Any, shared_cluster: LocalCluster) -> None:
        described = admin.describe_cluster()
        assert described["cluster_id"] == shared_cluster.cluster_id
        assert len(described["brokers"]) == 3
        features = admin.describe_features()
        assert "transaction.version" in str(features)


class TestConfluentKafka:
    @pytest.fixture
    def admin(self, shared_cluster: LocalCluster) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": shared_cluster.bootstrap})

    def test_groups_are_listed_described_and_deleted(
        self, admin: Any, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        from confluent_kafka import (
            ConsumerGroupState,
            ConsumerGroupTopicPartitions,
            KafkaException,
            TopicPartition,
        )

        topic = make_topic(partitions=2)

        def described() -> Any:
            return admin.describe_consumer_groups([topic])[topic].result(30)

        def offsets() -> dict[int, int]:
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(30)
            return {each.partition: each.offset for each in asked.topic_partitions}

        def listed() -> list[str]:
            return [each.group_id for each in admin.list_consumer_groups().result(30).valid]

        with leaving() as announce:
            client = ConfluentKafka(shared_cluster.bootstrap)
            until_they_share(2, announce(Member(lambda: client.reader(topic, topic))))
            assert described().state == ConsumerGroupState.STABLE
            assert described().partition_assignor == "range"
            assert len(described().members[0].assignment.topic_partitions) == 2
            assert topic in listed()
            with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
                admin.delete_consumer_groups([topic])[topic].result(30)
        until("the group is empty", lambda: described().state == ConsumerGroupState.EMPTY)
        wanted = ConsumerGroupTopicPartitions(
            topic, [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 6)]
        )
        admin.alter_consumer_group_offsets([wanted])[topic].result(30)
        assert offsets() == {0: 5, 1: 6}
        admin.delete_consumer_groups([topic])[topic].result(30)
        assert topic not in listed()

    def test_topics_and_the_cluster_are_described(
        self, admin: Any, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import NewPartitions

        topic = make_topic(partitions=2)
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)

        def partitions() -> list[Any]:
            return list(admin.describe_topics(TopicCollection([topic]))[topic].result(30).partitions)

        until("three partitions, in sync", lambda: [len(each.isr) for each in partitions()] == [3, 3, 3])
        described = admin.describe_cluster().result(30)
        assert described.cluster_id == shared_cluster.cluster_id
        assert sorted(node.id for node in described.nodes) == [1, 2, 3]
        assert described.controller.id in (
            1,
            2,
            3,
        )

    def test_offsets_are_listed_and_records_deleted(
        self, admin: Any, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        topic = make_topic(partitions=1)
        partition = TopicPartition(topic, 0)
        fill(shared_cluster, topic)

        def offset(spec: Any, level: Any = IsolationLevel.READ_UNCOMMITTED) -> int:
            (future,) = admin.list_offsets({partition: spec}, isolation_level=level).values()
            return int(future.result(30).offset)

        with open_transaction(shared_cluster, topic):
            assert offset(OffsetSpec.latest()) == 11
            assert offset(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED) == 10
            assert offset(OffsetSpec.for_timestamp(0)) == 0
        (future,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
        assert future.result(30).low_watermark == 4 == offset(OffsetSpec.earliest())


class TestAiokafka:
    async def test_what_its_admin_client_can_is_answered(
        self, make_topic: MakeTopic, shared_cluster: LocalCluster
    ) -> None:
        import asyncio

        from aiokafka import TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        other = await asyncio.to_thread(make_topic, 1)
        topic = f"{other}-more"
        admin = AIOKafkaAdminClient(bootstrap_servers=shared_cluster.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, 1, 3)])
            await admin.create_partitions({topic: NewPartitions(2)})

            async def has_two() -> bool:
                found = await admin.describe_topics([topic])
                return bool(found) and len(found[0]["partitions"]) == 2

            await eventually(has_two, "the second partition")
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "3600000"})
            await admin.alter_configs([resource])
            asked = ConfigResource(ConfigResourceType.TOPIC, topic)

            async def is_set() -> bool:
                return "3600000" in str(await admin.describe_configs([asked]))

            await eventually(is_set, "the altered setting")
            assert len((await admin.describe_cluster())["brokers"]) == 3
            await asyncio.to_thread(fill, shared_cluster, topic)
            partition = TopicPartition(topic, 0)
            assert await admin.delete_records({partition: RecordsToDelete(before_offset=4)}) == {partition: 4}
            client = Aiokafka(shared_cluster.bootstrap)
            reader = await asyncio.to_thread(client.reader, topic, topic)
            try:
                await asyncio.to_thread(until, "it is a member", lambda: bool(reader.poll()))
                await asyncio.to_thread(reader.commit)
                assert (topic, "consumer") in await admin.list_consumer_groups()
                assert "Stable" in str(await admin.describe_consumer_groups([topic]))
                assert (await admin.list_consumer_group_offsets(topic))[partition].offset == 10
            finally:
                await asyncio.to_thread(reader.close)
                await asyncio.to_thread(client.close)
            await admin.delete_topics([topic])
        finally:
            await admin.close()
