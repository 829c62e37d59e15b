"""Listeners with TLS and SASL: librdkafka's clients are served, and strangers are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic as OwnTopic
from tidegate.client.connecting.errors import FatalError
from tidegate.client.consuming.consumer import Consumer as OwnConsumer
from tidegate.client.producing.producer import Producer as OwnProducer
from tidegate.processes.local_cluster import LocalCluster
from tidegate.runtime.connections.tls import TlsFiles
from tidegate.security.client_security import ClientSecurity
from tidegate.tests.base_ports import free_base_port
from tidegate.tests.certificates import Authority

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

STEP = 100
USES = ("PLAINTEXT", "GRPC", "CONTROLLER", "METRICS", "SSL", "SASL_SSL", "SASL_PLAINTEXT")
USERS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonder land" user_bob=b;'
)


@dataclass(frozen=True)
class Secured:
    """A node, and what its clients need."""

    base: int
    authority: Authority

    def client(self, use: str, **more: Any) -> dict[str, Any]:
        settings = {
            "bootstrap.servers": f"localhost:{self.base + STEP * USES.index(use)}",
            "security.protocol": use.lower(),
            "ssl.ca.location": str(self.authority.path),
            "log_level": 0,
        }
        return {**settings, **{key.replace("_", "."): value for key, value in more.items()}}

    def certificate(self, name: str) -> dict[str, str]:
        files = self.authority.issue(name)
        return {"ssl_certificate_location": str(files.certificate), "ssl_key_location": str(files.key)}

    def plain(self, use: str, user: str = "alice", password: str = "wonder land") -> dict[str, Any]:
        return self.client(use, sasl_mechanisms="PLAIN", sasl_username=user, sasl_password=password)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "tls")
    own: TlsFiles = authority.issue("localhost")
    base = free_base_port(len(USES))
    listeners = [f"{use}://127.0.0.1:{base + STEP * number}" for number, use in enumerate(USES)]
    settings = {
        "listeners": listeners,
        "advertised.listeners": [
            each.replace("127.0.0.1", "localhost") for each in listeners if "CONTR" not in each
        ],
        "listener.security.protocol.map": [
            f"{use}:{use if use.startswith('S') else 'PLAINTEXT'}" for use in USES
        ],
        "ssl.keystore.location": str(own.certificate),
        "ssl.key.location": str(own.key),
        "ssl.truststore.location": str(authority.path),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ["PLAIN"],
        "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    }
    cluster = LocalCluster(tmp_path / "cluster", 1, settings, base_port=base)
    await cluster.up()
    yield Secured(base, authority)
    await cluster.down()


def _round_trip(settings: dict[str, Any], topic: str) -> list[bytes]:
    """What a consumer reads of what a producer wrote, with a topic of their own."""
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    producer = Producer(settings)
    for number in range(100):
        producer.produce(topic, str(number))
    assert producer.flush(20) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < 100:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        value = message.value()
        assert isinstance(value, bytes)
        values.append(value)
    consumer.close()
    return values


async def test_clients_are_served_on_every_secured_listener(secured: Secured) -> None:
    clients = {
        "ssl": secured.client("SSL", **secured.certificate("alice")),
        "sasl-ssl": secured.plain("SASL_SSL"),
        "sasl-plaintext": secured.plain("SASL_PLAINTEXT"),
    }
    for topic, settings in clients.items():
        values = await asyncio.to_thread(_round_trip, settings, topic)
        assert values == [str(number).encode() for number in range(100)]


async def test_our_own_client_is_served(secured: Secured) -> None:
    own = secured.authority.issue("carol")
    authorities = str(secured.authority.path)
    plain = partial(ClientSecurity, mechanism="PLAIN", username="alice", password="wonder land")
    securities = {
        "SSL": ClientSecurity(
            "SSL", authorities=authorities, certificate=str(own.certificate), key=str(own.key)
        ),
        "SASL_SSL": plain("SASL_SSL", authorities=authorities),
        "SASL_PLAINTEXT": plain("SASL_PLAINTEXT"),
    }
    for use, security in securities.items():
        bootstrap = secured.client(use)["bootstrap.servers"]
        async with Admin(bootstrap, security=security) as admin:
            await admin.create_topics([OwnTopic(use, 1, 1)])
        async with OwnProducer(bootstrap, security=security) as producer:
            await (await producer.send(use, b"record", partition=0))
        async with OwnConsumer(bootstrap, security=security, auto_offset_reset="earliest") as consumer:
            consumer.assign([(use, 0)])
            assert [record.value for record in await consumer.poll(timeout_s=20)] == [b"record"]
    with pytest.raises(FatalError, match="Invalid username or password"):
        await OwnProducer(bootstrap, security=plain("SASL_PLAINTEXT", password="wrong")).start()
    scram = ClientSecurity("SASL_PLAINTEXT", username="alice", password="x")
    with pytest.raises(FatalError, match="SCRAM-SHA-512 is not enabled there, but PLAIN"):
        await Admin(bootstrap, security=scram).start()


async def test_strangers_are_not_served(secured: Secured) -> None:
    stranger = Authority(secured.authority.folder / "other", "other")
    files = stranger.issue("mallory")
    foreign = {"ssl_certificate_location": str(files.certificate), "ssl_key_location": str(files.key)}
    strangers = [
        secured.client("SSL"),
        secured.client("SSL", **foreign),
        secured.client("SASL_SSL", sasl_mechanisms="SCRAM-SHA-256", sasl_username="alice", sasl_password="x"),
        secured.plain("SASL_SSL", password="wonder"),
        secured.plain("SASL_PLAINTEXT", user="carol"),
        {**secured.plain("SASL_SSL"), "security.protocol": "plaintext"},
    ]
    for settings in strangers:
        with pytest.raises(KafkaException):
            await asyncio.to_thread(AdminClient(settings).list_topics, timeout=3)
