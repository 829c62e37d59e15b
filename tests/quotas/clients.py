"""Producers and readers whose rates and latencies are measured, and the quotas that hold them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidegate.runtime.network import ask_frame
from tidegate.security.quotas import QuotaKind
from tidegate.wire import codec
from tidegate.wire.api import ApiKey

RECORD_BYTES = 10_000
BATCH_BYTES = 100_000
VERSION = 1


def ask(bootstrap: str, key: ApiKey, version: int, fields: dict[str, Any], client_id: str = "admin") -> Any:
    """The answer of a node to one request of a connection of its own."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    frame = codec.encode_request_frame(1, key, version, codec.request(key, version, fields), client_id)
    return codec.decode_response(key, version, ask_frame(host, int(port), frame, 30.0))[1]


def set_quota(bootstrap: str, kind: QuotaKind, limit: float | None, **parts: str | None) -> None:
    """Of an entity such as `client_id="app"`; None removes it."""
    entity = [{"entity_type": name.replace("_", "-"), "entity_name": value} for name, value in parts.items()]
    operation = {"key": kind.value, "value": limit or 0.0, "remove": limit is None}
    fields = {"entries": [{"entity": entity, "ops": [operation]}], "validate_only": False}
    answer = ask(bootstrap, ApiKey.ALTER_CLIENT_QUOTAS, VERSION, fields)
    assert [entry.error_code for entry in answer.entries] == [0], answer


def quotas(bootstrap: str) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    """All that the cluster has."""
    answer = ask(bootstrap, ApiKey.DESCRIBE_CLIENT_QUOTAS, VERSION, {"components": [], "strict": False})
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def make_topic(bootstrap: str, name: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, replicas)])[name].result(20)


@dataclass
class Measured:
    """What a client did in a time."""

    seconds: float = 0.0
    records: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def bytes_per_s(self) -> float:
        return self.records * RECORD_BYTES / self.seconds

    def latency_s(self, share: float) -> float:
        return sorted(self.latencies_s)[int(share * (len(self.latencies_s) - 1))]


def produce_for(bootstrap: str, topic: str, client_id: str, seconds: float) -> Measured:
    """As fast as the node lets it."""
    measured = Measured()
    settings = {
        "bootstrap.servers": bootstrap, "client.id": client_id, "batch.size": BATCH_BYTES, "linger.ms": 5,
        "queue.buffering.max.messages": 40, "message.timeout.ms": 120_000,
    }  # fmt: skip
    producer = Producer(settings)
    began_s = time.monotonic()

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if time.monotonic() - began_s <= seconds:
            assert error is None, error
            measured.records += 1

    record = bytes(RECORD_BYTES)
    while time.monotonic() - began_s < seconds:
        try:
            producer.produce(topic, record, on_delivery=delivered)
        except BufferError:
            producer.poll(0.05)
    measured.seconds = time.monotonic() - began_s
    producer.purge()
    producer.poll(0)
    return measured


def read_for(bootstrap: str, topic: str, client_id: str, seconds: float) -> Measured:
    """From the beginning, as fast as the node lets it; the topic must have enough."""
    measured = Measured()
    settings = {"bootstrap.servers": bootstrap, "client.id": client_id, "group.id": client_id}
    consumer = Consumer({**settings, "queued.max.messages.kbytes": 1000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        for message in consumer.consume(50, 0.05):
            assert message.error() is None, message.error()
            measured.records += 1
    measured.seconds = time.monotonic() - began_s
    consumer.close()
    return measured


def fill(bootstrap: str, topic: str, records: int) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "batch.size": BATCH_BYTES,
        "queue.buffering.max.kbytes": 1 << 20,
    }
    producer = Producer(settings)
    for _ in range(records):
        producer.produce(topic, bytes(RECORD_BYTES))
    assert producer.flush(60) == 0


def latencies_of(bootstrap: str, topic: str, client_id: str, is_over: Callable[[], bool]) -> Measured:
    """One record after another, each acknowledged before the next."""
    measured = Measured()
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 0})
    began_s = time.monotonic()
    while not is_over():
        sent_s = time.monotonic()
        producer.produce(topic, bytes(100))
        assert producer.flush(30) == 0
        measured.latencies_s.append(time.monotonic() - sent_s)
        measured.records += 1
        time.sleep(0.01)
    measured.seconds = time.monotonic() - began_s
    return measured


async def beside(
    bootstrap: str, topic: str, client_id: str, work: Callable[[], Measured]
) -> tuple[Measured, Measured]:
    """What `work` measured, and the latencies of another client meanwhile."""
    task = asyncio.create_task(asyncio.to_thread(work))
    other = await asyncio.to_thread(latencies_of, bootstrap, topic, client_id, task.done)
    return await task, other
