"""Unmodified clients of other makers against three nodes: produce, consume in a group, commit, abort, read
committed."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable

import pytest
from tidegate.processes.local_cluster import LocalCluster
from tidegate.tests.eventually import eventually
from tidegate.tests.machine import Need, lacks

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("shared-cluster"), pytest.mark.timeout(180)]

COMMITTED = [f"committed-{i}".encode() for i in range(20)]
ABORTED = [f"aborted-{i}".encode() for i in range(20)]


class TestConfluentKafka:
    """librdkafka through confluent-kafka."""

    def test_records_come_back_through_a_group(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        topic = make_topic()
        self._produce_plain(shared_cluster.bootstrap, topic, COMMITTED)
        assert sorted(self._consume(shared_cluster.bootstrap, topic, len(COMMITTED))) == sorted(COMMITTED)

    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_every_codec_passes(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str], codec: str
    ) -> None:
        topic = make_topic(partitions=1)
        self._produce_plain(shared_cluster.bootstrap, topic, COMMITTED, **{"compression.type": codec})
        assert self._consume(shared_cluster.bootstrap, topic, len(COMMITTED)) == COMMITTED

    def test_an_aborted_transaction_is_never_read(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        from confluent_kafka import Producer

        topic = make_topic()
        producer = Producer(
            {"bootstrap.servers": shared_cluster.bootstrap, "transactional.id": f"confluent-{topic}"}
        )
        producer.init_transactions(30)
        for values, commit in ((ABORTED, False), (COMMITTED, True)):
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, key=value, value=value)
            producer.flush(30)
            producer.commit_transaction(30) if commit else producer.abort_transaction(30)
        assert sorted(self._consume(shared_cluster.bootstrap, topic, len(COMMITTED))) == sorted(COMMITTED)
        everything = self._consume(
            shared_cluster.bootstrap, topic, 40, **{"isolation.level": "read_uncommitted"}
        )
        assert sorted(everything) == sorted(COMMITTED + ABORTED)

    @staticmethod
    def _produce_plain(bootstrap: str, topic: str, values: list[bytes], **settings: str) -> None:
        from confluent_kafka import Producer

        failures: list[object] = []
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **settings})
        for value in values:
            producer.produce(
                topic,
                value=value,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
        assert producer.flush(30) == 0
        assert not failures

    @staticmethod
    def _consume(bootstrap: str, topic: str, count: int, **settings: str) -> list[bytes]:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"group-{topic}-{settings.get('isolation.level', '')}",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                **settings,
            }
        )
        consumer.subscribe([topic])
        found: list[bytes] = []
        try:
            for _ in range(600):
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    found.append(message.value())  # type: ignore[arg-type]
                if len(found) >= count:
                    break
            extra = consumer.poll(1.0)
            assert extra is None or extra.error() is not None, f"one record too many: {extra.value()!r}"
        finally:
            consumer.close()
        return found


class TestKafkaPython:
    """kafka-python, pure Python."""

    def test_records_come_back_through_a_group(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        from kafka import KafkaProducer

        topic = make_topic()
        producer = KafkaProducer(bootstrap_servers=shared_cluster.bootstrap, acks="all")
        futures = [producer.send(topic, value) for value in COMMITTED]
        producer.flush(30)
        assert all(future.get(10).offset >= 0 for future in futures)
        producer.close(5)
        assert sorted(self._consume(shared_cluster.bootstrap, topic, len(COMMITTED))) == sorted(COMMITTED)

    def test_an_aborted_transaction_is_never_read(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        from kafka import KafkaProducer

        topic = make_topic()
        producer = KafkaProducer(
            bootstrap_servers=shared_cluster.bootstrap, transactional_id=f"kafka-python-{topic}", acks="all"
        )
        producer.init_transactions()
        for values, commit in ((ABORTED, False), (COMMITTED, True)):
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value)
            producer.flush(30)
            producer.commit_transaction() if commit else producer.abort_transaction()
        producer.close(5)
        assert sorted(self._consume(shared_cluster.bootstrap, topic, len(COMMITTED))) == sorted(COMMITTED)

    @staticmethod
    def _consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"group-{topic}",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=3000,
        )
        found: list[bytes] = []
        try:
            for _ in range(10):
                found += [record.value for record in consumer]
                if len(found) >= count:
                    break
        finally:
            consumer.close()
        return found


class TestAiokafka:
    """aiokafka, asyncio."""

    async def test_records_come_back_through_a_group(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        from aiokafka import AIOKafkaProducer

        topic = await asyncio.to_thread(make_topic)
        async with AIOKafkaProducer(bootstrap_servers=shared_cluster.bootstrap, acks="all") as producer:
            for value in COMMITTED:
                await producer.send_and_wait(topic, value)
        assert sorted(await self._consume(shared_cluster.bootstrap, topic, len(COMMITTED))) == sorted(
            COMMITTED
        )

    async def test_an_aborted_transaction_is_never_read(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        from aiokafka import AIOKafkaProducer

        topic = await asyncio.to_thread(make_topic)
        async with AIOKafkaProducer(
            bootstrap_servers=shared_cluster.bootstrap, transactional_id=f"aiokafka-{topic}"
        ) as producer:
            for values, commit in ((ABORTED, False), (COMMITTED, True)):
                await producer.begin_transaction()
                for value in values:
                    await producer.send_and_wait(topic, value)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        assert sorted(await self._consume(shared_cluster.bootstrap, topic, len(COMMITTED))) == sorted(
            COMMITTED
        )

    async def test_consume_transform_produce_moves_its_offsets_with_its_output(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        source, target = await asyncio.to_thread(make_topic, 1), await asyncio.to_thread(make_topic, 1)
        async with AIOKafkaProducer(bootstrap_servers=shared_cluster.bootstrap) as producer:
            for value in COMMITTED:
                await producer.send_and_wait(source, value)
        group, partition = f"group-{source}", TopicPartition(source, 0)
        async with (
            AIOKafkaConsumer(
                source,
                bootstrap_servers=shared_cluster.bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
            AIOKafkaProducer(
                bootstrap_servers=shared_cluster.bootstrap, transactional_id=f"ctp-{source}"
            ) as producer,
        ):
            done = 0
            while done < len(COMMITTED):
                batch = (await consumer.getmany(partition, timeout_ms=1000)).get(partition, [])
                async with producer.transaction():
                    for record in batch:
                        await producer.send(target, record.value.upper())
                    await producer.send_offsets_to_transaction({partition: done + len(batch)}, group)
                done += len(batch)

            # A commit is acknowledged before its markers are written (docs/semantics.md T11), and this client
            # does not ask for stable offsets: the old offset may be seen for a moment, a wrong one never.
            async def is_committed() -> bool:
                return await consumer.committed(partition) is not None

            await eventually(is_committed, "a committed offset")
            assert await consumer.committed(partition) == len(COMMITTED)
        found = await self._consume(shared_cluster.bootstrap, target, len(COMMITTED))
        assert found == [value.upper() for value in COMMITTED]

    @staticmethod
    async def _consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
        from aiokafka import AIOKafkaConsumer

        found: list[bytes] = []
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"group-{topic}",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            for _ in range(60):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [record.value for record in records]
                if len(found) >= count:
                    break
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [record.value for record in records]
        return found


class TestKcat:
    """kcat, the command line of librdkafka (Debian package)."""

    @pytest.fixture(autouse=True)
    def _needs_kcat(self) -> None:
        if shutil.which("kcat") is None:
            lacks(Need.KCAT, "kcat is not installed")

    def test_lists_produces_and_consumes(
        self, shared_cluster: LocalCluster, make_topic: Callable[..., str]
    ) -> None:
        topic = make_topic(partitions=1)
        broker = ["kcat", "-b", shared_cluster.bootstrap]
        listing = subprocess.run(
            [*broker, "-L"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        assert f'topic "{topic}" with 1 partitions' in listing
        assert "3 brokers" in listing
        text = "\n".join(value.decode() for value in COMMITTED) + "\n"
        subprocess.run([*broker, "-P", "-t", topic], input=text, text=True, timeout=30, check=True)
        read = subprocess.run(
            [*broker, "-C", "-t", topic, "-e", "-q"], capture_output=True, text=True, timeout=30, check=True
        )
        assert read.stdout == text
